"""Git objects, read in isolation and held back until they are published.

The handle has no repository behind it: no configuration, no attributes, no working tree and no references, so
that composing is a function of objects alone.  It reads the object folders that it is lent and keeps what is
written in memory, a quarantine that a crash empties.  `pack` hands the new objects out as one pack.

Trees are changed by splicing their bytes: three times as fast as libgit2's tree builder, which looks for each tree
on disk before it writes it, and unable to touch an entry that was not named.
"""

import contextlib
import functools
import hashlib
import re
import struct
import threading
import zlib
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import pygit2

from spt.errors import Missing, Unsupported, Usage
from spt.git.merge import Hunk

__all__ = [
    "EMPTY_TREE",
    "EXECUTABLE",
    "FILE",
    "GITLINK",
    "LINK",
    "MAX_BLOB_BYTES",
    "TREE",
    "Commit",
    "Listing",
    "Objects",
    "Oid",
    "Person",
    "State",
    "user_configuration",
]

Oid: TypeAlias = str
EMPTY_TREE: Oid = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
FILE, EXECUTABLE, LINK, TREE, GITLINK = 0o100644, 0o100755, 0o120000, 0o040000, 0o160000
MAX_BLOB_BYTES = 16 * 2**20
_SMALL_BYTES, _LARGE_BYTES = 4096, 65536
_MOST_LISTINGS = 4096

_KINDS = {1: "commit", 2: "tree", 3: "blob", 4: "tag"}
_NUMBERS = {kind: number for number, kind in _KINDS.items()}
_TREE_ENTRY = re.compile(rb"([0-7]{5,6}) ([^\0]+)\0(.{20})", re.DOTALL)
_WHOLE_TYPES = pygit2.enums.DiffOption.INCLUDE_TYPECHANGE  # a file that becomes a link is one change, not two
_LIBGIT2_FLOOR = (1, 9, 7)  # closes CVE-2026-53583 to 53587 and CVE-2026-5917


# libgit2 would read the user's configuration even for a handle without a repository; nothing here may depend on it.
_USERS = {
    level: pygit2.settings.search_path[level]
    for level in (pygit2.enums.ConfigLevel.SYSTEM, pygit2.enums.ConfigLevel.XDG, pygit2.enums.ConfigLevel.GLOBAL)
}


def _read_configuration(folders: Mapping[Any, str]) -> None:
    for level, folder in folders.items():
        pygit2.settings.search_path[level] = folder


_read_configuration(dict.fromkeys(_USERS, ""))
_READING = threading.RLock()


@contextlib.contextmanager
def user_configuration() -> Iterator[None]:
    """Lets libgit2 read the user's configuration for a moment, one thread at a time: it is one setting for all."""
    with _READING:
        _read_configuration(_USERS)
        try:
            yield
        finally:
            _read_configuration(dict.fromkeys(_USERS, ""))


class State(NamedTuple):
    """What a path holds: git's mode and the id of a blob, tree or (gitlink) commit."""

    mode: int
    oid: Oid


class Person(NamedTuple):
    """Author or committer: `time_s` since 1970, zone in minutes east of UTC."""

    name: str
    email: str
    time_s: int
    zone_min: int


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit as stored; the message is decoded as UTF-8 with replacement."""

    oid: Oid
    tree: Oid
    parents: tuple[Oid, ...]
    author: Person
    message: str


class _Memory(pygit2.OdbBackend):  # type: ignore[misc]
    """Lets libgit2 read objects by raw id from a dictionary."""

    def __init__(self, held: dict[bytes, tuple[int, bytes]]) -> None:
        super().__init__()
        self.held = held

    def read_cb(self, oid: Any) -> tuple[int, bytes]:
        return self.held[oid.raw]

    def read_prefix_cb(self, oid: Any) -> tuple[int, bytes, Any]:
        kind, data = self.held[bytes.fromhex(str(oid))]
        return kind, data, oid

    def read_header_cb(self, oid: Any) -> tuple[int, int]:
        kind, data = self.held[oid.raw]
        return kind, len(data)

    def exists_cb(self, oid: Any) -> bool:
        return oid.raw in self.held

    def exists_prefix_cb(self, oid: Any) -> Any:
        raise KeyError(str(oid))

    def refresh_cb(self) -> None:
        """Nothing outside this process can add objects here."""


@dataclass(frozen=True, slots=True)
class Listing:
    """A tree as git orders it: `keys` are names, with a slash at a folder's end; `records` are its bytes, in pieces."""

    keys: list[bytes]
    records: list[bytes]

    def get(self, name: str) -> State | None:
        """What a name holds."""
        for key in (raw := name.encode(errors="surrogateescape"), raw + b"/"):
            at = bisect_left(self.keys, key)
            if at < len(self.keys) and self.keys[at] == key:
                record = self.records[at]
                return State(int(record[: record.index(b" ")], 8), record[-20:].hex())
        return None

    def names(self) -> list[str]:
        """The names, without slashes, in git's order."""
        return [key.removesuffix(b"/").decode(errors="surrogateescape") for key in self.keys]

    def plain_ascii(self) -> bytes | None:
        """All names in lower case, each between NUL bytes; None where one has other letters than ASCII's."""
        whole = b"\0".join([b"", *self.keys, b""])
        return whole.replace(b"/\0", b"\0").lower() if whole.isascii() else None

    def changed(self, changes: Mapping[str, State | None]) -> "Listing":
        """The listing with some names set or (None) removed; all other records keep their bytes."""
        keys, records = self.keys.copy(), self.records.copy()
        for name, state in changes.items():
            raw = name.encode(errors="surrogateescape")
            for key in (raw, raw + b"/"):
                at = bisect_left(keys, key)
                if at < len(keys) and keys[at] == key:
                    del keys[at], records[at]
            if state is not None:
                key = raw + b"/" if state.mode == TREE else raw
                at = bisect_left(keys, key)
                keys.insert(at, key)
                records.insert(at, b"%o %s\0%s" % (state.mode, raw, bytes.fromhex(state.oid)))
        return Listing(keys, records)


_NOTHING = Listing([], [])
_FORBIDDEN = ("", ".", "..")


class Objects:
    """An object store: what the lent folders hold, and what is written meanwhile."""

    def __init__(self, *folders: Path) -> None:
        found = tuple(int(part) for part in pygit2.LIBGIT2_VERSION.split("."))
        if found < _LIBGIT2_FLOOR:
            raise Unsupported(f"libgit2 {pygit2.LIBGIT2_VERSION} is too old", "install pygit2 1.20.1 or newer")
        self._held: dict[bytes, tuple[int, bytes]] = {}
        self._odb = pygit2.Odb()
        self._odb.add_backend(_Memory(self._held), 10)
        self._repository = pygit2.Repository()
        self._repository.set_odb(self._odb)
        self._lent: list[Any] = []
        for folder in folders:
            self.lend(folder)
        self.hunks: dict[tuple[Oid, Oid], tuple[Hunk, ...]] = {}  # of pairs of blobs that were compared
        self.blob = functools.lru_cache(maxsize=64)(self._blob)
        self._tree_data = functools.lru_cache(maxsize=256)(lambda tree: self.read(tree, "tree"))
        self.commit = functools.lru_cache(maxsize=4096)(self._commit)
        self._listings: dict[Oid, Listing] = {}

    def lend(self, folder: Path) -> None:
        """Reads also from this object folder (of a repository or a scratch one) from now on."""
        self._odb.add_disk_alternate(str(folder))
        self._lent.append(pygit2.Odb(str(folder)))

    def __contains__(self, oid: Oid) -> bool:
        return bool(self._odb.exists(oid))

    def size(self, oid: Oid) -> int:
        """Bytes of an object, from its header alone: a huge blob is never inflated to be measured."""
        try:
            return int(self._odb.read_header(oid)[1])
        except KeyError as error:
            raise _missing(oid) from error

    def read(self, oid: Oid, kind: str) -> bytes:
        """The content of an object that must be of this kind; Missing where it is not there."""
        try:
            number, data = self._held.get(bytes.fromhex(oid)) or self._odb.read(oid)
        except KeyError as error:
            raise _missing(oid) from error
        if _KINDS.get(int(number)) != kind:
            raise Usage(f"'{oid[:12]}' is a {_KINDS.get(int(number), 'thing')}, not a {kind}")
        return data

    def _blob(self, oid: Oid) -> bytes:
        """A blob's bytes; one above MAX_BLOB_BYTES is refused before it is read."""
        if self.size(oid) > MAX_BLOB_BYTES:
            raise Usage(f"blob '{oid[:12]}' has {self.size(oid)} bytes, more than the {MAX_BLOB_BYTES} allowed")
        return self.read(oid, "blob")

    def add_blob(self, data: bytes) -> Oid:
        return self._add("blob", data)

    def _add(self, kind: str, data: bytes) -> Oid:
        digest = hashlib.sha1(b"%s %d\0" % (kind.encode(), len(data)))
        digest.update(data)
        self._held.setdefault(digest.digest(), (_NUMBERS[kind], data))
        return digest.hexdigest()

    def listing(self, tree: Oid) -> Listing:
        """A tree's own entries.  Unsupported for one that git would have to mend, such as a tree with a name twice."""
        if tree not in self._listings:
            self._remember(tree, self._parsed(tree))
        return self._listings[tree]

    def _remember(self, tree: Oid, listing: Listing) -> None:
        while len(self._listings) >= _MOST_LISTINGS:
            del self._listings[next(iter(self._listings))]
        self._listings[tree] = listing

    def _parsed(self, tree: Oid) -> Listing:
        data = self._tree_data(tree)
        found = _TREE_ENTRY.findall(data)
        records = [b"%s %s\0%s" % entry for entry in found]
        keys = [name + b"/" if mode == b"40000" else name for mode, name, _ in found]
        names = {name for _, name, _ in found}
        in_order = keys == sorted(keys) and len(names) == len(keys)
        if not in_order or b"".join(records) != data or b"/" in b"".join(names):
            raise Unsupported(f"tree '{tree[:12]}' is malformed", "run `git fsck --strict` in the repository")
        return Listing(keys, records)

    def entries(self, tree: Oid) -> dict[str, State]:
        """What a tree's own names hold, in git's order."""
        listing = self.listing(tree)
        states = (State(int(record[: record.index(b" ")], 8), record[-20:].hex()) for record in listing.records)
        return dict(zip(listing.names(), states, strict=True))

    def code_of(self, tree: Oid) -> bytes:
        """What a tree holds beside its own `.spt`, as bytes that are equal exactly where that is equal."""
        data, start = self._tree_data(tree), 0
        while match := _TREE_ENTRY.match(data, start):
            if match[2] == b".spt":
                return data[:start] + data[match.end() :]
            if match[2] > b".spt0":  # entries are sorted, folders as if a slash stood at their end
                break
            start = match.end()
        return data

    def lookup(self, tree: Oid, path: str) -> State | None:
        """What a path holds in a tree (a folder too), or None."""
        whole = self._tree(tree)
        try:
            found = whole[path]
        except KeyError:
            return None
        return State(int(found.filemode), str(found.id))

    def _tree(self, tree: Oid) -> Any:
        try:
            return self._repository[tree]
        except KeyError as error:
            raise _missing(tree) from error

    def differences(self, old: Oid | None, new: Oid | None) -> Iterator[tuple[str, State | None, State | None]]:
        """(path, state before, state after) of every path where two trees (None: the empty one) differ."""
        before, after = (self._tree(tree or self.build(None, {})) for tree in (old, new))
        for delta in before.diff_to_tree(after, _WHOLE_TYPES, 0, 0).deltas:
            sides = (
                None if side.mode == 0 else State(int(side.mode), str(side.id))
                for side in (delta.old_file, delta.new_file)
            )
            file = delta.new_file if delta.new_file.mode else delta.old_file
            yield file.raw_path.decode(errors="surrogateescape"), *sides

    def build(self, tree: Oid | None, changes: Mapping[str, State | None]) -> Oid:
        """The tree (None: an empty one) with some of its own names set or (None) removed, all else byte for byte."""
        for name in changes:
            if name in _FORBIDDEN or "/" in name or "\0" in name or name.lower() == ".git":
                raise Usage(f"'{_printable(name)}' cannot be a name in a tree")
        listing = (_NOTHING if tree is None else self.listing(tree)).changed(changes)
        made = self._add("tree", b"".join(listing.records))
        self._remember(made, listing)
        return made

    def add_commit(self, tree: Oid, parents: Iterable[Oid], author: Person, message: str) -> Oid:
        """A commit whose committer is its author; never signed, never re-encoded, its id a function of these alone."""
        sign, zone_min = "-" if author.zone_min < 0 else "+", abs(author.zone_min)
        person = f"{author.name} <{author.email}> {author.time_s} {sign}{zone_min // 60:02d}{zone_min % 60:02d}"
        lines = [f"tree {tree}", *(f"parent {parent}" for parent in parents), f"author {person}", f"committer {person}"]
        return self._add("commit", "\n".join([*lines, "", message]).encode())

    def reparented(self, oid: Oid, parent: Oid) -> Oid:
        """The commit on another parent, all else kept but a signature, which would no longer be true.

        A commit that has this one parent and no signature already is the very same.
        """
        header, _, message = self.read(oid, "commit").partition(b"\n\n")
        fields: list[bytes] = []
        for line in header.split(b"\n"):
            if line.startswith(b" "):
                fields[-1] += b"\n" + line
            else:
                fields.append(line)
        dropped = (b"parent ", b"gpgsig", b"mergetag ")
        kept = [field for field in fields if not field.startswith(dropped)]
        data = b"\n".join([kept[0], b"parent " + parent.encode(), *kept[1:]]) + b"\n\n" + message
        return self._add("commit", data)

    def _commit(self, oid: Oid) -> Commit:
        """A commit, or the one that an annotated tag leads to."""
        try:
            commit = self._repository[oid].peel(pygit2.Commit)
        except KeyError as error:
            raise _missing(oid) from error
        except pygit2.GitError as error:
            raise Usage(f"'{oid[:12]}' is not a commit") from error
        author = commit.author
        person = Person(author.raw_name.decode(errors="replace"), author.email, author.time, author.offset)
        message = commit.raw_message.decode(errors="replace")
        return Commit(str(commit.id), str(commit.tree_id), tuple(map(str, commit.parent_ids)), person, message)

    def copy(self, source: "Objects", roots: Iterable[Oid]) -> None:
        """Writes here all that the roots need of another store, each object under the id of its own bytes."""
        waiting = list(roots)
        while waiting:
            oid = waiting.pop()
            if oid in self:
                continue
            kind, data = source.read_any(oid)
            if self._add(kind, data) != oid:
                raise Usage(f"object '{oid[:12]}' is damaged")
            waiting.extend(raw.hex() for raw in _named_by(kind, data))

    def read_any(self, oid: Oid) -> tuple[str, bytes]:
        """(kind, content) of an object; a blob above MAX_BLOB_BYTES is refused before it is read."""
        if self.size(oid) > MAX_BLOB_BYTES:
            raise Usage(f"object '{oid[:12]}' has {self.size(oid)} bytes, more than the {MAX_BLOB_BYTES} allowed")
        number, data = self._odb.read(oid)
        return _KINDS[int(number)], data

    def unpublished(self, roots: Iterable[Oid]) -> Iterator[tuple[str, bytes]]:
        """(kind, content) of every object in memory that the roots need, each once.

        Roots and large blobs are looked for on disk first; a second copy of a small object does no harm.
        """
        waiting = [raw for raw in map(bytes.fromhex, roots) if not self._on_disk(raw)]
        seen: set[bytes] = set()
        while waiting:
            raw = waiting.pop()
            if raw in seen or raw not in self._held:
                continue
            seen.add(raw)
            number, data = self._held[raw]
            kind = _KINDS[number]
            if len(data) < _LARGE_BYTES or kind != "blob" or not self._on_disk(raw):
                waiting.extend(_named_by(kind, data))
                yield kind, data

    def _on_disk(self, raw: bytes) -> bool:
        return any(odb.exists(pygit2.Oid(raw=raw)) for odb in self._lent)

    def pack(self, roots: Iterable[Oid]) -> bytes | None:
        """One pack with every unpublished object that the roots need; None where there is none."""
        objects = list(self.unpublished(roots))
        if not objects:
            return None
        parts = [struct.pack(">4sII", b"PACK", 2, len(objects))]
        for kind, data in objects:
            # Most objects are small, and setting up a large window for them would cost more than all the rest.
            small = len(data) < _SMALL_BYTES
            deflate = zlib.compressobj(1, zlib.DEFLATED, 12 if small else 15, 5 if small else 8)
            parts += [_pack_header(kind, len(data)), deflate.compress(data), deflate.flush()]
        body = b"".join(parts)
        return body + hashlib.sha1(body).digest()


def _named_by(kind: str, data: bytes) -> Iterator[bytes]:
    """Raw ids of the objects that a tree or commit needs; a gitlink's commit is another repository's."""
    if kind == "tree":
        yield from (raw for mode, _, raw in _TREE_ENTRY.findall(data) if mode != b"160000")
    elif kind == "commit":
        for line in data.partition(b"\n\n")[0].splitlines():
            key, _, value = line.partition(b" ")
            if key in (b"tree", b"parent"):
                yield bytes.fromhex(value.decode())


def _pack_header(kind: str, size: int) -> bytes:
    """Type and length as a pack writes them: 3 bits and 4 bits, then 7 bits a byte, low ones first."""
    byte, size = _NUMBERS[kind] << 4 | size & 0xF, size >> 4
    header = bytearray()
    while size:
        header.append(byte | 0x80)
        byte, size = size & 0x7F, size >> 7
    header.append(byte)
    return bytes(header)


def _missing(oid: Oid) -> Missing:
    return Missing(
        f"object '{oid[:12]}' is not in this repository",
        "a shallow or partial clone lacks objects: fetch it whole (`git fetch --unshallow`, or `git fetch --refetch`)",
    )


def _printable(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()

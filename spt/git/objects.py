"""Git objects, read in isolation and held back until they are published.

The handle has no repository behind it: no configuration, no attributes, no working tree and no references, so
that composing is a function of objects alone.  It reads the object folders that it is lent and keeps what is
written in memory, a quarantine that a crash empties.  `pack` hands the new objects out as one pack.
"""

import functools
import hashlib
import re
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import pygit2

from spt.errors import Missing, Unsupported, Usage

__all__ = ["EMPTY_TREE", "FILE", "LINK", "MAX_BLOB_BYTES", "TREE", "Commit", "Objects", "Oid", "Person", "State"]

Oid: TypeAlias = str
EMPTY_TREE: Oid = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
FILE, EXECUTABLE, LINK, TREE, GITLINK = 0o100644, 0o100755, 0o120000, 0o040000, 0o160000
MAX_BLOB_BYTES = 16 * 2**20

_KINDS = {1: "commit", 2: "tree", 3: "blob", 4: "tag"}
_NUMBERS = {kind: number for number, kind in _KINDS.items()}
_TREE_ENTRY = re.compile(rb"([0-7]{5,6}) ([^\0]+)\0(.{20})", re.DOTALL)
_LIBGIT2_FLOOR = (1, 9, 7)  # closes CVE-2026-53583 to 53587 and CVE-2026-5917


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
    """Objects by raw id.  libgit2 asks here first and, as the only backend that is no alternate, writes here."""

    def __init__(self) -> None:
        super().__init__()
        self.held: dict[bytes, tuple[int, bytes]] = {}

    def read_cb(self, oid: Any) -> tuple[int, bytes]:
        return self.held[oid.raw]

    def read_prefix_cb(self, oid: Any) -> tuple[int, bytes, Any]:
        kind, data = self.held[bytes.fromhex(str(oid))]
        return kind, data, oid

    def read_header_cb(self, oid: Any) -> tuple[int, int]:
        kind, data = self.held[oid.raw]
        return kind, len(data)

    def write_cb(self, oid: Any, data: bytes, kind: int) -> None:
        self.held[oid.raw] = (int(kind), data)

    def exists_cb(self, oid: Any) -> bool:
        return oid.raw in self.held

    def exists_prefix_cb(self, oid: Any) -> Any:
        raise KeyError(str(oid))

    def refresh_cb(self) -> None:
        """Nothing outside this process can add objects here."""


class Objects:
    """An object store: what the lent folders hold, and what is written meanwhile."""

    def __init__(self, *folders: Path) -> None:
        found = tuple(int(part) for part in pygit2.LIBGIT2_VERSION.split("."))
        if found < _LIBGIT2_FLOOR:
            raise Unsupported(f"libgit2 {pygit2.LIBGIT2_VERSION} is too old", "install pygit2 1.20.1 or newer")
        self._memory = _Memory()
        self._odb = pygit2.Odb()
        self._odb.add_backend(self._memory, 10)
        self._repository = pygit2.Repository()
        self._repository.set_odb(self._odb)
        for folder in folders:
            self.lend(folder)
        self._sound: set[Oid] = set()
        self.entries = functools.lru_cache(maxsize=4096)(self._entries)

    def lend(self, folder: Path) -> None:
        """Reads also from this object folder (of a repository or a scratch one) from now on."""
        self._odb.add_disk_alternate(str(folder))

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
            number, data = self._memory.held.get(bytes.fromhex(oid)) or self._odb.read(oid)
        except KeyError as error:
            raise _missing(oid) from error
        if _KINDS.get(int(number)) != kind:
            raise Usage(f"'{oid[:12]}' is a {_KINDS.get(int(number), 'thing')}, not a {kind}")
        return data

    def blob(self, oid: Oid) -> bytes:
        """A blob's bytes; one above MAX_BLOB_BYTES is refused before it is read."""
        if self.size(oid) > MAX_BLOB_BYTES:
            raise Usage(f"blob '{oid[:12]}' has {self.size(oid)} bytes, more than the {MAX_BLOB_BYTES} allowed")
        return self.read(oid, "blob")

    def add_blob(self, data: bytes) -> Oid:
        return str(self._repository.create_blob(data))

    def _entries(self, tree: Oid) -> Mapping[str, State]:
        data = self.read(tree, "tree")
        found = _TREE_ENTRY.findall(data)
        entries = {name.decode(errors="surrogateescape"): State(int(mode, 8), raw.hex()) for mode, name, raw in found}
        parsed = sum(len(mode) + len(name) + 22 for mode, name, _ in found)
        if parsed != len(data) or len(entries) != len(found) or any("/" in name for name in entries):
            raise Unsupported(f"tree '{tree[:12]}' is malformed", "run `git fsck --strict` in the repository")
        return entries

    def build(self, tree: Oid | None, changes: Mapping[str, State | None]) -> Oid:
        """The tree with some of its own names set or (None) removed; other entries keep their bytes."""
        builder = self._repository.TreeBuilder() if tree is None else self._builder(tree)
        for name, state in changes.items():
            try:
                if state is not None:
                    builder.insert(name, state.oid, state.mode)
                elif builder.get(name) is not None:
                    builder.remove(name)
            except (pygit2.GitError, UnicodeEncodeError) as error:
                raise Usage(f"'{_printable(name)}' cannot be put into a tree: {_first_line(error)}") from error
        return str(builder.write())

    def _builder(self, tree: Oid) -> Any:
        builder = self._repository.TreeBuilder(self._repository[tree])
        if tree not in self._sound:
            # Rewriting a tree with, say, zero-padded modes would change parts that nobody touched.
            if str(builder.write()) != tree:
                raise Unsupported(f"tree '{tree[:12]}' is malformed", "run `git fsck --strict` in the repository")
            self._sound.add(tree)
        return builder

    def add_commit(self, tree: Oid, parents: Iterable[Oid], author: Person, message: str) -> Oid:
        """A commit whose committer is its author; never signed, never re-encoded."""
        signature = pygit2.Signature(author.name, author.email, author.time_s, author.zone_min, "utf-8")
        made = self._repository.create_commit(None, signature, signature, message, tree, list(parents))
        return str(made)

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
        return str(self._odb.write(_NUMBERS["commit"], data))

    def commit(self, oid: Oid) -> Commit:
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
            if str(self._odb.write(_NUMBERS[kind], data)) != oid:
                raise Usage(f"object '{oid[:12]}' is damaged")
            waiting.extend(raw.hex() for raw in _named_by(kind, data))

    def read_any(self, oid: Oid) -> tuple[str, bytes]:
        """(kind, content) of an object; a blob above MAX_BLOB_BYTES is refused before it is read."""
        if self.size(oid) > MAX_BLOB_BYTES:
            raise Usage(f"object '{oid[:12]}' has {self.size(oid)} bytes, more than the {MAX_BLOB_BYTES} allowed")
        number, data = self._odb.read(oid)
        return _KINDS[int(number)], data

    def unpublished(self, roots: Iterable[Oid]) -> Iterator[tuple[str, bytes]]:
        """(kind, content) of every object in memory that the roots need, each once."""
        waiting = [bytes.fromhex(root) for root in roots]
        seen: set[bytes] = set()
        while waiting:
            raw = waiting.pop()
            if raw in seen or raw not in self._memory.held:
                continue
            seen.add(raw)
            number, data = self._memory.held[raw]
            kind = _KINDS[number]
            waiting.extend(_named_by(kind, data))
            yield kind, data

    def pack(self, roots: Iterable[Oid]) -> bytes | None:
        """One pack with every unpublished object that the roots need; None where there is none."""
        objects = list(self.unpublished(roots))
        if not objects:
            return None
        parts = [struct.pack(">4sII", b"PACK", 2, len(objects))]
        for kind, data in objects:
            parts.append(_pack_header(kind, len(data)))
            parts.append(zlib.compress(data, 1))
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


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0]


def _printable(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()

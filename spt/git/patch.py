"""`edits.patch`: git's diff text with whole blob ids, written and applied exactly.

The patch names the blob that it was made from and the blob that it makes.  It is applied to that blob only, at
the very lines that it names, and what comes out must hash to the named blob.  There is no fuzz, no offset and
no white-space rule, so that a patch cannot lie about what it did.
"""

import base64
import hashlib
import itertools
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from spt.errors import Usage
from spt.git.merge import Hunk, apply_hunks, hunks, split
from spt.git.objects import EXECUTABLE, FILE, LINK, MAX_BLOB_BYTES, Oid, State
from spt.git.tree import Row

__all__ = ["Edit", "apply_edit", "blob_id", "parse_patch", "write_patch"]

_CONTEXT = 3
_NONE = "0" * 40
_MODES = {f"{mode:06o}": mode for mode in (FILE, EXECUTABLE, LINK)}
_HUNK = re.compile(rb"^@@ -(\d{1,9})(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@")
_LITERAL = re.compile(rb"^literal (\d{1,9})\n")
_INDEX = re.compile(r"^index ([0-9a-f]{40})\.\.([0-9a-f]{40})(?: (\d{6}))?$")
_ESCAPES = {"a": 7, "b": 8, "t": 9, "n": 10, "v": 11, "f": 12, "r": 13, '"': 34, "\\": 92}


@dataclass(frozen=True)
class Edit:
    """A row of a delta with what makes its new content: hunks over the old one, or the whole content."""

    row: Row
    changes: tuple[Hunk, ...] | None
    literal: bytes | None


def blob_id(data: bytes) -> Oid:
    """The id that git gives to a blob with this content."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def write_patch(rows: Iterable[Row], content: Callable[[Oid], bytes]) -> bytes:
    """The patch text of some rows; `content` gives a blob's bytes.  Gitlinks have no place in a patch."""
    return b"".join(_file_patch(row, content) for row in rows)


def _file_patch(row: Row, content: Callable[[Oid], bytes]) -> bytes:
    old, new = row.old, row.new
    for state in (old, new):
        if state is not None and f"{state.mode:06o}" not in _MODES:
            raise Usage(f"'{row.path}' is a submodule, which an entry cannot carry as files")
    before, after = (b"" if state is None else content(state.oid) for state in (old, new))
    name_a, name_b = _quote(f"a/{row.path}"), _quote(f"b/{row.path}")
    header = [f"diff --git {name_a} {name_b}"]
    if old is None and new is not None:
        header.append(f"new file mode {new.mode:06o}")
    elif new is None and old is not None:
        header.append(f"deleted file mode {old.mode:06o}")
    elif old is not None and new is not None and old.mode != new.mode:
        header += [f"old mode {old.mode:06o}", f"new mode {new.mode:06o}"]
    same_mode = f" {old.mode:06o}" if old is not None and new is not None and old.mode == new.mode else ""
    header.append(f"index {old.oid if old else _NONE}..{new.oid if new else _NONE}{same_mode}")
    if before == after:
        return _lines(header)
    if b"\0" in before or b"\0" in after:
        return _lines([*header, "GIT binary patch"]) + _literal(after) + _literal(before)
    header += [f"--- {name_a if old else '/dev/null'}", f"+++ {name_b if new else '/dev/null'}"]
    return _lines(header) + b"".join(_text_hunks(before, after))


def _lines(header: list[str]) -> bytes:
    return "".join(line + "\n" for line in header).encode(errors="surrogateescape")


def _quote(path: str) -> str:
    raw = path.encode(errors="surrogateescape")
    if all(32 <= byte < 127 and byte not in b'"\\' for byte in raw):
        return path
    names = {number: letter for letter, number in _ESCAPES.items()}
    text = "".join(
        f"\\{names[byte]}" if byte in names else chr(byte) if 32 <= byte < 127 else f"\\{byte:03o}" for byte in raw
    )
    return f'"{text}"'


def _text_hunks(before: bytes, after: bytes) -> Iterator[bytes]:
    lines = split(before)
    groups: list[list[Hunk]] = []
    for change in hunks(before, after):
        if groups and change.start - groups[-1][-1].end <= 2 * _CONTEXT:
            groups[-1].append(change)
        else:
            groups.append([change])
    grown = 0
    for group in groups:
        start, end = max(0, group[0].start - _CONTEXT), min(len(lines), group[-1].end + _CONTEXT)
        body, done, gain = [], start, 0
        for change in group:
            body += [b" " + line for line in lines[done : change.start]]
            body += [b"-" + line for line in lines[change.start : change.end]]
            body += [b"+" + line for line in change.lines]
            done = change.end
            gain += len(change.lines) - (change.end - change.start)
        body += [b" " + line for line in lines[done:end]]
        old_count, new_count = end - start, end - start + gain
        old_at, new_at = start + (old_count > 0), start + grown + (new_count > 0)
        yield b"@@ -%d,%d +%d,%d @@\n" % (old_at, old_count, new_at, new_count)
        yield b"".join(line if line.endswith(b"\n") else line + b"\n\\ No newline at end of file\n" for line in body)
        grown += gain


def _literal(data: bytes) -> bytes:
    packed = zlib.compress(data, 9)
    lines = [b"literal %d\n" % len(data)]
    for start in range(0, len(packed), 52):
        chunk = packed[start : start + 52]
        letter = chr(ord("A") + len(chunk) - 1 if len(chunk) <= 26 else ord("a") + len(chunk) - 27).encode()
        lines.append(letter + base64.b85encode(chunk, pad=True) + b"\n")
    return b"".join(lines) + b"\n"


def parse_patch(data: bytes, where: str) -> list[Edit]:
    """The edits of a patch, sorted by path.  Raises Usage for anything that is not exact and complete."""
    edits = sorted(_Parser(data, where).edits(), key=lambda edit: edit.row.path)
    for one, two in itertools.pairwise(edits):
        if one.row.path == two.row.path:
            raise Usage(f"{where}: '{one.row.path}' is edited twice")
    return edits


class _Parser:
    def __init__(self, data: bytes, where: str) -> None:
        self.lines = split(data)
        self.where = where
        self.at = 0

    def edits(self) -> Iterator[Edit]:
        while self.at < len(self.lines):
            yield self._file()

    def _refuse(self, problem: str) -> Usage:
        return Usage(f"{self.where}: line {min(self.at + 1, len(self.lines))}: {problem}", "patches are generated")

    def _peek(self) -> bytes:
        return self.lines[self.at] if self.at < len(self.lines) else b""

    def _text(self) -> str:
        line = self._peek()
        try:
            return line.decode().removesuffix("\n")
        except UnicodeDecodeError as error:
            raise self._refuse("a header is not UTF-8") from error

    def _file(self) -> Edit:
        path = self._paths()
        words = {}
        for key in ("old mode ", "new mode ", "new file mode ", "deleted file mode "):
            if self._text().startswith(key):
                words[key] = self._mode(self._text().removeprefix(key))
                self.at += 1
        index = _INDEX.match(self._text())
        if index is None:
            raise self._refuse("no `index` line with whole blob ids")
        same = self._mode(index[3]) if index[3] else None
        self.at += 1
        old = self._state(index[1], words.get("old mode ") or words.get("deleted file mode ") or same)
        new = self._state(index[2], words.get("new mode ") or words.get("new file mode ") or same)
        if (old is None) != ("new file mode " in words) or (new is None) != ("deleted file mode " in words):
            raise self._refuse(f"ids and modes of '{path}' do not agree")
        row = Row(path, old, new)
        if self._peek() == b"GIT binary patch\n":
            return Edit(row, None, self._binary())
        if self._peek().startswith(b"--- "):
            self._side(b"--- ", None if old is None else f"a/{path}")
            self._side(b"+++ ", None if new is None else f"b/{path}")
            return Edit(row, tuple(self._hunks()), None)
        return Edit(row, (), None)

    def _paths(self) -> str:
        text = self._text()
        if not text.startswith("diff --git "):
            raise self._refuse("no `diff --git` line")
        rest = text.removeprefix("diff --git ")
        # Both names are the same but for one letter, so the space between them is in the middle.
        middle = len(rest) // 2
        first, second = self._unquote(rest[:middle]), self._unquote(rest[middle + 1 :])
        if first[:2] != "a/" or second[:2] != "b/" or first[2:] != second[2:] or not first[2:]:
            raise self._refuse("renames and foreign prefixes are not allowed")
        self.at += 1
        return first[2:]

    def _unquote(self, text: str) -> str:
        if not text.startswith('"'):
            return text
        raw = bytearray()
        for escape, octal, plain in re.findall(r'\\([abtnvfr"\\])|\\([0-3][0-7]{2})|([^\\])', text[1:-1]):
            raw.extend(bytes([_ESCAPES[escape]]) if escape else bytes([int(octal, 8)]) if octal else plain.encode())
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise self._refuse("a path is not UTF-8") from error

    def _mode(self, word: str) -> int:
        if word not in _MODES:
            raise self._refuse(f"mode '{word}' is not allowed")
        return _MODES[word]

    def _state(self, oid: Oid, mode: int | None) -> State | None:
        if oid == _NONE:
            return None
        if mode is None:
            raise self._refuse("a mode is missing")
        return State(mode, oid)

    def _side(self, key: bytes, name: str | None) -> None:
        line = self._text()
        wanted = "/dev/null" if name is None else name
        if not line.encode().startswith(key) or self._unquote(line[4:].removesuffix("\t")) != wanted:
            raise self._refuse(f"`{key.decode()}{wanted}` expected")
        self.at += 1

    def _hunks(self) -> Iterator[Hunk]:
        done = 0
        while match := _HUNK.match(self._peek()):
            old_count, new_count = int(match[2] or 1), int(match[4] or 1)
            start = int(match[1]) - (old_count > 0)
            if start < done:
                raise self._refuse("a hunk lies before or in the one above it")
            done = start + old_count
            self.at += 1
            yield self._changes(start, old_count, new_count)

    def _changes(self, start: int, old_count: int, new_count: int) -> Hunk:
        """One `@@` section as a hunk, its context included, so that it is checked."""
        old: list[bytes] = []
        new: list[bytes] = []
        while len(old) < old_count or len(new) < new_count:
            line = self._peek()
            sign, text = line[:1], line[1:]
            self.at += 1
            if self._peek().startswith(b"\\"):
                text = text.removesuffix(b"\n")
                self.at += 1
            if sign not in (b" ", b"-", b"+"):
                self.at -= 1
                raise self._refuse("a hunk is shorter than it says")
            if sign != b"+":
                old.append(text)
            if sign != b"-":
                new.append(text)
        if (len(old), len(new)) != (old_count, new_count):
            raise self._refuse("a hunk is longer than it says")
        return Hunk(start, start + old_count, tuple(new))

    def _binary(self) -> bytes:
        self.at += 1
        size, data = self._literal()
        if self._peek().startswith(b"literal "):
            self._literal()  # the way back, which is not needed
        if len(data) != size:
            raise self._refuse("a binary literal has another length than it says")
        return data

    def _literal(self) -> tuple[int, bytes]:
        literal = _LITERAL.match(self._peek())
        if literal is None or int(literal[1]) > MAX_BLOB_BYTES:
            raise self._refuse("a whole binary literal of allowed size expected (`git diff --binary` may write deltas)")
        self.at += 1
        packed = bytearray()
        while (line := self._peek()) not in (b"\n", b""):
            length = line[0] - 64 if line[:1].isupper() else line[0] - 96 + 26
            try:
                packed += base64.b85decode(line[1:].removesuffix(b"\n"))[:length]
            except ValueError as error:
                raise self._refuse("a binary line is not base 85") from error
            self.at += 1
        self.at += 1
        unpacked = zlib.decompressobj()
        try:
            return int(literal[1]), unpacked.decompress(bytes(packed), MAX_BLOB_BYTES)
        except zlib.error as error:
            raise self._refuse("a binary literal does not inflate") from error


def apply_edit(edit: Edit, old: bytes) -> bytes:
    """The new content, or Usage where the edit does not make exactly the blob that it names."""
    row = edit.row
    if blob_id(old) != (row.old.oid if row.old else blob_id(b"")):
        raise Usage(f"the patch of '{row.path}' is for blob {row.old.oid[:12] if row.old else 'none'}, not this one")
    new = edit.literal if edit.literal is not None else apply_hunks(old, edit.changes or ())
    if row.new is not None and blob_id(new) != row.new.oid:
        raise Usage(
            f"the patch of '{row.path}' makes blob {blob_id(new)[:12]}, not {row.new.oid[:12]} as it says",
            "nobody edits a patch by hand: `spt entry edit` opens the entry, `spt entry export` writes it back",
        )
    return new

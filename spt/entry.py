"""An entry: a proven mechanism as readable files, and what its files must and must not hold.

`entries/<name>/` has `entry.yaml` (written by people), `tree/` (the files that the entry adds), `edits.patch`
(the lines that it changes in files that are there already), `source.jsonl` and `evidence/`.  All but `tree/` and
`edits.patch` are records: in git they lie under `.spt/entries/<name>/` of the entry's branch.
"""

import os
import re
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from spt.errors import Conflict, Usage
from spt.formats import check, read_jsonl, read_yaml
from spt.git.objects import FILE, GITLINK, LINK, MAX_BLOB_BYTES, Objects, Oid, Person, State
from spt.git.patch import Edit, apply_edit, parse_patch, write_patch
from spt.git.tree import Delta, Row, fold
from spt.system import FOLDERS, SHIPPED, SUFFIXES, additions

__all__ = [
    "Card",
    "EntryFiles",
    "check_name",
    "check_path",
    "check_records",
    "delta_files",
    "flags",
    "lint",
    "read_card",
    "read_folder",
]

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
# Characters that HFS+ ignores in names, so that ".g\u200cit" would be ".git" there.
_IGNORED = re.compile("[\u200c-\u200f\u202a-\u202e\u206a-\u206f\ufeff]")
_RESERVED = re.compile(r"(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?", re.IGNORECASE)
_TAKEN = ("sources", "lock.jsonl")
_REVIEWED = (".gitattributes", ".gitmodules", ".gitignore", "conftest.py")


def check_name(name: str) -> str:
    """The name, if it may name an entry or a deployment (docs/records.md); else Usage."""
    if not _NAME.fullmatch(name) or ".." in name or name.endswith((".lock", ".")):
        raise Usage(f"'{name}' cannot be a name", "lower-case letters, digits, '.', '_' and '-', at most 64 of them")
    if name in _TAKEN or _RESERVED.fullmatch(name):
        raise Usage(f"'{name}' cannot be a name", "beside entries' folders that one has a meaning already")
    return name


def check_path(path: str) -> str:
    """The path, if every file system would keep it inside its folder and apart from git's own; else Usage."""
    problem = next((problem for name in path.split("/") if (problem := _name_problem(name))), None)
    if problem or len(path) > 1024:
        raise Usage(f"path {path!r} is not allowed: {problem or 'too long'}")
    return path


def _name_problem(name: str) -> str | None:
    plain = _IGNORED.sub("", name).casefold().rstrip(" .")
    if name in ("", ".", ".."):
        return "an empty, '.' or '..' component"
    if plain in (".git", "git~1"):
        return "a name that git keeps for itself"
    if any(unicodedata.category(letter).startswith("C") for letter in name) or set(name) & set('\\:*?"<>|'):
        return "a character that some file systems refuse"
    if name != name.rstrip(" .") or _RESERVED.fullmatch(name):
        return "a name that some file systems refuse"
    return None if unicodedata.is_normalized("NFC", name) else "a name that is not in Unicode's composed form"


@dataclass(frozen=True)
class Card:
    """What entry.yaml says, checked against its schema."""

    data: dict[str, Any]

    @property
    def name(self) -> str:
        return str(self.data["name"])

    @property
    def requires(self) -> tuple[str, ...]:
        """The entries that are required directly, sorted."""
        return tuple(sorted(self.data["requires"]["entries"]))

    @property
    def options(self) -> frozenset[str]:
        return frozenset(self.data.get("options", ()))

    @property
    def seams(self) -> dict[str, list[str]]:
        return {seam: sorted(values) for seam, values in self.data.get("seams", {}).items()}

    @property
    def contract(self) -> dict[str, Any]:
        found: dict[str, Any] = self.data["contract"]
        return found

    @property
    def variants(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.data.get("variants", [])
        return found

    @property
    def subject(self) -> str:
        return str(self.data["commit"]["subject"])

    @property
    def body(self) -> str:
        return str(self.data["commit"].get("body") or "")

    @cached_property
    def author(self) -> Person:
        """Author and committer of every commit that is made for this entry."""
        name, _, email = self.data["commit"]["author"].rpartition(" <")
        moment = _moment(self.data["commit"]["date"])
        offset = moment.utcoffset()
        assert offset is not None
        return Person(name.strip(), email.rstrip(">"), int(moment.timestamp()), int(offset.total_seconds() // 60))


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


def read_card(data: bytes, where: str) -> Card:
    """entry.yaml, strictly: strings only, no unknown key, a date that exists."""
    record = read_yaml(data, where)
    check(record, "entry", where)
    check_name(record["name"])
    if record["name"] in record["requires"]["entries"]:
        raise Usage(f"{where}: entry '{record['name']}' requires itself")
    try:
        before_1970 = _moment(record["commit"]["date"]).timestamp() < 0
    except ValueError as error:
        raise Usage(f"{where}: 'commit.date': {error}") from error
    if before_1970 or not Card(record).author.name:
        raise Usage(f"{where}: 'commit': git cannot hold this author and date")
    return Card(record)


@dataclass(frozen=True)
class EntryFiles:
    """An entry as a folder holds it: records by path, added files by path, edits of files that exist."""

    card: Card
    records: dict[str, bytes]
    added: dict[str, bytes]
    edits: tuple[Edit, ...]

    @property
    def paths(self) -> list[str]:
        """Every path that the entry touches."""
        return [*self.added, *(edit.row.path for edit in self.edits)]

    def delta(self, objects: Objects, value: Mapping[str, State | None]) -> Delta:
        """The delta on a base; `value` gives the base's state of each of `paths`.

        Raises Conflict where an added path is there already, or an edit was made from another blob or mode.
        """
        rows = []
        for path, data in self.added.items():
            if value[path] is not None:
                raise _behind(self.card.name, f"adds '{path}', which is there already")
            rows.append(Row(path, None, State(FILE, objects.add_blob(data))))
        for edit in self.edits:
            row = edit.row
            if value[row.path] != row.old:
                raise _behind(self.card.name, f"was made from another '{row.path}'")
            made = apply_edit(edit, objects.blob(row.old.oid) if row.old else b"")
            if row.new is not None:
                objects.add_blob(made)
            rows.append(row)
        return Delta(tuple(sorted(rows)))


def read_folder(folder: Path) -> EntryFiles:
    """An entry's folder; anything in it that has no meaning is an error, and so is a link."""
    records: dict[str, bytes] = {}
    added: dict[str, bytes] = {}
    edits: tuple[Edit, ...] = ()
    for path in _plain_files(folder):
        name = path.relative_to(folder).as_posix()
        data = _read_plain(path)
        if name.startswith("tree/"):
            added[check_path(name.removeprefix("tree/"))] = data
        elif name == "edits.patch":
            edits = tuple(parse_patch(data, f"{folder.name}/edits.patch"))
        elif name in ("entry.yaml", "source.jsonl") or name.startswith("evidence/"):
            records[check_path(name)] = data
        else:
            hint = "it holds entry.yaml, tree/, edits.patch, source.jsonl and evidence/"
            raise Usage(f"'{name}' has no place in entry folder '{folder.name}'", hint)
    if "entry.yaml" not in records:
        raise Usage(f"'{folder}' is not an entry: it has no entry.yaml")
    card = read_card(records["entry.yaml"], f"{folder.name}/entry.yaml")
    if card.name != folder.name:
        raise Usage(f"entry '{card.name}' lies in folder '{folder.name}'", "folder and name must be the same")
    check_records(card.name, records)
    for edit in edits:
        check_path(edit.row.path)
        if edit.row.path in added:
            raise Usage(f"entry '{card.name}': '{edit.row.path}' is both in tree/ and in edits.patch")
    return EntryFiles(card, records, added, edits)


def _plain_files(folder: Path) -> Iterator[Path]:
    if not folder.is_dir():
        raise Usage(f"'{folder}' is not a folder")
    for place, folders, names in os.walk(folder, onerror=_raise):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        for path in (Path(place) / name for name in sorted([*folders, *names])):
            if path.is_symlink():
                raise Usage(f"'{path}' is a link", "an entry folder holds plain files")
            if not path.is_dir() and not path.is_file():
                raise Usage(f"'{path}' is no plain file", "an entry folder holds plain files")
            if path.is_file():
                yield path


def _raise(error: OSError) -> None:
    """A folder that cannot be read is no empty folder."""
    raise error


def _read_plain(path: Path) -> bytes:
    if path.stat().st_size > MAX_BLOB_BYTES:
        raise Usage(f"'{path}' is larger than the {MAX_BLOB_BYTES} bytes that a file may have")
    return path.read_bytes()


def check_records(name: str, records: Mapping[str, bytes]) -> None:
    """Raises Usage unless source and evidence lines follow their schemas."""
    for path, data in records.items():
        where = f"{name}/{path}"
        if path == "source.jsonl":
            read_jsonl(data, where, "source")
        elif path.startswith("evidence/") and path.endswith(".jsonl") and path.count("/") == 1:
            read_jsonl(data, where, "evidence")


def _behind(name: str, problem: str) -> Conflict:
    return Conflict(f"entry '{name}' {problem}", f"`spt entry refresh {name}` carries it to this stock")


def delta_files(objects: Objects, delta: Delta) -> tuple[dict[str, bytes], bytes]:
    """(files of `tree/` by path, text of edits.patch): the delta as people read it."""
    plain = [row for row in delta.rows if row.old is None and row.new is not None and row.new.mode == FILE]
    added = {row.path: objects.blob(row.new.oid) for row in plain if row.new is not None}
    return added, write_patch((row for row in delta.rows if row.path not in added), objects.blob)


# What a delta may touch.


def lint(objects: Objects, card: Card, delta: Delta, base: Oid, result: Oid, layout: str) -> None:
    """Raises Usage unless the entry keeps to its room and its card tells the truth about options and seams."""
    if not delta.rows:
        raise Usage(f"entry '{card.name}' changes nothing")
    for row in delta.rows:
        check_path(row.path)
        _lint_row(card.name, row, layout)
        if row.new is not None and row.new.mode != GITLINK and objects.size(row.new.oid) > MAX_BLOB_BYTES:
            raise Usage(f"entry '{card.name}': '{row.path}' is larger than the {MAX_BLOB_BYTES} bytes allowed")
    options, seams = additions(objects, base, result)
    _same(card.name, "options", sorted(card.options), options)
    _same(card.name, "seams", card.seams, seams)


def _same(name: str, key: str, says: object, does: object) -> None:
    if says != does:
        raise Usage(f"entry '{name}': `{key}` in entry.yaml says {says}, its files say {does}")


def _lint_row(name: str, row: Row, layout: str) -> None:
    top, _, rest = row.path.partition("/")
    last = fold(row.path.rpartition("/")[2])
    if fold(top) == ".spt":
        raise Usage(f"entry '{name}' touches '{row.path}'", "records are no part of an entry's code")
    if last == "deployment.yaml":
        raise Usage(f"entry '{name}' touches '{row.path}'", "what runs a deployment is its user's alone to say")
    if row.new is not None and row.new.mode == LINK and last.startswith(".git"):
        raise Usage(f"entry '{name}' makes '{row.path}' a link", "git would read settings through it")
    if layout != SHIPPED:
        return
    owner = rest.partition("/")[0]
    if top not in FOLDERS or not rest or (top == "checks" and owner != name):
        raise Usage(f"entry '{name}' touches '{row.path}'", f"an entry's room is stock/, kernels/ and checks/{name}/")
    if row.path == "stock/worker.py":
        raise Usage(f"entry '{name}' edits 'stock/worker.py'", "a change of the protocol is a change of stock")
    if not row.path.endswith(SUFFIXES):
        raise Usage(f"entry '{name}' touches '{row.path}'", f"a system tree holds {', '.join(SUFFIXES)} files")
    if row.new is not None and row.new.mode != FILE:
        raise Usage(f"entry '{name}' gives '{row.path}' mode {row.new.mode:06o}", "a system tree holds 100644 only")


def flags(delta: Delta, layout: str) -> list[str]:
    """What a reviewer must look at: sentences, in path order."""
    found = []
    for row in delta.rows:
        name = row.path.rpartition("/")[2]
        if layout == SHIPPED and row.old is not None and row.path.startswith("kernels/"):
            found.append(f"edits a kernel that is there already: '{row.path}'")
        if name in _REVIEWED or row.path.startswith((".github/", ".gitlab")):
            found.append(f"touches '{row.path}', which other tools act on")
        if row.new is not None and row.new.mode == LINK:
            found.append(f"makes '{row.path}' a link")
        if row.new is not None and row.new.mode == GITLINK:
            found.append(f"moves the submodule '{row.path}'")
    return found

"""Entry folders on disk: written file by file, each at once, the lock last.

What is written is the same whoever writes it, so that a run that was killed is mended by the next.
"""

import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from spt.entry import check_path, delta_files, read_folder
from spt.errors import Usage
from spt.formats import write_jsonl
from spt.git.incoming import write_bundle
from spt.git.objects import Objects
from spt.git.tree import Delta
from spt.intake import LOCK, SOURCES, bundle_name, merged_records, read_lock
from spt.memory import SOURCE, STOCK, Memory, patch_reference
from spt.source import lines_of

__all__ = ["add_evidence", "export_entry", "lock_line", "write_entry", "write_lock"]

_PART = ".spt-part-"


def write_entry(folder: Path, objects: Objects, delta: Delta, records: Mapping[str, bytes]) -> bool:
    """Makes a folder hold exactly an entry; returns whether anything changed."""
    added, patch = delta_files(objects, delta)
    files = {**records, **{f"tree/{path}": data for path, data in added.items()}}
    if patch:
        files["edits.patch"] = patch
    for name in files:
        check_path(name)
    _refuse_foreign(folder, files)
    # The card comes first: it is what says that the folder is an entry's.
    names = ["entry.yaml", *sorted(files.keys() - {"entry.yaml"})]
    changed = [name for name in names if _write(folder / name, files[name], folder.parent)]
    surplus = [path for path in _files(folder) if path.relative_to(folder).as_posix() not in files]
    for path in surplus:
        path.unlink()
    return bool(changed or surplus)


def _refuse_foreign(folder: Path, files: Mapping[str, bytes]) -> None:
    """Usage where a folder without a card has files: they are someone's, and would be cleared away; or a link."""
    linked = [path for path in (folder, *folder.rglob("*")) if path.is_symlink()]
    if linked:
        raise Usage(f"'{linked[0]}' is a link", "an entry folder holds plain files")
    if not (folder / "entry.yaml").is_file() and (found := next(_files(folder), None)) is not None:
        raise Usage(f"'{folder}' holds '{found.relative_to(folder)}' and is no entry", "name another folder with --to")


def _files(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            yield path


def _write(path: Path, data: bytes, scratch: Path) -> bool:
    """Writes a file at once, by way of `scratch` on the same file system; returns whether it was different."""
    if path.is_file() and path.read_bytes() == data:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, part = tempfile.mkstemp(prefix=_PART, dir=scratch)
    with os.fdopen(handle, "wb") as file:
        file.write(data)
    Path(part).chmod(0o644)
    Path(part).replace(path)
    return True


def add_evidence(folder: Path, file: str, line: Mapping[str, Any], samples: bytes) -> bool:
    """Lays samples into an entry's folder, then appends their line to `file`; False where the line is there already.

    A run that was killed between the two leaves samples that no line names, and the next one puts them to use.
    """
    path, text = folder / file, write_jsonl([dict(line)])
    held = path.read_bytes() if path.is_file() else b""
    if held and not held.endswith(b"\n"):
        held += b"\n"
    _write(folder / line["samples"]["path"], samples, folder.parent)
    if text.rstrip() in held.splitlines():
        return False
    return _write(path, held + text, folder.parent)


def lock_line(name: str, delta: Delta, base_tree: str, result_tree: str) -> dict[str, str]:
    """An entry's line of the lock."""
    return {"name": name, "delta_id": delta.id, "base_tree": base_tree, "result_tree": result_tree}


def write_lock(folder: Path, lines: Iterable[Mapping[str, str]]) -> None:
    """Writes the lock of some entries, sorted by name, and clears away what a killed run left."""
    _write(folder / LOCK, write_jsonl(sorted((dict(line) for line in lines), key=lambda line: line["name"])), folder)
    for part in folder.glob(f"{_PART}*"):
        part.unlink()


def export_entry(memory: Memory, name: str, to: Path) -> list[Path]:
    """Writes `to/NAME/`, the bundles of its sources and its line of the lock; returns the bundles.

    Source and evidence lines that the folder holds already are kept.
    """
    entry, folder = memory.entry(name), to / name
    memory.card(name)  # a branch that has none is refused before anything is written
    records: Mapping[str, bytes] = memory.records(name)
    if (folder / "entry.yaml").is_file():
        records = merged_records(read_folder(folder).records, records)
    newest = {line["tree"]: line for line in lines_of(memory, name)}
    to.mkdir(exist_ok=True)
    bundles = [_write_source(memory, line, to / SOURCES) for line in newest.values()]
    write_entry(folder, memory.objects, entry.delta, records)
    line = lock_line(name, entry.delta, entry.base.tree, entry.patch.tree)
    write_lock(to, {**read_lock(to), name: line}.values())
    return bundles


def _write_source(memory: Memory, line: dict[str, Any], folder: Path) -> Path:
    references = [f"{STOCK}{line['stock_tree'][:12]}", f"{SOURCE}{line['tree'][:12]}"]
    references += [patch_reference(*pin.split("@")) for pin in line["entries"]]
    path = folder / bundle_name(line["stock_tree"], line["tree"])
    write_bundle(memory.store, references, path)
    return path

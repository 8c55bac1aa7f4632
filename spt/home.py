"""Where entries are found: in a deployment repository, in this project's own checkout, or among what ships."""

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import spt.share
from spt.edit import Opened, composition_beside, edit_folder, note_written, open_edit, read_edit
from spt.errors import Missing, SptError, Usage
from spt.folder import add_evidence, export_entry, lock_line, write_entry, write_lock
from spt.git.store import Store
from spt.initialise import plain_tree, shipped_memory
from spt.intake import merged_records, read_folders, read_lock
from spt.memory import CURRENT, Memory, way_out_of_clone
from spt.refresh import opened_files, refresh, refresh_files

__all__ = ["Checkout", "Exported", "Home", "Repository", "find_checkout", "find_home"]


@dataclass(frozen=True)
class Exported:
    """What an export came to: the entry's delta, where its edit stays open, what was written, where its old tip is."""

    delta_id: str
    edit: Path | None
    written: list[Path]
    rescue: str | None


@dataclass(frozen=True)
class Home:
    """Shipped files, to look at and to verify: their memory lives in this process alone.

    `note` says why it is they that are looked at; empty where the user could mean nothing else.
    """

    root: Path
    note: str = ""
    in_repository: bool = False  # one that has no stock

    @cached_property
    def memory(self) -> Memory:
        return shipped_memory(self.root)[0]

    def refresh(self, names: list[str], *, everything: bool) -> dict[str, str]:
        """Carries entries to the stock of now; returns what happened to each."""
        raise self._read_only("refreshed")

    def open(self, name: str) -> Opened:
        """Opens an entry for editing."""
        raise self._read_only("edited")

    def export(self, name: str, to: Path | None) -> Exported:
        """Writes an open edit back and, with `to`, the entry's folder there."""
        raise self._read_only("exported")

    def _read_only(self, what: str) -> SptError:
        hint = self.note.partition("; ")[2] or "`spt init DIR` makes a repository for it"
        return Usage(f"shipped entries cannot be {what} here", hint)


@dataclass(frozen=True)
class Repository(Home):
    """A deployment repository."""

    @cached_property
    def memory(self) -> Memory:
        return Memory.open(self.root)

    def refresh(self, names: list[str], *, everything: bool) -> dict[str, str]:
        store = self.memory.store
        with store.locked():
            memory = Memory.of(store)
            if everything and memory.broken:
                raise next(iter(memory.broken.values()))
            happened = refresh(memory, memory.entries if everything else names)
            store.publish("spt entry refresh")
        return happened

    def open(self, name: str) -> Opened:
        store = self.memory.store
        with store.locked():
            memory = Memory.of(store)
            entry, card = memory.entry(name), memory.records(name)["entry.yaml"]
            composition = composition_beside(memory, name)
            return open_edit(store, memory.objects, composition, entry.part, card, memory.stock)

    def export(self, name: str, to: Path | None) -> Exported:
        store = self.memory.store
        if to is not None and not (to.is_dir() or (to.parent.is_dir() and not to.exists())):
            raise Usage(f"'{to}' can be no folder", "--to makes the last folder of a path, not those above it")
        with store.locked():
            memory = Memory.of(store)
            part = memory.entry(name).part
            is_open = edit_folder(store, name).exists()
            if is_open:
                records = memory.records(name)
                composition = composition_beside(memory, name)
                back = read_edit(store, memory.objects, composition, part, records["entry.yaml"])
                memory.stage_entry(back.card, back.delta, back.base, {**records, "entry.yaml": back.card_data})
                store.publish("spt entry export")
                note_written(back)
            if to is None and not is_open:
                raise Usage(f"entry '{name}' is not open, and no folder is named", "--to DIR writes its folder there")
            written = [] if to is None else [to / name, *export_entry(memory, name, to)]
            folder = back.folder if is_open else None
            return Exported(memory.entry(name).delta.id, folder, written, memory.rescued.get(name))


@dataclass(frozen=True)
class Checkout(Home):
    """The project's own checkout: entries are folders on the stock of its working tree."""

    @property
    def folder(self) -> Path:
        return self.root / "entries"

    def _store(self) -> Store:
        return Store.find(self.root)

    def _history(self) -> Store:
        """A store in memory that reads the checkout's own history, where it has one."""
        store, own = Store(), Store.at(self.root)
        if own is not None and own.common is not None:
            store.objects.lend(own.common / "objects")
        return store

    def _locked(self) -> contextlib.AbstractContextManager[None]:
        """The lock of the checkout's repository, where it has one."""
        store = Store.at(self.root)
        return contextlib.nullcontext() if store is None else store.locked()

    def refresh(self, names: list[str], *, everything: bool) -> dict[str, str]:
        if not everything:
            raise Usage("in a checkout all entries are refreshed together", "`spt entry refresh --all`")
        with self._locked():
            return self._refresh()

    def _refresh(self) -> dict[str, str]:
        objects = self._history().objects
        carried = list(refresh_files(objects, plain_tree(objects, self.root), read_folders(self.folder)))
        lock = read_lock(self.folder)
        happened, lines = {}, []
        for files, delta, base, result in carried:
            name = files.card.name
            changed = write_entry(self.folder / name, objects, delta, files.records)
            line = lock_line(name, delta, base, result)
            happened[name] = "changed" if changed else "unchanged" if lock.get(name) == line else "carried"
            lines.append(line)
        write_lock(self.folder, lines)
        return happened

    def open(self, name: str) -> Opened:
        store = self._store()
        with store.locked():
            objects, entries = store.objects, read_folders(self.folder)
            stock = plain_tree(objects, self.root)
            composition, part = opened_files(objects, stock, entries, name)
            card = next(files.records["entry.yaml"] for files in entries if files.card.name == name)
            return open_edit(store, objects, composition, part, card, stock)

    def export(self, name: str, to: Path | None) -> Exported:
        store = self._store()
        if to is not None and to.absolute() != self.folder.absolute():
            raise Usage("in a checkout an entry is written to its own entries/", "leave --to away")
        if not edit_folder(store, name).exists():
            raise Missing(f"entry '{name}' is not open", f"`spt entry edit {name}` opens it")
        with store.locked():
            objects, entries = store.objects, read_folders(self.folder)
            stock = plain_tree(objects, self.root)
            composition, part = opened_files(objects, stock, entries, name)
            records = next(files.records for files in entries if files.card.name == name)
            back = read_edit(store, objects, composition, part, records["entry.yaml"])
            records = merged_records(records, {"entry.yaml": back.card_data})
            write_entry(self.folder / name, objects, back.delta, records)
            note_written(back)
        return Exported(back.delta.id, back.folder, [self.folder / name], None)

    def add_evidence(self, name: str, file: str, line: Mapping[str, Any], samples: bytes) -> bool:
        """Appends a line of evidence to an entry and keeps its samples; False where the line is there already."""
        with self._locked():
            return add_evidence(self.folder / name, file, line, samples)


def find_home(path: Path) -> Home:
    """The home of the entries that a command at `path` is about."""
    try:
        store = Store.find(path)
    except Usage:
        store = None
    if store is not None and store.reference(CURRENT) is not None:
        return Repository(path)
    for folder in (path.absolute(), *path.absolute().parents):
        if _is_checkout(folder):
            return Checkout(folder)
        if store is not None and folder == store.work_tree:
            break
    note = "no stock here: these are the shipped entries"
    if store is not None and (way_out := way_out_of_clone(store)) is not None:
        note = f"{note}; {way_out}"
    return Home(spt.share.shipped_root(), note, store is not None)


def find_checkout(path: Path, entries: Path | None = None) -> Checkout:
    """The checkout that holds the folder `entries`, or else the one that a command at `path` is about."""
    if entries is None:
        home = find_home(path)
        if isinstance(home, Checkout):
            return home
        raise Usage("no entries lie here as files", "--entries DIR names the entries/ of a checkout")
    root = entries.resolve().parent
    if not _is_checkout(root) or entries.resolve() != root / "entries":
        raise Usage(f"'{entries}' is not the entries/ of a checkout", "it lies beside stock/ and kernels/")
    return Checkout(root)


def _is_checkout(folder: Path) -> bool:
    return all((folder / name).is_dir() for name in ("entries", "stock", "kernels"))

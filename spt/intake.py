"""Taking entries in: from folders, from repositories and bundles, with the sources that prove them.

Whatever the form, an entry is rebuilt here from its content on this repository's stock, so that its commits have
the ids that every machine gives them, and nothing of its own commits, branches or configuration is trusted.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from spt.entry import Card, EntryFiles, check_name, check_path, check_records, read_card, read_folder
from spt.errors import Conflict, Differs, Missing, Usage
from spt.formats import read_jsonl
from spt.git.compose import Composition, topological
from spt.git.incoming import fetched
from spt.git.message import TOOL, read_trailers
from spt.git.objects import GITLINK, Objects, Oid, State
from spt.git.store import Store
from spt.git.tree import Delta, walk
from spt.memory import BRANCH, CURRENT, PATCH, SOURCE, STOCK, Memory, Recorded, load, patch_reference
from spt.system import system_tree

__all__ = [
    "LOCK",
    "SOURCES",
    "Candidate",
    "admit",
    "admit_sources",
    "bundle_name",
    "import_entries",
    "merged_records",
    "read_folders",
    "read_lock",
]

LOCK = "lock.jsonl"
SOURCES = "sources"
_REMOTE = re.compile(r"[^/]+:")  # git's short form of an ssh address
_PATTERNS = ("refs/heads/entry/*", "refs/spt/stock/*", "refs/spt/patch/*", "refs/spt/source/*")


class Candidate(Protocol):
    """An entry that asks to be taken in."""

    @property
    def card(self) -> Card: ...
    @property
    def records(self) -> Mapping[str, bytes]: ...
    @property
    def paths(self) -> list[str]:
        """Every path that the entry touches."""

    def delta(self, objects: Objects, value: Mapping[str, State | None]) -> Delta:
        """Its delta on a base with these values; Conflict where it was made from others."""


@dataclass(frozen=True)
class _Branch:
    """A candidate that comes as a branch of another repository."""

    card: Card
    records: Mapping[str, bytes]
    recorded: Recorded
    source: Objects

    @property
    def paths(self) -> list[str]:
        return [row.path for row in self.recorded.delta.rows]

    def delta(self, objects: Objects, value: Mapping[str, State | None]) -> Delta:
        for row in self.recorded.delta.rows:
            if value[row.path] != row.old:
                hint = "its repository stands on another stock: refresh the entry there, or move the stock here"
                raise Conflict(f"entry '{self.card.name}' was made from another '{row.path}'", hint)
            if row.new is not None and row.new.mode != GITLINK:
                objects.copy(self.source, [row.new.oid])
        return self.recorded.delta


# Folders.


def read_folders(folder: Path, names: Sequence[str] = ()) -> list[EntryFiles]:
    """The entries of a folder: itself where it holds an entry.yaml, else each folder in it that does.

    `names` picks some of them; one that is not there is Missing.
    """
    if (folder / "entry.yaml").is_file():
        found = {folder.name: folder}
    else:
        found = {path.name: path for path in sorted(folder.iterdir()) if (path / "entry.yaml").is_file()}
    absent = sorted(set(names) - set(found))
    if absent:
        raise Missing(f"'{folder}' holds no entry '{absent[0]}'")
    if not found:
        raise Missing(f"'{folder}' holds no entry", "an entry is a folder with an entry.yaml")
    return [read_folder(path) for name, path in found.items() if not names or name in names]


def read_lock(folder: Path) -> dict[str, dict[str, str]]:
    """The lock beside some entries, by name; empty where there is none.  Usage for a name that stands twice."""
    path = folder / LOCK
    if not path.is_file():
        return {}
    rows = read_jsonl(path.read_bytes(), str(path), "lock")
    lock = {row["name"]: row for row in rows}
    if len(lock) < len(rows):
        raise Usage(f"{path}: a name stands twice", "`spt entry refresh --all` makes the lock anew")
    return lock


# Admission.


def admit(
    memory: Memory, candidates: Iterable[Candidate], lock: Mapping[str, Mapping[str, str]] | None = None
) -> dict[str, str]:
    """Stages candidates, requirements first; returns what happened to each name: new, changed or unchanged.

    Records are append-only: source and evidence lines that the repository has already are kept.  Raises Differs
    where an entry is not what its lock says, and whatever a bad entry deserves; nothing is written then.
    """
    waiting: dict[str, Candidate] = {}
    for candidate in candidates:
        if candidate.card.name in waiting:
            raise Usage(f"two entries are named '{candidate.card.name}'", "rename one of them")
        waiting[candidate.card.name] = candidate
    requires = _graph(memory, waiting)
    # Grows with what is admitted: composing all entries anew after each would take the square of their number.
    composition = Composition(memory.objects, memory.stock, [])
    happened = {}
    for name in topological(requires):
        if name in waiting:
            happened[name] = _admit(memory, composition, waiting[name], (lock or {}).get(name))
        composition.add(memory.entry(name).part)
    return happened


def _graph(memory: Memory, waiting: Mapping[str, Candidate]) -> dict[str, frozenset[str]]:
    """What candidates require, and what entries that are there and are required do in turn."""
    requires: dict[str, frozenset[str]] = {}
    names = list(waiting)
    for name in names:  # grows while it is walked
        if name in requires or (name not in waiting and name not in memory.entries and name not in memory.broken):
            continue
        here = waiting[name].card.requires if name in waiting else memory.entry(name).part.requires
        requires[name] = frozenset(here)
        names.extend(here)
    return requires


def _admit(memory: Memory, composition: Composition, candidate: Candidate, lock: Mapping[str, str] | None) -> str:
    name = candidate.card.name
    below = composition.closed(candidate.card.requires)
    base = composition.tree(below)
    delta = candidate.delta(memory.objects, {path: composition.value(below, path) for path in candidate.paths})
    if lock is not None and lock["delta_id"] != delta.id:
        hint = "`make entries` brings the lock up to date, if the entry is what it should be"
        raise Differs(f"entry '{name}' has delta {delta.id[:12]}, its lock says {lock['delta_id'][:12]}", hint)
    before = memory.entries.get(name)
    held = memory.records(name) if before is not None else {}
    after = memory.stage_entry(candidate.card, delta, base, merged_records(held, candidate.records))
    made = after.patch.tree
    if lock is not None and lock["base_tree"] == base and lock["result_tree"] != made:
        raise Differs(f"entry '{name}' makes tree {made[:12]}, its lock says {lock['result_tree'][:12]}")
    return "new" if before is None else "unchanged" if before.tip.oid == after.tip.oid else "changed"


def merged_records(held: Mapping[str, bytes], given: Mapping[str, bytes]) -> dict[str, bytes]:
    """Given records over held ones; lines of JSON-lines files are united, held ones first."""
    merged = {**held, **given}
    for path in held.keys() & given.keys():
        if path.endswith(".jsonl"):
            lines = dict.fromkeys([*held[path].splitlines(), *given[path].splitlines()])
            merged[path] = b"".join(line + b"\n" for line in lines)
    return merged


def import_entries(memory: Memory, source: str, names: Sequence[str] = ()) -> dict[str, str]:
    """Stages the entries of a folder, a repository or a bundle, with the sources that are found beside them."""
    if not source:
        raise Usage("'' names no folder, repository or bundle")
    folder = Path(source)
    if "://" not in source and not folder.exists() and not _REMOTE.match(source):
        raise Missing(f"'{source}' does not exist", "SOURCE is a folder, a repository, a URL or a bundle")
    if not (folder / "entry.yaml").is_file() and not any(folder.glob("*/entry.yaml")):
        return admit_repository(memory, source, names)
    home = folder.parent if (folder / "entry.yaml").is_file() else folder
    found = read_folders(folder, names)
    happened = admit(memory, found, read_lock(home))
    for bundle in sorted({home / SOURCES / name for files in found for name in _bundles_of(files)}):
        if bundle.is_file():
            admit_sources(memory, bundle)
    return happened


def bundle_name(stock_tree: Oid, tree: Oid) -> str:
    """The file of a source system below `sources/`."""
    return f"{stock_tree[:12]}-{tree[:12]}.bundle"


def _bundles_of(files: EntryFiles) -> list[str]:
    lines = read_jsonl(files.records.get("source.jsonl", b""), f"{files.card.name}/source.jsonl", "source")
    return [bundle_name(line["stock_tree"], line["tree"]) for line in lines]


# Repositories and bundles.


def admit_repository(memory: Memory, source: str, names: Sequence[str] = ()) -> dict[str, str]:
    """Stages the entries (all, or those named) of another repository or bundle, with their sources."""
    with fetched(source, _PATTERNS) as store:
        tips = {reference.removeprefix(BRANCH): oid for reference, oid in store.references(BRANCH).items()}
        absent = sorted(set(names) - set(tips))
        if absent or not tips:
            raise Missing(f"'{source}' holds no entry '{absent[0]}'" if absent else f"'{source}' holds no entry")
        wanted = {name: oid for name, oid in tips.items() if not names or name in names}
        candidates = [_branch(store, check_name(name), oid) for name, oid in sorted(wanted.items())]
        happened = admit(memory, candidates)
        _take_sources(memory, store)
    return happened


def _branch(store: Store, name: str, oid: Oid) -> _Branch:
    recorded = load(store.objects, name, oid)
    files = dict(walk(store.objects, recorded.records)) if recorded.records else {}
    records = {check_path(path): store.objects.blob(state.oid) for path, state in files.items()}
    if "entry.yaml" not in records:
        raise Usage(f"entry '{name}' has no entry.yaml on its branch")
    card = read_card(records["entry.yaml"], f"{name}/entry.yaml")
    if card.name != name:
        raise Usage(f"branch 'entry/{name}' holds an entry named '{card.name}'")
    check_records(name, records)
    said = read_trailers(recorded.patch.message)
    if (said.entry, said.delta) != (name, recorded.delta.id):
        raise Differs(f"entry '{name}': its code is not the delta that its commit names")
    return _Branch(card, records, recorded, store.objects)


def admit_sources(memory: Memory, bundle: Path) -> None:
    """Stages what a bundle below `entries/sources/` holds: a source system's stock, deltas and own commits."""
    with fetched(str(bundle), _PATTERNS[1:]) as store:
        _take_sources(memory, store)


def _take_sources(memory: Memory, store: Store) -> None:
    """Copies stock trees, deltas and source systems, each only under the name that its content gives it."""
    objects = memory.objects
    for reference, oid in store.references(STOCK).items():
        if reference == CURRENT:  # what is current there is not current here
            continue
        tree = store.objects.commit(oid).tree
        objects.copy(store.objects, [tree])
        if objects.add_commit(tree, [], TOOL, f"{tree}\n") != oid or reference != f"{STOCK}{tree[:12]}":
            raise Usage(f"'{reference}' is no stock commit")
        memory.stage_stock(tree, current=False)
    for reference, oid in store.references(PATCH).items():
        name = reference.removeprefix(PATCH).partition("/")[0]
        objects.copy(store.objects, [oid])
        said = read_trailers(objects.commit(oid).message)
        if said.delta is None or said.entry != name or reference != patch_reference(check_name(name), said.delta):
            raise Usage(f"'{reference}' holds the delta of another entry")
        if memory.store.reference(reference) is None:
            memory.store.stage(reference, oid)
        memory.part_at(name, said.delta)
    for reference, oid in store.references(SOURCE).items():
        objects.copy(store.objects, [oid])
        tree = system_tree(objects, objects.commit(oid).tree, memory.layout)
        if reference != f"{SOURCE}{tree[:12]}":
            raise Usage(f"'{reference}' holds another system than it says")
        if memory.store.reference(reference) is None:
            memory.store.stage(reference, oid)

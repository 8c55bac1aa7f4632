"""Making a repository a deployment repository: from the shipped system tree, or by naming a stock."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from spt import share
from spt.entry import EntryFiles
from spt.errors import Usage
from spt.git.objects import FILE, Objects, Oid, State
from spt.git.patch import blob_id
from spt.git.program import git
from spt.git.store import Store
from spt.git.tree import splice
from spt.git.worktree import advance
from spt.intake import SOURCES, admit, admit_sources, read_folders, read_lock
from spt.memory import CURRENT, SHIPPED_TIP, Memory, Recorded, load, reachable, way_out_of_clone
from spt.system import WHOLE, layout_of, system_tree

__all__ = ["KEPT", "Initialised", "init_shipped", "init_stock", "plain_tree", "shipped_memory", "warnings"]

KEPT = "kept"

_BRANCH = "refs/heads/main"
_PRIVATE = (b"/deployment.yaml", b"__pycache__/")


@dataclass(frozen=True)
class Initialised:
    """What `spt init` did: the stock tree and its commit, what happened to each entry, the bundles taken in.

    `rescued` says for each entry that was moved which reference keeps its old tip.
    """

    stock: Oid
    commit: Oid
    entries: dict[str, str]
    sources: int
    checked_out: bool
    rescued: dict[str, str]


def plain_tree(objects: Objects, root: Path) -> Oid:
    """The system tree of a folder of plain files: the same id on every machine, whatever modes the files have."""
    files = {path.as_posix(): (root / path).read_bytes() for path in share.system_files(root)}
    if not any(path.startswith("stock/") for path in files):
        raise Usage(f"'{root}' holds no system tree", "it has a folder stock/ with .py, .toml and .md files")
    return splice(objects, None, {path: State(FILE, objects.add_blob(data)) for path, data in files.items()})


def shipped_memory(
    root: Path, store: Store | None = None, *, sources: bool = True
) -> tuple[Memory, dict[str, str], int]:
    """Stock, entries and sources of a folder of shipped files, staged in a store (by default one in memory).

    Returns the memory, what happened to each entry, and how many bundles were taken in.  An entry that was changed
    in the repository since it came is `kept` as it is, and so is one that builds on it.
    """
    store = store or Store()
    tree = plain_tree(store.objects, root)
    memory = Memory(store, tree)
    memory.stage_stock(tree, current=True)
    folder = root / "entries"
    happened: dict[str, str] = {}
    if any(folder.glob("*/entry.yaml")):
        found, lock = read_folders(folder), read_lock(folder)
        kept = _kept(memory, found, lock)
        happened = admit(memory, [files for files in found if files.card.name not in kept], lock)
        for name in happened:
            tip = memory.entry(name).tip.oid
            store.stage(f"{SHIPPED_TIP}{name}/{tip[:12]}", tip)
        happened |= dict.fromkeys(kept, KEPT)
    bundles = sorted((folder / SOURCES).glob("*.bundle")) if sources else []
    for bundle in bundles:
        admit_sources(memory, bundle)
    return memory, happened, len(bundles)


def _kept(memory: Memory, found: Sequence[EntryFiles], lock: Mapping[str, Mapping[str, str]]) -> set[str]:
    """The names that a release must leave alone: changed here since they were shipped, or built on such a one."""
    tips: dict[str, list[Oid]] = defaultdict(list)
    for reference, tip in memory.store.references(SHIPPED_TIP).items():
        tips[reference.removeprefix(SHIPPED_TIP).partition("/")[0]].append(tip)
    names = {files.card.name: files for files in found}
    kept = {name for name, files in names.items() if _is_changed(memory, files, tips[name], lock.get(name))}
    requires = {files.card.name: frozenset(files.card.requires) for files in found}
    return kept | {name for name in requires if kept & set(reachable(name, requires))}


def _is_changed(memory: Memory, files: EntryFiles, tips: Sequence[Oid], lock: Mapping[str, str] | None) -> bool:
    """Whether neither this release nor one before it shipped the entry that is there: by code and card."""
    name = files.card.name
    if name in memory.broken:
        return True
    if name not in memory.entries:
        return False
    shipped = [_identity(memory.objects, load(memory.objects, name, tip)) for tip in tips]
    if lock is not None:
        shipped.append((lock["delta_id"], blob_id(files.records["entry.yaml"])))
    return _identity(memory.objects, memory.entries[name]) not in shipped


def _identity(objects: Objects, entry: Recorded) -> tuple[str, Oid | None]:
    card = objects.entries(entry.records).get("entry.yaml") if entry.records else None
    return entry.delta.id, None if card is None else card.oid


def init_shipped(folder: Path, root: Path, *, sources: bool = True) -> Initialised:
    """Makes a folder a deployment repository of shipped files, or brings one up to date with them.

    In a repository that has a stock already only stock and entries move; branches and files stay.
    """
    folder = folder.resolve()
    made = None
    if _is_fresh(folder):
        # Composed in memory first: bad files are refused before anything is made.
        made = shipped_memory(root, sources=sources)
        folder.mkdir(parents=True, exist_ok=True)
        git("init", "-q", "--template=", "-b", "main", str(folder))
    store = Store.at(folder)
    assert store is not None
    with store.locked():
        if made is not None:
            store.adopt(made[0].store)
        memory, happened, bundles = made or shipped_memory(root, store, sources=sources)
        current = store.reference(CURRENT)
        assert current is not None
        store.publish("spt init")
        _exclude(store)
        branch, head = store.head()
        unborn = head is None and branch == _BRANCH
        if unborn:
            advance(store, _BRANCH, None, current, "spt init")
    return Initialised(memory.stock, current, happened, bundles, unborn, memory.rescued)


def _is_fresh(folder: Path) -> bool:
    """Whether a repository must still be made here; Usage where the folder is someone else's."""
    if not folder.exists():
        return True
    if not folder.is_dir():
        raise Usage(f"'{folder}' is not a folder")
    _refuse_inside(folder)
    names = {path.name for path in folder.iterdir()}
    if ".git" not in names and names:
        raise Usage(f"folder '{folder}' is not empty and not a git repository", "name a folder that does not exist yet")
    store = Store.at(folder)
    if store is None:
        return True
    if store.reference(CURRENT) is None and (store.references("refs/heads/") or names != {".git"}):
        hint = way_out_of_clone(store) or "`spt init --stock REV` names the stock of an existing repository"
        raise Usage(f"'{folder}' is a git repository that spt did not make", hint)
    if store.reference(CURRENT) is not None and layout_of(store.objects, Memory.of(store).stock) == WHOLE:
        raise Usage(f"'{folder}' has a stock of its own", "`spt init --stock REV` moves it")
    return False


def _refuse_inside(folder: Path) -> None:
    """Usage for a folder of a deployment's own working tree, which is no place for another."""
    try:
        store = Store.find(folder)
    except Usage:
        return
    if store.work_tree not in (None, folder) and store.reference(CURRENT) is not None:
        raise Usage(f"'{folder}' lies in the deployment '{store.work_tree}'", f"`spt init {store.work_tree}` is meant?")


def _exclude(store: Store) -> None:
    """The deployment file, and what running a system leaves, lie in the working tree and belong to no commit."""
    assert store.common is not None
    path = store.common / "info" / "exclude"
    path.parent.mkdir(exist_ok=True)
    lines = path.read_bytes().splitlines() if path.exists() else []  # bytes, since names are
    wanted = [*lines, *(line for line in _PRIVATE if line not in lines)]
    if wanted != lines:
        part = path.with_name("exclude.spt")
        part.write_bytes(b"".join(line + b"\n" for line in wanted))
        part.replace(path)


def init_stock(folder: Path, revision: str) -> Initialised:
    """Names a revision of an existing repository as its stock: its tree without `.spt/`."""
    store = Store.find(folder)
    with store.locked():
        tree = store.objects.commit(store.resolve(revision)).tree
        stock = system_tree(store.objects, tree, _layout_of(store, tree))
        memory = Memory(store, stock)
        commit = memory.stage_stock(stock, current=True)
        store.publish("spt init --stock")
        _exclude(store)
    return Initialised(stock, commit, {}, 0, False, {})


def _layout_of(store: Store, tree: Oid) -> str:
    """A repository keeps the layout of its first stock: a README beside shipped folders makes it no other system."""
    if store.reference(CURRENT) is not None:
        return Memory.of(store).layout
    return layout_of(store.objects, system_tree(store.objects, tree, WHOLE))


def warnings(store: Store) -> Iterator[str]:
    """What makes git and this tool read different trees in a repository."""
    assert store.common is not None
    if store.references("refs/replace/"):
        yield "this repository has refs/replace: they are not followed here"
    if (store.common / "info" / "grafts").is_file():
        yield "this repository has info/grafts: they are not followed here"

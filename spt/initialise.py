"""Making a repository a deployment repository: from the shipped system tree, or by naming a stock."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from spt import share
from spt.errors import Usage
from spt.git.objects import FILE, Objects, Oid, State
from spt.git.program import git
from spt.git.store import Store
from spt.git.tree import splice
from spt.git.worktree import advance
from spt.intake import SOURCES, admit, admit_sources, read_folders, read_lock
from spt.memory import CURRENT, Memory
from spt.system import WHOLE, layout_of, system_tree

__all__ = ["Initialised", "init_shipped", "init_stock", "plain_tree", "shipped_memory"]

_BRANCH = "refs/heads/main"
_PRIVATE = (b"/deployment.yaml", b"__pycache__/")


@dataclass(frozen=True)
class Initialised:
    """What `spt init` did: the stock tree and its commit, what happened to each entry, the bundles taken in."""

    stock: Oid
    commit: Oid
    entries: dict[str, str]
    sources: int
    checked_out: bool


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

    Returns the memory, what happened to each entry, and how many bundles were taken in.
    """
    store = store or Store()
    tree = plain_tree(store.objects, root)
    memory = Memory(store, tree)
    memory.stage_stock(tree, current=True)
    folder = root / "entries"
    happened: dict[str, str] = {}
    if any(folder.glob("*/entry.yaml")):
        happened = admit(memory, read_folders(folder), read_lock(folder))
    bundles = sorted((folder / SOURCES).glob("*.bundle")) if sources else []
    for bundle in bundles:
        admit_sources(memory, bundle)
    return memory, happened, len(bundles)


def init_shipped(folder: Path, root: Path, *, sources: bool = True) -> Initialised:
    """Makes a folder a deployment repository of shipped files, or brings one up to date with them.

    In a repository that has a stock already only stock and entries move; branches and files stay.
    """
    folder = folder.absolute()
    fresh = _is_fresh(folder)
    if fresh:
        # Composed in memory first: bad files are refused before anything is made.
        shipped_memory(root, sources=sources)
        folder.mkdir(parents=True, exist_ok=True)
        git("init", "-q", "--template=", "-b", "main", str(folder))
    store = Store.at(folder)
    assert store is not None
    with store.locked():
        memory, happened, bundles = shipped_memory(root, store, sources=sources)
        current = store.reference(CURRENT)
        assert current is not None
        store.publish("spt init")
        _exclude(store)
        branch, head = store.head()
        unborn = head is None and branch == _BRANCH
        if unborn:
            advance(store, _BRANCH, None, current, "spt init")
    return Initialised(memory.stock, current, happened, bundles, unborn)


def _is_fresh(folder: Path) -> bool:
    """Whether a repository must still be made here; Usage where the folder is someone else's."""
    if not folder.exists():
        return True
    if not folder.is_dir():
        raise Usage(f"'{folder}' is not a folder")
    names = {path.name for path in folder.iterdir()}
    if ".git" not in names and names:
        raise Usage(f"folder '{folder}' is not empty and not a git repository", "name a folder that does not exist yet")
    store = Store.at(folder)
    if store is None:
        return True
    if store.reference(CURRENT) is None and (store.references("refs/heads/") or names != {".git"}):
        hint = "`spt init --stock REV` names the stock of an existing repository"
        raise Usage(f"'{folder}' is a git repository that spt did not make", hint)
    if store.reference(CURRENT) is not None and layout_of(store.objects, Memory.of(store).stock) == WHOLE:
        raise Usage(f"'{folder}' has a stock of its own", "`spt init --stock REV` moves it")
    return False


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
    return Initialised(stock, commit, {}, 0, False)


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

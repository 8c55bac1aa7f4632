"""Editing an entry: a working tree on its base with its changes in it, and the way back.

The worktree's HEAD is the entry's requirements composed on the stock of now, so `git diff HEAD` there shows what
the entry does.  Where stock changed the same lines, the files hold git's conflict markers.  entry.yaml lies under
`.spt/entries/NAME/` and may be edited too.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from spt.entry import Card, read_card
from spt.errors import Conflict, Missing, Usage
from spt.git.compose import Composition, Part
from spt.git.incoming import scratch_folder
from spt.git.merge import merge_with_markers, split
from spt.git.message import TOOL
from spt.git.objects import FILE, TREE, Objects, Oid, State
from spt.git.program import git
from spt.git.store import Store
from spt.git.tree import Delta, Row, compare, splice, without
from spt.git.worktree import noted, open_changes, write_note
from spt.memory import Memory, records_path
from spt.refresh import carried_row

__all__ = [
    "Opened",
    "WrittenBack",
    "composition_beside",
    "edit_folder",
    "note_written",
    "open_edit",
    "read_edit",
]

_MARKERS = (b"<<<<<<< ", b">>>>>>> ")


@dataclass(frozen=True)
class Opened:
    """An open edit: its folder, the paths with conflicts in them, and whether it was open before."""

    folder: Path
    conflicts: tuple[str, ...]
    was_open: bool


@dataclass(frozen=True)
class WrittenBack:
    """What an edit says now; `folder` is where it stays open."""

    card: Card
    card_data: bytes
    delta: Delta
    base: Oid
    folder: Path


def edit_folder(store: Store, name: str) -> Path:
    """Where an entry is edited."""
    return store.state / "worktrees" / name


def open_edit(store: Store, objects: Objects, composition: Composition, part: Part, card: bytes, stock: Oid) -> Opened:
    """Opens an entry in a linked worktree of a repository; one that is open already on the same base stays as it is.

    `composition` must hold what the entry requires; `part` is the entry as it was, on whatever base.
    """
    folder = edit_folder(store, part.name)
    below = composition.closed(part.requires)
    base_tree = composition.tree(below)
    stock_commit = objects.add_commit(stock, [], TOOL, f"{stock}\n")
    base = stock_commit
    if base_tree != stock:
        base = objects.add_commit(base_tree, [stock_commit], TOOL, f"{base_tree}\n")
    states, conflicts = {}, []
    for row in part.delta.rows:
        state, clashed = _opened_row(objects, part.name, row, composition.value(below, row.path))
        states[row.path] = state
        conflicts += [row.path] if clashed else []
    states[f"{records_path(part.name)}/entry.yaml"] = State(FILE, objects.add_blob(card))
    changed = splice(objects, base_tree, states)
    folder.parent.mkdir(parents=True, exist_ok=True)
    linked = Store.at(folder)
    if linked is not None:
        _refuse_other_base(linked, objects, base_tree, part.name)
        _refuse_stale(linked, part.name, part.delta.id)
        base = linked.head()[1] or base
    with store.written([base, changed]):
        was_open = open_changes(store, folder, base, changed, part.delta.id)
    return Opened(folder, () if was_open else tuple(conflicts), was_open)


def note_written(back: WrittenBack) -> None:
    """Lets an edit that was written back go on from what it made."""
    linked = Store.at(back.folder)
    assert linked is not None
    write_note(linked, back.delta.id)


def _refuse_stale(linked: Store, name: str, delta_id: str, own: str | None = None) -> None:
    """Conflict where an edit began with another delta than its entry has now, unless it makes that very one."""
    began = noted(linked) or delta_id
    if delta_id not in (began, own):
        raise Conflict(
            f"the open edit of '{name}' began with delta {began[:12]}, and the entry has {delta_id[:12]} now",
            "keep its files, remove the worktree (`git worktree remove`), and open the edit again",
        )


def _opened_row(objects: Objects, name: str, row: Row, here: State | None) -> tuple[State | None, bool]:
    try:
        carried = carried_row(objects, name, row, here)
        return (here if carried is None else carried.new), False
    except Conflict:
        old, mine, new = (b"" if state is None else objects.blob(state.oid) for state in (row.old, here, row.new))
        if row.new is None or b"\0" in old + mine + new:
            return (row.new or here), True
        marked = merge_with_markers(old, mine, new, ("stock", name))
        return State(row.new.mode, objects.add_blob(marked)), True


def read_edit(store: Store, objects: Objects, composition: Composition, part: Part, held_card: bytes) -> WrittenBack:
    """What the open edit of an entry holds; Usage where conflicts are left, Conflict where it is not of now.

    `part` is the entry as it is now.
    """
    name = part.name
    folder = edit_folder(store, name)
    linked = Store.at(folder)
    if linked is None:
        raise Missing(f"entry '{name}' is not open", f"`spt entry edit {name}` opens it")
    tree = _working_tree(linked, objects)
    code = without(objects, tree, ".spt")
    state = objects.lookup(tree, f"{records_path(name)}/entry.yaml")
    card_data = objects.blob(state.oid) if state is not None and state.mode != TREE else held_card
    card = read_card(card_data, f"{folder.name}/entry.yaml")
    if card.name != name:
        raise Usage(f"the open edit of '{name}' names its entry '{card.name}'", "an entry keeps its name")
    held = read_card(held_card, f"{name}/entry.yaml")
    opened = composition.tree(composition.closed(held.requires))
    _refuse_other_base(linked, objects, opened, name)
    delta = compare(objects, opened, code)
    for row in delta.rows:
        if row.new is not None and _has_markers(objects.blob(row.new.oid)):
            raise Usage(f"'{row.path}' has conflict markers in it", f"settle them in {folder}")
    _refuse_stale(linked, name, part.delta.id, delta.id)
    below = composition.closed(card.requires)
    if card.requires != held.requires:
        carried = (carried_row(objects, name, row, composition.value(below, row.path)) for row in delta.rows)
        delta = Delta(tuple(row for row in carried if row is not None))
    return WrittenBack(card, card_data, delta, composition.tree(below), folder)


def _refuse_other_base(linked: Store, objects: Objects, base: Oid, name: str) -> None:
    oid = linked.head()[1]
    while oid is not None:
        commit = objects.commit(oid)
        if commit.tree == base:
            return
        oid = commit.parents[0] if commit.parents else None
    raise Conflict(
        f"the open edit of '{name}' stands on another base than the entry has now",
        "its stock or its requirements moved: keep its files, remove the worktree (`git worktree remove`), and open it"
        " again",
    )


def _working_tree(linked: Store, objects: Objects) -> Oid:
    """The tree of all files of a worktree, as `git add` takes them, kept in memory."""
    assert linked.common is not None and linked.work_tree is not None
    with scratch_folder() as scratch:
        (scratch / "exclude").write_text("__pycache__/\n")
        extra: Mapping[str, str] = {
            "GIT_INDEX_FILE": str(scratch / "index"),
            "GIT_OBJECT_DIRECTORY": str(scratch),
            "GIT_ALTERNATE_OBJECT_DIRECTORIES": _quoted(linked.common / "objects"),
        }
        switches = [("core.excludesFile", str(scratch / "exclude"))]
        where = linked.work_tree
        git("read-tree", "HEAD", git_dir=linked.git_dir, work_tree=where, cwd=where, extra=extra)
        git("add", "-A", git_dir=linked.git_dir, work_tree=where, cwd=where, extra=extra, switches=switches)
        said = git("write-tree", git_dir=linked.git_dir, work_tree=where, cwd=where, extra=extra)
        tree = said.decode().strip()
        objects.copy(Objects(scratch, linked.common / "objects"), [tree])
    return tree


def _quoted(path: Path) -> str:
    """A path as git reads it in a list of paths, where a colon would end it."""
    escaped = str(path).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def _has_markers(data: bytes) -> bool:
    return any(line.startswith(_MARKERS) for line in split(data))


def composition_beside(memory: Memory, name: str) -> Composition:
    """All entries but one and those that require it, over the stock of now."""
    whole = memory.composition()
    parts = [part for one, part in whole.parts.items() if name not in whole.closures[one]]
    return Composition(memory.objects, memory.stock, parts)

"""Carrying entries to the stock of now: unchanged where their files are, merged from the old file where not.

An entry whose files stock left alone keeps its delta.  Where stock changed a file that the entry edits, the edit
is merged three ways, from the old content; a conflict stops everything and names the place.
"""

from collections.abc import Iterable, Iterator

from spt.entry import EntryFiles, lint
from spt.errors import Conflict, Missing
from spt.git.compose import Composition, Part, merge_states, topological
from spt.git.merge import Overlap
from spt.git.objects import FILE, Objects, Oid, State
from spt.git.patch import apply_edit
from spt.git.tree import Delta, Row, splice
from spt.memory import Memory, reachable
from spt.system import SHIPPED

__all__ = ["carried_row", "opened_files", "refresh", "refresh_files"]


def carried_row(objects: Objects, name: str, row: Row, here: State | None) -> Row | None:
    """The row on what its path holds now, or None where that holds its new state already.

    Raises Conflict where both changed the same place.
    """
    if here == row.old:
        return row
    try:
        merged = merge_states(objects, row.old, [here, row.new], same_is_one=True)
    except Overlap as overlap:
        raise Conflict(
            f"entry '{name}' and stock both change '{row.path}': {overlap.message}",
            f"`spt entry edit {name}` opens it for settling, `spt entry export {name}` writes it back",
        ) from overlap
    return None if merged == here else Row(row.path, here, merged)


def _carried(objects: Objects, composition: Composition, name: str, below: frozenset[str], delta: Delta) -> Delta:
    rows = (carried_row(objects, name, row, composition.value(below, row.path)) for row in delta.rows)
    carried = Delta(tuple(row for row in rows if row is not None))
    if not carried.rows:
        hint = f"`git branch -m entry/{name} retired/{name}` retires it (docs/memory.md)"
        raise Conflict(f"stock holds all that entry '{name}' does", hint)
    return carried


def refresh(memory: Memory, names: Iterable[str]) -> dict[str, str]:
    """Stages base', P' and R' of entries and their requirements on this repository's stock.

    Returns for each name: unchanged, carried (same delta, other base) or changed.  All evidence is carried; the old
    tips stay under refs/spt/rescue.
    """
    happened = {}
    composition = Composition(memory.objects, memory.stock, [])
    cards = {name: memory.card(name) for name in memory.closure(names)}
    for name in topological({name: card.requires for name, card in cards.items()}):
        before, card = memory.entry(name), cards[name]
        below = composition.closed(card.requires)
        delta = _carried(memory.objects, composition, name, below, before.delta)
        after = memory.stage_entry(card, delta, composition.tree(below), memory.records(name))
        composition.add(Part(name, frozenset(card.requires), delta))
        happened[name] = _word(before.patch.oid == after.patch.oid, before.delta.id == delta.id)
    return happened


def _word(same_commit: bool, same_delta: bool) -> str:
    return "unchanged" if same_commit else "carried" if same_delta else "changed"


def refresh_files(
    objects: Objects, stock: Oid, entries: Iterable[EntryFiles]
) -> Iterator[tuple[EntryFiles, Delta, Oid, Oid]]:
    """Entries from folders, carried to a stock tree: (files, delta, base tree, result tree), requirements first.

    Old contents come from the object folders that `objects` reads (a checkout's own history); Missing where they
    are needed and not there.
    """
    waiting = {files.card.name: files for files in entries}
    order = topological({name: files.card.requires for name, files in waiting.items()})
    old = _OldWorld(objects, [waiting[name] for name in order])
    composition = Composition(objects, stock, [])
    for name in order:
        files = waiting[name]
        below = composition.closed(files.card.requires)
        old.make(name)
        rows = (old.carried(name, row, composition.value(below, row.path)) for row in old.deltas[name].rows)
        delta = Delta(tuple(row for row in rows if row is not None))
        base = composition.tree(below)
        result = splice(objects, base, {row.path: row.new for row in delta.rows})
        lint(objects, files.card, delta, base, result, SHIPPED)
        composition.add(Part(name, frozenset(files.card.requires), delta))
        yield files, delta, base, result


def opened_files(objects: Objects, stock: Oid, entries: Iterable[EntryFiles], name: str) -> tuple[Composition, Part]:
    """(what an entry requires, carried to a stock tree; the entry as its folder was written) for editing it.

    The old contents of its edits are in `objects` then, Missing where they cannot be had.
    """
    found = {files.card.name: files for files in entries}
    if name not in found:
        raise Missing(f"there is no entry '{name}'", "`spt entry list` names those that there are")
    closure = reachable(name, {one: frozenset(files.card.requires) for one, files in found.items()})
    below = [found[one] for one in closure if one != name]
    composition = Composition(objects, stock, [])
    for files, delta, _, _ in refresh_files(objects, stock, below):
        composition.add(Part(files.card.name, frozenset(files.card.requires), delta))
    old = _OldWorld(objects, [found[one] for one in topological(closure)])
    for one in old.composition.order:
        old.make(one)
    for row in old.deltas[name].rows:
        old.require(name, row)
    return composition, Part(name, frozenset(found[name].card.requires), old.deltas[name])


class _OldWorld:
    """Entries as their folders were written: on a stock that is known only by the blobs that patches name."""

    def __init__(self, objects: Objects, entries: list[EntryFiles]) -> None:
        self.objects = objects
        self.files = {files.card.name: files for files in entries}
        self.deltas = {name: _written_delta(objects, files) for name, files in self.files.items()}
        parts = [Part(name, frozenset(self.files[name].card.requires), delta) for name, delta in self.deltas.items()]
        self.stock: dict[str, State] = {}
        self.composition = Composition(objects, self.stock, parts)
        for name, delta in self.deltas.items():
            below = self.composition.below(name)
            for row in delta.rows:
                if row.old is not None and not below & set(self.composition.touchers(row.path)):
                    self.stock.setdefault(row.path, row.old)

    def make(self, name: str) -> None:
        """Makes the new contents of an entry's edits, where the old ones can be had."""
        for edit in self.files[name].edits:
            if edit.row.old is None or self._have(name, edit.row):
                made = apply_edit(edit, self.objects.blob(edit.row.old.oid) if edit.row.old else b"")
                if edit.row.new is not None:
                    self.objects.add_blob(made)

    def _have(self, name: str, row: Row) -> bool:
        assert row.old is not None
        if row.old.oid not in self.objects:
            try:
                self.composition.value(self.composition.below(name), row.path)  # a merge of requirements makes it
            except (Missing, Conflict):
                return False
        return row.old.oid in self.objects

    def carried(self, name: str, row: Row, here: State | None) -> Row | None:
        if here != row.old:
            self.require(name, row)
        return carried_row(self.objects, name, row, here)

    def require(self, name: str, row: Row) -> None:
        """Raises Missing unless the old content of a row can be had."""
        if row.old is not None and not self._have(name, row):
            raise Missing(
                f"'{row.path}' as entry '{name}' was made from it ({row.old.oid[:12]}) is not here",
                "it is in the history of the checkout: fetch that whole (`git fetch --unshallow`)",
            )


def _written_delta(objects: Objects, files: EntryFiles) -> Delta:
    added = (Row(path, None, State(FILE, objects.add_blob(data))) for path, data in files.added.items())
    return Delta(tuple(sorted([*added, *(edit.row for edit in files.edits)])))

"""Applying entries to a commit: one commit an entry, requirements first, exactly or not at all."""

from collections.abc import Iterable, Set
from dataclasses import dataclass

from spt.errors import Conflict, Usage
from spt.git.compose import Composition, PreimageDiffers
from spt.git.message import read_trailers
from spt.git.objects import Commit, Oid
from spt.memory import STOCK, Memory
from spt.system import options_of, system_tree

__all__ = ["Applied", "apply", "entries_of", "history"]


@dataclass(frozen=True)
class Applied:
    """What applying came to: the last commit and its tree, the commits made, the names that were there already."""

    commit: Oid
    tree: Oid
    made: tuple[tuple[str, Oid], ...]
    already: tuple[str, ...]


def apply(memory: Memory, names: Iterable[str], start: Oid) -> Applied:
    """Commits the closure of some entries onto a commit, in memory; `store.written` or `publish` stores it.

    Raises Conflict where a path does not hold what the entry was made from, or entries do not compose; nothing is
    ever merged against what the commit holds besides.
    """
    objects = memory.objects
    stock, commits = history(memory, start)
    there = entries_of(commits)
    wanted = memory.closure(names)
    composition = memory.composition(stock)
    for name in sorted(there):
        _refuse_other_delta(memory, composition, name, there[name])
    before = set(composition.closed(there))
    commit, tree = start, objects.commit(start).tree
    made = []
    for name in composition.ordered(wanted - before):
        tree = _step(composition, tree, before, name)
        before.add(name)
        patch = memory.entry(name).patch
        commit = objects.add_commit(tree, [commit], patch.author, patch.message)
        made.append((name, commit))
    _refuse_double_options(memory, tree)
    return Applied(commit, tree, tuple(made), tuple(composition.ordered(wanted & set(there))))


def _refuse_other_delta(memory: Memory, composition: Composition, name: str, delta_id: str) -> None:
    if name not in composition.parts or composition.parts[name].delta.id != delta_id:
        raise Conflict(
            f"this branch has entry '{name}' with delta {delta_id[:12]}, which is not the one of now",
            "apply to a branch from stock: `spt entry apply NAME --onto REV --branch NEW`",
        )


def _refuse_double_options(memory: Memory, tree: Oid) -> None:
    """Entries may compose line by line and still declare one option twice, which no engine would load."""
    try:
        options_of(memory.objects, system_tree(memory.objects, tree, memory.layout))
    except Usage as error:
        raise Conflict(error.message, "an option has one owner: one of the entries must give up the name") from error


def _step(composition: Composition, tree: Oid, before: Set[str], name: str) -> Oid:
    """Like Composition.step, after a look that the commit holds at each path what the composition says."""
    composition.check(name)
    for row in composition.parts[name].delta.rows:
        found = composition.objects.lookup(tree, row.path)
        if found != composition.value(before, row.path):
            raise PreimageDiffers(name, row, found)
    return composition.step(tree, before, name)


def history(memory: Memory, start: Oid) -> tuple[Oid, list[Commit]]:
    """(stock tree, commits on top of it, newest first): first parents from `start` down to a known stock tree.

    Where no commit has the tree of a stock, this repository's stock counts and the whole history is returned.
    """
    objects = memory.objects
    stocks = {objects.commit(oid).tree for oid in memory.store.references(STOCK).values()} | {memory.stock}
    commits: list[Commit] = []
    oid: Oid | None = start
    while oid is not None:
        commit = objects.commit(oid)
        tree = system_tree(objects, commit.tree, memory.layout)
        if tree in stocks:
            return tree, commits
        commits.append(commit)
        oid = commit.parents[0] if commit.parents else None
    return memory.stock, commits


def entries_of(commits: Iterable[Commit]) -> dict[str, str]:
    """The entries that commits, newest first, have applied, with the delta id that their trailers name.

    A commit that `git revert` took back does not count.
    """
    found: dict[str, str] = {}
    reverted: set[Oid] = set()
    for commit in commits:
        if commit.oid in reverted:
            continue
        said = read_trailers(commit.message)
        if said.entry and said.delta:
            found.setdefault(said.entry, said.delta)  # whatever its author's text says, it takes nothing back
        else:
            reverted.update(_reverted(commit.message))
    return found


def _reverted(message: str) -> list[Oid]:
    mark = "This reverts commit "
    return [line.removeprefix(mark).rstrip(".").strip() for line in message.splitlines() if line.startswith(mark)]

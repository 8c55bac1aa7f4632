"""Source systems: the system that an entry was distilled from, as a branch of its own commits and as a record.

A line of `source.jsonl` names a stock tree, entries with the deltas of that time, and the tree that they make.
The system's commits, copied onto its stock commit, stay under refs/spt/source/<first 12 of the tree>, so that
people can look at them and a commit that became no entry is found.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from spt.difference import Difference, tree_differences
from spt.errors import Conflict, Missing
from spt.formats import read_jsonl
from spt.git.compose import Composition, merge_states
from spt.git.merge import Overlap
from spt.git.message import read_trailers
from spt.git.objects import Commit, Oid, State
from spt.git.tree import Delta, Row, compare, splice
from spt.memory import SOURCE, Memory
from spt.system import system_tree

__all__ = ["commit_delta", "lines_of", "replay", "residual", "source_commits", "source_differences", "stage_source"]


def lines_of(memory: Memory, name: str) -> list[dict[str, Any]]:
    """The source lines of an entry, oldest first."""
    return read_jsonl(memory.records(name).get("source.jsonl", b""), f"{name}/source.jsonl", "source")


def stage_source(memory: Memory, tree: Oid, stock_commit: Oid, commits: Iterable[Commit]) -> list[Commit]:
    """Stages the branch of a source system: its commits (oldest first), one after another on the stock commit.

    Returns them; where they stood on that stock commit already, they are the very same ones.
    """
    copies, parent = [], stock_commit
    for commit in commits:
        parent = memory.objects.reparented(commit.oid, parent)
        copies.append(memory.objects.commit(parent))
        memory.own_commits[parent] = commit.oid
    memory.store.stage(f"{SOURCE}{tree[:12]}", parent)
    return copies


def source_commits(memory: Memory, line: dict[str, Any]) -> list[Commit]:
    """The commits of a line's source system, oldest first, where its branch is here; else none."""
    oid = memory.store.reference(f"{SOURCE}{line['tree'][:12]}")
    commits: list[Commit] = []
    while oid is not None:
        commit = memory.objects.commit(oid)
        if not commit.parents:
            break
        commits.append(commit)
        oid = commit.parents[0]
    return commits[::-1]


def commit_delta(memory: Memory, commit: Commit) -> Delta:
    """What a commit of a system changes, against its first parent, records aside."""
    objects, layout = memory.objects, memory.layout
    before = objects.commit(commit.parents[0]).tree
    return compare(objects, system_tree(objects, before, layout), system_tree(objects, commit.tree, layout))


def residual(memory: Memory, line: dict[str, Any], commits: Iterable[Commit]) -> list[Commit]:
    """The commits that change code and are no entry's, neither by trailer nor by the line's record."""
    taken = {oid for oids in line.get("commits", {}).values() for oid in oids}
    return [
        commit
        for commit in commits
        if commit.oid not in taken and read_trailers(commit.message).entry is None and commit_delta(memory, commit).rows
    ]


def replay(memory: Memory, tree: Oid, commits: Iterable[Commit]) -> Oid:
    """A tree with the changes of commits, oldest first; Conflict where one needs a change that is left out."""
    objects = memory.objects
    for commit in commits:
        rows = commit_delta(memory, commit).rows
        states = {row.path: _replayed(memory, commit, row, objects.lookup(tree, row.path)) for row in rows}
        tree = splice(objects, tree, states)
    return tree


def _replayed(memory: Memory, commit: Commit, row: Row, here: State | None) -> State | None:
    if here == row.old:
        return row.new
    try:
        return merge_states(memory.objects, row.old, [here, row.new])
    except Overlap as overlap:
        raise Conflict(
            f"commit {_name(memory, commit)} changes '{row.path}' on top of a commit that is left out:"
            f" {overlap.message}",
            "name that commit too, or require the entry that it belongs to",
        ) from overlap


def source_differences(memory: Memory, line: dict[str, Any]) -> Iterator[Difference]:
    """What is not right about one source line; Missing where its history is not here.

    Where commits of the source belong to no entry, each is named, and what remains is compared with the source's
    history replayed without them.
    """
    pins = dict(pin.split("@") for pin in line["entries"])
    known = {name: memory.part_at(name, delta_id) for name, delta_id in pins.items()}
    for what, tree in (("stock", line["stock_tree"]), ("source", line["tree"])):
        if tree not in memory.objects:
            raise Missing(f"the {what} tree {tree[:12]} is not in this repository")
    absent = [problem for name, (_, patch) in known.items() for problem in _unlisted(name, patch, pins)]
    if absent:
        yield from absent
        return
    composition = Composition(memory.objects, line["stock_tree"], [part for part, _ in known.values()])
    yield from _order_difference(list(pins), composition.order)
    made, expected = composition.tree(composition.order), line["tree"]
    commits = source_commits(memory, line)
    if left := residual(memory, line, commits):
        yield from (Difference("residual", _residual_text(memory, commit)) for commit in left)
        expected = replay(memory, line["stock_tree"], [commit for commit in commits if commit not in left])
    yield from tree_differences(composition, frozenset(pins), expected, made)


def _unlisted(name: str, patch: Commit, listed: Iterable[str]) -> Iterator[Difference]:
    """Requirements that the source does not list.

    Their names alone count: an entry whose delta stayed while its requirement got a new one has one P, which names
    the new one.  Whether the deltas that the source lists make its tree, the trees say.
    """
    for other, _ in read_trailers(patch.message).requires:
        if other not in listed:
            text = f"entry '{name}' requires '{other}', which the source does not list"
            yield Difference("dependency", text, entry=name)


def _order_difference(listed: Sequence[str], order: Sequence[str]) -> Iterator[Difference]:
    for name, right in zip(listed, order, strict=True):
        if name != right:
            text = f"entry '{name}' stands in the source's list where '{right}' must"
            yield Difference("order", text, entry=name)
            return


def _name(memory: Memory, commit: Commit) -> str:
    """A commit as the user knows it, where this run made a copy of it."""
    return memory.own_commits.get(commit.oid, commit.oid)[:12]


def _residual_text(memory: Memory, commit: Commit) -> str:
    return f"commit {_name(memory, commit)} of the source belongs to no entry: {commit.message.splitlines()[0][:60]}"

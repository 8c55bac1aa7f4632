"""Composition: stock plus any set of entries that is closed under `requires` has one tree, or conflicts.

What a path holds is a function of the *set* of entries that touch it, never of an order:

- touched by none: what stock holds;
- one toucher requires all others: what that entry's delta holds (it was made on top of them);
- otherwise the touchers that no other requires are merged once, as hunks over what their common requirements
  make of the path, or over stock's own content where they have none in common.

Before an entry counts, each path that it changes must hold exactly the old state of its delta in the
composition of its own requirements.  Nothing is searched for, and nothing is merged against stock.
"""

import heapq
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import TypeVar

from spt.errors import Conflict, Missing, Usage
from spt.git.merge import Hunk, Overlap, hunks, merge_hunks, merge_mode
from spt.git.objects import EXECUTABLE, FILE, Objects, Oid, State
from spt.git.tree import Delta, Row, splice

__all__ = ["Composition", "Part", "PreimageDiffers", "merge_states", "topological"]

T = TypeVar("T")
_NONE: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Part:
    """An entry as composition sees it: its name, the names it requires directly, its delta."""

    name: str
    requires: frozenset[str]
    delta: Delta


class PreimageDiffers(Conflict):
    """A path does not hold what an entry's delta was made from."""

    def __init__(self, name: str, row: Row, found: State | None) -> None:
        self.name, self.row, self.found = name, row, found
        super().__init__(
            f"entry '{name}' was made from another '{row.path}': {_word(row.old)} expected, {_word(found)} found",
            f"`spt entry refresh {name}` carries it to this stock; a missing `requires` is mended in its entry.yaml",
        )


def _word(state: State | None) -> str:
    return "no file" if state is None else f"{state.oid[:12]} (mode {state.mode:06o})"


class Composition:
    """The trees that a set of parts can make of one base.

    The base is a tree, or a map of the paths that matter (then `value` works and `tree` does not).
    """

    def __init__(self, objects: Objects, base: Oid | Mapping[str, State], parts: Iterable[Part]) -> None:
        self.objects = objects
        self.base = base
        self.parts: dict[str, Part] = {}
        self.closures: dict[str, frozenset[str]] = {}
        self._order: list[str] | None = None
        self._rows: dict[str, dict[str, Row]] = {}
        self._touchers: dict[str, list[str]] = defaultdict(list)
        self._held: dict[str, State | None] = {}
        self._merges: dict[tuple[str, frozenset[str]], State | None] = {}
        self._steps: dict[tuple[Oid, str], Oid] = {}
        self._trees: dict[frozenset[str], Oid] = {}
        self._sound: set[str] = set()
        given = list(parts)
        by_name = {part.name: part for part in given}
        if len(by_name) < len(given):
            names = [part.name for part in given]
            twice = next(name for name in names if names.count(name) > 1)
            raise Usage(f"two entries are named '{twice}'", "rename one of them")
        for name in topological({part.name: part.requires for part in given}):
            self.add(by_name[name])

    def add(self, part: Part) -> None:
        """One more part, of a new name, whose requirements are there already."""
        assert part.name not in self.parts
        self.parts[part.name] = part
        self.closures[part.name] = frozenset({part.name}).union(*(self.closures[other] for other in part.requires))
        self._rows[part.name] = {row.path: row for row in part.delta.rows}
        for path in self._rows[part.name]:
            self._touchers[path].append(part.name)
        self._order = None

    @property
    def order(self) -> list[str]:
        """All names in the one order that every machine uses: requirements first, ties by name."""
        if self._order is None:
            self._order = topological({part.name: part.requires for part in self.parts.values()})
        return self._order

    def closed(self, names: Iterable[str]) -> frozenset[str]:
        """The names with everything that they require; Missing for a name that is no part."""
        closed: set[str] = set()
        for name in names:
            if name not in self.closures:
                raise Missing(f"there is no entry '{name}'", "`spt entry list` names them")
            closed |= self.closures[name]
        return frozenset(closed)

    def ordered(self, names: Iterable[str]) -> list[str]:
        """The names in `order`."""
        wanted = set(names)
        return [name for name in self.order if name in wanted]

    def touchers(self, path: str) -> list[str]:
        """The parts that change a path."""
        return self._touchers.get(path, [])

    def below(self, name: str) -> frozenset[str]:
        """All that an entry requires, directly or not, without itself."""
        return self.closures[name] - {name}

    def value(self, names: Set[str], path: str) -> State | None:
        """What a path holds once a closed set of entries is applied."""
        return self._among(path, [name for name in self._touchers.get(path, ()) if name in names])

    def check(self, name: str) -> None:
        """Raises PreimageDiffers unless the entry's delta starts from what its requirements make of the base."""
        if name in self._sound:
            return
        below = self.below(name)
        for path, row in self._rows[name].items():
            found = self.value(below, path)
            if found != row.old:
                raise PreimageDiffers(name, row, found)
        self._sound.add(name)

    def tree(self, names: Iterable[str]) -> Oid:
        """The tree of the base with a closed set of entries.

        Closures share what they require, so the largest one below that is known already is where it starts from.
        """
        assert isinstance(self.base, str)
        wanted = frozenset(names)
        if wanted not in self._trees:
            known = max(
                (self.closures[name] for name in wanted if self.closures[name] in self._trees), key=len, default=_NONE
            )
            missing = wanted - known
            # Not by `order`, which is made anew for each part that was added: few of all may be missing.
            more = topological({name: self.parts[name].requires & missing for name in missing})
            for name in more:
                self.check(name)
            states = {path: self.value(wanted, path) for name in more for path in self._rows[name]}
            self._trees[wanted] = splice(self.objects, self._trees[known] if known else self.base, states)
        return self._trees[wanted]

    def step(self, tree: Oid, before: Set[str], name: str) -> Oid:
        """The tree once `name` is applied to `tree`, in which the closed set `before` is applied already.

        Known by tree and delta, so that closures share their prefixes, and `apply` what `verify` has computed.
        """
        rows = self._rows[name]
        shared = any(len(self._touchers[path]) > 1 for path in rows)
        key = (tree, self.parts[name].delta.id)
        if not shared and key in self._steps:
            return self._steps[key]
        self.check(name)
        states = {path: row.new for path, row in rows.items()}
        if shared:
            for path in rows:
                there = [other for other in self._touchers[path] if other == name or other in before]
                states[path] = self._among(path, there)
        made = splice(self.objects, tree, states)
        if not shared:
            self._steps[key] = made
        if before == self.below(name):
            self._trees[self.closures[name]] = made
        return made

    def prefixes(self, order: Sequence[str]) -> list[Oid]:
        """The tree after each entry of an order in which requirements come first."""
        assert isinstance(self.base, str)
        trees, tree, before = [], self.base, set[str]()
        for name in order:
            tree = self.step(tree, before, name)
            before.add(name)
            trees.append(tree)
        return trees

    def _stock(self, path: str) -> State | None:
        if not isinstance(self.base, str):
            return self.base.get(path)
        if path not in self._held:
            self._held[path] = self.objects.lookup(self.base, path)
        return self._held[path]

    def _among(self, path: str, touchers: Sequence[str]) -> State | None:
        if not touchers:
            return self._stock(path)
        if len(touchers) == 1:
            return self._rows[touchers[0]][path].new
        key = (path, frozenset(touchers))
        if key not in self._merges:
            self._merges[key] = self._merged(path, key[1])
        return self._merges[key]

    def _merged(self, path: str, touchers: frozenset[str]) -> State | None:
        required = {other for name in touchers for other in self.below(name)}
        tips = sorted(touchers - required)
        if len(tips) == 1:
            return self._rows[tips[0]][path].new
        mine = {tip: self.closures[tip] & touchers for tip in tips}
        common = {name for name in touchers if sum(name in closure for closure in mine.values()) > 1}
        base = self._among(path, sorted(common))
        sides = [self._among(path, sorted(common | mine[tip])) for tip in tips]
        try:
            return merge_states(self.objects, base, sides)
        except Overlap as overlap:
            first, second = sorted(tips[side] for side in overlap.sides)
            raise Conflict(
                f"entries '{first}' and '{second}' do not compose at '{path}': {overlap.message}",
                "let one require the other, or give stock the seam that both would edit",
            ) from overlap


def merge_states(
    objects: Objects, base: State | None, sides: Sequence[State | None], *, same_is_one: bool = False
) -> State | None:
    """One state from several changes of a base; Overlap where they cannot all hold."""
    changed = [(index, side) for index, side in enumerate(sides) if side != base]
    if same_is_one and len({side for _, side in changed}) == 1:
        return changed[0][1]
    if len(changed) < 2:
        return changed[0][1] if changed else base
    pair = (changed[0][0], changed[1][0])
    states = [side for _, side in changed if side is not None]
    if base is None:
        raise Overlap("both add it", pair)
    if len(states) < len(changed):
        raise Overlap("one removes it", pair)
    mode = _remapped(lambda: merge_mode(base.mode, [state.mode for state in states]), changed)
    edits = [(index, state) for (index, _), state in zip(changed, states, strict=True) if state.oid != base.oid]
    if len(edits) < 2:
        return State(mode, edits[0][1].oid if edits else base.oid)
    if any(state.mode not in (FILE, EXECUTABLE) for state in (base, *states)):
        raise Overlap("a link cannot be merged", pair)
    found = _remapped(lambda: [_hunks(objects, base.oid, state.oid) for _, state in edits], edits)
    merged = _remapped(lambda: merge_hunks(objects.blob(base.oid), found, same_is_one=same_is_one), edits)
    return State(mode, objects.add_blob(merged))


def _hunks(objects: Objects, old: Oid, new: Oid) -> tuple[Hunk, ...]:
    """The hunks from one blob to another, each pair compared once: a file's touchers are merged in many sets."""
    known = objects.hunks.get((old, new))
    if known is None:
        before, after = objects.blob(old), objects.blob(new)
        if b"\0" in before or b"\0" in after:
            raise Overlap("binary content cannot be merged", (0, 1))
        known = objects.hunks[old, new] = hunks(before, after)
    return known


def _remapped(action: Callable[[], T], sides: Sequence[tuple[int, object]]) -> T:
    """Lets an Overlap of some sides name their indices among all sides."""
    try:
        return action()
    except Overlap as overlap:
        first, second = overlap.sides
        raise Overlap(overlap.message, (sides[first][0], sides[second][0])) from overlap


def topological(requires: Mapping[str, Iterable[str]]) -> list[str]:
    """Names with their requirements first, ties by name; Missing for an unknown name, Usage for a cycle."""
    waiting: dict[str, set[str]] = {}
    needed_by: dict[str, list[str]] = defaultdict(list)
    for name in sorted(requires):
        waiting[name] = set(requires[name])
        for other in sorted(waiting[name]):
            if other not in requires:
                raise Missing(f"entry '{name}' requires '{other}', which is not there", f"import '{other}' too")
            needed_by[other].append(name)
    ready = [name for name, needs in waiting.items() if not needs]
    heapq.heapify(ready)
    order = []
    while ready:
        name = heapq.heappop(ready)
        order.append(name)
        for other in needed_by[name]:
            waiting[other].discard(name)
            if not waiting[other]:
                heapq.heappush(ready, other)
    if len(order) < len(waiting):
        raise Usage(f"entries require one another: {_cycle(waiting, set(order))}", "one `requires` must go")
    return order


def _cycle(waiting: Mapping[str, set[str]], done: set[str]) -> str:
    name = min(set(waiting) - done)
    seen: list[str] = []
    while name not in seen:
        seen.append(name)
        name = min(waiting[name])
    return " -> ".join(f"'{step}'" for step in [*seen[seen.index(name) :], name])

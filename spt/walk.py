"""Walking recorded lattices: what a draft policy would have accepted, without a model.

For greedy decoding an answer is what the target says whatever was drafted, so a policy's steps follow from the lattices
of a finished answer: at an anchor its tree is built, the longest path that agrees with the tokens behind the anchor is
accepted, the target adds one token of its own, and that is the next anchor.
"""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from spt.errors import Usage
from spt.growth import Grown, grow, paths
from spt.policy import Chain, Confident, Length, Levels, Policy, Shared, Tree

if TYPE_CHECKING:
    from spt.lattice import Lattice, RequestLattice

__all__ = ["Agreement", "Walk", "Walked", "Walker", "held", "walk"]

# {request: for each token of its answer whether a cheap pass says it too}
Agreement = Mapping[str, Sequence[bool]]


@dataclass(frozen=True, eq=False)
class Walk:
    """The steps of one answer, in order.

    start: int64 [step], the absolute position of the anchor.  nodes: int64 [step], drafted rows without the anchor.
    accepted: int64 [step], drafts that were accepted, as far as the answer goes.  tokens: int64 [step], emitted.
    looped: bool [step], whether a step is left out of tau, because its first token is looped.
    """

    request: str
    start: NDArray[np.int64]
    nodes: NDArray[np.int64]
    accepted: NDArray[np.int64]
    tokens: NDArray[np.int64]
    looped: NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Walked:
    """What comes of a policy.  Counts are whole numbers, but expected ones for `Levels` with a given agreement.

    steps: exact passes, counted for each request that a pass serves.  step_tokens: emitted by them, after trimming.
    kept_steps, kept_tokens: without the looped steps.  tokens, looped_tokens: of the answers, prefill's first included.
    passes: exact passes of the engine.  nodes: drafted rows that they verify; each step verifies its anchor as well.
    histogram: steps by accepted drafts, from 0.  cheap_passes, cheap_rows: of the low-precision target.
    walks: step by step, in the order of the requests; empty where counts are expected ones.
    """

    policy: Policy
    requests: int
    tokens: int
    looped_tokens: int
    steps: float
    step_tokens: float
    kept_steps: float
    kept_tokens: float
    passes: float
    nodes: float
    histogram: tuple[float, ...]
    cheap_passes: float = 0
    cheap_rows: float = 0
    walks: tuple[Walk, ...] = ()

    @property
    def tau(self) -> float | None:
        """Tokens a step without loops, micro average; None where no step is left."""
        return self.kept_tokens / self.kept_steps if self.kept_steps else None

    @property
    def tau_all(self) -> float | None:
        """Tokens a step, loops included; None where there was no step."""
        return self.step_tokens / self.steps if self.steps else None

    @property
    def nodes_per_step(self) -> float | None:
        return self.nodes / self.steps if self.steps else None

    @property
    def rows_per_pass(self) -> float | None:
        """Rows that an exact pass verifies, anchors included; None where there was no pass."""
        return (self.nodes + self.steps) / self.passes if self.passes else None

    def as_json(self) -> dict[str, Any]:
        """All figures, without the single steps."""
        names = ("requests", "tokens", "looped_tokens", "steps", "step_tokens", "kept_steps", "kept_tokens", "passes")
        derived = ("tau", "tau_all", "nodes", "nodes_per_step", "rows_per_pass", "cheap_passes", "cheap_rows")
        figures = {name: getattr(self, name) for name in (*names, *derived)}
        return {"policy": str(self.policy), **figures, "histogram": list(self.histogram)}


def walk(lattices: Sequence["Lattice"], policy: Policy, agreement: Agreement | None = None) -> Walked:
    """What `policy` comes to on finished answers; raises Usage where it wants what was not stored."""
    return Walker(lattices, agreement).walk(policy)


class Walker:
    """Walks many policies over the same answers; what they have in common is computed once.

    sizes: anchors of each answer.  firsts: where an answer's anchors begin among all of them.
    logprobs: float16 [anchor, depth, rank].  inside: bool [anchor, depth], whether the answer has a token there.
    truth: int16 [anchor, depth], the rank of that token, -1 where there is none or it is not stored.
    kept: for each answer bool [anchor], whether a step from there counts for tau.
    """

    def __init__(self, lattices: Sequence["Lattice"], agreement: Agreement | None = None) -> None:
        """lattices: of the same models and shape.  agreement: for policies that want it recorded."""
        self.requests = _requests(lattices)
        self.agreement = agreement
        self.depths, self.ranks, self.vocabulary = lattices[0].depths, lattices[0].ranks, lattices[0].vocabulary
        # All answers' anchors stand behind one another; an answer's last token is nobody's anchor.
        self.sizes = [each.positions - 1 for each in self.requests]
        self.firsts = np.concatenate(([0], np.cumsum(self.sizes)))
        self.truth = np.concatenate([_truth(each) for each in self.requests])
        self.logprobs = np.concatenate([each.half[:-1] for each in self.requests])
        self.inside = np.concatenate([_inside(each) for each in self.requests])
        self.kept = [~each.looped[1:] for each in self.requests]
        self._grown: dict[tuple[int, int, bool], tuple[int, Grown]] = {}

    @property
    def positions(self) -> int:
        """How many anchors the answers have."""
        return int(self.firsts[-1])

    def walk(self, policy: Policy) -> Walked:
        """What comes of a policy; raises Usage where it wants a rank or a position that was not stored."""
        match policy:
            case Chain():
                return self._walk(policy, *self._chain(policy))
            case Tree():
                return self._walk(policy, *self._tree(policy))
            case Confident():
                return self._walk(policy, *self._confident(policy))
            case Length():
                return self._walk_length(policy)
            case Shared():
                return self._walk_shared(policy)
            case Levels():
                return self._walk_levels(policy)

    def walk_all(self, policies: Iterable[Policy]) -> list[Walked]:
        """The same for each, in order; trees of large budgets are grown first, since smaller ones are parts of them."""
        given = list(policies)
        order = sorted(range(len(given)), key=lambda index: -_nodes(given[index]))
        walked = {index: self.walk(given[index]) for index in order}
        return [walked[index] for index in range(len(given))]

    # --- what is accepted at each anchor, and of how many nodes ---

    def _chain(self, policy: Chain) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        depths = self.positions_of(policy, policy.positions)
        spine = np.logical_and.accumulate(self.truth[:, :depths] == 0, axis=1).sum(axis=1)
        return spine, np.full(self.positions, depths)

    def _tree(self, policy: Tree) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        grown, nodes = self._grow(policy, policy)
        return held(grown.row, nodes), np.full(self.positions, nodes)

    def _confident(self, policy: Confident) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        grown, most = self._grow(policy, policy.tree, want_scores=True)
        least = math.log(policy.floor) if policy.floor > 0 else -math.inf
        assert grown.scores is not None
        nodes = (grown.scores[:, :most] >= least).sum(axis=1)
        return held(grown.row, nodes[:, None]), nodes

    def _grow(self, policy: Policy, tree: Tree, want_scores: bool = False) -> tuple[Grown, int]:
        """Trees of at least the nodes of `tree` at each anchor, and how many of them it has."""
        depths = self.positions_of(policy, tree.positions)
        # A node of rank r has r better siblings, so that a small tree cannot use all of a large width.
        width = min(tree.width, max(tree.nodes, 1))
        if width > self.ranks < self.vocabulary:
            raise Usage(
                f"'{policy}' wants {width} ranks, and the lattice holds {self.ranks}",
                f"ask for a width of at most {self.ranks}, or for bounds",
            )
        key = (depths, min(tree.width, self.ranks), want_scores)
        nodes = min(tree.nodes, paths(key[1], depths, tree.nodes))
        most, grown = self._grown.get(key, (-1, None))
        if grown is None or most < nodes:
            lattice = self.logprobs[:, :depths, : key[1]], self.truth[:, :depths]
            grown = grow(*lattice, nodes, want_scores)
            self._grown[key] = nodes, grown
        return grown, nodes

    def positions_of(self, policy: Policy, positions: int) -> int:
        """How many positions a policy drafts, where it asks for `positions`; Usage where they were not stored."""
        if positions > self.depths:
            raise Usage(
                f"'{policy}' wants {positions} positions, and the lattice holds {self.depths}",
                "0 stands for all that the drafter proposes",
            )
        return positions or self.depths

    # --- from anchor to anchor ---

    def _walk(self, policy: Policy, accepted: NDArray[np.int64], nodes: NDArray[np.int64]) -> Walked:
        """A policy whose tree depends on the anchor alone."""
        return self._sum(policy, [self._steps(index, accepted, nodes) for index in range(len(self.requests))])

    def _steps(self, index: int, accepted: NDArray[np.int64], nodes: NDArray[np.int64]) -> Walk:
        first, size = self.firsts[index], self.sizes[index]
        lengths = accepted[first : first + size].tolist()
        anchors, anchor = [], 0
        while anchor < size:
            anchors.append(anchor)
            anchor += lengths[anchor] + 1
        return self._record(index, anchors, accepted[first:], nodes[first:])

    def _record(
        self, index: int, anchors: Sequence[int], accepted: NDArray[np.int64], nodes: NDArray[np.int64]
    ) -> Walk:
        """The steps from `anchors`; accepted and nodes are looked up at them."""
        at, lattice = np.array(anchors, np.int64), self.requests[index]
        tokens = np.minimum(accepted[at] + 1, self.sizes[index] - at)
        looped = ~self.kept[index][at]
        return Walk(lattice.request, lattice.start + at, nodes[at], accepted[at], tokens, looped)

    def _walk_length(self, policy: Length) -> Walked:
        """Chains whose length follows from what the request accepted before."""
        spine, _ = self._chain(Chain(self.positions_of(policy, policy.longest)))
        walks = []
        for index, first in enumerate(self.firsts[:-1]):
            lengths = spine[first : first + self.sizes[index]].copy()
            drafted = np.zeros_like(lengths)
            anchors, anchor, length = [], 0, policy.longest
            while anchor < len(lengths):
                anchors.append(anchor)
                accepted = min(int(lengths[anchor]), length)
                lengths[anchor], drafted[anchor] = accepted, length
                length = length + 2 if accepted == length else length - 1
                length = min(max(length, policy.shortest), policy.longest)
                anchor += accepted + 1
            walks.append(self._record(index, anchors, lengths, drafted))
        return self._sum(policy, walks)

    def _walk_shared(self, policy: Shared) -> Walked:
        """One budget for all requests of a step: each gets the nodes that are among the best of all."""
        grown, _ = self._grow(policy, policy.tree, want_scores=True)
        assert grown.scores is not None
        accepted, nodes = np.zeros(self.positions, np.int64), np.zeros(self.positions, np.int64)
        anchors: list[list[int]] = [[] for _ in self.requests]
        waiting = (index for index, size in enumerate(self.sizes) if size)
        served = list(itertools.islice(waiting, policy.requests))
        ahead = [0] * len(self.requests)  # where each request goes on
        passes = 0
        while served:
            passes += 1
            at = self.firsts[served] + [ahead[index] for index in served]
            nodes[at] = _best_of_all(grown.scores[at, : policy.nodes], policy.nodes)
            accepted[at] = held(grown.row[at], nodes[at, None])
            for index, lengths in zip(served, accepted[at].tolist(), strict=True):
                anchors[index].append(ahead[index])
                ahead[index] += lengths + 1
            served = [index for index in served if ahead[index] < self.sizes[index]]
            served += itertools.islice(waiting, policy.requests - len(served))
        walks = [
            self._record(index, anchors[index], accepted[first:], nodes[first:])
            for index, first in enumerate(self.firsts[:-1])
        ]
        return self._sum(policy, walks, passes)

    def _sum(self, policy: Policy, walks: Sequence[Walk], passes: int | None = None) -> Walked:
        tokens = np.concatenate([each.tokens for each in walks])
        kept = ~np.concatenate([each.looped for each in walks])
        histogram = np.bincount(np.concatenate([each.accepted for each in walks]))
        return Walked(
            policy,
            *self._answers(),
            steps=len(tokens),
            step_tokens=int(tokens.sum()),
            kept_steps=int(kept.sum()),
            kept_tokens=int(tokens[kept].sum()),
            passes=len(tokens) if passes is None else passes,
            nodes=sum(int(each.nodes.sum()) for each in walks),
            histogram=tuple(histogram.tolist()),
            walks=tuple(walks),
        )

    def _answers(self) -> tuple[int, int, int]:
        """Answers, their tokens, and the looped ones of these."""
        tokens = sum(each.positions for each in self.requests)
        return len(self.requests), tokens, sum(int(each.looped.sum()) for each in self.requests)

    # --- two levels ---

    def _walk_levels(self, policy: Levels) -> Walked:
        """Expected counts: an anchor is reached with a probability, and a cycle from it ends at several."""
        accepted, nodes = self._chain(policy.draft) if isinstance(policy.draft, Chain) else self._tree(policy.draft)
        counts = _Counts(np.zeros((policy.passes + 1) * (self.depths + 1)))
        for index, first in enumerate(self.firsts[:-1]):
            size = self.sizes[index]
            own = accepted[first : first + size].tolist(), nodes[first : first + size].tolist()
            agrees, kept = self._agrees(policy, index), self.kept[index].tolist()
            reached = [1.0] + [0.0] * size
            for anchor in range(size):
                if reached[anchor]:
                    cycle = _cycle(anchor, policy.passes, *own, agrees)
                    counts.add(reached[anchor], anchor, cycle, kept[anchor])
                    for share, end, _ in cycle.ends:
                        reached[end] += reached[anchor] * share
        return counts.walked(policy, *self._answers())

    def _agrees(self, policy: Levels, index: int) -> "_Agrees":
        """How probable it is that a cheap pass says the answer's token at a position, which is a bonus token or not."""
        if policy.agreement is not None and policy.bonus is not None:
            drafted, at_bonus = policy.agreement, policy.bonus
            return lambda position, bonus: at_bonus if bonus else drafted
        name, tokens = self.requests[index].request, self.sizes[index] + 1
        recorded = (self.agreement or {}).get(name)
        if recorded is None:
            raise Usage(f"'{policy}': no agreement was recorded for '{name}'", "give one for each request")
        if len(recorded) != tokens:
            raise Usage(f"the agreement of '{name}' has {len(recorded)} tokens, and its answer {tokens}")
        return lambda position, bonus: float(recorded[position])


_Agrees = Callable[[int, bool], float]


@dataclass(frozen=True)
class _Cycle:
    """Cheap passes and the exact pass behind them.

    ends: (share, the next anchor, accepted drafts).  nodes: drafted rows of the exact pass, where the cheap passes'
    chains are as long as exact ones would have been.
    """

    ends: Sequence[tuple[float, int, int]]
    nodes: int
    cheap_passes: int
    cheap_rows: int


def _cycle(anchor: int, passes: int, accepted: Sequence[int], nodes: Sequence[int], agrees: _Agrees) -> _Cycle:
    """A chain grows by what each cheap pass accepts and adds; the exact pass keeps it up to the first other token."""
    ends: list[tuple[float, int, int]] = []
    size, at, share, cheap_passes, cheap_rows = len(accepted), anchor, 1.0, 0, 0
    for _ in range(passes):
        if at == size:
            break
        cheap_passes, cheap_rows = cheap_passes + 1, cheap_rows + nodes[at] + 1
        said = min(accepted[at] + 1, size - at)
        for token in range(1, said + 1):
            agreed = agrees(at + token, token > accepted[at])
            ends.append((share * (1 - agreed), at + token, at + token - anchor - 1))
            share *= agreed
        at += said
    if at == size:
        ends.append((share, at, at - anchor))
        drafted = 0
    else:
        ends.append((share, min(at + accepted[at] + 1, size), at + accepted[at] - anchor))
        drafted = nodes[at]
    return _Cycle([end for end in ends if end[0]], at - anchor + drafted, cheap_passes, cheap_rows)


@dataclass
class _Counts:
    """Sums of expected counts."""

    histogram: NDArray[np.float64]
    steps: float = 0
    step_tokens: float = 0
    kept_steps: float = 0
    kept_tokens: float = 0
    nodes: float = 0
    cheap_passes: float = 0
    cheap_rows: float = 0

    def add(self, mass: float, anchor: int, cycle: _Cycle, kept: bool) -> None:
        tokens = mass * sum(share * (end - anchor) for share, end, _ in cycle.ends)
        self.steps += mass
        self.step_tokens += tokens
        self.kept_steps += mass * kept
        self.kept_tokens += tokens * kept
        self.nodes += mass * cycle.nodes
        self.cheap_passes += mass * cycle.cheap_passes
        self.cheap_rows += mass * cycle.cheap_rows
        for share, _, drafts in cycle.ends:
            self.histogram[drafts] += mass * share

    def walked(self, policy: Levels, requests: int, tokens: int, looped_tokens: int) -> Walked:
        names = ("steps", "step_tokens", "kept_steps", "kept_tokens", "nodes", "cheap_passes", "cheap_rows")
        counts: dict[str, Any] = {name: getattr(self, name) for name in names}
        counts |= {"passes": self.steps, "histogram": tuple(np.trim_zeros(self.histogram, "b").tolist())}
        return Walked(policy, requests, tokens, looped_tokens, **counts)


def _requests(lattices: Sequence["Lattice"]) -> list["RequestLattice"]:
    """The requests of lattices, each once; Usage where there are none or lattices are of unlike things."""
    for one in lattices[1:]:
        for name in ("origin", "mode", "dtype", "block", "vocabulary", "depths", "ranks"):
            here, there = getattr(lattices[0], name), getattr(one, name)
            if here != there:
                raise Usage(f"lattices differ in {name}: {here} and {there}", "walk them one at a time")
    requests = [each for one in lattices for each in one.requests]
    if not requests:
        raise Usage("no answer is left to walk", "name a lattice with at least one request")
    names = Counter(each.request for each in requests)
    if twice := [name for name, count in names.items() if count > 1]:
        raise Usage(f"the request '{twice[0]}' is there {names[twice[0]]} times", "name each lattice once")
    return requests


def _truth(lattice: "RequestLattice") -> NDArray[np.int16]:
    """int16 [anchor, depth]: the rank of the token that the answer has there, -1 where the lattice lacks it."""
    answer, inside = lattice.tokens[lattice.start :], _inside(lattice)
    at = np.arange(len(inside))[:, None] + np.arange(1, inside.shape[1] + 1)
    came = answer[np.where(inside, at, 0)]
    hit = (lattice.ids[:-1] == came[:, :, None]) & inside[:, :, None]
    return np.where(hit.any(axis=2), hit.argmax(axis=2), -1).astype(np.int16)


def _inside(lattice: "RequestLattice") -> NDArray[np.bool_]:
    """bool [anchor, depth]: whether the answer has a token there."""
    anchors = lattice.positions - 1
    return np.arange(anchors)[:, None] + np.arange(lattice.ids.shape[1]) < anchors


def held(row: NDArray[np.int16], nodes: int | NDArray[np.int64]) -> NDArray[np.int64]:
    """int64 [n]: how many nodes of the true path are among the first `nodes` of each tree."""
    held: NDArray[np.int64] = ((row > 0) & (row <= nodes)).sum(axis=1)
    return held


def _best_of_all(scores: NDArray[np.float64], nodes: int) -> NDArray[np.int64]:
    """int64 [request]: how many of the best `nodes` scores of [request, node] are in each row, ties by request."""
    order = np.argsort(-scores.reshape(-1), kind="stable")[:nodes]
    return np.bincount(order // max(scores.shape[1], 1), minlength=len(scores))


def _nodes(policy: Policy) -> int:
    """The nodes of the largest tree that a policy grows."""
    if isinstance(policy, Levels):
        return _nodes(policy.draft)
    return 0 if isinstance(policy, Chain | Length) else policy.nodes

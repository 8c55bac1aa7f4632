"""tau over node budget: points that were walked on lattices, or measured by runs."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spt.errors import Usage

if TYPE_CHECKING:
    from spt.lattice import Lattice
    from spt.measured import Run
    from spt.walk import Walked

__all__ = [
    "AGREEMENTS",
    "NODES",
    "Kept",
    "Point",
    "ratio_interval",
    "run_point",
    "tau_of",
    "walk_points",
    "walk_policies",
    "walked_levels",
]

NODES = (4, 8, 16, 24, 32, 48, 63, 96, 127, 191, 255)
POSITIONS = (4, 8, 0)  # 0: all that the drafter proposes
WIDTH = 16
AGREEMENTS = (0.9, 0.97, 1.0)  # of a cheap pass with the exact one: doubtful, likely, never wrong
PASSES = (1, 2, 3)

# {answer: (tokens, steps) without loops}
Kept = Mapping[str, tuple[float, float]]


@dataclass(frozen=True)
class Point:
    """What one policy comes to.

    kind: `chain`, `tree`, `shared`, `levels` or `run`.  nodes: drafted rows a step and request.  positions: drafted
    depths.  kept: tokens and steps by answer; empty where only their expectation is known.  cheap_passes, cheap_rows:
    a step, of a low-precision target.  batch: requests that share a pass.  step_us: of a run, as it was measured.
    """

    policy: str
    kind: str
    nodes: float
    positions: int
    tau: float
    kept: Kept
    cheap_passes: float = 0.0
    cheap_rows: float = 0.0
    agreement: float = 1.0
    batch: int = 1
    step_us: float | None = None

    @property
    def drafts(self) -> float:
        """Drafter passes a step."""
        return 0.0 if not self.nodes else 1.0 + self.cheap_passes

    @property
    def interval(self) -> tuple[float, float] | None:
        """95 % interval of tau over answers."""
        return tau_of(self.kept)[1] if self.kept else None


def tau_of(kept: Kept) -> tuple[float, tuple[float, float] | None]:
    """Tokens over steps, micro average, and its 95 % interval as a ratio of sums over answers (None for one answer).

    Usage where no step counts: zero accepted tokens are no speed.
    """
    pairs = [pair for pair in kept.values() if pair[1]]
    steps = sum(pair[1] for pair in pairs)
    if not steps or not sum(pair[0] for pair in pairs):
        raise Usage("zero tokens were accepted: no step counts", "ask for longer answers, or others that do not loop")
    tau = sum(pair[0] for pair in pairs) / steps
    if len(pairs) < 2:
        return tau, None
    half = _quantile(len(pairs)) * tau * _spread([(tokens - tau * own) / (tau * steps) for tokens, own in pairs])
    return tau, (max(0.0, tau - half), tau + half)


def ratio_interval(before: Kept, after: Kept) -> tuple[float, tuple[float, float] | None]:
    """tau after over tau before, and its 95 % interval; by answer where both hold the same ones, else of two samples.

    The interval is None where either is of one answer, which does not tell how answers differ.
    Usage where either is only an expectation.
    """
    if not before or not after:
        raise Usage("an expected tau has no answers that a ratio's interval could come from")
    (one, _), (other, _) = tau_of(before), tau_of(after)
    if min(sum(pair[1] > 0 for pair in each.values()) for each in (before, after)) < 2:
        return other / one, None
    steps = [sum(pair[1] for pair in each.values()) for each in (before, after)]
    parts = [
        {name: (tokens - tau * own) / (tau * total) for name, (tokens, own) in kept.items()}
        for kept, tau, total in zip((before, after), (one, other), steps, strict=True)
    ]
    if parts[0].keys() == parts[1].keys():
        spread = _spread([parts[1][name] - parts[0][name] for name in parts[0]])
    else:
        spread = math.hypot(*(_spread(list(part.values())) for part in parts))
    factor = math.exp(_quantile(min(len(before), len(after))) * spread)
    return other / one, (other / one / factor, other / one * factor)


def _spread(parts: Sequence[float]) -> float:
    """Standard error of a sum whose parts, one an answer, have mean zero."""
    count = len(parts)
    return math.sqrt(sum(part**2 for part in parts) * count / (count - 1))


def _quantile(answers: int) -> float:
    from scipy.stats import t as student

    return float(student.ppf(0.975, answers - 1))


def walk_points(lattice: "Lattice", nodes: Iterable[int] = NODES, batch: int = 1) -> list[Point]:
    """The chain, and best-first trees of every budget within every number of positions; shared budgets for a batch.

    Usage where no step counts for tau.
    """
    from spt.policy import Chain, Policy, Shared, Tree
    from spt.walk import Walker

    walker = Walker([lattice])
    width = min(WIDTH, lattice.ranks)
    depths = sorted({min(positions or lattice.depths, lattice.depths) for positions in POSITIONS})
    policies: list[Policy] = [Chain()]
    policies += [Tree(count, positions, width) for positions in depths for count in nodes]
    if batch > 1:
        policies += [Shared(count * batch, batch, 0, width) for count in nodes if count * batch < 1024]
    return _counting(walker.walk_all(policies), lattice)


def walk_policies(lattice: "Lattice", words: Iterable[str]) -> dict[str, Point]:
    """What policies, in the words of `spt walk`, come to; Usage for a word that is none, or no step that counts."""
    from spt.policy import parse_policy
    from spt.walk import Walker

    words = list(words)
    walked = Walker([lattice]).walk_all(map(parse_policy, words))
    found = {}
    for word, own in zip(words, walked, strict=True):
        if not own.kept_steps:
            raise Usage(f"'{word}': no step of these answers counts", "measure longer answers, or others")
        found[word] = _point(own, lattice.depths)
    return found


def walked_levels(lattice: "Lattice", nodes: int) -> list[Point]:
    """Several drafts an exact pass, each of up to `nodes` nodes, by passes and agreement; Usage as `walk_points`."""
    from spt.policy import MOST_NODES, Levels, Tree
    from spt.walk import Walker

    draft = Tree(min(nodes, MOST_NODES), 0, min(WIDTH, lattice.ranks))
    policies = [Levels(passes, agreement, agreement, draft) for passes in PASSES for agreement in AGREEMENTS]
    return _counting(Walker([lattice]).walk_all(policies), lattice)


def _counting(walked: Iterable["Walked"], lattice: "Lattice") -> list[Point]:
    """Those with a step that counts for tau; Usage where there is none."""
    found = [_point(each, lattice.depths) for each in walked if each.kept_steps]
    if not found:
        raise Usage(
            "no step of the walked answers counts: they loop, or have one token", "walk the lattices of longer answers"
        )
    return found


def _point(walked: "Walked", depths: int) -> Point:
    from spt.policy import Levels, Shared

    policy, steps = walked.policy, walked.steps
    assert walked.tau is not None
    draft = policy.draft if isinstance(policy, Levels) else policy
    kept = {
        walk.request: (float(walk.tokens[~walk.looped].sum()), float((~walk.looped).sum())) for walk in walked.walks
    }
    return Point(
        policy=str(policy),
        kind=str(policy).partition(":")[0],
        nodes=walked.nodes / steps,
        positions=getattr(draft, "positions", 0) or depths,
        tau=walked.tau,
        kept=kept,
        cheap_passes=walked.cheap_passes / steps,
        cheap_rows=walked.cheap_rows / steps,
        agreement=policy.agreement if isinstance(policy, Levels) and policy.agreement is not None else 1.0,
        batch=policy.requests if isinstance(policy, Shared) else 1,
    )


def run_point(run: "Run", depths: int) -> Point:
    """A run as a point: what it measured."""
    positions = min(run.positions or depths, depths) if run.setting.drafts else 0
    return Point(
        run.setting.name,
        "run",
        run.setting.nodes,
        positions,
        run.tau,
        run.kept,
        batch=run.setting.batch,
        step_us=run.step_us,
    )

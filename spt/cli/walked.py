"""What `spt walk` prints of walks."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from spt.cli.output import counted, data, say, table

if TYPE_CHECKING:
    from spt.bounds import Bounds
    from spt.walk import Walked, Walker

__all__ = ["show_bounds", "show_checks", "show_grid", "show_head", "show_published", "show_walked"]

_FEW = 6  # policies whose histograms stand side by side


def show_head(walker: "Walker") -> dict[str, Any]:
    """Says on standard error what is walked, and returns it."""
    tokens = sum(each.positions for each in walker.requests)
    looped = sum(int(each.looped.sum()) for each in walker.requests)
    say(
        f"{counted(len(walker.requests), 'request')}, {counted(tokens, 'token')}, {looped / tokens:.1%} of them looped "
        f"and left out of tau; {counted(walker.depths, 'position')} of {counted(walker.ranks, 'rank')}"
    )
    return {"requests": len(walker.requests), "tokens": tokens, "looped_tokens": looped}


def show_checks(checked: Sequence["Walked"]) -> None:
    for each in checked:
        data(f"'{each.policy}' walks as it ran, step by step: {counted(int(each.steps), 'step')}, tau {_tau(each.tau)}")


def show_bounds(bounded: Sequence["Bounds"]) -> None:
    if bounded:
        rows = [(str(each.tree), _tau(each.low), _tau(each.high)) for each in bounded]
        table(("policy", "tau at least", "at most"), rows)


def show_walked(walked: Sequence["Walked"]) -> None:
    """A row a policy, and of a few how many drafts their steps accept."""
    if not walked:
        return
    cheap = any(each.cheap_passes for each in walked)
    columns = ("policy", "tau", "with loops", "steps", "passes", "nodes a step", "rows a pass")
    table(columns + ("cheap passes", "cheap rows") * cheap, [_row(each, cheap) for each in walked])
    if len(walked) <= _FEW:
        most = max(len(each.histogram) for each in walked)
        rows = [(str(count), *(_share(each, count) for each in walked)) for count in range(most)]
        table(("accepted", *(str(each.policy) for each in walked)), rows)


def _row(each: "Walked", cheap: bool) -> tuple[str, ...]:
    counts = (f"{each.steps:,.0f}", f"{each.passes:,.0f}", _mean(each.nodes_per_step), _mean(each.rows_per_pass))
    more = (f"{each.cheap_passes:,.0f}", f"{each.cheap_rows:,.0f}") if cheap else ()
    return (str(each.policy), _tau(each.tau), _tau(each.tau_all), *counts, *more)


def _share(each: "Walked", count: int) -> str:
    return f"{each.histogram[count] / each.steps:.1%}" if count < len(each.histogram) and each.steps else ""


def show_published(curve: Sequence["Walked"]) -> None:
    """The curve beside the published one, each also over its own chain."""
    from spt.published import PUBLISHED

    if not curve:
        return
    own, theirs = curve[0].tau, PUBLISHED[0][1]
    rows = [
        (str(policy), _tau(each.tau), _over(each.tau, own), f"{published:.2f}", _over(published, theirs))
        for each, (policy, published) in zip(curve, PUBLISHED, strict=True)
    ]
    table(("policy", "tau", "over its chain", "published", "over its chain"), rows)


def show_grid(over: Sequence["Walked"], chain: float | None) -> None:
    """Tau of trees: a row a node budget, a column a number of positions."""
    if not over:
        return
    found = {(each.policy.nodes, each.policy.positions): each.tau for each in over}  # type: ignore[union-attr]
    budgets, positions = (tuple(dict.fromkeys(part)) for part in zip(*found, strict=True))
    rows = [(str(nodes), *(_tau(found[nodes, each]) for each in positions)) for nodes in budgets]
    table(("nodes", *(counted(each, "position") for each in positions)), rows)
    data(f"the whole chain has tau {_tau(chain)}")


def _tau(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _mean(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _over(value: float | None, chain: float | None) -> str:
    return "-" if value is None or not chain else f"{value / chain:.3f}"

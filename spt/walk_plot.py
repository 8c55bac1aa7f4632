"""The picture of a grid of walks: tau over node budget, a line for each number of positions."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from spt.errors import Missing, Usage
from spt.policy import Tree

if TYPE_CHECKING:
    from spt.walk import Walked

__all__ = ["check_plot", "plot_grid"]

_SIZE_INCH = (7, 4.5)


def check_plot(path: Path) -> None:
    """Raises before any work where the picture could not be drawn."""
    if path.suffix != ".svg":
        raise Usage(f"'{path}' is no name of a picture", "it ends in .svg")
    if not path.absolute().parent.is_dir():
        raise Missing(f"the folder of '{path}' is not there")
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise Missing(
            "pictures are drawn by matplotlib, which is not installed", "it comes with the extra `report`"
        ) from None


def plot_grid(path: Path, over: Sequence["Walked"], chain: float | None, title: str) -> None:
    """Writes an SVG file; Usage where no walk has a tau.  over: walks of trees.  chain: the tau of the whole chain."""
    curves, nodes = _curves(over)
    if not nodes:
        raise Usage("there is no tau to draw: no step of these answers counts", "walk the lattices of longer answers")
    import matplotlib as mpl
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullLocator

    # The same figures give the same bytes, and text stays text.
    with mpl.rc_context({"svg.hashsalt": "spt", "svg.fonttype": "none", "font.family": "sans-serif"}):
        figure = Figure(figsize=_SIZE_INCH, layout="constrained")
        axes = figure.add_subplot()
        for positions, points in curves.items():
            axes.plot(*zip(*points, strict=True), marker="o", markersize=4, label=f"{positions} positions")
        if chain is not None:
            axes.axhline(chain, color="0.4", linestyle="--", label="whole chain")
        axes.set_xscale("symlog", base=2, linthresh=1)
        axes.set_xlim(nodes[0] * 0.9, nodes[-1] * 1.1)
        axes.set_xticks(nodes, [str(each) for each in nodes])
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set(xlabel="drafted nodes a step", ylabel="tau, tokens a step", title=title)
        axes.grid(alpha=0.3)
        axes.legend(frameon=False)
        made = io.BytesIO()
        figure.savefig(made, format="svg", metadata={"Date": None})
    path.write_bytes(made.getvalue())


def _curves(over: Sequence["Walked"]) -> tuple[dict[int, list[tuple[int, float]]], list[int]]:
    """{positions: (nodes, tau)} in order, and all node budgets."""
    curves: dict[int, list[tuple[int, float]]] = {}
    for each in over:
        if isinstance(each.policy, Tree) and each.tau is not None:
            curves.setdefault(each.policy.positions, []).append((each.policy.nodes, each.tau))
    return {positions: sorted(points) for positions, points in curves.items()}, sorted(
        {nodes for points in curves.values() for nodes, _ in points}
    )

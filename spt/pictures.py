"""The pictures of `spt ceiling`: waterfall, tau over node budget, step time against floors.  Needs matplotlib."""

import io
import math
import warnings
from pathlib import Path
from typing import Any

from spt.curve import Point
from spt.errors import Missing
from spt.printable import printable
from spt.study import Study

__all__ = ["draw", "waterfall"]

_DARK, _LIGHT, _GREY = "#30507a", "#9db8d9", "#888888"


def waterfall(study: Study) -> list[tuple[str, float]]:
    """(name, tokens a second) from plain decoding over the current system to the ceiling, factor by factor."""
    now, plain = study.now, study.measured.plain
    steps = [] if plain is None else [("AR", plain.speed)]
    speed = now.run.speed
    if plain is None or plain.setting.name != now.run.setting.name:
        steps.append((now.run.setting.name, speed))
    for name in ("overhead", "kernel", "tau"):
        speed *= now.factors[name]
        steps.append((f"x {now.factors[name]:.2f} {name}", speed))
    return steps


def draw(study: Study, path: Path) -> None:
    """Writes the three pictures into one SVG; the same study makes the same bytes.  Missing without matplotlib."""
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError:
        raise Missing("pictures need matplotlib", "pip install 'specpilot[report]'") from None
    # The user's names are text: no `$` begins a formula.  Text stays text, so that no glyph of a font can be missing.
    style: Any = {"svg.hashsalt": "spt", "svg.fonttype": "none", "font.size": 9, "text.parse_math": False}
    made = io.BytesIO()
    with mpl.rc_context(style), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from", UserWarning)
        figure = Figure(figsize=(13, 4.2), layout="constrained")
        left, middle, right = figure.subplots(1, 3)
        _draw_waterfall(left, study)
        _draw_tau(middle, study)
        _draw_classes(right, study)
        figure.savefig(made, format="svg", metadata={"Date": None, "Creator": "spt"})
    path.write_bytes(made.getvalue())


def _draw_waterfall(axes: Any, study: Study) -> None:
    steps = waterfall(study)
    names = [name for name, _ in steps]
    speeds = [speed for _, speed in steps]
    for index, (before, speed) in enumerate(zip([0.0, *speeds], speeds, strict=False)):
        whole = not names[index].startswith("x ")
        axes.bar(
            index, speed if whole else speed - before, bottom=0 if whole else before, color=_DARK if whole else _LIGHT
        )
        axes.text(index, max(speed, before), f"{speed:.0f}", ha="center", va="bottom")
    axes.axhline(study.now.speed, color=_GREY, linewidth=0.8, linestyle="--")
    axes.set_xticks(range(len(names)), [printable(name) for name in names], rotation=20, ha="right")
    axes.set_ylabel("tokens/s")
    axes.set_title(f"to the {study.now.rates.kind} ceiling, {printable(study.device.name)}")


def _draw_tau(axes: Any, study: Study) -> None:
    curves: dict[int, list[Point]] = {}
    for point in study.points:
        if point.kind in ("tree", "run") and point.nodes:
            curves.setdefault(point.positions if point.kind == "tree" else -1, []).append(point)
    for positions, points in sorted(curves.items(), reverse=True):
        points.sort(key=lambda each: each.nodes)
        style = {"marker": "o", "linestyle": "none", "color": "black"} if positions < 0 else {"marker": "."}
        label = "measured" if positions < 0 else f"{positions} positions"
        axes.plot([each.nodes for each in points], [each.tau for each in points], label=label, **style)
    axes.set_xlabel("nodes")
    axes.set_ylabel("tau")
    axes.set_title("tau over node budget" + ("" if study.walked else " (no lattice: runs alone)"))
    if curves:
        axes.legend()


def _draw_classes(axes: Any, study: Study) -> None:
    gaps = sorted(study.now.classes, key=lambda gap: gap.us if gap.us is not None else gap.floor_us)
    names = [gap.name for gap in gaps]
    axes.barh(names, [gap.us or 0.0 for gap in gaps], color=_LIGHT, label="profiled")
    axes.barh(names, [gap.floor_us for gap in gaps], color=_DARK, height=0.4, label="floor")
    most = max((max(gap.us or 0.0, gap.floor_us) for gap in gaps), default=0.0)
    if most > 0 and math.isfinite(most):
        axes.set_xlim(0, 1.1 * most)
    axes.set_xlabel("us a step")
    times = f"step {study.run.step_us:.0f} us, floors {study.now.floor_us:.0f} us"
    axes.set_title(f"{printable(study.run.setting.name)}: {times}")
    axes.legend()

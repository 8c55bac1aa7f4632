"""The charts of a report: matplotlib's SVG, made to stand inline in a page.

Colours become variables of the page's style, so that one picture is light and dark; text stays text and takes the
page's font; ids are a chart's own, so that no two collide.  The same story makes the same bytes.
"""

import io
import re
import warnings
import xml.etree.ElementTree as ET
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from spt.errors import Missing
from spt.printable import printable
from spt.report.acceptance import Curve
from spt.report.lineage import Point, References
from spt.report.story import DECLINED, FACTORS, FAILED, Ceiling, Forcing, Promotion, Spending, Tried

__all__ = ["Chart", "require_matplotlib"]

# What is drawn in these colours is shown in those of the page.
_INK, _FIRST, _SECOND, _THIRD, _SOFT = "#010101", "#020202", "#030303", "#040404", "#050505"
_VARIABLES = {_INK: "--ink", _FIRST: "--c1", _SECOND: "--c2", _THIRD: "--c3", _SOFT: "--soft"}
_WIDTH_INCH, _HEIGHT_INCH = 5.4, 3.3
_LABEL, _LEGEND = 22, 44  # characters of a name in a picture; tables have more of it
_MOST_BARS = 24
_SVG, _XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
_LONG = re.compile(r"-?\d+\.\d{3,}")


@dataclass(frozen=True)
class Chart:
    """One picture: its id on the page, what it shows in a line, and in full for those who do not see it."""

    id: str
    title: str
    alt: str
    svg: str


def require_matplotlib() -> None:
    """Missing, with the way out, where pictures cannot be drawn."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        hint = "pip install 'specpilot[report]'; `spt report --json` needs none"
        raise Missing("a report's charts are drawn by matplotlib, which is not installed", hint) from None


def short(name: str, most: int = _LABEL) -> str:
    """A name as it stands in a picture."""
    name = printable(" ".join(name.split()))
    return name if len(name) <= most else f"{name[: most - 1]}…"


def _chart(id_: str, title: str, alt: str, paint: Callable[[Any], None], height: float = _HEIGHT_INCH) -> Chart:
    import matplotlib as mpl
    from matplotlib.figure import Figure

    style: Any = {
        "svg.hashsalt": id_,
        "svg.fonttype": "none",
        "font.size": 10,
        "text.parse_math": False,  # names are text: no `$` begins a formula
        "axes.spines.top": False,
        "axes.spines.right": False,
        "hatch.linewidth": 0.6,
    }
    for name in ("text.color", "axes.labelcolor", "axes.edgecolor", "axes.titlecolor", "xtick.color", "ytick.color"):
        style[name] = _INK
    made = io.BytesIO()
    with mpl.rc_context(style), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from", UserWarning)
        figure = Figure(figsize=(_WIDTH_INCH, height), layout="constrained", facecolor="none")
        axes = figure.add_subplot(facecolor="none")
        paint(axes)
        figure.savefig(made, format="svg", metadata={"Date": None, "Creator": None, "Type": None, "Format": None})
    return Chart(id_, title, alt, _inline(made.getvalue(), id_, f"{title}. {alt}"))


def _inline(data: bytes, id_: str, label: str) -> str:
    """The picture without what a page has no use for, under a label, its ids its own."""
    root = ET.fromstring(data)  # our own drawing, as text in XML escapes it
    # The style is for every element of the page; page.css has it for pictures.
    dropped = (f"{{{_SVG}}}metadata", f"{{{_SVG}}}style")
    root[:] = [child for child in root if not any(each.tag in dropped for each in (child, *child))]
    text = data.decode()
    used = set(re.findall(r'(?:href="|url\()#([^")]+)', text))
    for element in root.iter():
        element.tag = element.tag.removeprefix(f"{{{_SVG}}}")
        if (own := element.attrib.pop("id", None)) in used:
            element.set("id", f"{id_}-{own}")
        if (link := element.attrib.pop(f"{{{_XLINK}}}href", None)) is not None:
            element.set("href", f"#{id_}-{link[1:]}")
        if (clip := element.get("clip-path")) is not None:
            element.set("clip-path", clip.replace("url(#", f"url(#{id_}-"))
        own_style = [element.attrib.pop("style", "")]
        own_style += [f"{name}: {element.attrib.pop(name)}" for name in ("fill", "stroke") if name in element.attrib]
        if style := _styled("; ".join(filter(None, own_style)), id_):
            element.set("style", style)
        for name in ("d", "x", "y", "transform", "points"):
            if (value := element.get(name)) is not None:
                element.set(name, _LONG.sub(lambda found: f"{float(found[0]):.2f}", " ".join(value.split())))
    for name in ("width", "height", "version"):
        root.attrib.pop(name, None)
    root.set("role", "img")
    root.set("aria-label", label)
    return re.sub(r"\n\s*", "", ET.tostring(root, encoding="unicode"))


def _styled(style: str, id_: str) -> str:
    for colour, variable in _VARIABLES.items():
        style = style.replace(colour, f"var({variable})")
    style = re.sub(r"font-family:[^;]*;?", "", style)
    style = re.sub(r"font:\s*([\d.]+px)[^;]*", r"font-size: \1", style)
    return style.replace("url(#", f"url(#{id_}-").strip("; ")


def _whiskers(low: float | None, value: float, high: float | None) -> tuple[float, float]:
    """How far an interval reaches below and above its value."""
    return max(0.0, value - low) if low is not None else 0.0, max(0.0, high - value) if high is not None else 0.0


def _bounded(values: Sequence[float]) -> tuple[float, float]:
    """Limits of an axis that hold the values with some room."""
    low, high = min(values), max(values)
    room = 0.08 * (high - low) or 0.05 * abs(high) or 1.0
    return low - room, high + room


# The pictures.


def gains(id_: str, runs: Sequence[tuple[str, Sequence[Point]]], references: References) -> Chart:
    """Development gain over rounds, a line each run of rounds, with what the sealed final said beside it."""

    def paint(axes: Any) -> None:
        values = [1.0]
        most = 1.0
        for number, (name, points) in enumerate(runs):
            colour, dash = (_FIRST, _SECOND, _THIRD)[number % 3], ("-", "--", ":")[number // 3 % 3]
            xs, ys = [0.0], [1.0]
            for point in points:
                for x, y in point.steps:
                    xs, ys = [*xs, x], [*ys, y]
                if point.sealed is not None:
                    ends = _whiskers(point.sealed.low, point.sealed.value, point.sealed.high)
                    axes.errorbar(
                        [point.x], [point.sealed.value], [[ends[0]], [ends[1]]],
                        fmt="D", color=colour, markerfacecolor="none", markersize=7, capsize=4,
                    )  # fmt: skip
                    values += [point.sealed.value - ends[0], point.sealed.value + ends[1]]
            axes.plot(xs, ys, dash, color=colour, drawstyle="steps-post", marker=".", label=short(name, _LEGEND))
            values, most = values + ys, max(most, *xs)
        for value, name in references:
            axes.axhline(value, color=_SOFT, linewidth=1.2, linestyle="-.")
            axes.text(0.01, value, name, transform=axes.get_yaxis_transform(), va="bottom", fontsize=9, color=_SOFT)
            values.append(value)
        axes.set(xlabel="round", ylabel="ratio over the start", ylim=_bounded(values), xlim=(-0.1, most + 0.3))
        axes.set_xticks(range(int(most) + 1))
        if runs:
            axes.legend(frameon=False, fontsize=9)

    ends = [f"{short(name)} ends at {points[-1].steps[-1][1]:.3f}" for name, points in runs if points[-1].steps]
    alt = "Lines: product of promoted gains. Diamonds: sealed finals against stock, with intervals. " + "; ".join(ends)
    return _chart(id_, "Gain over rounds", alt, paint)


def waterfall(id_: str, ceilings: Sequence[Ceiling]) -> Chart | None:
    """From speed to ceiling, factor by factor, of the first measurement and of the last."""
    usable = [each for each in ceilings if each.speed is not None and each.product is not None]
    if not usable:
        return None
    shown = [usable[0]] if len(usable) == 1 else [usable[0], usable[-1]]
    labels = ["before", "after"] if len(shown) == 2 else ["measured"]

    def paint(axes: Any) -> None:
        width, top = 0.8 / len(shown), 0.0
        for number, (ceiling, label) in enumerate(zip(shown, labels, strict=True)):
            colour, hatch = (_FIRST, _SECOND)[number], ("", "////")[number]
            speed = ceiling.speed or 0.0
            place = number * width - 0.4 + width / 2
            axes.bar(place, speed, width, color=colour, edgecolor=_INK, linewidth=0.5, hatch=hatch, label=label)
            axes.text(place, speed, f"{speed:.{0 if speed >= 100 else 1}f}", ha="center", va="bottom", fontsize=9)
            for index, name in enumerate(FACTORS, 1):
                grown = speed * ceiling.factors[name]
                axes.bar(
                    index + place, grown - speed, width, bottom=speed,
                    color=colour, alpha=0.45, edgecolor=_INK, linewidth=0.5, hatch=hatch,
                )  # fmt: skip
                axes.text(index + place, grown, f"x {ceiling.factors[name]:.2f}", ha="center", va="bottom", fontsize=9)
                speed, top = grown, max(top, speed, grown)  # a factor below 1, of a broken ceiling, leads down again
        axes.set_xticks(range(4), ["speed", *FACTORS])
        axes.set(ylabel="tokens a second, decoding", ylim=(0, 1.12 * top))
        axes.legend(frameon=False, fontsize=9, loc="upper left")

    words = [
        f"{label}: {each.speed:.0f} tokens a second, times "
        + ", ".join(f"{each.factors[name]:.2f} {name}" for name in FACTORS)
        for each, label in zip(shown, labels, strict=True)
    ]
    title = "To the ceiling, before and after" if len(shown) == 2 else "To the ceiling"
    return _chart(id_, title, "; ".join(words), paint)


def promoted(id_: str, promotions: Sequence[Promotion]) -> Chart | None:
    """What each promoted change gained over what it was timed against, with its interval."""
    if not promotions:
        return None
    shown = promotions[-_MOST_BARS:]

    def paint(axes: Any) -> None:
        values = [1.0]
        for place, each in enumerate(reversed(shown)):
            ends = _whiskers(each.figure.low, each.figure.value, each.figure.high)
            is_speedup = each.figure.word == "speedup"
            axes.errorbar(
                [each.figure.value], [place], xerr=[[ends[0]], [ends[1]]],
                fmt="o" if is_speedup else "s", color=_FIRST if is_speedup else _SECOND, capsize=3,
                markerfacecolor=_FIRST if is_speedup else "none",
            )  # fmt: skip
            values += [each.figure.value - ends[0], each.figure.value + ends[1]]
        axes.axvline(1, color=_SOFT, linewidth=0.8, linestyle="--")
        axes.set_yticks(range(len(shown)), [short(each.direction) for each in reversed(shown)])
        axes.set(xlabel="ratio over what it was timed against", xlim=_bounded(values), ylim=(-0.6, len(shown) - 0.4))

    alt = "Filled circles are speedups, hollow squares raw ratios; bars are intervals. " + "; ".join(
        f"{short(each.direction)} {each.figure.value:.3f}" for each in shown
    )
    return _chart(id_, "What each promoted change gained", alt, paint, 1.2 + 0.24 * len(shown))


def forced(id_: str, forcings: Sequence[Forcing]) -> Chart | None:
    """Excess mismatch of each promoted system over stock's own, against the limit."""
    shown = [each for each in forcings if each.excess is not None][-_MOST_BARS:]
    if not shown:
        return None

    def paint(axes: Any) -> None:
        values = [0.0, 0.5]
        for place, each in enumerate(reversed(shown)):
            assert each.excess is not None
            value, low, high = (100 * one for one in each.excess)
            ends = _whiskers(low, value, high)
            good = each.answer == "accept"
            axes.errorbar(
                [value], [place], xerr=[[ends[0]], [ends[1]]],
                fmt="o" if good else "X", color=_FIRST if good else _SECOND, capsize=3,
            )  # fmt: skip
            values += [low, high]
        axes.axvline(0.5, color=_INK, linewidth=0.9, linestyle="--")
        axes.set_yticks(range(len(shown)), [short(each.direction) for each in reversed(shown)])
        axes.set(xlabel="mismatch above stock's own, points (limit 0.5)", xlim=_bounded(values))
        axes.set_ylim(-0.6, len(shown) - 0.4)

    alt = "Circles are accepted, crosses are not; the dashed line is the limit of 0.5 points. " + "; ".join(
        f"{short(each.direction)} {100 * each.excess[0]:+.2f} points" for each in shown if each.excess
    )
    return _chart(id_, "Forcing of what was promoted", alt, paint, 1.2 + 0.24 * len(shown))


def acceptance(id_: str, curves: Sequence[Curve]) -> Chart | None:
    """The share of steps that emitted at least so many tokens."""
    if not curves:
        return None

    def paint(axes: Any) -> None:
        for number, curve in enumerate(curves):
            colour, dash = (_FIRST, _SECOND, _THIRD, _SOFT)[number % 4], ("-", "--", "-.", ":")[number % 4]
            places = range(1, len(curve.shares) + 1)
            axes.plot(places, curve.shares, dash, color=colour, marker=".", label=f"{curve.name}, tau {curve.tau:.2f}")
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.set(xlabel="tokens a step, at least", ylabel="share of steps", ylim=(0, 1.04))
        axes.legend(frameon=False, fontsize=9)

    alt = "; ".join(f"{curve.name}: tau {curve.tau:.2f} over {curve.steps} steps" for curve in curves)
    return _chart(id_, "Acceptance", alt, paint)


def ended(id_: str, tried: Sequence[Tried]) -> Chart | None:
    """How many directions each gate declined."""
    counts: dict[str, int] = {}
    for each in tried:
        if each.outcome in (DECLINED, FAILED):
            name = each.gate or ("agent" if each.outcome == DECLINED else "failed")
            counts[name] = counts.get(name, 0) + 1
    if not counts:
        return None
    rows = sorted(counts.items(), key=lambda row: (row[1], row[0]))[-_MOST_BARS:]

    def paint(axes: Any) -> None:
        bars = axes.barh([short(name) for name, _ in rows], [count for _, count in rows], color=_FIRST)
        axes.bar_label(bars, padding=3, fontsize=9)
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.set(xlabel="directions", xlim=(0, 1.15 * rows[-1][1]))

    alt = ", ".join(f"{short(name)} {count}" for name, count in reversed(rows))
    return _chart(id_, "Where directions ended", alt, paint, 1.1 + 0.26 * len(rows))


def spent(id_: str, spendings: Sequence[Spending]) -> Chart | None:
    """Wall and device time of each phase, in minutes or hours."""
    most_s = max((max(each.wall_s, each.device_s) for each in spendings), default=0.0)
    if most_s <= 0:
        return None
    unit_s, unit = (3600, "hours") if most_s >= 2 * 3600 else (60, "minutes")

    def paint(axes: Any) -> None:
        places = range(len(spendings))
        wall, device = ([getattr(each, name) / unit_s for each in spendings] for name in ("wall_s", "device_s"))
        axes.bar([place - 0.2 for place in places], wall, 0.38, color=_FIRST, label="wall")
        axes.bar(
            [place + 0.2 for place in places], device, 0.38,
            color=_SECOND, edgecolor=_INK, linewidth=0.5, hatch="////", label="device",
        )  # fmt: skip
        axes.set_xticks(places, [each.phase for each in spendings], rotation=30, ha="right")
        axes.set(ylabel=f"{unit}, summed over directions")
        axes.legend(frameon=False, fontsize=9)

    alt = "; ".join(
        f"{each.phase} {each.wall_s / unit_s:.2f} wall, {each.device_s / unit_s:.2f} device" for each in spendings
    )
    alt = f"In {unit}: {alt}"
    return _chart(id_, "Time by phase", alt, paint)


def sealed(id_: str, points: Sequence[Point]) -> Chart | None:
    """Development gain against the sealed final's, a point a round; on the line they agree."""
    shown = [each for each in points if each.sealed is not None and each.over_stock is not None]
    if not shown:
        return None

    def paint(axes: Any) -> None:
        values = [1.0]
        for each in shown:
            assert each.sealed is not None and each.over_stock is not None
            ends = _whiskers(each.sealed.low, each.sealed.value, each.sealed.high)
            axes.errorbar(
                [each.over_stock], [each.sealed.value], [[ends[0]], [ends[1]]], fmt="D", color=_FIRST, capsize=3
            )
            axes.annotate(
                short(each.round), (each.over_stock, each.sealed.value),
                xytext=(6, -10), textcoords="offset points", fontsize=9,
            )  # fmt: skip
            values += [each.over_stock, each.sealed.value - ends[0], each.sealed.value + ends[1]]
        limits = _bounded(values)
        axes.plot(limits, limits, color=_SOFT, linestyle="--", linewidth=1, label="equal")
        axes.set(xlabel="development gain over stock", ylabel="sealed final, over stock", xlim=limits, ylim=limits)
        axes.legend(frameon=False, fontsize=9)

    alt = "; ".join(
        f"{short(each.round)}: development {each.over_stock:.3f}, sealed {each.sealed.value:.3f}"
        for each in shown
        if each.sealed is not None
    )
    return _chart(id_, "Development gain against sealed gain", alt, paint)

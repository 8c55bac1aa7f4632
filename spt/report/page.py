"""The page: one HTML file that needs nothing beside it.

Whatever agents, engines and journals say goes through `finalize`, which takes control characters and marks of direction
out, and then through jinja2's escaping; a page has no script, and says so to the browser.  Every number is a link to
the row of its source: the commit of its event, the verdict's file, the raw samples.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import quote

from spt.git.objects import Oid
from spt.printable import printable
from spt.report import charts, words
from spt.report.acceptance import Curve, curves
from spt.report.charts import Chart
from spt.report.lineage import PUBLISHED, Row, rows
from spt.report.story import DECLINED, FAILED, OPEN, PROMOTED, Source, Story, Tried
from spt.report.transfer import Transfer
from spt.verdicts import LEDGER, Ledger

__all__ = ["GENERATOR", "make_page"]

GENERATOR = '<meta name="generator" content="spt report">'
_CHARTS_BYTES, _ROUND_BYTES = 260_000, 5_000  # of all pictures, less so many for the tables of each round
_MOST_TRIED = 200  # rows of directions on a page
_MOST_GATES = 12  # of one direction
_MOST_ROWS = 200  # of any other table of one round
_LEAST_TOK = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16)
_NAME = 80  # characters of a name that others gave
_ORDER = {PROMOTED: 0, OPEN: 1, FAILED: 2, DECLINED: 3}


@dataclass
class Cited:
    """The sources of one round that its part of the page names; `id` begins the ids of their rows."""

    id: str
    story: Story
    rows: dict[Source, str] = field(default_factory=dict)

    def link(self, source: Source | None) -> str:
        """The id of a source's row, which appears in the round's table of sources."""
        if source is None:
            return ""
        return self.rows.setdefault(source, f"{self.id}s{len(self.rows)}")


@dataclass(frozen=True)
class Part:
    """What the page shows of one round."""

    id: str
    story: Story
    cited: Cited
    charts: Mapping[str, Chart]
    undrawn: bool  # whether pictures were left out for their size
    curves: Sequence[Curve]
    least: Sequence[int]  # tokens a step that the table of acceptance has a column for
    tried: Sequence[Tried]
    unshown: int  # directions that are not listed


def make_page(stories: Sequence[Story], ledger: Ledger, found: Transfer | None, folder: Path) -> str:
    """The page of some rounds, in the order in which they began, and perhaps of how entries transfer.

    folder: where the page will lie, for its links to files.  Missing where matplotlib is not installed.
    """
    charts.require_matplotlib()
    stories = sorted(stories, key=lambda each: (each.begun, each.round))
    in_rows, budget = rows(stories), _Budget(_CHARTS_BYTES - _ROUND_BYTES * len(stories))
    page_charts = _page_charts(in_rows) if stories else {}
    budget.take(page_charts)
    made = [_part(f"r{number}", story, ledger, budget, len(stories)) for number, story in _newest_first(stories)]
    parts = made[::-1]
    cited = {part.story.round: part.cited for part in parts}
    return _render(
        parts=parts,
        rows=in_rows,
        charts=page_charts,
        transfer=found,
        published=PUBLISHED,
        compares=len(stories) > 1,
        ids={part.story.round: part.id for part in parts},
        link=lambda source: cited[source.round].link(source) if source is not None else "",
        raw=lambda digest: _file(ledger.raw(digest), folder),
        file=lambda path: _file(path, folder),
        here=lambda oid: _is_here(ledger, oid),
        ledger=LEDGER,
        style=resources.files("spt.report").joinpath("page.css").read_text(),
    )


class _Budget:
    """Bytes that pictures may still have; the first that do not fit are the last that are drawn."""

    def __init__(self, left: int) -> None:
        self.left = left

    def take(self, made: Mapping[str, Chart]) -> Mapping[str, Chart] | None:
        """The pictures, if they all fit."""
        self.left -= sum(len(chart.svg) for chart in made.values())
        return made if self.left >= 0 else None


def _newest_first(stories: Sequence[Story]) -> list[tuple[int, Story]]:
    """Rounds with their places: where pictures run out of room, it is the oldest that go without."""
    return list(enumerate(stories))[::-1]


def _page_charts(in_rows: Sequence[Row]) -> dict[str, Chart]:
    ways = {row.way for row in in_rows}
    names = [f"{row.way}, {row.name}" if len(ways) > 1 else row.name for row in in_rows]
    runs = [(name, row.points) for name, row in zip(names, in_rows, strict=True)]
    found = {"gains": charts.gains("gains", runs, PUBLISHED if len(ways) > 1 else ())}
    if (drawn := charts.sealed("sealed", [point for row in in_rows for point in row.points])) is not None:
        found["sealed"] = drawn
    return found


def _charts(id_: str, story: Story, of_steps: Sequence[Curve]) -> dict[str, Chart]:
    drawn = {
        "waterfall": charts.waterfall(f"{id_}-waterfall", story.ceilings),
        "promoted": charts.promoted(f"{id_}-promoted", story.promotions),
        "forced": charts.forced(f"{id_}-forced", [each.forcing for each in story.promotions if each.forcing]),
        "acceptance": charts.acceptance(f"{id_}-acceptance", of_steps),
        "ended": charts.ended(f"{id_}-ended", story.tried),
        "spent": charts.spent(f"{id_}-spent", story.spendings),
    }
    return {name: chart for name, chart in drawn.items() if chart is not None}


def _part(id_: str, story: Story, ledger: Ledger, budget: _Budget, rounds: int) -> Part:
    of_steps = curves(story, ledger)
    taken = budget.take(_charts(id_, story, of_steps)) if budget.left > 0 else None
    # Which directions are shown where there are too many: promoted ones first, then by how far they came.
    ranked = sorted(story.tried, key=lambda each: (_ORDER[each.outcome], -len(each.gates)))
    shown = {each.id for each in ranked[: max(1, _MOST_TRIED // rounds)]}
    tried = [each for each in story.tried if each.id in shown]
    least = [k for k in _LEAST_TOK if any(k <= len(curve.shares) for curve in of_steps)]
    return Part(
        id=id_,
        story=story,
        cited=Cited(id_, story),
        charts=taken or {},
        undrawn=taken is None,
        curves=of_steps,
        least=least,
        tried=tried,
        unshown=len(story.tried) - len(tried),
    )


def _is_here(ledger: Ledger, oid: Oid | None) -> bool:
    if oid is None or len(oid) != 40 or not set(oid) <= set("0123456789abcdef"):
        return False
    return oid in ledger.store.objects


def _file(path: Path, folder: Path) -> str | None:
    """The address of a file as seen from the page, or None where it is not there."""
    if not path.is_file():
        return None
    return quote(Path(os.path.relpath(path.resolve(), folder.resolve())).as_posix())


# The template.


def ranges(numbers: Sequence[int]) -> str:
    """Whole numbers, neighbours as ranges: 3, 7-9."""
    found: list[list[int]] = []
    for each in sorted(set(numbers)):
        if found and each == found[-1][1] + 1:
            found[-1][1] = each
        else:
            found.append([each, each])
    return ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in found)


def _render(**context: Any) -> str:
    import jinja2
    from markupsafe import Markup

    def clean(value: Any) -> Any:
        if isinstance(value, str) and not isinstance(value, Markup):
            return printable(value)
        return "" if value is None else value

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("spt.report", "."),
        autoescape=True,
        finalize=clean,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters: dict[str, Callable[..., Any]] = {name: getattr(words, name) for name in words.__all__ if name.islower()}
    filters |= {"ranges": ranges, "drawing": Markup}  # only pictures of our own go through `drawing`
    environment.filters |= filters
    limits = {"most_gates": _MOST_GATES, "most_rows": _MOST_ROWS, "name_length": _NAME}
    return environment.get_template("page.html").render(**context, **limits, dash=words.DASH)

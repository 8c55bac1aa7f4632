"""A report in short: what is printed, and what `--json` says."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from spt.report import words
from spt.report.lineage import Row, rows
from spt.report.story import DECLINED, FAILED, OPEN, PROMOTED, Figure, Story
from spt.report.transfer import Transfer

__all__ = ["figure_words", "record", "round_lines", "row_cells", "transfer_cells"]

_NAME = 80  # characters of a name that others gave


def record(stories: Sequence[Story], found: Transfer | None) -> dict[str, Any]:
    """Everything that a report knows, as JSON has it; a source names its events, and `commits` the commit of each."""
    return {
        "rounds": [_round(story) for story in stories],
        "rows": [_row(row) for row in rows(stories)],
        "transfer": None if found is None else asdict(found),
    }


def _round(story: Story) -> dict[str, Any]:
    made = asdict(story)
    del made["told"]
    development, total = story.development, story.total
    made["commits"] = [story.commits[seq] for seq in sorted(story.commits)]
    made["development"] = None if development is None else asdict(development)
    made["total"] = None if total is None else asdict(total)
    return made


def _row(row: Row) -> dict[str, Any]:
    return {
        "deployment": row.deployment,
        "way": row.way,
        "rounds": [story.round for story in row.stories],
        "totals": [point.total for point in row.points],
        "over_stock": [point.over_stock for point in row.points],
        "sealed": None if row.sealed is None else asdict(row.sealed),
    }


def figure_words(figure: Figure | None) -> str:
    """A ratio with the word that may be said of it."""
    if figure is None:
        return words.DASH
    ends = words.interval(figure.low, figure.high)
    return f"{figure.word} {words.ratio(figure.value)}" + ("" if ends == words.DASH else f" ({ends})")


def round_lines(story: Story) -> Iterator[str]:
    """A round in a few lines, most important ones first."""
    count = story.count
    outcome = words.cut(story.outcome or "not ended", _NAME)
    yield f"{story.round}: {outcome}, {words.date(story.begun)} to {words.date(story.last)}, {story.way}"
    yield (
        f"  deployment {words.cut(story.deployment, _NAME)}: {story.ideas} directions, {count[PROMOTED]} promoted, "
        f"{count[DECLINED]} declined, {count[FAILED]} failed, {count[OPEN]} open"
    )
    yield f"  development, over the round's start: {figure_words(story.development)}"
    yield f"  {_final_words(story)}"
    if story.total is not None:
        cost = story.total
        yield (
            f"  wall {words.duration(cost.wall_s)}, device {words.duration(cost.device_s)}, "
            f"tokens {words.tokens(cost.input_tok)} in, {words.tokens(cost.output_tok)} out, {words.dollars(cost.usd)}"
        )
    if story.entries:
        yield f"  entries: {', '.join(words.cut(entry.name, _NAME) for entry in story.entries)}"
    for commit, _ in story.residual:
        yield f"  residual: {words.cut(commit, _NAME)}"
    for text in story.doubts:
        yield f"  does not agree: {words.cut(text)}"


def _final_words(story: Story) -> str:
    final = story.final
    if final is None:
        return "no sealed final"
    ar = f"; over AR {figure_words(final.ar)}" if final.ar else ""
    return f"sealed final: {words.cut(final.verdict, _NAME)}; over stock {figure_words(final.stock)}{ar}"


def row_cells(story: Story) -> list[tuple[str, ...]]:
    """A line of a table for each promotion."""
    return [
        (
            words.cut(each.direction, _NAME),
            figure_words(each.figure),
            words.cut(each.over, _NAME),
            words.cut(each.rule or words.DASH, _NAME),
            each.forcing.answer if each.forcing else "none",
            words.cut(each.entry or words.DASH, _NAME),
            (each.commit or words.DASH)[:12],
        )
        for each in story.promotions
    ]


def transfer_cells(found: Transfer) -> list[tuple[str, ...]]:
    """A line of a table for each entry on each deployment."""
    return [
        (
            one.name,
            f"{place.name} {place.digest[:12]}",
            place.machine.name if place.machine else "unknown",
            cell.fits if cell.fits == "yes" else f"{cell.fits}: {cell.why}",
            cell.applies,
            cell.pays,
            f"{cell.figure} over {cell.over}, {cell.state}" if cell.figure else cell.state or words.DASH,
        )
        for one in found.entries
        for place, cell in zip(found.places, one.cells, strict=True)
    ]

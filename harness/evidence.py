"""What an entry keeps of a timing: samples that name no machine, and the figures that stand beside a verdict."""

import gzip
import json
from pathlib import Path
from typing import Any

from harness import shape
from harness.errors import Usage
from harness.machine import shareable
from harness.samples import Line, Unit, fold_lines, whole_lines
from harness.tau import tally_of
from harness.verdict import judged_units, outcome_of

__all__ = ["evidence"]


def evidence(path: Path, out: Path) -> dict[str, Any]:
    """Writes the samples of a finished timing, compressed, to the new file `out`; returns what is told of them.

    `card` is the last machine card, without host and serial number, which `out` lacks as well: nothing else differs.
    `tau` and the requests are of the units that the verdict's gain is of; null where it has none.
    Raises `Usage` where `out` is there, and what `read` raises.
    """
    data = whole_lines(path)
    samples = fold_lines(data, path)
    units = judged_units(samples, outcome_of(samples))
    said = [each for unit in units for each in unit.answers]
    shared = b"".join(_shared(line) + b"\n" for line in data.split(b"\n")[:-1])
    try:
        with out.open("xb") as file:
            file.write(gzip.compress(shared, 9, mtime=0))
    except FileExistsError:
        raise Usage(f"'{out}' is there already", "give another file") from None
    return {
        "card": shareable(samples.cards[-1]),
        "tau": {"before": _tau(units, "b"), "after": _tau(units, "a")},
        "requests": len({each["session"] for each in said}),
        "max_tokens": max((each["max_tokens"] for each in said), default=None),
        "ignore_eos": any(each["ignore_eos"] for each in said),
    }


def _shared(text: bytes) -> bytes:
    """A line as it is, but for a card's."""
    line: Line = shape.loads(text)
    if line["type"] != "card" or line["card"] == shareable(line["card"]):
        return text
    return json.dumps({**line, "card": shareable(line["card"])}).encode()


def _tau(units: list[Unit], arm: str) -> float | None:
    return tally_of(each for unit in units for each in unit.said(arm)).tau

"""Step records: what the engine says that each exact pass accepted and cost (docs/records.md, steps)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spt.errors import Missing, Usage
from spt.formats import check, read_file, read_lines

__all__ = ["PHASES", "Steps", "read_steps"]

PHASES = ("draft", "verify", "accept", "host")
# The most that each may be, as the schema has it.
_COUNTS = {"step": 2**31 - 1, "start": 2**31 - 1, "anchor": 2**32 - 1, "nodes": 65535}
_LISTS = {"path": 65535, "tokens": 2**32 - 1}
_MOST_US = 1e12
_KEYS = {"v", "kind", "request", *_COUNTS, *_LISTS, *(f"{phase}_us" for phase in PHASES)}


@dataclass(frozen=True, eq=False)
class Steps:
    """The steps of one answer, in order.

    start: int64 [step], the absolute position of the anchor.  anchor: int64 [step], its token.
    nodes: int64 [step], drafted rows, the anchor left out.
    path: for each step the ranks of its accepted drafts, before trimming; the number of ranks stands for a draft that
    the selection took from elsewhere.  tokens: for each step what it emitted, after trimming.
    us: float64 [step, phase], microseconds of the phases `PHASES`.
    """

    start: NDArray[np.int64]
    anchor: NDArray[np.int64]
    nodes: NDArray[np.int64]
    path: tuple[tuple[int, ...], ...]
    tokens: tuple[tuple[int, ...], ...]
    us: NDArray[np.float64]

    @classmethod
    def of(cls, rows: Sequence[Mapping[str, Any]]) -> "Steps":
        """From the records of one answer."""
        start, anchor, nodes = (
            np.array([row[name] for row in rows], np.int64) for name in ("start", "anchor", "nodes")
        )
        path, tokens = (tuple(tuple(row[name]) for row in rows) for name in _LISTS)
        us = np.array([[row[f"{phase}_us"] for phase in PHASES] for row in rows], np.float64)
        return cls(start, anchor, nodes, path, tokens, us)


def read_steps(path: Path) -> dict[str, Steps]:
    """{request: its steps}.  Raises Missing where the file is not there, Usage for a line that is no step."""
    if not path.is_file():
        raise Missing(f"no steps at '{path}'", "`spt measure` writes them")
    rows: dict[str, list[dict[str, Any]]] = {}
    data = read_file(path)
    if data and not data.endswith(b"\n"):
        raise Usage(f"'{path}' is cut: its last line has no end", "`spt measure`, called again, goes on from there")
    for row, where in read_lines(data, str(path)):
        if not _plain(row):
            check(row, "steps", where)
        own = rows.setdefault(row["request"], [])
        if row["step"] != len(own):
            raise Usage(f"{where}: step {row['step']} of '{row['request']}' where step {len(own)} belongs")
        own.append(row)
    return {request: Steps.of(own) for request, own in rows.items()}


def _plain(row: Any) -> bool:
    """Whether a record is one at first sight; a schema takes fifty times as long for each of thousands of lines."""
    return (
        isinstance(row, dict)
        and row.keys() == _KEYS
        and (row["v"], row["kind"]) == (1, "steps")
        and type(row["request"]) is str
        and all(type(row[name]) is int and 0 <= row[name] <= most for name, most in _COUNTS.items())
        and all(
            type(row[name]) is list and all(type(one) is int and 0 <= one <= most for one in row[name])
            for name, most in _LISTS.items()
        )
        and bool(row["tokens"])
        and all(type(row[f"{phase}_us"]) in (int, float) and 0 <= row[f"{phase}_us"] <= _MOST_US for phase in PHASES)
    )

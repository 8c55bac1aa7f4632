"""Step records as an engine writes them: read as they come, and held against the answers of the wire."""

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness import shape
from harness.errors import Violation
from harness.file import read_plain
from harness.shape import constant, integer, items, number, record

__all__ = ["MOST_NODES", "Records", "check_steps", "name_of", "read_step"]

MOST_NODES = 4096  # rows of a draft tree: no engine verifies as many
MOST_US = 1e12  # eleven days
_STEP = record(
    {
        "v": constant(1),
        "kind": constant("steps"),
        "request": shape.text,
        **{name: integer() for name in ("step", "start", "anchor")},
        "nodes": integer(0, MOST_NODES),
        "path": items(integer(0, MOST_NODES), most=MOST_NODES),
        "tokens": items(integer(), least=1),
        **{f"{name}_us": number(0, MOST_US) for name in ("draft", "verify", "accept", "host")},
    }
)


def name_of(answer: Mapping[str, Any]) -> str:
    """The id under which an answer was asked for."""
    return f"{answer['request']}#{answer['turn']}"


def read_step(line: bytes) -> dict[str, Any]:
    """One record; `Mismatch` where it is none."""
    value: dict[str, Any] = shape.loads(line)
    _STEP(value, "the step")
    return value


def check_steps(answer: Mapping[str, Any], steps: Sequence[Mapping[str, Any]]) -> None:
    """`Mismatch` unless these are the steps of the answer's lines, in order."""
    ids, bounds = answer["ids"], list(itertools.accumulate(answer["lines"]))
    wanted = list(itertools.pairwise(bounds))
    if len(steps) != len(wanted):
        raise shape.Mismatch(f"{len(steps)} steps, and the wire had {len(wanted)}")
    for number_, (step, (low, high)) in enumerate(zip(steps, wanted, strict=True)):
        told = {
            "request": name_of(answer),
            "step": number_,
            "start": answer["prompt_tok"] + low - 1,
            "anchor": ids[low - 1],
            "tokens": ids[low:high],
        }
        for name, value in told.items():
            if step[name] != value:
                raise shape.Mismatch(f"the '{name}' of step {number_} is not the wire's")


class Records:
    """The records of an engine that runs, given out answer by answer.

    most: bytes that the file may have, whatever the engine does.
    """

    def __init__(self, path: Path, most: int) -> None:
        self.path, self.most = path, most
        self._read = 0  # bytes
        self._held: dict[str, list[dict[str, Any]]] = {}

    def of(self, answer: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The steps of an answer that is whole; Violation where they are not those of its lines."""
        name = name_of(answer)
        try:
            self._take()
        except shape.Mismatch as error:
            raise Violation(f"the engine's step records are none: {error}") from None
        steps = self._held.pop(name, [])
        try:
            check_steps(answer, steps)
        except shape.Mismatch as error:
            raise Violation(f"the engine recorded other steps of '{name}' than it took: {error}") from None
        return steps

    def _take(self) -> None:
        data = read_plain(self.path, self.most, self._read) or b""
        whole = data[: data.rfind(b"\n") + 1]
        self._read += len(whole)
        for line in whole.splitlines():
            step = read_step(line)
            self._held.setdefault(step["request"], []).append(step)

"""Step records: what each exact pass accepted and how long its phases took.  Advice, never evidence."""

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from stock.tree import DraftTree, Lattice

if TYPE_CHECKING:
    from stock.engine import Outcome, Progress

__all__ = ["StepRecorder", "StepTimes"]

_PHASES = ("draft", "verify", "accept", "host")


class StepTimes:
    """Times of a step's phases in microseconds; free of cost while it is off.

    On a GPU the phases before `host` are timed by events between them, and `host` is the rest of the step.
    """

    def __init__(self, device: torch.device) -> None:
        self.cuda = device.type == "cuda"
        self.on = False
        self._marks: list[tuple[str, Any, Any]] = []

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Times what runs inside."""
        if not self.on:
            yield
            return
        begin = self._mark(name)
        yield
        self._marks.append((name, begin, self._mark(name)))

    def take(self) -> dict[str, float]:
        """`<phase>_us` of the last step."""
        times = {name: self._elapsed_us(name, begin, end) for name, begin, end in self._marks}
        self._marks.clear()
        return {f"{name}_us": times.get(name, 0.0) for name in _PHASES}

    def _mark(self, name: str) -> Any:
        if not self.cuda or name == "host":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _elapsed_us(self, name: str, begin: Any, end: Any) -> float:
        if not self.cuda or name == "host":
            return 1e6 * float(end - begin)
        end.synchronize()
        return 1e3 * float(begin.elapsed_time(end))


class StepRecorder:
    """Writes one object of docs/records.md's `steps` for each request and exact pass, each line at once."""

    def __init__(self, path: Path) -> None:
        self.file = path.open("wb", buffering=0)

    def __call__(
        self,
        progress: Sequence["Progress"],
        lattices: Sequence[Lattice],
        trees: Sequence[DraftTree],
        outcomes: Sequence["Outcome"],
        times: dict[str, float],
    ) -> None:
        for each, lattice, tree, outcome in zip(progress, lattices, trees, outcomes, strict=True):
            path = outcome.accepted.path[: int(outcome.accepted.count)].tolist()
            token = tree.token.tolist()
            request = each.request
            record = {
                "v": 1,
                "kind": "steps",
                "request": request.id,
                "step": request.steps - 1,
                "start": len(request.prompt) + len(request.emitted) - len(each.ids) - 1,
                "anchor": token[0],
                "nodes": len(token) - 1,
                "path": [_rank(lattice, depth, token[row]) for depth, row in enumerate(path[1:])],
                "tokens": each.ids,
                **times,
            }
            self.file.write(json.dumps(record).encode() + b"\n")

    def close(self) -> None:
        self.file.close()


def _rank(lattice: Lattice, depth: int, token: int) -> int:
    """Which rank of a depth holds the token; the number of ranks where a selection took it from elsewhere."""
    ids = lattice.ids[depth].tolist() if depth < len(lattice.ids) else []
    return ids.index(token) if token in ids else lattice.ids.shape[1]

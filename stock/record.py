"""Step records: what each exact pass accepted and how long its phases took.  Advice, never evidence."""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from stock.tree import DraftTree, Lattice

if TYPE_CHECKING:
    from stock.engine import Outcome, Progress

__all__ = ["StepRecorder", "StepTimes"]

_DEVICE_PHASES = ("draft", "verify", "accept")


class _HostMark:
    """A moment on the host's clock."""

    def __init__(self) -> None:
        self.at_s = time.perf_counter()

    def us_until(self, later: "_HostMark") -> float:
        return 1e6 * (later.at_s - self.at_s)


class _DeviceMark:
    """A moment in the order of the device's work."""

    def __init__(self) -> None:
        self.event = torch.cuda.Event(enable_timing=True)
        self.event.record()

    def us_until(self, later: "_DeviceMark") -> float:
        later.event.synchronize()
        return 1e3 * float(self.event.elapsed_time(later.event))


class StepTimes:
    """Times of a step's phases in microseconds; free of cost while it is off.

    `draft`, `verify` and `accept` are the time between two marks: the device's own on a GPU, the host's on a CPU.
    `host` is what the step's wall clock holds beside them, from `start` to `take`, so that the phases sum to the step;
    waiting for the device is not counted twice.  `mark` and `clock_s` are for tests.
    """

    def __init__(
        self,
        device: torch.device,
        mark: Callable[[], Any] | None = None,
        clock_s: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.on = False
        self.prefix: str | None = None  # of the ranges that name phases to a profiler; None for no ranges
        self._mark: Callable[[], Any] = mark or (_DeviceMark if device.type == "cuda" else _HostMark)
        self._clock_s = clock_s
        self._started_s = 0.0
        self._marks: list[tuple[str, Any, Any]] = []

    def start(self) -> None:
        """A step begins; nothing of the device's earlier work may be pending."""
        if self.on:
            self._marks.clear()
            self._started_s = self._clock_s()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Times what runs inside."""
        if not self.on:
            yield
            return
        with nullcontext() if self.prefix is None else torch.profiler.record_function(self.prefix + name):
            begin = self._mark()
            yield
            self._marks.append((name, begin, self._mark()))

    def take(self) -> dict[str, float]:
        """`<phase>_us` of the step that ends here, when what the device was asked for has been read."""
        wall_us = 1e6 * (self._clock_s() - self._started_s)
        times = dict.fromkeys(_DEVICE_PHASES, 0.0) | {name: begin.us_until(end) for name, begin, end in self._marks}
        self._marks.clear()
        # Two clocks: on a step without any work of the host the difference could fall below zero by their resolution.
        times["host"] = max(0.0, wall_us - sum(times.values()))
        return {f"{name}_us": value for name, value in times.items()}


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

"""Step records: what each exact pass accepted and how long its phases took.  Advice, never evidence."""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from stock.graph import HostCopy

if TYPE_CHECKING:
    from stock.engine import Progress

__all__ = ["Marks", "Seen", "StepRecorder", "StepTimes"]

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


@dataclass
class Marks:
    """When a pass was asked for on the host's clock, and the two marks of each of its phases."""

    asked_s: float
    phases: list[tuple[str, Any, Any]]


class StepTimes:
    """Times of a step's phases in microseconds; free of cost while it is off.

    `draft`, `verify` and `accept` are the time between two marks: the device's own on a GPU, the host's on a CPU.
    `host` is what the step's wall clock holds beside them, so that the phases sum to the step; waiting for the device
    is not counted twice.  A step begins when it is asked for, or with the end of the one before where that is later,
    as it is when the engine runs ahead.  `mark` and `clock_s` are for tests.
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
        self._started_s = self._taken_s = 0.0
        self._marks: list[tuple[str, Any, Any]] = []

    def start(self) -> None:
        """The engine turns to a step."""
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

    def launched(self) -> Marks:
        """The marks of the pass that was just asked for."""
        marks, self._marks = Marks(self._started_s, self._marks), []
        return marks

    def take(self, marks: Marks) -> dict[str, float]:
        """`<phase>_us` of the step that ends here, when what the device was asked for has been read."""
        now_s = self._clock_s()
        wall_us = 1e6 * (now_s - max(marks.asked_s, self._taken_s))
        self._taken_s = now_s
        times = dict.fromkeys(_DEVICE_PHASES, 0.0) | {name: begin.us_until(end) for name, begin, end in marks.phases}
        # Two clocks: on a step without any work of the host the difference could fall below zero by their resolution.
        times["host"] = max(0.0, wall_us - sum(times.values()))
        return {f"{name}_us": value for name, value in times.items()}


@dataclass
class Seen:
    """The host's copies of what a pass was about, for one request.

    packed: as in an `Outcome`.  ids: of the lattice [depth, rank].  token: of the draft tree [rows].  path: accepted
    rows by depth, padded.
    """

    packed: HostCopy
    ids: HostCopy
    token: HostCopy
    path: HostCopy


class StepRecorder:
    """Writes one object of docs/records.md's `steps` for each request and exact pass, each line at once."""

    def __init__(self, path: Path) -> None:
        self.file = path.open("wb", buffering=0)

    def __call__(self, progress: Sequence["Progress"], seen: Sequence[Seen], times: dict[str, float]) -> None:
        for each, held in zip(progress, seen, strict=True):
            count, token, ids = held.packed.read()[-1], held.token.read(), held.ids.read()
            request = each.request
            record = {
                "v": 1,
                "kind": "steps",
                "request": request.id,
                "step": request.steps - 1,
                "start": len(request.prompt) + len(request.emitted) - len(each.ids) - 1,
                "anchor": token[0],
                "nodes": len(token) - 1,
                "path": [_rank(ids, depth, token[row]) for depth, row in enumerate(held.path.read()[1:count])],
                "tokens": each.ids,
                **times,
            }
            self.file.write(json.dumps(record).encode() + b"\n")

    def close(self) -> None:
        self.file.close()


def _rank(ids: list[list[int]], depth: int, token: int) -> int:
    """Which rank of a depth holds the token; the number of ranks where a selection took it from elsewhere."""
    ranks = ids[depth] if depth < len(ids) else []
    return ranks.index(token) if token in ranks else len(ids[0]) if ids else 0

"""Where the time of each phase goes, by kernel class, inside the engine.  Advice, never evidence.

A profiler slows down what it looks at, and clocks move.  So windows of plain steps and of profiled steps take turns:
a phase's wall clock comes from the plain ones, what its kernels took from the profiled ones, and a row holds both.
A captured graph hides the operators behind its kernels, but not the call that launched it: each kernel belongs to the
phase in whose range its launch stands, and to a class by its name.  On a CPU operators stand for kernels.
"""

import json
import re
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from stock.engine import Engine, Progress
    from stock.record import Seen

__all__ = ["PhaseTime", "Profiler", "phase_times"]

STEP_PHASES = ("draft", "verify", "accept", "host")
WARM_STEPS = 4  # behind a start: the clock rises, and a pass may have been asked for before
PLAIN_STEPS = PROFILED_STEPS = 8
MOST_TRACES = 8  # of windows, and of prefills: more of the same would only keep the requests waiting
_PREFIX, _WARM_PREFIX = "spt:", "spt-warm:"  # a profiler may drop its first kernels, so its first step is not counted

# By name, first match; cuBLAS calls its own kernels nvjet, cutlass, xmma, gemv, dot_kernel and reduce_1Block.
_KERNELS = (
    ("attention", re.compile(r"attention|attend|flash|fmha|merge_splits|BatchPrefill|BatchDecode", re.I)),
    ("recurrent", re.compile(r"gated_delta|delta_rule|fused_recurrent|causal_conv1d", re.I)),
    ("gemm", re.compile(r"nvjet|cutlass|xmma|gemm|gemv|split_?k|dot_kernel|reduce_1Block|matmul|cublas", re.I)),
)
_OPERATORS = (
    ("attention", re.compile(r"attention")),
    ("gemm", re.compile(r"^aten::(linear|matmul|mm|addmm|bmm|baddbmm|addbmm|mv|addmv|einsum)_?$")),
)
_OPERATOR_COPIES = re.compile(r"^aten::(copy_|clone|_to_copy)$")
# What a product or an attention is part of, by phase.
_OWNERS = {
    "draft": {"gemm": "drafter", "attention": "drafter", "recurrent": "drafter"},
    "accept": {"gemm": "head", "attention": "glue", "recurrent": "glue"},
    "prefill": {"gemm": "prefill", "attention": "prefill", "recurrent": "prefill", "glue": "prefill"},
}


@dataclass
class PhaseTime:
    """Of all profiled runs of one phase: span_us from begin to end, and for each class its microseconds and calls."""

    runs: int = 0
    span_us: float = 0.0
    us: dict[str, float] = field(default_factory=dict)
    calls: dict[str, int] = field(default_factory=dict)

    def add(self, name: str, us: float, calls: int = 1) -> None:
        self.us[name] = self.us.get(name, 0.0) + us
        self.calls[name] = self.calls.get(name, 0) + calls


@dataclass(frozen=True)
class _Range:
    phase: str
    begin_us: float
    end_us: float
    thread: tuple[Any, Any]


@dataclass
class _Window:
    """Steps of one kind: what the engine's own marks say, in microseconds a phase, and the shapes of the passes."""

    times: dict[str, list[float]] = field(default_factory=dict)
    rows: list[int] = field(default_factory=list)
    contexts: list[int] = field(default_factory=list)
    batches: list[int] = field(default_factory=list)

    def mean(self, phase: str) -> float | None:
        found = self.times.get(phase)
        return sum(found) / len(found) if found else None


class Profiler:
    """Profiles an engine's steps into a file, one line for each phase and pair of windows (docs/records.md)."""

    def __init__(self, path: Path, device: torch.device) -> None:
        """Traces nothing once, so that what a first trace loads is loaded, or its fault known, before any step."""
        tracer = _tracer(device)
        tracer.start()
        tracer.stop()
        self.file = path.open("wb", buffering=0)
        self.folder = path.parent
        self._warm = WARM_STEPS
        self._plain, self._profiled = _Window(), _Window()
        self._tracer: Any = None
        self._steps = 0  # of the window that is running
        self._traces = {"window": 0, "prefill": 0}
        self._seen = False
        # Traces that ended: the phases that are asked of each, and its two windows.
        self._ended: list[tuple[Any, Sequence[str], _Window, _Window]] = []

    def on_step(
        self,
        progress: Sequence["Progress"],
        seen: Sequence["Seen"],
        times: dict[str, float],
    ) -> None:
        """What the engine calls behind an exact pass."""
        self._seen = True
        if window := self._window():
            for name, us in times.items():
                window.times.setdefault(name.removesuffix("_us"), []).append(us)
            window.rows.append(sum(len(each.token.read()) for each in seen))
            lengths = [len(each.request.prompt) + len(each.request.emitted) - len(each.ids) - 1 for each in progress]
            window.contexts.append(sum(lengths) // len(lengths))
            window.batches.append(len(progress))

    def step(self, engine: "Engine") -> "list[Progress]":
        """One step of the engine, plain or profiled as its turn is; a step that fails counts for nothing.

        The engine does not run ahead, so that what a step launches is what it is about.
        """
        ahead, engine.runs_ahead = engine.runs_ahead, False
        try:
            return self._step(engine)
        finally:
            engine.runs_ahead = ahead

    def _step(self, engine: "Engine") -> "list[Progress]":
        if self._traces["window"] == MOST_TRACES and self._tracer is None:
            return engine.step()
        if self._warm == 0 and self._steps == PLAIN_STEPS and self._tracer is None:
            self._tracer = self._start("window", engine)
        waiting = self._tracer is None and any(each.context is None for each in engine.requests)
        if waiting and self._warm == 0 and self._traces["prefill"] < MOST_TRACES:
            return self._prefill(engine)
        first = self._tracer is not None and self._steps == PLAIN_STEPS
        engine.times.prefix = None if self._tracer is None else _WARM_PREFIX if first else _PREFIX
        self._seen = False
        progress = engine.step()
        if self._seen:
            self._steps = 0 if self._warm else self._steps + 1
        self._warm = max(0, self._warm - 1)
        if self._steps > PLAIN_STEPS + PROFILED_STEPS:
            self._end_windows(engine)
        return progress

    def write(self) -> None:
        """Reads the traces that ended, and writes their rows at once; OSError where there is no room for either."""
        while self._ended:
            tracer, phases, plain, profiled = self._ended.pop(0)
            found = phase_times(_trace(tracer, self.folder))
            rows = [row for phase in phases if (row := _row(phase, found, plain, profiled)) is not None]
            self.file.write(b"".join(json.dumps(row).encode() + b"\n" for row in rows))

    def close(self, engine: "Engine") -> None:
        """Ends the windows with what they hold, writes it, and leaves the engine as it was."""
        self._end_windows(engine)
        try:
            self.write()
        finally:
            self.file.close()

    def abandon(self, engine: "Engine") -> None:
        """Ends without another line."""
        engine.times.prefix = None
        if self._tracer is not None:
            self._tracer.stop()
        self.file.close()

    def _window(self) -> _Window | None:
        """Where the step that just ran belongs; the first profiled step is in no window."""
        if self._warm or (self._tracer is not None and self._steps == PLAIN_STEPS):
            return None
        return self._plain if self._tracer is None else self._profiled

    def _start(self, of: str, engine: "Engine") -> Any:
        tracer = _tracer(engine.system.device)
        tracer.start()
        self._traces[of] += 1
        return tracer

    def _prefill(self, engine: "Engine") -> "list[Progress]":
        """A step that is expected to be a prefill, in a trace of its own: no two are alike, so none is its twin."""
        tracer, window, self._seen = self._start("prefill", engine), self._plain, False
        self._plain = _Window()  # should it be a pass after all, it counts for nothing
        engine.times.prefix = _PREFIX
        try:
            progress = engine.step()
        finally:
            tracer.stop()
            self._plain, engine.times.prefix = window, None
        if not self._seen:
            times = {"prefill": [engine.times.take(engine.times.launched())["prefill_us"]]}
            prefill = _Window(times, [len(progress[0].request.prompt)], [0], [1])
            self._ended.append((tracer, ("prefill",), prefill, prefill))
        return progress

    def _end_windows(self, engine: "Engine") -> None:
        engine.times.prefix = None
        tracer, self._tracer = self._tracer, None
        plain, profiled = self._plain, self._profiled
        self._plain, self._profiled, self._steps = _Window(), _Window(), 0
        if tracer is not None:
            tracer.stop()
            self._ended.append((tracer, STEP_PHASES, plain, profiled))


def _row(phase: str, found: dict[str, PhaseTime], plain: _Window, profiled: _Window) -> dict[str, Any] | None:
    """A line of the profile; None where a phase did not run in both windows."""
    wall_us, profiled_us = plain.mean(phase), profiled.mean(phase)
    time = found.get(phase, PhaseTime())
    if wall_us is None or profiled_us is None or (phase != "host" and time.runs == 0):
        return None
    runs = len(profiled.times[phase])
    classes = {name: {"us": us / runs, "calls": time.calls[name] / runs} for name, us in sorted(time.us.items())}
    if phase == "host":  # what the device does between phases is in it; the rest is waiting
        idle_us = max(0.0, wall_us - sum(each["us"] for each in classes.values()))
        classes["gaps"] = {"us": idle_us, "calls": 0.0}
    return {
        "v": 1,
        "kind": "profile",
        "phase": phase,
        "steps": runs,
        "rows": _mean(plain.rows),
        "context": _mean(plain.contexts),
        "batch": _mean(plain.batches),
        "wall_us": wall_us,
        "profiled_us": profiled_us,
        "residual_us": wall_us - sum(each["us"] for each in classes.values()),
        "classes": classes,
    }


def _mean(values: Sequence[int]) -> float:
    return sum(values) / len(values)


def _tracer(device: torch.device) -> Any:
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (device.type == "cuda")
    return profile(activities=activities, acc_events=True)  # one cycle each; without it some versions warn of that


def _trace(tracer: Any, folder: Path) -> list[dict[str, Any]]:
    """The events of a trace, in the one form that is documented; OSError where it finds no room."""
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        path = Path(scratch) / "trace.json"
        try:
            tracer.export_chrome_trace(str(path))
            events: list[dict[str, Any]] = json.loads(path.read_bytes())["traceEvents"]
        except (RuntimeError, ValueError) as error:  # a full disk cuts it
            raise OSError(f"the trace cannot be written: {error}") from error
    return [event for event in events if event.get("ph") == "X"]


def phase_times(events: Iterable[dict[str, Any]]) -> dict[str, PhaseTime]:
    """Time by phase and class from a trace's complete events; kernels where there are any, else operators.

    Work on the device that no counted range launched, though it came behind one, is phase `host`'s.
    """
    by_category: dict[str, list[dict[str, Any]]] = {}
    for event in events:
        by_category.setdefault(event.get("cat", ""), []).append(event)
    ranges = sorted(_ranges(by_category.get("user_annotation", [])), key=lambda each: each.begin_us)
    kernels = [event for name in ("kernel", "gpu_memcpy", "gpu_memset") for event in by_category.get(name, [])]
    if kernels:
        launches = [event for name in ("cuda_runtime", "cuda_driver") for event in by_category.get(name, [])]
        return _by_kernel(ranges, kernels, launches)
    return _by_operator(ranges, by_category.get("cpu_op", []))


def _ranges(annotations: Iterable[dict[str, Any]]) -> Iterable[_Range]:
    for event in annotations:
        if event["name"].startswith(_PREFIX):
            thread = event.get("pid"), event.get("tid")
            yield _Range(event["name"].removeprefix(_PREFIX), event["ts"], event["ts"] + event["dur"], thread)


def _by_kernel(
    ranges: Sequence[_Range], kernels: Iterable[dict[str, Any]], launches: Iterable[dict[str, Any]]
) -> dict[str, PhaseTime]:
    launched_us = {event["args"]["correlation"]: event["ts"] for event in launches if "correlation" in event["args"]}
    runs: dict[_Range, list[dict[str, Any]]] = {each: [] for each in ranges}
    found: dict[str, PhaseTime] = {}
    for kernel in kernels:
        at_us = launched_us.get(kernel["args"].get("correlation"))
        if at_us is None or not ranges or at_us < ranges[0].begin_us:
            continue
        owner = next((each for each in ranges if each.begin_us <= at_us < each.end_us), None)
        if owner is None:
            found.setdefault("host", PhaseTime()).add(_kernel_class("host", kernel), kernel["dur"])
        else:
            runs[owner].append(kernel)
    for each, ran in runs.items():
        phase = found.setdefault(each.phase, PhaseTime())
        phase.runs += 1
        for kernel in ran:
            phase.add(_kernel_class(each.phase, kernel), kernel["dur"])
        if ran:
            span_us = max(one["ts"] + one["dur"] for one in ran) - min(one["ts"] for one in ran)
            phase.span_us += span_us
            phase.add("gaps", max(0.0, span_us - _covered_us(ran)), 0)
    return found


def _kernel_class(phase: str, kernel: dict[str, Any]) -> str:
    if kernel["cat"] != "kernel":
        return "memcpy"
    kind = next((kind for kind, pattern in _KERNELS if pattern.search(kernel["name"])), "glue")
    return _OWNERS.get(phase, {}).get(kind, kind)


def _covered_us(events: Iterable[dict[str, Any]]) -> float:
    """Length of the union of events, some of which may run at once."""
    total_us, reached_us = 0.0, float("-inf")
    for begin_us, end_us in sorted((event["ts"], event["ts"] + event["dur"]) for event in events):
        total_us += max(0.0, end_us - max(begin_us, reached_us))
        reached_us = max(reached_us, end_us)
    return total_us


def _by_operator(ranges: Sequence[_Range], operators: Iterable[dict[str, Any]]) -> dict[str, PhaseTime]:
    """Operators nest: a product or an attention takes what is inside it, any other operator its own time alone."""
    found: dict[str, PhaseTime] = {}
    ordered = sorted(operators, key=lambda event: (event["ts"], -event["dur"]))
    for each in ranges:
        phase = found.setdefault(each.phase, PhaseTime())
        phase.runs += 1
        phase.span_us += each.end_us - each.begin_us
        inside = [
            event
            for event in ordered
            if (event.get("pid"), event.get("tid")) == each.thread and each.begin_us <= event["ts"] < each.end_us
        ]
        phase.add("gaps", each.end_us - each.begin_us - _covered_us(inside), 0)
        open_: list[tuple[float, str, bool]] = []  # end, class, whether it takes what is inside
        for event in inside:
            while open_ and event["ts"] >= open_[-1][0]:
                open_.pop()
            if open_ and open_[-1][2]:
                continue
            kind = next((kind for kind, pattern in _OPERATORS if pattern.search(event["name"])), None)
            plain = "memcpy" if _OPERATOR_COPIES.search(event["name"]) else "glue"
            name = _OWNERS.get(each.phase, {}).get(kind or plain, kind or plain)
            if open_:
                phase.add(open_[-1][1], -event["dur"], 0)  # the parent's own time is what its parts leave
            phase.add(name, event["dur"])
            open_.append((event["ts"] + event["dur"], name, kind is not None))
    return found

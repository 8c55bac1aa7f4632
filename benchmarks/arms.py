"""What is timed: an arm answers one request after the other and says when its first and its last token were there.

All arms share the boundaries of their times: prefill ends when the first tokens are on the host, decoding when the
last ones are.  What came with the first tokens belongs to prefill.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

__all__ = ["Answer", "Arm", "Setup", "StockArm", "add_setup", "load_arm", "options_of"]


@dataclass(frozen=True)
class Answer:
    """ids: all new tokens.  lines: how many of them came at once, prefill's first.  Times are seconds."""

    ids: list[int]
    lines: list[int]
    prefill_s: float
    decode_s: float


class Arm(Protocol):
    """One setting, loaded and warm; an idle arm does nothing."""

    def answer(self, request: dict[str, Any], tokens: int) -> Answer: ...

    def phases(self, requests: list[dict[str, Any]], tokens: int) -> list[dict[str, float]]:
        """`<phase>_us` of each step; empty where the arm has no phases."""
        ...


@dataclass(frozen=True)
class Setup:
    """What all settings of a run share; the fields are those of the protocol's `load`."""

    target: Path
    drafter: Path
    widen: int
    jitter: int
    dtype: str
    device: str
    context: int
    mode: str = "fast"

    def settings(self, options: dict[str, Any]) -> Any:
        """stock's Settings; autoregressive decoding loads no drafter."""
        from stock.system import Settings

        return Settings(
            target=self.target,
            widen=self.widen,
            jitter=self.jitter,
            drafter=None if options.get("draft") == "none" else self.drafter,
            dtype=self.dtype,
            device=self.device,
            mode=self.mode,
            head="model",
            options=options,
            prepared=None,
            context=self.context,
            requests=1,
        )


def add_setup(parser: argparse.ArgumentParser) -> None:
    """The words of a command that names a `Setup`, requests and how many of them."""
    parser.add_argument("--system", type=Path, help="an exported system (`spt export`); the shipped stock if left out")
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--drafter", type=Path, required=True)
    parser.add_argument("--requests", type=Path, required=True, help="JSON lines with id and ids")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--count", type=int, default=8, help="requests")
    parser.add_argument("--tokens", type=int, default=128, help="the longest answer")
    parser.add_argument("--ignore-eos", action="store_true", help="stop ids end no answer; what follows them is noise")
    parser.add_argument("--widen", type=int, default=1)
    parser.add_argument("--jitter", type=int, default=0)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--context", type=int, default=2048)


def options_of(setting: str) -> dict[str, Any]:
    """Option values of a setting's name; ValueError for a name that is none."""
    import json

    kind, _, rest = setting.partition(":")
    tree = ("best_first_nodes", "best_first_positions", "best_first_width")
    if setting == "ar":
        return {"draft": "none"}
    if setting == "chain":
        return {}
    if kind == "chain":
        return {"chain_positions": int(rest)}
    if kind == "tree":
        return {"select": "best_first", **_numbered(tree, rest)}
    if kind == "confident":
        floor, _, rest = rest.partition(":")
        return {"select": "confident", "confident_floor": float(floor), **_numbered(tree, rest)}
    pairs = [item.partition("=") for item in rest.split(",")]
    if not all(name and separator for name, separator, _ in pairs):
        raise ValueError(f"'{setting}' names no setting")
    return {name: json.loads(value) for name, _, value in pairs}


def _numbered(names: tuple[str, ...], rest: str) -> dict[str, int]:
    values = [int(value) for value in rest.split(":")]
    return dict(zip(names[: len(values)], values, strict=True))


class StockArm:
    """An engine in this process."""

    def __init__(self, engine: Any, stop_ids: frozenset[int]) -> None:
        self.engine, self.stop_ids = engine, stop_ids

    def answer(self, request: dict[str, Any], tokens: int) -> Answer:
        """One greedy answer, to a stop id or `tokens` tokens."""
        asked = self._asked(request, tokens)
        begin_s = time.perf_counter()
        self.engine.open(asked)
        return timed(begin_s, self._step)

    def _asked(self, request: dict[str, Any], tokens: int) -> Any:
        from stock.engine import Request
        from stock.sampling import Sampling

        return Request(request["id"], request["ids"], tokens, self.stop_ids, False, Sampling())

    def _step(self) -> tuple[list[int], bool]:
        (progress,) = self.engine.step()
        return progress.ids, progress.reason is not None

    def phases(self, requests: list[dict[str, Any]], tokens: int) -> list[dict[str, float]]:
        found: list[dict[str, float]] = []
        self.engine.times.on, self.engine.on_step = True, lambda *step: found.append(step[-1])
        for request in requests:
            self.answer(request, tokens)
        self.engine.times.on, self.engine.on_step = False, None
        return found

    def profile(self, profiler: Any, requests: list[dict[str, Any]], tokens: int) -> None:
        """Answers the requests under stock's profiler, which is closed then."""
        engine = self.engine
        engine.times.on, engine.on_step = True, profiler.on_step

        def step() -> tuple[list[int], bool]:
            (progress,) = profiler.step(engine)
            profiler.write()
            return progress.ids, progress.reason is not None

        for request in requests:
            engine.open(self._asked(request, tokens))
            timed(time.perf_counter(), step)
        profiler.close(engine)
        engine.times.on, engine.on_step = False, None


def timed(begin_s: float, step: Callable[[], tuple[list[int], bool]]) -> Answer:
    """Runs steps to the end; the first is prefill."""
    ids, ended = step()
    first_s = last_s = time.perf_counter()
    lines = [len(ids)]
    while not ended:
        more, ended = step()
        last_s = time.perf_counter()
        ids = ids + more
        lines.append(len(more))
    return Answer(ids, lines, first_s - begin_s, last_s - first_s)


def load_arm(setup: Setup, setting: str, target: Any, stop_ids: frozenset[int]) -> StockArm:
    """An arm of stock's on a target that is loaded already and shared; captured on a GPU."""
    from stock.engine import Engine
    from stock.system import load_system

    own = replace(target, weights=dict(target.weights))  # a system may let go of matrices that others still need
    engine = Engine(load_system(setup.settings(options_of(setting)), own))
    engine.warm_up()
    return StockArm(engine, stop_ids)

"""Loads engines and decodes with them, as the worker does, inside the test's process."""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from stock.cache import Cache
from stock.draft import Draft
from stock.engine import Engine, Request
from stock.graph import Phases
from stock.prefill import Passed, Prefill
from stock.sampling import Sampling
from stock.system import Settings, System, load_system

__all__ = ["GREEDY", "Answer", "decode", "engine_with", "load", "run_chain", "settings"]

GREEDY = Sampling()


@dataclass
class Answer:
    """What came of one request.

    ids: all emitted tokens.  lines: the same, as one list for prefill and each exact pass.  logits: float32
    [len(ids), vocabulary], what the digest covers.
    """

    ids: list[int]
    lines: list[list[int]]
    logprobs: list[float]
    logits: np.ndarray
    reason: str | None
    steps: int

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.logits.tobytes()).hexdigest()


class _Collected:
    """Stands in for the running hash of a request and keeps the bytes."""

    def __init__(self) -> None:
        self.bytes = bytearray()

    def update(self, data: bytes) -> None:
        self.bytes += data


def settings(target: Path, drafter: Path | None = None, **changes: Any) -> Settings:
    """Settings of a FP32 exact engine; options are given by their own names."""
    fields = {"widen": 1, "jitter": 0, "dtype": "float32", "device": "cpu", "mode": "exact", "head": "model"}
    fields |= {"prepared": None, "context": 128, "requests": 2}
    options = {name: value for name, value in changes.items() if name not in fields}
    fields |= {name: value for name, value in changes.items() if name in fields}
    return Settings(target=target, drafter=drafter, options=options, **fields)


def load(target: Path, drafter: Path | None = None, **changes: Any) -> Engine:
    """A loaded engine."""
    return Engine(load_system(settings(target, drafter, **changes)))


def engine_with(system: System, draft: Draft, **changes: Any) -> Engine:
    """An engine of the same system with another draft module and perhaps other parts.

    The draft module reads the taps that the system's own reads, or none.
    """
    select = changes.get("select", system.select)
    return Engine(replace(system, draft=draft, limits=select.limits(draft.depths), **changes))


def run_chain(system: System, token: Tensor, cache: Cache) -> Iterator[Passed]:
    """The passes over token int64 [n] behind what the cache holds, nothing captured."""
    return Prefill(system, cache, Phases(system.device, graphs=False))(token)


def decode(
    engine: Engine,
    prompt: Sequence[int],
    max_tokens: int,
    sampling: Sampling = GREEDY,
    *,
    stop_ids: Iterable[int] = (),
    ignore_eos: bool = False,
) -> Answer:
    """Runs one request to its end; nothing else may be open."""
    collected = _Collected()
    request = Request("test", list(prompt), max_tokens, frozenset(stop_ids), ignore_eos, sampling, True, True)
    request.logits_hash = collected
    engine.open(request)
    lines, logprobs, reason = [], [], None
    while reason is None:
        (progress,) = engine.step()
        lines.append(progress.ids)
        logprobs += progress.logprobs or []
        reason = progress.reason
    logits = np.frombuffer(bytes(collected.bytes), "<f4").reshape(len(request.emitted), -1)
    return Answer(request.emitted, lines, logprobs, logits, reason, request.steps)

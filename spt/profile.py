"""Profiles as the engine writes them: what each kernel class took of a step (docs/records.md, profile)."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spt.errors import Missing, Usage
from spt.formats import read_file, read_jsonl

__all__ = ["STEP_PHASES", "Profile", "read_profile"]

_LEAST_US = 1e-3
STEP_PHASES = ("draft", "verify", "accept", "host")


@dataclass(frozen=True)
class Profile:
    """A step, mean over the profiled ones.

    us: microseconds by class, phases together; `gaps` are times in which the device, or on a CPU the operators, stood
    still.  wall_us: the step, unprofiled.  phases_us: the same by phase.
    """

    us: Mapping[str, float]
    wall_us: float
    phases_us: Mapping[str, float]
    rows: float
    context_tok: float
    batch: float
    steps: int

    @property
    def kernels_us(self) -> float:
        """What kernels took, gaps left out."""
        return sum(us for name, us in self.us.items() if name != "gaps")

    @property
    def residual_us(self) -> float:
        """What the classes do not explain; below zero where the profiler slowed its subject down."""
        return self.wall_us - sum(self.us.values())


def read_profile(path: Path) -> Profile:
    """The mean over all windows of a profile; Missing where there is no file, Usage where it does not hold a step."""
    if not path.is_file():
        raise Missing(f"no profile at '{path}'", "the protocol's `profile` writes one")
    data = read_file(path)
    if not data.endswith(b"\n"):
        what = "is cut: its last line has no end" if data else "is empty: no window of steps was finished"
        raise Usage(f"'{path}' {what}", "profile more steps")
    rows = read_jsonl(data, str(path), "profile")
    phases = {phase: [row for row in rows if row["phase"] == phase] for phase in STEP_PHASES}
    for phase, own in phases.items():
        if not own:
            raise Usage(f"'{path}' has no phase '{phase}'", f"a step is {', '.join(STEP_PHASES)}")
    walls = {phase: _mean(own, lambda row: row["wall_us"]) for phase, own in phases.items()}
    names = sorted({name for own in phases.values() for row in own for name in row["classes"]})
    us = {name: sum(_class_us(own, name) for own in phases.values()) for name in names}
    if not any(spent_us >= _LEAST_US for name, spent_us in us.items() if name != "gaps"):
        raise Usage(f"'{path}' has no kernel that took any time", "profile again")
    verify = phases["verify"]
    return Profile(
        us=us,
        wall_us=sum(walls.values()),
        phases_us=walls,
        rows=_mean(verify, lambda row: row["rows"]),
        context_tok=_mean(verify, lambda row: row["context"]),
        batch=_mean(verify, lambda row: row["batch"]),
        steps=sum(row["steps"] for row in verify),
    )


def _class_us(rows: list[dict[str, Any]], name: str) -> float:
    return _mean(rows, lambda row: row["classes"].get(name, {"us": 0.0})["us"])


def _mean(rows: list[dict[str, Any]], value: Any) -> float:
    """Over steps, not over windows."""
    steps = sum(row["steps"] for row in rows)
    return float(sum(value(row) * row["steps"] for row in rows) / steps)

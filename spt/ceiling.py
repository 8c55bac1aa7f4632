"""The ceiling: how fast a deployment could be with its models, and which of three factors lies in between.

The ceiling drafts once, verifies the best tree in one exact pass, and runs every kernel class at its floor, the larger
of its bytes and its FLOPs over a device's rates.  docs/ceiling.md derives the factors; their product is the ceiling
over the current speed, exactly.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spt.curve import Point, run_point
from spt.devices import Device, Rates
from spt.errors import Unsupported, Usage
from spt.measured import Run
from spt.shapes import Decoder, Drafter, Pass, Work, step_work

__all__ = [
    "BYTE_SHARES",
    "CHEAP_BITS",
    "FLOP_SHARES",
    "Ceiling",
    "ClassGap",
    "Models",
    "Sweep",
    "best_point",
    "ceiling",
    "floors_us",
    "point_floors_us",
    "rates_of",
    "sweep",
]

CHEAP_BITS = 8.0  # of a weight in a cheap pass: what one plane of a split BF16 weight holds
FLOP_SHARES = (0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
BYTE_SHARES = (0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 1.0)
FACTORS = ("tau", "kernel", "overhead")


@dataclass(frozen=True)
class Models:
    """What is counted: shapes of target and drafter, and the type of weights and activations."""

    target: Decoder
    drafter: Drafter | None
    dtype: str


@dataclass(frozen=True)
class ClassGap:
    """One kernel class of the current system: microseconds a step, its floor, and how far apart they are.

    us: None where no profile tells it.
    """

    name: str
    us: float | None
    floor_us: float

    @property
    def excess_us(self) -> float:
        return 0.0 if self.us is None else self.us - self.floor_us


@dataclass(frozen=True)
class Ceiling:
    """A ceiling and what lies between it and a run.

    best: the policy of the ceiling, at best_floor_us a step; floor_us: the run's own policy at its floors.
    kernels_us: what the run's kernels take, and where that is known from: `profile`, `phases` (device time, gaps
    between kernels included) or `step` (nothing is known but the step, and the overhead factor is 1 by definition).
    multi: the best policy of several drafts an exact pass, at multi_floor_us; None where none was walked.
    """

    rates: Rates
    run: Run
    best: Point
    best_floor_us: float
    floor_us: float
    kernels_us: float
    basis: str
    classes: tuple[ClassGap, ...]
    multi: Point | None = None
    multi_floor_us: float = math.inf

    @property
    def speed(self) -> float:
        """Tokens a second and request at the ceiling."""
        return 1e6 * self.best.tau / self.best_floor_us

    @property
    def multi_speed(self) -> float | None:
        return None if self.multi is None else 1e6 * self.multi.tau / self.multi_floor_us

    @property
    def factors(self) -> dict[str, float]:
        """tau, kernel and overhead; their product is `headroom`."""
        return {
            "tau": (self.best.tau / self.best_floor_us) / (self.run.tau / self.floor_us),
            "kernel": self.kernels_us / self.floor_us,
            "overhead": self.run.step_us / self.kernels_us,
        }

    @property
    def headroom(self) -> float:
        """The ceiling over the run's speed."""
        return self.speed / self.run.speed

    @property
    def largest(self) -> str:
        """The factor to attack."""
        return max(FACTORS, key=lambda name: self.factors[name])

    @property
    def broken(self) -> bool:
        """Whether the run is faster than its ceiling: then the model or its coefficients are wrong."""
        return self.run.speed > self.speed

    def as_json(self) -> dict[str, Any]:
        """All figures; no number stands for what is not known."""
        return {
            "kind": self.rates.kind,
            "base": self.rates.base,
            "ceiling_tok_s": self.speed,
            "current_tok_s": self.run.speed,
            "headroom": self.headroom,
            "factors": self.factors,
            "largest": self.largest,
            "model_is_wrong": self.broken,
            "best": {"policy": self.best.policy, "nodes": self.best.nodes, "tau": self.best.tau},
            "best_floor_us": self.best_floor_us,
            "floor_us": self.floor_us,
            "kernels_us": self.kernels_us,
            "kernels_from": self.basis,
            "step_us": self.run.step_us,
            "classes": [{"class": each.name, "us": each.us, "floor_us": each.floor_us} for each in self.classes],
            "multi_draft": None
            if self.multi is None
            else {"policy": self.multi.policy, "tau": self.multi.tau, "ceiling_tok_s": self.multi_speed},
        }


def floors_us(
    models: Models,
    at: Pass,
    rates: Rates,
    drafts: float = 1.0,
    weight_bits: float | None = None,
    *,
    serial: bool = False,
) -> dict[str, float]:
    """The least time of each class of a step; drafts: drafter passes a step.

    serial: as if bytes and FLOPs never overlapped, which is no floor but what a poor kernel takes at these rates.
    """
    drafter = models.drafter if drafts else None
    work = step_work(models.target, drafter, at, models.dtype, weight_bits)
    if drafter is not None:
        own = work["drafter"]
        work["drafter"] = Work(round(own.bytes * drafts), round(own.flops * drafts))
    count = rates.serial_us if serial else rates.floor_us
    return {name: count(each.bytes, each.flops) for name, each in work.items()}


def point_floors_us(
    models: Models, point: Point, rates: Rates, context_tok: float, *, serial: bool = False
) -> dict[str, float]:
    """The floors of a step of a policy; cheap passes are a class of their own, with weights of `CHEAP_BITS`."""
    at = Pass(point.nodes, context_tok, point.batch, point.tau)
    found = floors_us(models, at, rates, point.drafts, serial=serial)
    if point.cheap_passes:
        rows = point.cheap_rows / point.cheap_passes
        cheap = Pass(max(rows - 1, 0.0), context_tok, point.batch)
        found["cheap"] = point.cheap_passes * sum(
            floors_us(models, cheap, rates, 0, CHEAP_BITS, serial=serial).values()
        )
    return found


def best_point(models: Models, points: Iterable[Point], rates: Rates, context_tok: float) -> tuple[Point, float]:
    """The policy that is fastest at its floors, and its step; Usage where there is none."""
    floors = [(point, sum(point_floors_us(models, point, rates, context_tok).values())) for point in points]
    if not floors:
        raise Usage("no policy was walked or measured", "name the folder of a measurement with lattices")
    return max(floors, key=lambda each: each[0].tau / each[1])


def ceiling(models: Models, run: Run, points: Sequence[Point], rates: Rates, context_tok: float) -> Ceiling:
    """The ceiling of a run, over policies of one exact pass; those of `levels` make the multi-draft ceiling.

    The run's own policy is always among them, so that the tau factor is never below 1.
    """
    depths = models.drafter.depths if models.drafter else 0
    own = run_point(run, depths)
    best, best_floor_us = best_point(
        models, [own, *(point for point in points if point.kind != "levels")], rates, context_tok
    )
    floors = point_floors_us(models, own, rates, context_tok)
    levels = [point for point in points if point.kind == "levels"]
    multi, multi_floor_us = best_point(models, levels, rates, context_tok) if levels else (None, math.inf)
    kernels_us, basis = _kernels(run)
    return Ceiling(
        rates=rates,
        run=run,
        best=best,
        best_floor_us=best_floor_us,
        floor_us=sum(floors.values()),
        kernels_us=kernels_us,
        basis=basis,
        classes=_gaps(run, floors),
        multi=multi,
        multi_floor_us=multi_floor_us,
    )


def _kernels(run: Run) -> tuple[float, str]:
    if run.profile is not None:
        return run.profile.kernels_us, "profile"
    device_us = sum(us for phase, us in run.phases_us.items() if phase != "host")
    return (device_us, "phases") if device_us else (run.step_us, "step")


def _gaps(run: Run, floors: Mapping[str, float]) -> tuple[ClassGap, ...]:
    """Classes of the current step, the farthest from its floor first."""
    us: Mapping[str, float] = run.profile.us if run.profile is not None else {}
    names = dict.fromkeys((*us, *floors))
    gaps = [ClassGap(name, us.get(name, 0.0 if us else None), floors.get(name, 0.0)) for name in names]
    return tuple(sorted(gaps, key=lambda gap: -gap.excess_us))


def rates_of(device: Device, dtype: str, copy_bytes_s: float | None) -> list[Rates]:
    """Published and calibrated rates, as far as there are any; the run's own copy rate where nobody measured reading.

    Unsupported where there is neither.
    """
    found = []
    if device.bytes_s is not None:
        found.append(device.published(dtype))
    known = device if device.read_bytes_s is not None or copy_bytes_s is None else device.measured(copy_bytes_s)
    calibrated = known.calibrated(dtype)
    if calibrated is not None:
        found.append(calibrated)
    if not found:
        raise Unsupported(f"nothing is known of how fast '{device.name}' is")
    return found


@dataclass(frozen=True)
class Sweep:
    """What the largest factor is at other shares of the datasheet; `largest` by (flop share, byte share)."""

    ceilings: Mapping[tuple[float, float], Ceiling]
    stands: str

    @property
    def others(self) -> dict[tuple[float, float], str]:
        """Shares at which another factor is the largest."""
        return {shares: each.largest for shares, each in self.ceilings.items() if each.largest != self.stands}


def sweep(
    models: Models, run: Run, points: Sequence[Point], device: Device, context_tok: float, stands: str
) -> Sweep | None:
    """Ceilings at every pair of shares; None for a device without a datasheet, whose rates are measured."""
    if device.bytes_s is None:
        return None
    return Sweep(
        {
            (flops, bytes_): ceiling(models, run, points, device.published(models.dtype, flops, bytes_), context_tok)
            for flops in FLOP_SHARES
            for bytes_ in BYTE_SHARES
        },
        stands,
    )

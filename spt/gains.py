"""The planning view: what each direction could gain, from walks, floors and the cost model, before a line is written.

A gain is of tokens a second over the current system, with a lower and an upper bound.  A direction that cannot be
computed has no number, and says why.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from spt.ceiling import CHEAP_BITS, Ceiling, Models, floors_us, point_floors_us
from spt.cost import CostModel, Setting
from spt.curve import Kept, Point, ratio_interval
from spt.errors import Usage
from spt.shapes import DTYPE_BYTES, Pass

__all__ = ["LEAST_GAIN", "W12_BITS", "Gain", "Outlook", "plan", "worth"]

LEAST_GAIN = 0.03
W12_BITS = 12.02  # of a BF16 weight, packed without loss


@dataclass(frozen=True)
class Gain:
    """One direction.

    gain, low, high: relative, None where nothing is known; the bounds alone where one answer is all there is, which has
    no interval.  basis: what they were computed from.
    """

    direction: str
    gain: float | None
    low: float | None
    high: float | None
    basis: str


@dataclass(frozen=True)
class Outlook:
    """What a plan is computed from.  kept: the run's tokens and steps by answer, the ground of paired intervals."""

    models: Models
    now: Ceiling
    points: Sequence[Point]
    cost: CostModel
    context_tok: float
    own: Point

    @property
    def step_us(self) -> float:
        return self.now.run.step_us

    @property
    def kept(self) -> Kept:
        return self.own.kept


def plan(outlook: Outlook) -> list[Gain]:
    """Every direction, the largest gain first; those without a number last."""
    own = outlook.own
    positions = max(own.positions, 1)
    alike = [point for point in outlook.points if point.kind in ("tree", "run") and point.batch == own.batch]
    trees = [point for point in alike if point.nodes and point.policy != own.policy]
    within = [point for point in trees if point.positions <= positions]
    found = [
        _policies(outlook, "bigger-trees", [point for point in within if point.nodes >= own.nodes]),
        _policies(outlook, "smaller-trees", [point for point in within if point.nodes < own.nodes]),
        _policies(outlook, "more-positions", [point for point in trees if point.positions > positions]),
        _w12(outlook),
        _head(outlook),
        _launches(outlook),
        _shared(outlook),
        _two_level(outlook),
    ]
    return sorted(found, key=lambda each: (each.gain is None, -(each.gain or 0.0)))


def worth(gains: Iterable[Gain], least: float = LEAST_GAIN) -> list[Gain]:
    """The directions whose predicted gain reaches `least`: what a round may spend a device on."""
    return [each for each in gains if each.gain is not None and each.gain >= least]


# --- directions that other policies open ---


def _policies(outlook: Outlook, name: str, points: Sequence[Point]) -> Gain:
    found = [(point, _gain_of(outlook, point)) for point in points if point.kept]
    if not found:
        depths = outlook.own.positions
        return Gain(name, None, None, None, f"no such policy was walked or measured: it drafts {depths} positions")
    best, gain = max(found, key=lambda each: each[1])
    bounds = _bounds_of(outlook, best)
    taus = f"tau {outlook.own.tau:.2f} -> {best.tau:.2f}"
    basis = f"{best.policy}: {taus}, {best.nodes:.0f} nodes {_priced(outlook, best)}"
    if bounds is None:
        return Gain(name, max(gain, 0.0), None, None, f"{basis}; one answer has no interval")
    return Gain(name, max(gain, 0.0), min(bounds[0], max(gain, 0.0)), max(bounds[1], 0.0), basis)


def _gain_of(outlook: Outlook, point: Point) -> float:
    """Gain of another policy at the cost of today's kernels: the ratio of taus over the ratio of steps."""
    ratio, _ = ratio_interval(outlook.kept, point.kept)
    return ratio * outlook.step_us / _step_us(outlook, point)[1] - 1


def _bounds_of(outlook: Outlook, point: Point) -> tuple[float, float] | None:
    """What that gain lies between; None where one answer does not tell how taus differ."""
    ratio, interval = ratio_interval(outlook.kept, point.kept)
    if interval is None:
        return None
    least, most = interval
    quick_us, step_us, slow_us = _step_us(outlook, point)
    above, below = math.log(most / ratio), math.log(ratio / least)
    high = math.exp(math.hypot(above, math.log(step_us / quick_us)))
    low = math.exp(-math.hypot(below, math.log(slow_us / step_us)))
    gain = ratio * outlook.step_us / step_us
    return gain * low - 1, gain * high - 1


def _fitted(outlook: Outlook, point: Point) -> bool:
    return outlook.cost.knows_rows or not point.nodes


def _priced(outlook: Outlook, point: Point) -> str:
    """Where the step of a policy is known from."""
    if point.step_us is not None:
        return "as measured"
    return "at the fitted cost" if _fitted(outlook, point) else "between its floor and bytes and FLOPs without overlap"


def _step_us(outlook: Outlook, point: Point) -> tuple[float, float, float]:
    """A step of the policy, the middle one of three: measured, or by the cost model if it knows rows, or by floors."""
    if point.step_us is not None:
        return point.step_us, point.step_us, point.step_us
    if _fitted(outlook, point):
        at = Setting(point.policy, point.nodes, outlook.context_tok, point.batch, drafts=point.nodes > 0)
        try:
            there = outlook.cost.predict(at)
            here = outlook.cost.predict(outlook.now.run.setting)
            # Where the model misses the system of today, it most likely misses the next one by as much.
            step_us = there.step_us * outlook.step_us / here.step_us
            spread = 1 + 2 * there.relative_sd
            return step_us / spread, step_us, step_us * spread
        except Usage:
            pass
    return _unfitted_us(outlook, point)


def _unfitted_us(outlook: Outlook, point: Point) -> tuple[float, float, float]:
    """A step of which nobody measured what its rows cost.

    At the least the step grows as its floor does.  At the most its bytes and FLOPs do not overlap at all, and are as
    far above the device's rates as today's are.
    """
    own, step_us = outlook.own, outlook.step_us
    least_us = step_us + _floor_us(outlook, point) - _floor_us(outlook, own)
    scale = max(1.0, step_us / _floor_us(outlook, own, serial=True))
    most_us = step_us + scale * (_floor_us(outlook, point, serial=True) - _floor_us(outlook, own, serial=True))
    quick_us, slow_us = sorted((max(least_us, 1e-3), max(most_us, 1e-3)))
    return quick_us, (quick_us + slow_us) / 2, slow_us


def _floor_us(outlook: Outlook, point: Point, *, serial: bool = False) -> float:
    floors = point_floors_us(outlook.models, point, outlook.now.rates, outlook.context_tok, serial=serial)
    return sum(floors.values())


def _shared(outlook: Outlook) -> Gain:
    batch, name = outlook.own.batch, "shared-budget"
    if batch < 2:
        return Gain(name, 0.0, 0.0, 0.0, "one request a pass: there is nobody to share with")
    return _policies(outlook, name, [each for each in outlook.points if each.kind == "shared"])


def _two_level(outlook: Outlook) -> Gain:
    """Several drafts an exact pass: expected tau by agreement; the lowest and the highest agreement are the bounds."""
    name = "two-level-verification"
    levels = [point for point in outlook.points if point.kind == "levels"]
    if not levels:
        return Gain(name, None, None, None, "no policy of several drafts was walked")
    agreements = sorted({point.agreement for point in levels})
    found = {
        agreement: max(
            ((*_level_gains(outlook, point), point) for point in levels if point.agreement == agreement),
            key=lambda each: each[1],
        )
        for agreement in agreements
    }
    _, gain, _, point = found[agreements[len(agreements) // 2]]
    low, high = found[agreements[0]][0], found[agreements[-1]][2]
    basis = f"{point.policy}: tau {point.tau:.2f}, cheap passes of {CHEAP_BITS:.0f}-bit weights; bounds by agreement"
    return Gain(name, max(gain, 0.0), min(low, max(gain, 0.0)), max(high, 0.0), f"{basis} and overlap")


def _level_gains(outlook: Outlook, point: Point) -> tuple[float, float, float]:
    """The gain of a policy at its slowest, middle and quickest step."""
    quick_us, step_us, slow_us = _level_us(outlook, point)
    low, gain, high = (point.tau / outlook.own.tau * outlook.step_us / us - 1 for us in (slow_us, step_us, quick_us))
    return low, gain, high


def _level_us(outlook: Outlook, point: Point) -> tuple[float, float, float]:
    """Every pass as far above its floor, or its bytes and FLOPs without overlap, as today's step is above its own."""
    shares = [
        _floor_us(outlook, point, serial=serial) / _floor_us(outlook, outlook.own, serial=serial)
        for serial in (False, True)
    ]
    quick_us, slow_us = sorted(outlook.step_us * share for share in shares)
    return quick_us, (quick_us + slow_us) / 2, slow_us


# --- directions that make the same step cheaper ---


def _saving(
    outlook: Outlook,
    name: str,
    saved_us: float,
    least_us: float,
    most_us: float,
    basis: str,
    floor_us: float | None = None,
) -> Gain:
    """The gain of so many microseconds less a step, which stays above its floor: `floor_us`, or that of today."""
    step_us = outlook.step_us
    room_us = max(0.0, step_us - (outlook.now.floor_us if floor_us is None else floor_us))

    def gain(us: float) -> float:
        return step_us / (step_us - min(us, room_us)) - 1

    return Gain(name, gain(saved_us), gain(least_us), gain(most_us), basis)


def _class_us(outlook: Outlook, name: str) -> tuple[float, float, bool]:
    """Floor and time of a class a step; without a profile the time is at most what the other floors leave of the step.

    Where the profiled kernels take longer than the live step, a class has the share of the step that it has of them.
    The last value says whether it was measured.
    """
    gap = next((each for each in outlook.now.classes if each.name == name), None)
    floor_us = 0.0 if gap is None else gap.floor_us
    if gap is not None and gap.us is not None:
        return floor_us, gap.us * min(1.0, outlook.step_us / outlook.now.kernels_us), True
    others_us = outlook.now.floor_us - floor_us
    return floor_us, max(floor_us, outlook.now.kernels_us - others_us), False


def _w12(outlook: Outlook) -> Gain:
    """Target weights in 12 bits; at the efficiency of today's products, between no gain and the new floor."""
    name, models, own = "w12-weights", outlook.models, outlook.own
    if DTYPE_BYTES[models.dtype] * 8 != 16:
        return Gain(name, None, None, None, f"weights are {models.dtype}: the packing is one of 16 bits")
    floor_us, most_us, known = _class_us(outlook, "gemm")
    at = Pass(own.nodes, outlook.context_tok, own.batch, own.tau)
    packed_us = floors_us(models, at, outlook.now.rates, own.drafts, W12_BITS)["gemm"]
    us = most_us if known else (floor_us + most_us) / 2
    saved_us = us * (1 - packed_us / floor_us)
    basis = f"target GEMM {us:.0f} us ({'profiled' if known else 'between floor and step'}), floor {packed_us:.0f} us"
    whole_us = outlook.now.floor_us - floor_us + packed_us
    return _saving(outlook, name, saved_us, 0.0, max(us - packed_us, saved_us), basis, whole_us)


def _head(outlook: Outlook) -> Gain:
    floor_us, us, known = _class_us(outlook, "head")
    if not known:
        return Gain("faster-head", None, None, None, "no profile tells what the head takes")
    basis = f"LM head {us:.0f} us, floor {floor_us:.0f} us; the middle of nothing and all of it"
    most_us = max(0.0, us - floor_us)
    return _saving(outlook, "faster-head", most_us / 2, 0.0, most_us, basis)


def _launches(outlook: Outlook) -> Gain:
    idle_us = max(0.0, outlook.step_us - outlook.now.kernels_us)
    if outlook.now.basis == "step":
        return Gain("fewer-launches", None, None, None, "neither phases nor a profile were measured")
    basis = f"{idle_us:.0f} us a step are no kernel's ({outlook.now.basis}); the middle of nothing and all of it"
    return _saving(outlook, "fewer-launches", idle_us / 2, 0.0, idle_us, basis)

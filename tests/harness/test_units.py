"""harness/units.py: what a unit is worth in any order of lines, and that the chart never looks at the candidate."""

import copy
import itertools
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness import units
from harness.errors import Usage
from tests.harness.campaigns import answer, folded, head, timed_campaign, unit, void

GAINS = st.floats(-0.5, 0.5)
SHAPES = {"halves": st.integers(1, 2), "quartets": st.integers(1, 3), "requests": st.integers(1, 3)}


def only(lines):
    return folded([*head(), *lines]).units[-1]


def times(lines, change):
    """The lines with every time of a group put through `change(group, seconds)`."""
    changed = copy.deepcopy(lines)
    for line in changed:
        if line["type"] == "group":
            line["seconds"] = change(line, line["seconds"])
            line["decode_seconds"] = change(line, line["decode_seconds"])
    return changed


def swapped(lines):
    other = {"a": "b", "b": "a"}
    changed = copy.deepcopy(lines)
    for line in changed:
        if "arm" in line:
            line["arm"] = other[line["arm"]]
        if line["type"] == "unit":
            line["leads"] = [[other[arm] for arm in half] for half in line["leads"]]
    return changed


@settings(max_examples=30, deadline=None)
@given(gain=GAINS, **SHAPES)
def test_value_is_the_log_ratio(gain, **shape):
    """Where b takes exp(gain) times as long as a in every request, the unit is worth `gain`, in any shape."""
    assert units.reading(only(unit("screen", 0, gain, **shape))).value == pytest.approx(gain, abs=1e-12)


@settings(max_examples=30, deadline=None)
@given(gain=GAINS, seed=st.integers(0, 99), **SHAPES)
def test_swapped_arms_negate_the_gain(gain, seed, **shape):
    """Exchanging the arms' names negates the value, and changes nothing else."""
    lines = unit("screen", 0, gain, noise=0.1, seed=seed, **shape)
    one, other = units.reading(only(lines)), units.reading(only(swapped(lines)))

    assert other.value == pytest.approx(-one.value, abs=1e-12)
    assert other.diverged == one.diverged


@settings(max_examples=30, deadline=None)
@given(drift=st.floats(-0.2, 0.2), offset=st.floats(0.5, 2), seed=st.integers(0, 99))
def test_linear_drift_cancels(drift, offset, seed):
    """A machine that slows by the same factor from slot to slot, or is slower as a whole, moves no unit."""
    lines = unit("screen", 0, 0.02, seed=seed)
    slow = times(lines, lambda group, each: [offset * math.exp(drift * group["slot"]) * one for one in each])

    assert units.reading(only(slow)).value == pytest.approx(0.02, abs=1e-9)


def test_value_by_hand():
    """One quartet A 1 s, B 2 s, B 3 s, A 4 s is worth (ln 2 + ln 3/4) / 2; two halves are worth their mean."""
    seconds = dict(enumerate([1.0, 2.0, 3.0, 4.0]))
    lines = times(unit("screen", 0, quartets=1, requests=1), lambda group, _: [seconds[group["slot"]]])
    sign = 1 if lines[-1]["leads"] == [["a"]] else -1

    assert units.reading(only(lines)).value == pytest.approx(sign * (math.log(2) + math.log(3 / 4)) / 2)
    two = unit("screen", 0, quartets=1, requests=1, halves=2)
    two = times(two, lambda group, each: [9.0] if group["half"] == 1 and group["arm"] == "b" else each)
    assert units.reading(only(two)).value == pytest.approx(math.log(9) / 2)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_order_between_units_does_not_matter(seed):
    """Lines of different units may stand in any order, as long as each unit's own lines keep theirs."""
    dice = random.Random(seed)
    each = [unit("screen", number, 0.01 * number, noise=0.1) for number in range(3)]
    expected = {found.number: units.reading(found) for found in folded([*head(), *itertools.chain(*each)]).units}
    mixed, queues = [], [list(lines) for lines in each]
    while any(queues):
        mixed.append(dice.choice([queue for queue in queues if queue]).pop(0))

    assert {found.number: units.reading(found) for found in folded([*head(), *mixed]).units} == expected


@settings(max_examples=20, deadline=None)
@given(number=st.integers(0, 9), at=st.integers(2, 60))
def test_a_void_changes_no_other_unit(number, at):
    """A void unit, wherever its lines stand, leaves every other unit's value as it was."""
    lines = [*head(), *unit("screen", 0, 0.1, noise=0.1), *unit("screen", 1, 0.2, noise=0.1)]
    gone = [*unit("screen", 10 + number, noise=0.1)[:7], void("screen", 10 + number)]
    mixed = [*lines[:at], *gone, *lines[at:]]

    values = [(each.number, units.reading(each)) for each in folded(lines).units]
    assert [(each.number, units.reading(each)) for each in folded(mixed).units] == values


def test_divergence():
    """One request whose ids differ makes the unit diverge, and leaves the gain without divergence."""
    lines = unit("screen", 0, 0.1)
    assert not units.reading(only(lines)).diverged
    said = next(line for line in lines if line["type"] == "answer" and line["arm"] == "a")
    changed = [{**line, "ids": [5, 6, 7, 7]} if line is said else line for line in lines]

    def slow(group, each):
        return [50.0 if name == said["request"] else one for name, one in zip(group["requests"], each, strict=True)]

    changed = times(changed, slow)
    found = only(changed)

    assert units.reading(found).diverged
    assert units.gain_without_divergence(units.request_times(found)) == pytest.approx(0.1)
    assert units.gain_without_divergence(units.request_times(only(unit("screen", 0, diverge=True)))) is None


def test_interval_between_requests_knows_the_requests():
    """The interval over requests holds the gain, is a point where all gain the same, and negates on swapping."""
    several = [only(unit("confirm", number, 0.05, noise=0.1)) for number in range(4)]
    noisy = [each for one in several for each in units.request_times(one)]
    found = units.between_requests(noisy, 0.975)
    mirrored = units.between_requests([each._replace(a_s=each.b_s, b_s=each.a_s) for each in noisy], 0.975)
    still = units.between_requests(units.request_times(only(unit("confirm", 0, 0.05))), 0.975)

    assert found.lower < 0.05 < found.upper
    assert (mirrored.lower, mirrored.upper) == pytest.approx((-found.upper, -found.lower))
    assert (still.lower, still.upper) == pytest.approx((0.05, 0.05))
    assert units.between_requests(noisy[:1], 0.975) is None


@pytest.mark.parametrize(("slow", "fits"), [(1.0, True), (1.009, True), (1.011, False), (0.98, False)])
def test_chart_voids_a_unit_whose_current_best_is_off(slow, fits):
    """With A/A units that agree to 0.1 %, a unit whose arm b is off by more than 1 % is void, in either direction."""
    lines = [*timed_campaign(), *unit("screen", 0, 0.05, slow=slow)]
    valid, off = units.valid_units(folded(lines), "screen")

    assert (len(valid), len(off)) == ((1, 0) if fits else (0, 1))


@pytest.mark.parametrize(("slow", "fits"), [(1.06, True), (1.07, False), (0.94, True), (0.93, False)])
def test_chart_goes_by_three_sigma(slow, fits):
    """With A/A units that lie 2 % to either side (SD 2.14 %), a unit may be off by 6.4 %."""
    paces = [1.02, 1 / 1.02] * 4
    lines = [*head(), *itertools.chain(*[unit("calibrate", at, slow=each) for at, each in enumerate(paces)])]
    valid, _ = units.valid_units(folded([*lines, *unit("confirm", 0, 0.05, slow=slow)]), "confirm")

    assert bool(valid) is fits


@settings(max_examples=25, deadline=None)
@given(factors=st.lists(st.floats(0.01, 100), min_size=4, max_size=4))
def test_chart_does_not_look_at_the_candidate(factors):
    """Whatever arm a's times are, the same units are void."""
    made = [unit("screen", number, slow=slow) for number, slow in enumerate([1.0, 1.05, 1.5, 1.0])]
    other = [
        times(lines, lambda group, each, f=factor: [one * f if group["arm"] == "a" else one for one in each])
        for lines, factor in zip(made, factors, strict=True)
    ]
    begun = timed_campaign(noise=0.02)
    lines, plain = [*begun, *itertools.chain(*other)], [*begun, *itertools.chain(*made)]
    numbers = [[each.number for each in part] for part in units.valid_units(folded(lines), "screen")]
    assert numbers == [[each.number for each in part] for part in units.valid_units(folded(plain), "screen")]
    assert 2 in numbers[1]


def test_chart_needs_two_units():
    """One A/A unit has no spread, so there is no chart yet."""
    assert units.chart_of(folded([*head(), *unit("calibrate", 0)])) is None


@pytest.mark.parametrize(
    ("spoil", "match"),
    [
        (lambda group: {**group, "slot": 3 - group["slot"] if group["slot"] < 2 else group["slot"]}, "is not A"),
        (lambda group: {**group, "group": 0}, "is not A"),
        (lambda group: {**group, "quartet": 5}, "lacks a quartet"),
        (lambda group: {**group, "seconds": [0.0] * len(group["seconds"])}, "took no time"),
    ],
)
def test_units_that_are_none(spoil, match):
    """A unit whose quartets are not as the contract says is refused, by name."""
    lines = [spoil(line) if line["type"] == "group" else line for line in unit("screen", 0, quartets=1)]
    with pytest.raises(Usage, match=match):
        units.reading(only(lines))


def test_request_in_one_arm_alone_is_refused():
    """A group whose arms timed different requests has no ratio by request."""
    lines = unit("screen", 0, quartets=1)
    lines = [
        {**line, "requests": ["x", *line["requests"][1:]]} if line["type"] == "group" and line["arm"] == "a" else line
        for line in lines
    ]
    extra = answer("screen", 0, "a", "x", [5, 6, 7, 9])
    with pytest.raises(Usage, match="in one arm only"):
        units.reading(only([*lines[:-1], extra, lines[-1]]))

"""harness/promotion.py: the rule's steps on numbers, and on files of samples."""

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness import promotion
from harness.promotion import Measure, Outcome, decide, decide_demo, next_step
from harness.units import Reading
from tests.harness.campaigns import folded, head, timed_campaign, unit, void

QUIET = [0.001, -0.001] * 4  # SD 0.107 %


def readings(count, gain, spread=0.0005, diverged=False):
    return [Reading(gain + spread * (-1) ** index, diverged) for index in range(count)]


def phases(gain, **options):
    return readings(5, gain, **options), readings(20, gain, **options)


def test_phases_come_in_order():
    """Eight A/A units, then five of the screen, then ten and perhaps twenty fresh ones."""
    screen, confirm = phases(0.02)
    unsure = readings(20, 0.02, spread=0.02)

    assert decide(QUIET[:7], [], []) == "calibrate"
    assert decide(QUIET, [], []) == "screen"
    assert decide(QUIET, screen[:4], []) == "screen"
    assert decide(QUIET, screen, []) == "confirm"
    assert decide(QUIET, screen, confirm[:9]) == "confirm"
    assert decide(QUIET, screen, confirm[:10]).answer == "promote"
    assert decide(QUIET, screen, unsure[:10]) == "confirm"
    assert decide(QUIET, screen, unsure[:19]) == "confirm"
    assert decide(QUIET, screen, unsure).answer == "undecided"


def test_looks_at_ten_and_twenty_only():
    """What stands at 11 to 19 units changes nothing: a look at 10 that promotes stays, and no other look is taken."""
    screen, confirm = phases(0.02)
    awful = readings(10, -0.5)

    assert decide(QUIET, screen, [*confirm[:10], *awful]) == decide(QUIET, screen, confirm[:10])
    doubtful = [*readings(10, 0.02, spread=0.02), *readings(9, 0.05)]
    assert decide(QUIET, screen, doubtful) == "confirm"


def test_threshold():
    """1 % and twice the noise's upper bound; where outputs differ at least 3 %."""
    noise = promotion.noise_of(QUIET)

    assert noise == pytest.approx(0.00106904 * math.sqrt(7 / 3.822322), rel=1e-4)
    assert promotion.threshold_of(noise, False) == pytest.approx(0.01 + 2 * noise)
    assert promotion.threshold_of(noise, True) == 0.03
    assert promotion.threshold_of(0.02, True) == pytest.approx(0.05)


@pytest.mark.parametrize("where", ["screen", "confirm"])
def test_diverging_outputs_need_three_percent(where):
    """A gain of 2 % that would be promoted is not where one request's ids differ, in the screen or later."""
    screen, confirm = phases(0.02)
    assert decide(QUIET, screen, confirm).answer == "promote"
    if where == "screen":
        screen[2] = screen[2]._replace(diverged=True)
    else:
        confirm[2] = confirm[2]._replace(diverged=True)

    outcome = decide(QUIET, screen, confirm)
    assert outcome.answer == "decline"
    assert outcome.threshold == 0.03
    assert decide(QUIET, *phases(0.04, diverged=True)).answer == "promote"


def test_noise_refuses_a_machine():
    """Above 0.5 % (the estimate, not its bound) the campaign is refused, unless a simulation wants to see it."""
    at = [0.0049 * each / 0.00106904 for each in QUIET]
    over = [0.0051 * each / 0.00106904 for each in QUIET]

    assert decide(at, [], []) == "screen"
    assert decide(over, [], []).answer == "refused"
    assert decide(over, [], [], refuse_noise=False) == "screen"


def test_screen_declines():
    """A mean at or below the threshold declines, and so does a lower bound at or below 0."""
    assert "not above" in decide(QUIET, readings(5, 0.012), []).reason
    shaky = [Reading(value) for value in (0.2, -0.05, 0.15, -0.03, 0.1)]
    outcome = decide(QUIET, shaky, [])

    assert outcome.answer == "decline"
    assert "lower bound" in outcome.reason


def test_at_twenty_units_no_is_said_only_where_it_is_known():
    """Decline iff the upper 95 % bound is under the threshold, else undecided."""
    screen = readings(5, 0.02)
    assert decide(QUIET, screen, readings(20, 0.011)).answer == "decline"
    assert decide(QUIET, screen, readings(20, 0.013, spread=0.01)).answer == "undecided"
    assert decide(QUIET, screen, readings(20, 0.0125, spread=0.005)).answer == "undecided"


def test_published_rule_stands_beside():
    """The published rule's 95 % bound is printed where ours at 99.5 % does not promote."""
    outcome = decide(QUIET, readings(5, 0.02), readings(20, 0.0155, spread=0.005))

    assert outcome.answer == "undecided"
    assert outcome.published_lower > outcome.threshold > outcome.lower


VALUES = st.lists(st.floats(-0.05, 0.05), min_size=20, max_size=20)


@settings(deadline=None)
@given(screen=VALUES, confirm=VALUES, lift=st.floats(0, 0.1))
def test_faster_is_never_worse(screen, confirm, lift):
    """A campaign that promotes still promotes when every unit of the candidate is faster by the same factor."""
    before = decide(QUIET, [Reading(each) for each in screen], [Reading(each + 0.02) for each in confirm])
    after = decide(QUIET, [Reading(each + lift) for each in screen], [Reading(each + 0.02 + lift) for each in confirm])

    if before.answer == "promote":
        assert after.answer == "promote"


def test_campaign_from_samples():
    """From nothing to a promotion the file of samples says what comes next."""
    assert next_step(folded(head())) == Measure("calibrate", 0)
    assert next_step(folded(timed_campaign(calibrate=7))) == Measure("calibrate", 7)
    assert next_step(folded(timed_campaign())) == Measure("screen", 0)
    assert next_step(folded(timed_campaign(5, gain=0.03))) == Measure("confirm", 0)
    assert next_step(folded(timed_campaign(5, 9, gain=0.03))) == Measure("confirm", 9)
    outcome = next_step(folded(timed_campaign(5, 10, gain=0.03)))

    assert (outcome.answer, outcome.units, outcome.phase) == ("promote", 10, "confirm")
    assert outcome.gain == pytest.approx(0.03, abs=0.003)
    assert next_step(folded(timed_campaign(5))).answer == "decline"


def test_void_unit_is_measured_again():
    """A void unit has no number taken; a unit that the chart voids keeps its number, and another one is measured."""
    lines = timed_campaign(2, gain=0.03)

    assert next_step(folded([*lines, void("screen", 2)])) == Measure("screen", 2)
    assert next_step(folded([*lines, *unit("screen", 2, 0.03, slow=1.3)])) == Measure("screen", 3)
    complete = [*lines, *unit("screen", 2, 0.03, slow=1.3)]
    for number in (3, 4, 5):
        complete += unit("screen", number, 0.03)
    assert next_step(folded(complete)) == Measure("confirm", 0)


@pytest.mark.parametrize("cause", ["crash", "hang", "violation", "load"])
def test_fault_of_the_candidate_declines(cause):
    """A candidate that crashes, hangs, breaks the protocol or loads too long is declined with the reason."""
    outcome = next_step(folded([*timed_campaign(3, gain=0.03), void("screen", 3, "a", cause, "exit\x1b[2J 7")]))

    assert outcome.answer == "decline"
    assert outcome.reason.endswith("exit [2J 7")


@pytest.mark.parametrize(("phase", "arm"), [("calibrate", "a"), ("screen", "b"), ("screen", None)])
def test_fault_of_the_current_best_declines_nobody(phase, arm):
    """While the noise is measured both arms are the current best, and arm b always is."""
    assert isinstance(next_step(folded([*timed_campaign(), void(phase, 9, arm, "crash")])), Measure)


@pytest.mark.parametrize(("arm", "answer"), [("a", "decline"), ("b", "undecided")])
def test_three_busy_units_reject_the_arm(arm, answer):
    """A device that an arm left busy voids the unit; the third time the arm is rejected, and not before."""
    lines = [*timed_campaign(), *[void("screen", 0, arm, "busy", "0.5 s") for _ in range(2)]]

    assert isinstance(next_step(folded(lines)), Measure)
    outcome = next_step(folded([*lines, void("screen", 0, arm, "busy", "0.5 s")]))
    assert outcome.answer == answer
    assert "busy 3 times" in outcome.reason


@pytest.mark.parametrize("cause", ["throttle", "busy"])
def test_a_machine_that_fails_before_the_candidate_came_refuses(cause):
    """Units of the current best alone say nothing of the candidate, so its key stays open."""
    lines = [*timed_campaign(calibrate=7), *[void("calibrate", 7, "b", cause) for _ in range(3)]]
    assert next_step(folded(lines)).answer == "refused"
    assert next_step(folded([*lines, void("screen", 0)])).answer == "undecided"


def test_more_than_one_void_in_five_ends_undecided():
    """Void lines and units that the chart voids count together."""
    lines = timed_campaign(gain=0.03)  # 8 units
    one, two = void("screen", 0), unit("screen", 0, 0.03, slow=1.5)

    assert isinstance(next_step(folded([*lines, one, *two])), Measure)  # 2 of 10
    assert next_step(folded([*timed_campaign(calibrate=7), one, one])).answer == "undecided"  # 2 of 9
    assert isinstance(next_step(folded([*head(), one])), Measure)  # 1 of 1
    outcome = next_step(folded([*lines, one, *two, void("screen", 1)]))  # 3 of 11
    assert (outcome.answer, outcome.reason) == ("undecided", "3 of 11 units are void (chart, throttle)")


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_no_op_is_not_promoted(seed):
    """A no-op submitted with the luckiest units still meets the threshold."""
    dice = random.Random(seed)
    drawn = [Reading(dice.gauss(0, 0.001)) for _ in range(25)]
    outcome = decide(QUIET, drawn[:5], drawn[5:])

    assert isinstance(outcome, Outcome)
    assert outcome.answer == "decline"


# --- the rule `demo` ---


@given(noise=st.floats(0.0, 0.2), gain=st.floats(-0.3, 0.6))
def test_the_demo_rule_is_three_percent_and_twice_the_noise(noise, gain):
    """It promotes iff the mean exceeds 3 % + 2 SD of the A/A units, says its name, and asks for four units of each."""
    calibrate = [noise, -noise, noise, -noise]
    confirm = [Reading(gain + 0.01), Reading(gain - 0.01), Reading(gain, True), Reading(gain)]
    assert decide_demo(calibrate[:3], []) == "calibrate"
    assert decide_demo(calibrate, confirm[:3]) == "confirm"
    outcome = decide_demo(calibrate, confirm)

    spread = noise * (4 / 3) ** 0.5
    assert outcome.noise == pytest.approx(spread)
    assert outcome.threshold == pytest.approx(0.03 + 2 * spread)
    assert (outcome.answer == "promote") == (outcome.gain > outcome.threshold)
    assert (outcome.phase, outcome.units) == ("confirm", 4)
    assert "rule demo" in outcome.reason and "raw ratio" in outcome.reason

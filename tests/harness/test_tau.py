"""harness/tau.py: loops are found as a naive reading of the definition finds them, and counts add up."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.tau import Tally, looped, tally, tally_of

# Few ids and short runs, so that repetitions are common.
IDS = st.lists(st.integers(0, 2), max_size=40)
RUN = st.integers(1, 6)


@given(ids=IDS, run=RUN)
def test_looped_equals_its_definition(ids, run):
    """A token is looped iff some run that holds it stood at an earlier place."""
    runs = [ids[start : start + run] for start in range(len(ids) - run + 1)]
    expected = [
        any(runs[start] in runs[:start] for start in range(max(0, at - run + 1), min(at, len(ids) - run) + 1))
        for at in range(len(ids))
    ]

    assert looped(ids, run) == expected


@given(ids=st.lists(st.integers(), unique=True, max_size=60), run=RUN)
def test_text_without_repetition_is_not_looped(ids, run):
    """Where no id comes twice nothing is looped."""
    assert not any(looped(ids, run))


@given(ids=st.lists(st.integers(0, 9), min_size=24, max_size=40, unique=False))
def test_first_time_is_not_looped(ids):
    """Said twice, a text is looped the second time, up to where the runs of the first time end."""
    marks = looped([*ids, -1, *ids])

    assert marks[-len(ids) :] == [True] * len(ids)
    assert marks[: len(ids) + 1] == [*looped(ids), False]


@st.composite
def answers(draw):
    ids = draw(st.lists(st.integers(0, 1), min_size=1, max_size=120))
    lines, left = [1], len(ids) - 1
    while left:
        lines.append(draw(st.integers(1, min(left, 16))))
        left -= lines[-1]
    return ids, lines


@given(answers())
def test_counts_add_up(answer):
    """Every token is prefill's or a step's, and kept steps are those whose first token is not looped."""
    ids, lines = answer
    counts, marks = tally(ids, lines), looped(ids)
    starts = [sum(lines[:index]) for index in range(1, len(lines))]

    assert counts.tokens == len(ids) == counts.step_tokens + 1
    assert counts.looped_tokens == sum(marks)
    assert counts.steps == len(lines) - 1
    assert counts.kept_steps == sum(not marks[start] for start in starts)
    assert counts.kept_tokens == sum(count for start, count in zip(starts, lines[1:], strict=True) if not marks[start])


@given(st.lists(answers(), max_size=4))
def test_tau_is_a_micro_average(several):
    """tau of several answers is all their tokens over all their steps."""
    counts = tally_of({"ids": ids, "lines": lines} for ids, lines in several)
    each = [tally(*answer) for answer in several]

    assert counts.answers == len(several)
    assert counts.tau_all == (sum(one.step_tokens for one in each) / steps if (steps := counts.steps) else None)


def test_tau_of_a_hand_counted_answer():
    """30 tokens, then the first 26 again: two steps of 13 are looped and leave tau, looped tokens are counted."""
    ids = [*range(30), *range(26)]
    counts = tally(ids, [1, 10, 10, 9, 13, 13])

    assert counts == Tally(1, 56, 26, 5, 55, 3, 29)
    assert counts.tau == pytest.approx(29 / 3)
    assert counts.tau_all == 11


def test_no_step_has_no_tau():
    """An answer of prefill's token alone has no tau: None, never a number."""
    assert tally([5], [1]).tau is None
    assert tally([5], [1]).tau_all is None
    assert Tally().tau is None


def test_lines_must_hold_the_ids():
    """Counts of lines that do not add up to the ids are refused."""
    with pytest.raises(ValueError, match="3 ids in lines of 2"):
        tally([1, 2, 3], [1, 1])

"""harness/scored.py, and `judge` of harness/forced.py on samples: from lines to counts, and what is refused."""

import copy
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness import scored
from harness.errors import Usage
from harness.forced import judge
from harness.forcing import Limits
from tests.harness.campaigns import answer, complete, folded, forced, head, line, unit, void

SMALL = Limits(sessions=4, tokens=100, bucket_tokens=10**9, reference_tokens=100)
WARM = {"temperature": 0.5, "top_p": 1, "top_k": 0, "seed": 0}


def fresh(seed, count=40):
    """Ids without a loop."""
    return random.Random(seed).sample(range(10, 5000), count)


def recheck(said, at, stock=None, shape=None):
    given, best = said["ids"][at], said["ids"][at] + 1
    words = {"stock": best if stock is None else stock, "shape": best if shape is None else shape}
    return line("recheck", arm=said["arm"], request=said["request"], at=at, **words), given, best


def reference(wrong=(), own=0.0, sessions=6, **fields):
    """Stock's calibration: `own` is the model head's margin where the verifier has 0.5 (at the places in `wrong`)."""
    lines = []
    for session in range(sessions):
        said = answer("reference", 0, "stock", f"s{session}", fresh(session), **fields)
        lines += [said, forced(said, wrong=wrong), forced(said, "model", wrong=wrong, margin=own)]
        lines += [recheck(said, at)[0] for at in wrong]
    return [*lines, complete("reference", 0, ["stock"])]


def system(*wrongs, margin=0.5, phase="force", number=0, rechecks=True, **fields):
    lines = []
    for index, wrong in enumerate(wrongs):
        said = answer(phase, number, "a", f"r{number}/{index}", fresh(100 + 10 * number + index), **fields)
        lines += [said, forced(said, wrong=wrong, margin=margin)]
        lines += [recheck(said, at)[0] for at in wrong if rechecks]
    return [*lines, complete(phase, number)]


def judged(*lines, **options):
    return judge(folded([*head(), *lines]), limits=SMALL, **options)


def test_counts_of_a_hand_made_file():
    """Tokens, mismatches, sessions and families are those of the lines."""
    report = judged(*reference(family="lists"), *system([1], [2, 3], [], [], margin=5.0, family="lists"))
    decision = report.decision

    assert (decision.tokens, decision.sessions) == (160, 4)
    assert decision.mismatch == 3 / 160
    assert decision.stock_mismatch == 0
    assert report.families == {"lists": {"tokens": 160, "mismatch": 3 / 160, "stock_tokens": 240, "stock_mismatch": 0}}
    assert report.margin_logit == {"system": pytest.approx(3 * 1.0 / 160), "stock": 0}
    assert [event.request for event in report.audit] == ["r0/0", "r0/1", "r0/1"]


def test_turns_of_a_session_are_one_cluster():
    """Answers that share a session are one cluster."""
    assert judged(*reference(), *system([1], [2], [], [], session="one"), *system([], number=1)).decision.sessions == 2


@pytest.mark.parametrize(
    ("ids", "fields", "bad"),
    [
        ([5, 6], {}, False),
        ([5, 0], {"max_tokens": 9}, False),
        ([5, 6], {"max_tokens": 9}, True),
        ([0, 6], {}, True),
        ([0, 0], {}, True),
        ([], {"max_tokens": 1}, True),
        ([0, 6], {"ignore_eos": True}, False),
        ([5, 0], {"ignore_eos": True, "max_tokens": 9}, True),
        ([5, 6], {"max_tokens": 9, "reason": "stop"}, True),
    ],
)
def test_well_formed(ids, fields, bad):
    """No stop id before the last token, and the last is one or the length is reached; the engine's word is not read."""
    said = answer("force", 0, "a", "r", ids, **fields)
    lines = [*reference(), *system([], [], [], []), said, forced(said), complete("force", 1)]
    lines = [{**each, "unit": 1} if each.get("request") == "r" else each for each in lines]
    report = judged(*lines)

    assert (report.decision.answer == "malformed") is bad
    assert report.malformed == (("r",) if bad else ())


def test_malformed_answer_of_the_screen_counts():
    """A malformed answer is rejected wherever the candidate gave it, though the screen is not forced."""
    cut = [
        {**each, "max_tokens": 99} if each["type"] == "answer" and each["arm"] == "a" else each
        for each in unit("screen", 0)
    ]

    assert judged(*reference(), *system([], [], [], []), *cut).decision.answer == "malformed"
    assert judged(*reference(), *system([], [], [], []), *unit("screen", 0)).decision.answer == "undecided"


def test_looped_tokens_are_apart():
    """A mismatch inside a repetition is no part of the rate, and may be an event."""
    ids = [*fresh(1, 30), *fresh(1, 30)]
    said = answer("force", 1, "a", "loop", ids)
    looped = [said, forced(said, wrong=[50]), recheck(said, 50)[0], complete("force", 1)]
    report = judged(*reference(), *system([], [], []), *looped)

    assert report.decision.mismatch == 0
    assert report.looped_tok == 30
    assert report.decision.tokens == 150
    assert [event.looped for event in report.audit] == [True]
    assert report.decision.events[0].events == 1
    assert report.decision.events[0].tokens == 180


def test_delta_is_the_quantile_of_margin_differences():
    """One difference of 0.4 in 40 is above the 99.9 % quantile's rank, so delta is 0.4 logits; 0 where heads agree."""
    assert judged(*reference([3], own=0.1), *system([], [], [], [])).delta_logit == pytest.approx((0.4,) * 4)
    assert judged(*reference([3], own=0.5), *system([], [], [], [])).delta_logit == (0, 0, 0, 0)


def test_delta_of_a_bucket():
    """A bucket with enough of stock's tokens has a delta of its own; the others take the one of all."""
    far = {"prompt": [1] * 600}
    long = [
        {**each, "request": "f" + each["request"]} if "request" in each else each
        for each in reference([3], own=0.4, **far)
    ]
    samples = folded([*head(), *reference([3], own=0.1)[:-1], *long])

    assert scored.delta_of(samples, 240) == pytest.approx((0.4, 0.1, 0.4, 0.4))
    assert scored.delta_of(samples, 241) == pytest.approx((0.4,) * 4)


def test_margins_at_a_temperature_are_put_into_logits():
    """At T = 0.5 a margin of 0.9 is 0.45 logits: an event above 2 delta / T, not above 2 delta."""
    calm = reference([3], own=0.3)  # delta 0.2 logits

    assert len(judged(*calm, *system([1], [], [], [], margin=0.9, sampling=WARM)).audit) == 1
    assert len(judged(*calm, *system([1], [], [], [], margin=0.7, sampling=WARM, rechecks=False)).audit) == 0
    assert len(judged(*calm, *system([1], [], [], [], margin=0.7)).audit) == 1
    warm = reference([3], own=0.3, sampling=WARM)
    assert judged(*warm, *system([], [], [], [])).delta_logit == pytest.approx((0.1,) * 4)


@pytest.mark.parametrize(("changes", "explained"), [({}, None), ({"stock": 0}, "stock"), ({"shape": -1}, "shape")])
def test_closed_list_of_explanations(changes, explained):
    """Stock's own head saying the same explains an event, and so does a verifier that flips with the chunk's length."""
    lines = system([1], [], [], [], rechecks=False)
    said = lines[0]
    changes = {key: said["ids"][1] if key == "stock" else 7 for key in changes}
    report = judged(*reference(), *lines, recheck(said, 1, **changes)[0])

    assert [event.explanation for event in report.audit] == [explained]
    assert report.decision.events[0].events == (explained is None)


def test_nothing_is_decided_before_all_is_scored():
    """An answer without scores, scores that do not cover it, and an event that was not checked again are refused."""
    lines = system([1], [], [], [])
    short = copy.deepcopy(lines)
    short[1].update({name: short[1][name][1:] for name in ("argmax", "margin", "rank", "kept")})

    for bad, match in [
        ([each for each in lines if each["type"] != "forced"], "4 answers of arm 'a' are not scored"),
        (short, "do not cover"),
        ([each for each in lines if each["type"] != "recheck"], "1 events of arm 'a' are not checked"),
    ]:
        with pytest.raises(Usage, match=match):
            judged(*reference(), *bad)
    with pytest.raises(Usage, match="no calibration"):
        judged(*lines)
    with pytest.raises(Usage, match="no answer of arm 'a'"):
        judged(*reference())
    with pytest.raises(Usage, match="not scored yet with the head 'model'"):
        judged(*[each for each in reference() if each.get("head") != "model"], *lines)


def test_unchecked_names_what_the_scorer_does_next():
    """Events without a recheck are listed, stock's too, and no others."""
    lines = [*reference([5], own=0.5), *system([1], [2], [], [])]
    samples = folded([*head(), *[each for each in lines if each["type"] != "recheck"]])
    asked = [(event.arm, event.request, event.at) for event in scored.unchecked(samples)]

    assert asked[:2] == [("a", "r0/0", 1), ("a", "r0/1", 2)]
    assert {arm for arm, *_ in asked[2:]} == {"stock"}
    assert scored.unchecked(folded([*head(), *lines])) == []


def test_looks_split_the_tokens():
    """Units complete before a look belong to it, later ones to the next; calibration may lie in another file."""
    first, second = system([1], [], [], []), system([], [], [], [], number=1)
    look = line("look", what="forcing")
    other = folded([*head(), *reference()])

    one = judge(folded([*head(), *first, look, *second]), other, SMALL).decision
    assert [test.events for test in one.events] == [1, 0]
    both = judge(folded([*head(), *first, *second]), other, SMALL).decision
    assert [test.events for test in both.events] == [1]
    assert judge(folded([*head(), *first, look]), other, SMALL).decision.look == 1


@pytest.mark.parametrize(("cause", "answer"), [("crash", "reject"), ("hang", "reject"), ("throttle", "undecided")])
def test_candidate_that_fails_while_asked_is_rejected(cause, answer):
    """A crash on the way to an answer is no way around forcing."""
    lines = [*reference(), *system([], [], [], []), void("force", 1, "a", cause)]

    assert judged(*lines).decision.answer == answer


def test_one_request_in_two_units_is_refused():
    """A recheck names its request alone, so a request is answered once."""
    again = [{**each, "unit": 1} if "unit" in each else each for each in system([])]
    with pytest.raises(Usage, match="in two units"):
        judged(*reference(), *system([]), *again)


def test_head_is_a_part_of_the_rule():
    """Judged with the model's own head instead of FP32, what the system's head hides is hidden."""
    lines = system([1], [2], [3], [4])
    blind = [forced(each, "model") for each in lines if each["type"] == "answer"]

    assert judged(*reference(), *lines, *blind).decision.mismatch == 4 / 160
    assert judged(*reference(), *lines, *blind, head="model").decision.mismatch == 0


@given(st.lists(st.lists(st.integers(0, 39), max_size=3, unique=True), min_size=4, max_size=6), st.randoms())
def test_order_of_answers_does_not_matter(wrongs, dice):
    """Answers may stand in any order within their unit, scores and rechecks anywhere."""
    lines = system(*wrongs)
    mixed = lines[:-1]
    dice.shuffle(mixed)
    one, other = (judged(*reference(), *each, lines[-1]) for each in (lines[:-1], mixed))

    assert one.decision.answer == other.decision.answer
    assert one.decision.excess.upper == pytest.approx(other.decision.excess.upper)
    assert sorted(map(str, one.audit)) == sorted(map(str, other.audit))

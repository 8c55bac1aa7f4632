"""harness/chain.py: a session is scored in one pass, and no bit of what is told of it changes."""

import random
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.chain import chained, score_chain
from harness.wire import Sampling, Scores
from stock import sampling as stock_sampling
from stock.score import Scorer
from tests.harness.campaigns import answer
from tests.stock.drive import decode, load
from tests.stock.tiny import target_config, write_target

WARM = {"temperature": 0.8, "top_p": 0.9, "top_k": 12, "seed": 5}
GREEDY = {"temperature": 0.0, "top_p": 1.0, "top_k": 0, "seed": 0}


def talk(turns, session="s", sampling=GREEDY, broken=()):
    """The `answer` lines of a session; turns: (what is asked, what is said), tokens.

    A turn in `broken` has the answers before it in other tokens.
    """
    context, lines = [], []
    for number, (asked, said) in enumerate(turns):
        context = [*([50] * len(context) if number in broken else context), *asked]
        fields = {"session": session, "prompt": list(context), "sampling": sampling}
        lines.append(answer("force", 0, "a", f"{session}#{number}", list(said), **fields))
        context += said
    return lines


class Counting:
    """A verifier that counts what it is asked; its scores tell the place."""

    def __init__(self):
        self.asked = []

    def score(self, ids, start, sampling):
        self.asked.append((len(ids), start))
        places = list(range(start, len(ids)))
        return Scores(start, places, [float(at) for at in places], places, [0.0] * len(places), [True] * len(places))


TURNS = st.lists(
    st.tuples(st.lists(st.integers(3, 40), min_size=1, max_size=4), st.lists(st.integers(3, 40), max_size=5)),
    min_size=1,
    max_size=6,
)


@given(sessions=st.lists(st.tuples(TURNS, st.sets(st.integers(1, 5))), min_size=1, max_size=4))
def test_every_answer_gets_its_own_tokens(sessions):
    """Whatever the turns are and wherever tokens broke: all answers in their order, each with scores of its places."""
    lines = [
        line for number, (turns, broken) in enumerate(sessions) for line in talk(turns, f"s{number}", GREEDY, broken)
    ]
    verifier, chains = Counting(), list(chained(lines))
    scored = [scores for chain in chains for scores in score_chain(verifier, chain)]

    assert [line for chain in chains for line in chain] == lines
    for line, scores in zip(lines, scored, strict=True):
        first = len(line["prompt"])
        assert scores.start == first
        assert scores.argmax == list(range(first, first + len(line["ids"])))
    assert len(verifier.asked) <= len(chains)


def test_one_question_a_session():
    """Ten turns are one question of the session's length; a broken prefix costs one more, other sampling another."""
    turns = [([5, 6], [7, 8, 9])] * 10
    for lines, asked in (
        (talk(turns), [(50, 2)]),
        (talk(turns, broken=(4,)), [(20, 2), (50, 22)]),
        (talk(turns[:2]) + talk(turns[:1], "other"), [(10, 2), (5, 2)]),
        (talk(turns[:1]) + talk(turns[:2], sampling=WARM)[1:], [(5, 2), (10, 7)]),
        (talk([([5, 6], []), ([7], [])]), []),
        (talk([([5, 6], []), ([7], [8]), ([9], [])]), [(5, 2)]),
    ):
        verifier = Counting()
        for chain in chained(lines):
            score_chain(verifier, chain)
        assert verifier.asked == asked


class Exact:
    """Stock's own scorer on a tiny model, as an engine."""

    def __init__(self, system):
        self.scorer = Scorer(system)

    def score(self, ids, start, sampling):
        return Scores(start, **vars(self.scorer.score(ids, start, stock_sampling.Sampling(**asdict(sampling)))))


@pytest.mark.parametrize("sampling", [GREEDY, WARM])
def test_cut_scores_are_the_separate_ones_bit_for_bit(sampling, tmp_path):
    """In exact mode a token's scores do not depend on what is scored beside it, nor on what follows."""
    engine = load(write_target(tmp_path / "target", target_config("llama")), context=256)
    dice, context, turns = random.Random(3), [], []
    for _ in range(4):
        asked = [dice.randrange(3, 64) for _ in range(9)]
        said = decode(engine, context + asked, 24, stock_sampling.Sampling(**sampling), ignore_eos=True).ids
        said[dice.randrange(24)] = 40  # a mismatch
        turns.append((asked, said))
        context += asked + said
    verifier, lines = Exact(engine.system), talk(turns, sampling=sampling)
    [chain] = chained(lines)
    apart = [
        verifier.score(line["prompt"] + line["ids"], len(line["prompt"]), Sampling(**line["sampling"]))
        for line in lines
    ]

    assert score_chain(verifier, chain) == apart
    assert any(margin > 0 for scores in apart for margin in scores.margin)

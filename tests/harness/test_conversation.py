"""What is asked next: one way for runs, campaigns and forcing."""

import random

import pytest

from harness.answer import Answer
from harness.conversation import Conversation, converse, question, spoken, stop_ids_of
from harness.errors import Usage
from harness.request import Request
from harness.supply import Supply
from harness.text import load_text
from harness.wire import Ready, Sampling
from tests.fakes.metronome import Metronome

READY = Ready(0.0, 100, 1000, [2, 1000, 4000], 64)
GREEDY = Sampling()


def test_stop_ids_that_no_model_says_are_left_out_everywhere():
    """A file may name more stop ids than the model has: a request with one of them would be refused."""
    request = Request("a", ids=(5, 6), max_tokens=8)
    asked = Conversation(request).ask(READY, None, GREEDY, 8)
    (timed,) = Supply([request], (), None).take(1, READY, GREEDY)

    assert stop_ids_of(READY, None) == asked.stop_ids == timed.stop_ids == [2]


def test_the_users_seed_is_drawn_from_once():
    """A request's own sampling comes before the deployment's; the wire's seed is a function of seed and choice."""
    own, plain = Request("a", ids=(5,), sampling=Sampling(1.0, seed=7), choice=1), Request("b", ids=(5,))
    first = question(own, "a#0", [5], 4, Sampling(0.5, seed=7), [])
    second = question(plain, "b#0", [5], 4, Sampling(0.5, seed=7), [])

    assert (first.sampling.temperature, second.sampling.temperature) == (1.0, 0.5)
    assert first.sampling.seed != second.sampling.seed != 7


def test_what_does_not_fit(toy_paths):
    """A session ends by itself; any other request is an error that says by how much."""
    text = load_text(toy_paths["smollm"][0])
    session = Conversation(Request("s", turns=("Hi " * 60, "More"), max_tokens=8, session=True))
    assert session.ask(READY, text, GREEDY, None) is None
    assert session.done
    with pytest.raises(Usage, match="'a' does not fit: 60 prompt tokens and 8 new ones exceed the context of 64"):
        Conversation(Request("a", ids=(5,) * 60)).ask(READY, None, GREEDY, 8)


def test_answers_are_context_without_their_stop_id(toy_paths):
    """The next prompt holds what was said; the id that ended it is no part of the text."""
    text = load_text(toy_paths["smollm"][0])
    request = Request("s", turns=("Hi", "Why?"), max_tokens=4)
    conversation = Conversation(request)
    first = conversation.ask(Ready(0.0, 100, 5000, [9], 512), text, GREEDY, None)
    ids = text.encode("The answer")
    conversation.hear(first, Answer(first.id, 1, ids=[*ids, 9]), text)
    second = conversation.ask(Ready(0.0, 100, 5000, [9], 512), text, GREEDY, None)

    assert conversation.said == ["The answer"]
    assert (first.id, second.id) == ("s#0", "s#1")
    assert second.prompt == text.chat(("Hi", "Why?"), ["The answer"])
    assert spoken(first, [9]) == [] and spoken(first, [9, 8]) == [9, 8]


def test_one_request_after_the_other():
    """`converse` gives every question with its answer, in order."""
    rng = random.Random(1)
    engine = Metronome().start([], None)
    ready = engine.load(type("S", (), {"options": {}}), 1.0)
    requests = [Request(str(n), ids=tuple(rng.randrange(3, 99) for _ in range(5))) for n in range(3)]
    pairs = [pair for request in requests for pair in converse(engine, ready, None, request, GREEDY, 4)]

    assert [asked.id for asked, _ in pairs] == ["0#0", "1#0", "2#0"]
    assert all(asked.id == answer.id and len(answer.ids) == 4 for asked, answer in pairs)

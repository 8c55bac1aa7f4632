"""The engine's loop: stops and lengths at every in-block offset, usage, counters, cancellation, many requests."""

import numpy as np
import pytest

from stock.draft import Draft
from stock.engine import Engine, Request
from stock.sampling import Sampling
from stock.select.chain import Chain
from tests.fakes.draft import ScriptedDraft
from tests.stock.drive import GREEDY, decode, engine_with, load
from tests.stock.tiny import drafter_config, target_config, write_drafter, write_target

PROMPT = [5, 9, 33, 17]
DEPTHS = 7
BLOCK = DEPTHS + 1  # tokens of a pass whose drafts are all accepted
SAMPLING = Sampling(2.0, seed=6)  # varied text, so that a stop id occurs once


@pytest.fixture(scope="module")
def system(tmp_path_factory):
    config = target_config("llama", vocab_size=512)
    return load(write_target(tmp_path_factory.mktemp("decode") / "target", config)).system


@pytest.fixture(scope="module")
def answer(system):
    """Three blocks of text by autoregressive decoding, without a token twice."""
    ids = decode(Engine(system), PROMPT, 1 + 3 * BLOCK, SAMPLING, ignore_eos=True).ids
    assert len(set(ids)) == len(ids)
    return ids


def scripted(system, answer, wrong=(), depths=DEPTHS):
    draft: Draft = ScriptedDraft(PROMPT + answer, depths, 512, wrong=wrong)
    return engine_with(system, draft)


def passes(length, wrong):
    """The lengths of the lines of an answer when the drafts at the output indices `wrong` are not the target's."""
    lines, emitted = [1], 1
    while emitted < length:
        accepted = 0
        while accepted < DEPTHS and emitted + accepted not in wrong:
            accepted += 1
        lines.append(min(accepted + 1, length - emitted))
        emitted += lines[-1]
    return lines


@pytest.mark.parametrize("wrong", [(), (4,), (2, 3, 9), tuple(range(1, 25, 2)), tuple(range(25))])
def test_drafts_change_no_token(wrong, system, answer):
    """Whatever is proposed, the tokens are those of autoregressive decoding; only the passes differ."""
    drafted = decode(
        scripted(system, answer, {len(PROMPT) + at for at in wrong}), PROMPT, len(answer), SAMPLING, ignore_eos=True
    )

    assert drafted.ids == answer
    assert [len(line) for line in drafted.lines] == passes(len(answer), wrong)
    assert drafted.steps == len(drafted.lines) - 1


@pytest.mark.parametrize("wrong", [(), (1, 5, 6, 13)])
def test_length_at_every_offset(wrong, system, answer):
    """max_tokens is exact wherever in a block it falls, and nothing behind it leaks."""
    engine = scripted(system, answer, {len(PROMPT) + at for at in wrong})
    offsets = set()
    for length in range(1, 2 * BLOCK + 2):
        cut = decode(engine, PROMPT, length, SAMPLING, ignore_eos=True)
        assert cut.ids == answer[:length]
        assert cut.reason == "length"
        assert [len(line) for line in cut.lines] == passes(length, wrong)
        offsets.add(len(cut.lines[-1]))
    assert wrong or offsets == set(range(1, BLOCK + 1))


@pytest.mark.parametrize("wrong", [(), (1, 5, 6, 13)])
def test_stop_at_every_offset(wrong, system, answer):
    """A stop id is the last token wherever in a block it is accepted or chosen; with ignore_eos it is a token."""
    engine = scripted(system, answer, {len(PROMPT) + at for at in wrong})
    offsets = set()
    for at in range(2 * BLOCK + 1):
        stop = [answer[at], answer[at + 3], 511]
        stopped = decode(engine, PROMPT, len(answer), SAMPLING, stop_ids=stop)
        assert stopped.ids == answer[: at + 1]
        assert stopped.reason == "stop"
        assert [len(line) for line in stopped.lines] == passes(at + 1, wrong)
        assert len(stopped.logprobs) == len(stopped.logits) == at + 1
        offsets.add(len(stopped.lines[-1]))
    ignored = decode(engine, PROMPT, len(answer), SAMPLING, stop_ids=answer, ignore_eos=True)
    assert (ignored.ids, ignored.reason) == (answer, "length")
    assert wrong or offsets == set(range(1, BLOCK + 1))


def test_stop_at_the_length(system, answer):
    """A stop id that is also the last token allowed is a stop; one token later it is the length that ends."""
    engine = scripted(system, answer)
    for at in (0, 1, 5, BLOCK, BLOCK + 1):
        assert decode(engine, PROMPT, at + 1, SAMPLING, stop_ids=[answer[at]]).reason == "stop"
        assert decode(engine, PROMPT, at + 1, SAMPLING, stop_ids=[answer[at + 1]]).reason == "length"


def test_stop_id_in_the_prompt_is_no_stop(system, answer):
    """Only emitted tokens end an answer."""
    stopped = decode(Engine(system), PROMPT, 5, SAMPLING, stop_ids=PROMPT)
    assert stopped.ids == answer[:5]


def test_logits_of_emitted_positions_only(system, answer):
    """The digest covers exactly the emitted positions, in order, also where a block is cut."""
    whole = decode(Engine(system), PROMPT, len(answer), SAMPLING, ignore_eos=True)
    for length in (1, 2, BLOCK, BLOCK + 1, BLOCK + 4):
        cut = decode(scripted(system, answer, {len(PROMPT) + 11}), PROMPT, length, SAMPLING, ignore_eos=True)
        assert cut.logits.tobytes() == whole.logits[:length].tobytes()
        assert cut.logprobs == whole.logprobs[:length]


@pytest.mark.parametrize("positions", [1, 2, 6, 7, 64])
def test_chain_positions(positions, system, answer):
    """The option caps the drafted positions of a chain, and changes no token."""
    draft = ScriptedDraft(PROMPT + answer, DEPTHS, 512)
    engine = engine_with(system, draft, select=Chain(positions))
    drafted = decode(engine, PROMPT, len(answer), SAMPLING, ignore_eos=True)

    assert drafted.ids == answer
    assert max(len(line) for line in drafted.lines) == min(positions, DEPTHS) + 1


def test_context_is_used_to_its_end(system, tmp_path):
    """prompt + max_tokens may be the whole context, with blocks that reach beyond it."""
    config = target_config("llama", max_position_embeddings=48)
    target = write_target(tmp_path / "target", config)
    drafter = write_drafter(tmp_path / "drafter", drafter_config(config, block_size=16))
    for alignment in ("same", "next"):
        engine = load(target, drafter, context=48, alignment=alignment)
        plain = load(target, context=48)
        for prompt in (47, 40, 20):
            ids = list(range(1, prompt + 1))
            drafted, single = (decode(each, ids, 48 - prompt, SAMPLING, ignore_eos=True) for each in (engine, plain))
            assert drafted.ids == single.ids
            assert len(drafted.ids) == 48 - prompt


def test_requests_one_after_the_other(system, answer):
    """Open requests are served in order, each as if it were alone, and counters add up."""
    engine = scripted(system, answer)
    requests = [Request(name, PROMPT, 9, frozenset(), True, SAMPLING, True) for name in "abc"]
    for request in requests:
        engine.open(request)
    order = []
    while engine.requests:
        order += [progress.request.id for progress in engine.step()]

    assert order == [name for name in "abc" for _ in range(2)]
    assert all(request.emitted == answer[:9] for request in requests)
    assert engine.counters == {"requests": 3, "steps": 3, "tokens": 27}
    assert len(engine.free) == 1


def test_close_in_the_middle(system, answer):
    """A request that is let go leaves nothing behind: the next one is the same as ever."""
    engine = scripted(system, answer, {len(PROMPT) + 5})
    for steps in (0, 1, 2):
        request = Request("gone", PROMPT, 20, frozenset(), True, SAMPLING)
        engine.open(request)
        for _ in range(steps):
            engine.step()
        engine.close(request)
        assert not engine.requests
        assert decode(engine, PROMPT, 12, SAMPLING, ignore_eos=True).ids == answer[:12]


def test_log_probabilities(system, answer):
    """log-probs are those of the whole softmax, before temperature and cuts, of each emitted token."""
    drafted = decode(scripted(system, answer), PROMPT, 12, Sampling(0.5, 0.7, 3, 8), ignore_eos=True)
    logits = drafted.logits.astype("f8")
    logits -= logits.max(1, keepdims=True)
    expected = logits[range(12), drafted.ids] - np.log(np.exp(logits).sum(1))

    # Two float32 roundings of sums over 512 ids.
    assert np.abs(expected - drafted.logprobs).max() < 2**-20 * 16


def test_nothing_is_computed_that_was_not_asked_for(system):
    """Without logprobs and digest there are none."""
    engine = Engine(system)
    request = Request("quiet", PROMPT, 2, frozenset(), True, GREEDY)
    engine.open(request)
    (progress,) = engine.step()

    assert progress.logprobs is None
    assert request.logits_hash.hexdigest().startswith("e3b0c442")  # of nothing

"""The small real model and the drafter that ships with the project, against transformers and against themselves."""

import json
from pathlib import Path

import gguf
import pytest
import torch

from stock.drafter import load_drafter
from stock.engine import Engine
from stock.sampling import Sampling
from stock.system import load_system
from tests.stock.drive import decode, settings
from tests.stock.test_drafter import block_logits
from tests.stock.test_target import logits_of

PROMPTS = json.loads((Path(__file__).parent / "prompts.json").read_text())
TEMPLATE = (
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
)
CI_PROMPTS = (0, 1, 9, 10)
# Tokens an exact pass, from the shipped drafter, greedy, FP32, first 48 tokens.  Where a draft decides, the drafter's
# best and second logit are more than 2^-9 apart (a test holds that), far beyond what FP32 sums differ by.
LINES = {
    0: [11, 6, 4, 4, 4, 3, 3, 1, 7, 4],
    9: [11, 8, 8, 9, 5, 6],
    10: [14, 14, 6, 2, 3, 4, 4],
}


@pytest.fixture(scope="module")
def spoken(smollm2_fast):
    """Greedy answers of 48 tokens by chains, FP32, fast mode, and the block logits of each of their passes."""
    drafter, found, kept = smollm2_fast.system.drafter, {}, []

    def draft(anchor, cache):
        kept.append(type(drafter).draft(drafter, anchor, cache))
        return kept[-1]

    drafter.draft = draft
    for at in CI_PROMPTS:
        kept.clear()
        found[at] = decode(smollm2_fast, PROMPTS[at]["ids"], 48, stop_ids=[2]), list(kept)
    del drafter.draft
    return found


@pytest.fixture(scope="module")
def answers(spoken):
    """The answers alone."""
    return {at: answer for at, (answer, _) in spoken.items()}


def other_engine(engine, drafter=None, **changes):
    """An engine of the same target weights with other settings."""
    system = engine.system
    given = settings(system.settings.target, drafter or system.settings.drafter, context=system.context, **changes)
    return Engine(load_system(given, system.target))


@pytest.mark.full
def test_prompts_are_what_they_say(smollm2):
    """The ids of prompts.json spell their text inside the chat template."""
    tokens = gguf.GGUFReader(smollm2).fields["tokenizer.ggml.tokens"].contents()
    for prompt in PROMPTS:
        spelled = "".join(tokens[token] for token in prompt["ids"]).replace("Ġ", " ").replace("Ċ", "\n")
        assert spelled == TEMPLATE.format(prompt["text"])


def test_logits_equal_transformers(smollm2_fast, smollm2, oracle):
    """Logits of every position of a prompt, in both modes.

    210 FP32 products of up to 1,536 terms stand one behind another, each summed in another order: sqrt(210) times
    2^-24 sqrt(1536) is 2^-15 of the largest logit.  Four times that leaves room for the norms' amplification.
    """
    ids = PROMPTS[0]["ids"]
    theirs = oracle.ask("logits", path=smollm2, ids=ids)["logits"]
    bound = 2**-13 * float(theirs.abs().max())

    for engine in (smollm2_fast, other_engine(smollm2_fast)):
        assert float((logits_of(engine, ids) - theirs).abs().max()) <= bound


def test_drafter_equals_transformers(smollm2_fast, smollm2, expanded_drafter, oracle):
    """Block logits of the shipped drafter behind a real prompt, from the 8-bit file here, from BF16 there.

    As above, through 30 target layers and 5 more.
    """
    ids = PROMPTS[9]["ids"]
    job = {"windows": [None] * 5, "causal": [False] * 5, "ids": ids, "target": smollm2, "path": expanded_drafter}
    theirs = oracle.ask("drafter", **job)["logits"][1:]

    assert float((block_logits(smollm2_fast, ids) - theirs).abs().max()) <= 2**-12 * float(theirs.abs().max())


def assert_teacher_forced(answer, prompt, smollm2, oracle):
    """One forward of transformers over prompt and answer: every token is its argmax."""
    ids = prompt + answer.ids
    theirs = oracle.ask("argmax", path=smollm2, ids=ids[:-1])["argmax"][len(prompt) - 1 :]
    assert answer.ids == theirs.tolist()


@pytest.mark.parametrize("at", CI_PROMPTS)
def test_greedy_text_equals_transformers(at, answers, smollm2, oracle):
    """48 tokens that were speculated are those of transformers, teacher-forced."""
    assert len(answers[at].ids) == 48
    assert_teacher_forced(answers[at], PROMPTS[at]["ids"], smollm2, oracle)


@pytest.mark.full
@pytest.mark.parametrize("draft", ["dflash", "none"])
@pytest.mark.parametrize("at", range(16))
def test_greedy_texts_equal_transformers(at, draft, smollm2_fast, smollm2, oracle):
    """16 prompts of 128 tokens, speculated and not."""
    engine = smollm2_fast if draft == "dflash" else other_engine(smollm2_fast, mode="fast", draft="none")
    answer = decode(engine, PROMPTS[at]["ids"], 128, ignore_eos=True)
    assert len(answer.ids) == 128
    assert_teacher_forced(answer, PROMPTS[at]["ids"], smollm2, oracle)


@pytest.mark.parametrize("at", LINES)
def test_chain_tau(at, answers):
    """Steps and tokens of each pass are held: tau is 47 over the number of passes."""
    lengths = [len(line) for line in answers[at].lines]
    assert lengths == [1, *LINES[at]]
    assert answers[at].steps == len(LINES[at])


def test_drafts_that_decide_are_no_near_ties(spoken):
    """What the golden lines rely on: no draft up to the first rejected one is decided by rounding."""
    gaps = []
    for at in LINES:
        answer, blocks = spoken[at]
        for line, logits in zip(answer.lines[1:], blocks, strict=True):
            best = logits[: len(line)].topk(2).values
            gaps.append(float((best[:, 0] - best[:, 1]).min()))
    assert min(gaps) > 2**-9


def test_alignment_of_the_shipped_drafter(smollm2_fast, answers):
    """`auto` finds that rows predict their own position; read with the other alignment the drafter is useless."""
    shifted = other_engine(smollm2_fast, mode="fast", alignment="next")
    answer = decode(shifted, PROMPTS[10]["ids"], 8, ignore_eos=True)

    assert smollm2_fast.system.options["alignment"] == "auto"
    assert len(answers[10].lines[1]) == 14
    assert answer.ids == answers[10].ids[:8]
    assert answer.steps > 3


def test_8_bit_equals_expanded(smollm2_fast, expanded_drafter):
    """The 8-bit file and its BF16 expansion load to the same bits."""
    system = smollm2_fast.system
    expanded = load_drafter(expanded_drafter, system.target, "auto", torch.float32, system.context, False).weights

    assert expanded.keys() == system.drafter.weights.keys()
    assert all(torch.equal(weight, expanded[name]) for name, weight in system.drafter.weights.items())


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.7, 0.95, 50, 7)], ids=["greedy", "sampled"])
def test_exact_mode(sampling, smollm2_fast):
    """On the real model, exact speculation equals autoregressive decoding in tokens, log-probs and bits of logits."""
    prompt = PROMPTS[10]["ids"]
    engines = other_engine(smollm2_fast), other_engine(smollm2_fast, draft="none")
    drafted, single = (decode(engine, prompt, 6, sampling, ignore_eos=True) for engine in engines)

    assert drafted.ids == single.ids
    assert drafted.logprobs == single.logprobs
    assert drafted.digest == single.digest
    assert drafted.steps < single.steps == 5


def test_second_request_equals_the_first(smollm2_fast, answers):
    """Asked again after other requests, the same prompt takes the same passes."""
    again = decode(smollm2_fast, PROMPTS[9]["ids"], 48, stop_ids=[2])
    assert again.lines == answers[9].lines


@pytest.mark.full
def test_exact_mode_on_more_prompts(smollm2_fast):
    """As test_exact_mode, 40 tokens of four prompts at T = 1."""
    engines = other_engine(smollm2_fast), other_engine(smollm2_fast, draft="none")
    for at in (2, 6, 12, 14):
        for sampling in (Sampling(), Sampling(1.0, seed=at)):
            drafted, single = (decode(each, PROMPTS[at]["ids"], 40, sampling, ignore_eos=True) for each in engines)
            assert (drafted.ids, drafted.digest) == (single.ids, single.digest)

"""What each mode and type promises: FP64 equal tokens, FP32 and BF16 near ties only, all of them repeatable."""

from dataclasses import replace

import pytest
import torch

from stock.engine import Engine
from stock.errors import EngineError
from stock.sampling import Sampling
from stock.score import Scorer
from tests.fakes.draft import ScriptedDraft
from tests.fakes.select import RandomTree
from tests.stock.drive import GREEDY, decode, engine_with, load
from tests.stock.tiny import drafter_config, target_config, write_drafter, write_target

PROMPT = [5, 9, 33, 17, 60, 2, 11]
SAMPLINGS = [GREEDY, Sampling(0.75, seed=3), Sampling(2.0, 0.8, 9, 2**64 - 1)]


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    folder = tmp_path_factory.mktemp("modes")
    config = target_config("qwen3", hidden_size=64)
    return write_target(folder / "target", config), write_drafter(folder / "drafter", drafter_config(config))


def with_logits(engine: Engine, rows: list) -> Engine:
    """The engine with a head that keeps the logits of every row in their own type, with their positions."""

    def head(hidden, position, sampling, noise, wanted):
        chosen = engine.system.head(hidden, position, sampling, noise, wanted)
        rows.extend(zip(position.tolist(), chosen.logits, strict=True))
        return chosen

    return Engine(replace(engine.system, head=head))


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "sampled", "cut"])
def test_fp64(sampling, paths):
    """FP64 in fast mode: chains and trees say what autoregressive decoding says, and logits are within 1e-9."""
    drafted, single, treed = [], [], []
    engine, plain = load(*paths, dtype="float64", mode="fast"), load(paths[0], dtype="float64", mode="fast")
    alone = decode(with_logits(plain, single), PROMPT, 40, sampling, ignore_eos=True)
    chain = decode(with_logits(engine, drafted), PROMPT, 40, sampling, ignore_eos=True)
    draft = ScriptedDraft(PROMPT + alone.ids, 6, 64, right_rank=1)
    tree = with_logits(engine_with(plain.system, draft, select=RandomTree(5, 20, 3)), treed)
    tree_answer = decode(tree, PROMPT, 40, sampling, ignore_eos=True)

    assert chain.ids == alone.ids
    assert tree_answer.ids == alone.ids
    assert tree_answer.steps < 30
    expected = dict(single)
    for rows in (drafted, treed):
        # Of all rows at a position, one belongs to the accepted path: the one with AR's logits.
        for position, logits in expected.items():
            assert min(float((each - logits).abs().max()) for at, each in rows if at == position) < 1e-9


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "sampled", "cut"])
def test_fp32_fast_is_a_near_tie_away(sampling, paths):
    """In FP32 fast mode a drafted answer is AR's up to near ties: each token's margin under exact FP32 is rounding.

    Logits of about 10 summed in other orders differ by some 2^-18 of that (test_target.py); a token may win over
    another that is twice as far, and a temperature below 1 magnifies it.
    """
    drafted = decode(load(*paths, mode="fast"), PROMPT, 60, sampling, ignore_eos=True)
    scores = Scorer(load(paths[0]).system).score(PROMPT + drafted.ids, len(PROMPT), sampling)

    assert max(scores.margin) <= 2 * 10 * 2**-15 / min(sampling.temperature or 1, 1)


def test_bf16_regret(paths):
    """In BF16 equality is luck, regret is not: what a chain emits is nearly the best of an exact BF16 scorer.

    BF16 keeps 8 bits; through 3 layers of some 7 roundings each a logit of 10 is off by about sqrt(21) 2^-9 of it.
    Four times that bounds the gap between two such logits.
    """
    drafted = decode(load(*paths, dtype="bfloat16", mode="fast"), PROMPT, 60, GREEDY, ignore_eos=True)
    scorer = Scorer(load(paths[0], dtype="bfloat16", mode="fast", head="fp32").system)
    scores = scorer.score(PROMPT + drafted.ids, len(PROMPT), GREEDY)

    assert max(scores.margin) <= 4 * 21**0.5 * 2**-9 * 10
    assert sum(margin == 0 for margin in scores.margin) > 50


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("mode", ["exact", "fast"])
def test_repeatable(mode, dtype, paths):
    """The same request on a fresh engine accepts the same drafts and gives the same bits."""
    first, second = (
        decode(load(*paths, dtype=dtype, mode=mode), PROMPT, 30, SAMPLINGS[2], ignore_eos=True) for _ in range(2)
    )

    assert first.lines == second.lines
    assert first.digest == second.digest
    assert len(first.lines) < 31


def test_seed_decides(paths):
    """At a temperature another seed says something else, and the same seed the same, speculating or not."""
    engines = load(*paths), load(paths[0])
    answers = {
        seed: [tuple(decode(each, PROMPT, 12, Sampling(1.5, seed=seed), ignore_eos=True).ids) for each in engines]
        for seed in (0, 1, 2**32, 2**64 - 1)
    }

    assert all(drafted == single for drafted, single in answers.values())
    assert len({drafted for drafted, _ in answers.values()}) == 4


@pytest.mark.parametrize("prefill_rows", [64, 100])
def test_prefill_pieces(prefill_rows, paths):
    """Prompts are run in pieces of prefill_rows rows in fast mode, with the same tokens in FP64."""
    prompt = [(3 * at) % 64 for at in range(230)]
    whole = decode(load(*paths, dtype="float64", mode="fast", context=256), prompt, 12, ignore_eos=True)
    pieces = load(*paths, dtype="float64", mode="fast", context=256, prefill_rows=prefill_rows)

    assert decode(pieces, prompt, 12, ignore_eos=True).lines == whole.lines


def test_device_that_does_not_exist(paths):
    """A device of another kind, or an index that is not there."""
    for device in ("cuda:99", "cpu:1", "meta", "tpu", "cuda:-1", ""):
        with pytest.raises(EngineError) as caught:
            load(*paths, device=device)
        assert caught.value.code == "no_device"
        assert device in caught.value.message


def test_context_beyond_the_model(paths):
    """A context that the target was not made for is refused before anything is allocated."""
    with pytest.raises(EngineError) as caught:
        load(*paths, context=257)
    assert caught.value.code == "bad_request"
    assert load(*paths, context=256).system.context == 256


def test_tables_fit_the_context_that_is_asked_for(tmp_path):
    """A model of a million positions costs what the request needs, not what it could."""
    path = write_target(tmp_path / "target", target_config("llama", max_position_embeddings=1 << 40))
    engine = load(path, context=32)

    assert engine.system.context == 32
    assert len(decode(engine, PROMPT, 25, ignore_eos=True).ids) == 25
    assert torch.is_inference_mode_enabled() is False

"""The DFlash drafter against one built from transformers' Qwen3 parts, and its context cache against a fresh one.

Tolerances as in test_target.py: both sides sum in FP32 in other orders, through target and drafter.
"""

import json
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from stock.drafter import DrafterConfig
from stock.engine import Engine, Request
from stock.sampling import Sampling
from tests.stock import reference
from tests.stock.drive import GREEDY, decode, load
from tests.stock.tiny import drafter_config, drafter_weights, target_config, target_weights, write_drafter, write_target

TOLERANCE = 2.0**-14
IDS = torch.randint(0, 64, (50,), generator=torch.Generator().manual_seed(8)).tolist()
TARGET = target_config("llama")
INNER = {"mask_token_id": 1, "target_layer_ids": [0, 1]}
SLIDING = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 9}
DRAFTERS = {
    "plain": {},
    "every layer tapped": {"dflash_config": {**INNER, "target_layer_ids": [0, 1]}},
    "one tap": {"dflash_config": {**INNER, "target_layer_ids": [1]}},
    "taps out of order": {"dflash_config": {**INNER, "target_layer_ids": [1, 0]}},
    "a tap twice": {"dflash_config": {**INNER, "target_layer_ids": [1, 1, 0]}},
    "other mask": {"dflash_config": {**INNER, "mask_token_id": 63}},
    "block size inside": {"block_size": 8, "dflash_config": {**INNER, "block_size": 8}},
    "next token, said so": {"dflash_config": {**INNER, "sample_from_anchor": True}},
    "next token, by layout": {"dflash_config": None, **INNER},
    "sliding, causal by default": SLIDING,
    "sliding, not causal": {**SLIDING, "is_causal": False},
    "all causal": {"is_causal": True},
    "causal inside": {"is_causal": False, "dflash_config": {**INNER, "causal": True}},
    "one sliding window for all": {"dflash_config": {**INNER, "use_swa": True, "swa_window_size": 7}},
    "yarn": {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}},
    "no grouping": {"num_key_value_heads": 6},
}
SEES = {
    "sliding, causal by default": ([9, None], [True, False]),
    "sliding, not causal": ([9, None], [False, False]),
    "all causal": ([None, None], [True, True]),
    "causal inside": ([None, None], [True, True]),
    "one sliding window for all": ([7, 7], [True, True]),
}


@torch.inference_mode()
def block_logits(engine: Engine, ids: list[int]) -> Tensor:
    """Logits [depths, vocabulary] that the drafter gives when ids[-1] is the anchor and the rest was accepted."""
    request = Request("test", ids[:-1], 8, frozenset(), True, GREEDY)
    engine.open(request)
    engine.step()
    context = request.context
    assert context is not None
    logits = engine.system.drafter.draft(torch.tensor(ids[-1:]), context.draft_cache)
    engine.close(request)
    return logits


def assert_close(ours: Tensor, theirs: Tensor) -> None:
    assert ours.shape == theirs.shape
    assert float((ours - theirs).abs().max()) <= TOLERANCE * float(theirs.abs().max())


@pytest.mark.parametrize("mode", ["exact", "fast"])
@pytest.mark.parametrize("name", DRAFTERS)
def test_block_logits_equal_transformers(name, mode, tmp_path, oracle):
    """Taps, fusion, K/V injection, absolute RoPE, windows, in-block causality, mask and alignment, all at once."""
    config = {key: value for key, value in drafter_config(TARGET, **DRAFTERS[name]).items() if value is not None}
    drafter = write_drafter(tmp_path / "drafter", config)
    target = write_target(tmp_path / "target", TARGET)

    ours = block_logits(load(target, drafter, mode=mode), IDS)

    windows, causal = SEES.get(name, ([None, None], [False, False]))
    theirs = oracle.ask("drafter", path=drafter, target=target, ids=IDS, windows=windows, causal=causal)["logits"]
    assert len(ours) == config["block_size"] - (0 if name.startswith("next token") else 1)
    assert_close(ours, theirs[-len(ours) :])


def test_taps_are_outputs_of_their_layers(tmp_path, oracle):
    """A tap is the output of the layer of that id, that is hidden_states[id + 1]; one off would still run."""
    target = write_target(tmp_path / "target", TARGET)
    drafter = write_drafter(tmp_path / "drafter", drafter_config(TARGET, taps=[0, 1]))
    engine = load(target, drafter)
    seen = []
    engine.system.draft.prefill = lambda context, taps, position, count: seen.append((taps, position))

    engine.open(Request("test", IDS, 1, frozenset(), True, GREEDY))
    engine.step()

    ((taps, position),) = seen
    assert position.tolist() == list(range(len(IDS)))
    assert_close(taps, oracle.ask("logits", path=target, ids=IDS, taps=[0, 1])["taps"])


@pytest.mark.parametrize("inner", [True, False])
def test_alignment(inner):
    """`auto` follows sample_from_anchor, then the layout; the option overrides both."""
    config = drafter_config(TARGET)
    if not inner:
        config |= config.pop("dflash_config")

    assert DrafterConfig.read(config).shifted is not inner
    for said in (True, False):
        where = config["dflash_config"] if inner else config
        where["sample_from_anchor"] = said
        assert DrafterConfig.read(config).shifted is said
        assert DrafterConfig.read(config, "next").shifted is True
        assert DrafterConfig.read(config, "same").shifted is False
        assert DrafterConfig.read(config, "next").depths == 5
        assert DrafterConfig.read(config, "same").depths == 4


def test_scalings(tmp_path):
    """Embedding scale, output multiplier and soft cap do what their names say, in that order."""
    target = write_target(tmp_path / "target", TARGET)
    config = drafter_config(TARGET)
    plain = block_logits(load(target, write_drafter(tmp_path / "plain", config)), IDS)
    config["dflash_config"] |= {"output_multiplier": 0.5, "final_logit_softcapping": 2.0}
    capped = block_logits(load(target, write_drafter(tmp_path / "capped", config)), IDS)
    torch.testing.assert_close(capped, 2 * torch.tanh(plain * 0.5 / 2))

    config = drafter_config(TARGET)
    config["dflash_config"]["input_embedding_scale"] = 3.0
    scaled = block_logits(load(target, write_drafter(tmp_path / "scaled", config)), IDS)
    own = {**drafter_weights(config), "embed_tokens.weight": 3 * load(target).system.target.draft_embed}
    tripled = block_logits(load(target, write_drafter(tmp_path / "own", drafter_config(TARGET), own)), IDS)
    torch.testing.assert_close(scaled, tripled)


def test_8_bit_equals_expanded(tmp_path):
    """An int8 matrix times its scales is the BF16 matrix that tools write from it, bit for bit."""
    config = drafter_config(TARGET)
    packed, expanded = {}, {}
    for name, weight in drafter_weights(config).items():
        if weight.dim() == 2:
            scale = weight.abs().amax(1) / 127
            quantised = (weight / scale[:, None]).round().to(torch.int8)
            packed |= {name: quantised, name + "_scale": scale}
            expanded[name] = (quantised.float() * scale[:, None]).to(torch.bfloat16)
        else:
            packed[name] = expanded[name] = weight.to(torch.bfloat16)
    target = write_target(tmp_path / "target", TARGET)
    folders = [write_drafter(tmp_path / name, config, each) for name, each in (("a", packed), ("b", expanded))]

    loaded = [load(target, folder) for folder in folders]

    first, second = (each.system.drafter.weights for each in loaded)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert torch.equal(*(block_logits(each, IDS) for each in loaded))


def test_own_head_with_a_map(tmp_path, oracle):
    """A drafter's own head over 20 ids is used instead of the target's, and d2t leads to the target's ids."""
    target = write_target(tmp_path / "target", TARGET)
    config = drafter_config(TARGET)
    head = torch.randn(20, 32, generator=torch.Generator().manual_seed(4))
    offsets = torch.arange(20) * 2  # draft id i means target id 3 i
    weights = {**drafter_weights(config), "lm_head.weight": head, "d2t": offsets}
    drafter = write_drafter(tmp_path / "drafter", config, weights)
    engine = load(target, drafter)

    ours = block_logits(engine, IDS)
    theirs = oracle.ask("drafter", path=drafter, target=target, ids=IDS, windows=[None, None], causal=[False, False])
    assert_close(ours, theirs["logits"][1:])

    for sampling in (GREEDY, Sampling(temperature=3.0, seed=5)):
        lattices = []
        spied = Engine(replace(engine.system, draft=_Spy(engine.system.draft, lattices)))
        assert len(decode(spied, IDS, 30, sampling, ignore_eos=True).ids) == 30
        proposed = {token for lattice in lattices for token in lattice.ids.flatten().tolist()}
        assert proposed <= set(range(0, 60, 3))
        assert len(proposed) > 3


@pytest.mark.parametrize("temperature", [0.0, 0.1, 1.0, 5.0])
@torch.inference_mode()
def test_lattice_shares_the_noise_of_its_positions(temperature, tmp_path):
    """Ranks at T are those of logit + T g at the proposed position, among the 64 best logits and by their softmax.

    At T = 0 the softmax is that of all logits.  Log-probs are stored as float16: 11 bits of numbers up to 16.
    """
    config = target_config("llama", vocab_size=512)
    target = write_target(tmp_path / "target", config)
    engine = load(target, write_drafter(tmp_path / "drafter", drafter_config(config)))
    logits = block_logits(engine, IDS)
    sampling = Sampling(temperature, seed=77)
    request = Request("test", IDS[:-1], 8, frozenset(), True, sampling)
    engine.open(request)
    engine.step()
    request.context.anchor.fill_(IDS[-1])
    (lattice,) = engine.system.draft([request.context], 6)

    places = range(len(IDS), len(IDS) + 4)  # IDS[-1] is the anchor, at len(IDS) - 1
    noise = torch.tensor([[float(reference.gumbel(77, at, token)) for token in range(512)] for at in places])
    noisy = logits.double() + temperature * noise
    if temperature:
        behind = logits < logits.topk(64).values[:, -1:]
        noisy = noisy.masked_fill(behind, float("-inf"))
    expected = noisy.log_softmax(1).topk(6)

    assert torch.equal(lattice.ids, expected.indices)
    torch.testing.assert_close(lattice.logprobs.double(), expected.values, rtol=0, atol=2**-7)
    assert torch.equal(lattice.logprobs, lattice.logprobs.half().float())


class _Spy:
    """Passes everything on to a draft module and keeps its lattices."""

    def __init__(self, inner, lattices):
        self.inner, self.lattices = inner, lattices
        self.depths, self.taps = inner.depths, inner.taps
        self.open, self.prefill = inner.open, inner.prefill

    def __call__(self, contexts, ranks):
        lattices = self.inner(contexts, ranks)
        self.lattices += lattices
        return lattices


def context_rows(request: Request) -> tuple[Tensor, Tensor]:
    """What target and drafter hold of the accepted tokens: keys and values [layers, 2, rows, heads, dim]."""
    context = request.context
    rows, drafted = int(context.cache.start), int(context.draft_cache.start)
    return context.cache.kv[:, :, :rows].clone(), context.draft_cache.kv[:, :, :drafted].clone()


@pytest.mark.parametrize("seed", range(3))
@torch.inference_mode()
def test_context_is_appended_never_recomputed(seed, tmp_path):
    """After any number of passes, both caches hold the very bits that a fresh prefill of the same tokens gives.

    Rejected rows leave no trace, and the drafter's context lags by the pass whose taps it has not taken in yet.
    """
    target = write_target(tmp_path / "target", TARGET)
    engine = load(target, write_drafter(tmp_path / "drafter", drafter_config(TARGET, **SLIDING)))
    request = Request("a", IDS[: 5 + seed], 60, frozenset(), True, Sampling(temperature=4.0, seed=seed))
    engine.open(request)
    accepted = 0
    for _ in range(20):
        accepted += sum(len(progress.ids) - 1 for progress in engine.step())
    appended = context_rows(request)
    ids = request.prompt + request.emitted
    engine.close(request)

    fresh = Request("b", ids[:-1], 9, frozenset(), True, GREEDY)
    engine.open(fresh)
    engine.step()
    rebuilt = context_rows(fresh)

    assert accepted > 3
    assert appended[0].shape == rebuilt[0].shape
    assert torch.equal(appended[0], rebuilt[0])
    drafted = appended[1].shape[2]
    assert len(ids) - 1 - 5 <= drafted <= len(ids) - 1
    assert torch.equal(appended[1], rebuilt[1][:, :, :drafted])


def test_second_request_equals_a_fresh_engine(tmp_path):
    """What an engine served before does not change what it drafts: the same lines as from a fresh one."""
    target = write_target(tmp_path / "target", TARGET)
    drafter = write_drafter(tmp_path / "drafter", drafter_config(TARGET))
    sampling = Sampling(temperature=3.0, seed=1)
    used = load(target, drafter)
    decode(used, IDS, 40, Sampling(temperature=5.0, seed=9), ignore_eos=True)
    decode(used, IDS[:3], 2, GREEDY, ignore_eos=True)

    lines = [decode(engine, IDS[5:20], 40, sampling, ignore_eos=True).lines for engine in (used, load(target, drafter))]

    assert lines[0] == lines[1]
    assert len(lines[0]) < 40


def test_same_request_many_times(tmp_path):
    """The acceptance of one request stays what it was, however often it is asked."""
    target = write_target(tmp_path / "target", TARGET)
    engine = load(target, write_drafter(tmp_path / "drafter", drafter_config(TARGET)))

    lines = [decode(engine, IDS, 20, Sampling(temperature=3.0, seed=1), ignore_eos=True).lines for _ in range(4)]

    assert lines[1:] == lines[:-1]


def test_resident_bytes(tmp_path):
    """Weights count once: a drafter adds its layers and, if it has them, embedding and head, but nothing shared."""
    target = write_target(tmp_path / "target", TARGET)
    config = drafter_config(TARGET)
    weights = drafter_weights(config)
    size = 4 * sum(weight.numel() for weight in weights.values())
    head = torch.zeros(64, 32)
    alone = load(target).system.resident_bytes()

    shared = load(target, write_drafter(tmp_path / "a", config, weights)).system
    own = load(target, write_drafter(tmp_path / "b", config, {**weights, "lm_head.weight": head})).system

    assert alone == 4 * sum(weight.numel() for weight in target_weights(TARGET).values())
    assert shared.resident_bytes() == alone + size
    assert own.resident_bytes() == alone + size + 4 * head.numel()


def test_shipped_config(shipped_drafter):
    """The config of the shipped drafter reads as it is documented."""
    read = DrafterConfig.read(json.loads((shipped_drafter / "config.json").read_text()))

    assert (read.block, read.depths, read.mask_id, read.target_layers) == (16, 15, 16, 30)
    assert read.taps == (1, 8, 14, 20, 27)
    assert read.windows == (None,) * 5
    assert read.causal == (False,) * 5

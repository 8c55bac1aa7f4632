"""Widening and jitter: the same function from more weights, and weights that cannot be tiled back."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from stock.system import load_system
from stock.widen import jittered, widened
from tests.stock.drive import decode, load, settings
from tests.stock.test_target import TOLERANCE, logits_of
from tests.stock.tiny import drafter_config, target_config, target_weights, write_drafter, write_target

IDS = [(11 * at) % 64 for at in range(40)]
CONFIGS = {
    "llama": ("llama", {}),
    "llama, tied": ("llama", {"tie_word_embeddings": True}),
    "llama, biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {}),
}


@pytest.mark.parametrize("factor", [2, 4])
@pytest.mark.parametrize("name", CONFIGS)
def test_widening_preserves_logits(name, factor, tmp_path):
    """A widened target is the same function in FP32, though its weights are no BF16 numbers; only sums get longer."""
    family, changes = CONFIGS[name]
    path = write_target(tmp_path / "target", target_config(family, **changes))
    narrow, wide = (logits_of(load(path, widen=k, mode="fast"), IDS) for k in (1, factor))

    assert float((wide - narrow).abs().max()) <= TOLERANCE * float(narrow.abs().max())
    weights = [load(path, widen=k).system.target.weights["layers.0.qkv"] for k in (1, factor)]
    assert weights[1].shape == (factor * weights[0].shape[0], factor * 32)


def test_drafter_of_a_widened_target(tmp_path):
    """The drafter keeps the narrow taps, embedding and head: it drafts what it drafts for the narrow target."""
    config = target_config("llama")
    paths = write_target(tmp_path / "target", config), write_drafter(tmp_path / "drafter", drafter_config(config))
    engines = [load(*paths, widen=k, dtype="float64") for k in (1, 2)]
    narrow, wide = (decode(each, IDS, 30, ignore_eos=True).lines for each in engines)

    assert wide == narrow
    drafters = [each.system.drafter.weights for each in engines]
    assert all(torch.equal(drafters[0][name], drafters[1][name]) for name in drafters[0])
    assert engines[1].system.target.tap_width == 32
    assert engines[1].system.target.config.hidden == 64


def test_widened_by_hand():
    """Rows are repeated, columns too and divided, vectors repeated with the rows."""
    matrix, vector = torch.tensor([[2.0, 4.0], [6.0, 8.0]]), torch.tensor([1.0, 3.0])

    assert widened(matrix, 2, rows=True, columns=True).tolist() == [[1, 2, 1, 2], [3, 4, 3, 4]] * 2
    assert widened(matrix, 2, rows=False, columns=True).tolist() == [[1, 2, 1, 2], [3, 4, 3, 4]]
    assert widened(vector, 2, rows=True, columns=False).tolist() == [1, 3, 1, 3]
    assert widened(vector, 2, rows=False, columns=False) is vector
    assert widened(matrix, 1, rows=True, columns=True) is matrix


BITS = st.integers(-(2**15), 2**15 - 1)


@given(st.lists(BITS, min_size=1, max_size=40), st.integers(1, 2**64 - 1), st.integers(0, 2**32 - 1))
@examples(max_examples=200)
def test_jitter_moves_by_at_most_one_ulp(bits, seed, stream):
    """Every BF16 number moves to itself or a neighbour of its sign; zeros stay, nothing becomes zero or infinite.

    BF16 numbers of one sign are ordered as their bits, so a neighbour's bits differ by one.
    """
    before = torch.tensor(bits, dtype=torch.int16)
    after = jittered(before.view(torch.bfloat16), seed, stream).view(torch.int16)
    magnitude, moved = before & 0x7FFF, after & 0x7FFF

    assert ((before < 0) == (after < 0)).all()
    assert ((moved.int() - magnitude.int()).abs() <= 1).all()
    special = (magnitude == 0) | (magnitude >= 0x7F80)  # zeros, infinities and NaN
    assert (after[special] == before[special]).all()
    assert (moved[~special] != 0).all()
    assert (moved[~special] < 0x7F80).all()


def test_jitter_is_a_function_of_seed_stream_and_index():
    """Each of the three moves is a third of all; seeds, streams and copies of a weight move independently."""
    weight = torch.full((300, 300), 1.5).bfloat16()

    def moves(seed, stream):
        return jittered(weight, seed, stream).view(torch.int16).int() - weight.view(torch.int16).int()

    base = moves(7, 1)
    count = base.numel()
    assert torch.equal(base, moves(7, 1))
    for move in (-1, 0, 1):
        assert abs(int((base == move).sum()) / count - 1 / 3) < 4 * (2 / 9 / count) ** 0.5
    for other in (moves(8, 1), moves(7 + 2**32, 1), moves(7, 2), base.T):
        correlation = np.corrcoef(base.flatten().numpy(), other.flatten().numpy())[0, 1]
        assert abs(correlation) < 4 / count**0.5


def test_jitter_in_chunks(monkeypatch):
    """A tensor larger than a chunk moves as it would in one."""
    weight = torch.randn(50, 7, generator=torch.Generator().manual_seed(0)).bfloat16()
    whole = jittered(weight, 3, 4)
    monkeypatch.setattr("stock.widen._CHUNK_ELEMENTS", 16)

    assert torch.equal(jittered(weight, 3, 4), whole)


@pytest.mark.parametrize("factor", [1, 2])
def test_jittered_target(factor, tmp_path):
    """Loading twice with a seed gives the same bits, another seed others; the drafter's parts are not moved."""
    config = target_config("qwen3", tie_word_embeddings=True)
    path = write_target(tmp_path / "target", config)
    first, again, other, plain = (
        load_system(settings(path, widen=factor, jitter=seed)).target for seed in (5, 5, 6, 0)
    )

    assert all(torch.equal(first.weights[name], again.weights[name]) for name in first.weights)
    assert all(not torch.equal(first.weights[name], other.weights[name]) for name in first.weights)
    for name, weight in first.weights.items():
        assert torch.equal(weight, weight.bfloat16().float()), "a jittered weight is a BF16 number in every type"
        rounded = plain.weights[name].bfloat16()
        moved = weight.bfloat16().view(torch.int16).int() - rounded.view(torch.int16).int()
        assert moved.abs().max() == 1, name
    embed = target_weights(config)["model.embed_tokens.weight"]
    assert torch.equal(first.draft_embed, embed)
    assert torch.equal(first.draft_head, embed)


def test_jitter_is_the_same_in_every_type(tmp_path):
    """FP32 scores the very weights that BF16 decodes with."""
    path = write_target(tmp_path / "target", target_config("llama"))
    wide, narrow = (
        load_system(settings(path, widen=2, jitter=9, dtype=dtype)).target.weights for dtype in ("float32", "bfloat16")
    )

    assert all(torch.equal(wide[name], narrow[name].float()) for name in wide)


def test_copies_of_a_weight_differ(tmp_path):
    """After jitter the tiles of a matrix are weights of their own."""
    path = write_target(tmp_path / "target", target_config("llama"))
    weights = load_system(settings(path, widen=2, jitter=1)).target.weights

    for name in ("embed", "head", "norm", "layers.1.qkv", "layers.1.down"):
        tiles = weights[name].chunk(2, -1)
        assert not torch.equal(*tiles), name


def test_tensors_move_independently(tmp_path):
    """Two matrices of one shape do not move alike, nor do the parts of a stacked one, nor embedding and tied head."""
    path = write_target(tmp_path / "target", target_config("llama", tie_word_embeddings=True))
    jittered_weights, plain = (load_system(settings(path, jitter=seed)).target.weights for seed in (4, 0))
    moves = {
        name: weight.bfloat16().view(torch.int16).int() - plain[name].bfloat16().view(torch.int16).int()
        for name, weight in jittered_weights.items()
    }
    gate, up = moves["layers.0.gate_up"].chunk(2)
    pairs = [
        (moves["layers.0.down"], moves["layers.1.down"]),
        (gate, up),
        (moves["embed"], moves["head"]),
        (moves["layers.0.attn_norm"], moves["layers.0.mlp_norm"]),
    ]

    assert all(not torch.equal(*pair) for pair in pairs)

"""spt/shapes.py: bytes and FLOPs against counts made by hand, and what grows with what."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spt.errors import Unsupported, Usage
from spt.shapes import Decoder, Drafter, Pass, Work, draft_work, read_decoder, read_drafter, step_work

ROOT = Path(__file__).parents[2]
SMOLLM2 = Decoder(layers=30, hidden=576, heads=9, kv_heads=3, head_dim=64, mlp=1536, vocabulary=49152)
QWEN3_8B = Decoder(layers=36, hidden=4096, heads=32, kv_heads=8, head_dim=128, mlp=12288, vocabulary=151936)
DFLASH = Drafter(SMOLLM2.widened(1), block=16, depths=15, taps=5)


def test_smollm2_widened_by_8_by_hand():
    """226,492,416 weights a layer, 14.04 GB with the head, 184,320 B of cache a token, 552,960 FLOP a row and key."""
    wide = SMOLLM2.widened(8)
    work = step_work(wide, None, Pass(nodes=0, context_tok=512), "bfloat16")

    assert wide.layer_weights == 30 * 226_492_416
    assert work["gemm"] == Work(bytes=13_589_544_960, flops=13_589_544_960)  # one row: 2 bytes and 2 FLOP a weight
    assert work["head"] == Work(bytes=452_984_832, flops=452_984_832)
    assert wide.kv_values * 2 == 184_320
    # 513 tokens read or written; q in and out, 4,608 values of 2 bytes a layer; 512 keys and half of its own row.
    assert work["attention"].bytes == 513 * 184_320 + 2 * 30 * 4608 * 2
    assert work["attention"].flops == 552_960 * 512 + 552_960 // 2
    assert work["glue"].bytes == (1 + 61) * 4608 * 2
    # What the shipped H200 measurement found its target's weights to be, embedding left out.
    norms = 61 * 4608 * 2
    assert work["gemm"].bytes + work["head"].bytes + norms == 14_043_091_968


def test_qwen3_8b_by_hand():
    """192,937,984 product weights a layer, 6.95 B in 36 layers, 622 M in the head; 147,456 B of cache a token."""
    work = step_work(QWEN3_8B, None, Pass(nodes=15, context_tok=0), "bfloat16")

    # qkv 4096 x (4096 + 2 x 1024), out 4096 x 4096, MLP 3 x 4096 x 12288.
    assert QWEN3_8B.layer_weights == 36 * (4096 * 6144 + 4096 * 4096 + 3 * 4096 * 12288) == 6_945_767_424
    assert work["gemm"] == Work(bytes=13_891_534_848, flops=222_264_557_568)
    assert work["head"] == Work(bytes=2 * 622_329_856, flops=32 * 622_329_856)
    assert work["attention"].bytes == 16 * 147_456 + 2 * 36 * 4096 * 2 * 16


def test_drafter_by_hand():
    """The shipped drafter: 5 layers of 3,538,944 weights, fc 5 x 576 x 576, the narrow head of 28,311,552."""
    work = draft_work(replace(DFLASH, decoder=replace(SMOLLM2, layers=5)), Pass(63, 0, accepted=5), "bfloat16")

    assert work.bytes == 2 * (1_658_880 + 5 * 3_538_944 + 28_311_552) + 2 * 5 * 1920
    context = 2 * 5 * (1_658_880 + 5 * 576 * 384)
    block = 2 * 16 * 5 * 3_538_944 + 2 * 15 * 28_311_552 + 4 * 5 * 576 * 16 * 16
    assert work.flops == context + block


def test_shapes_are_read_from_files(tmp_path):
    """A folder says the same as the numbers above, and the shipped drafter its block of 16 that drafts 15."""
    config = {
        "model_type": "qwen3",
        "num_hidden_layers": 36,
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 151936,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    shipped = read_drafter(ROOT / "drafters" / "smollm2-135m-dflash-b16")

    assert read_decoder(tmp_path) == QWEN3_8B
    assert (shipped.block, shipped.depths, shipped.taps) == (16, 15, 5)
    assert shipped.decoder == replace(SMOLLM2, layers=5)


@pytest.mark.parametrize("key", ["num_hidden_layers", "intermediate_size", "vocab_size"])
def test_what_a_config_does_not_say_is_named(tmp_path, key):
    """A missing size is an error, never a default."""
    config = json.loads((ROOT / "drafters" / "smollm2-135m-dflash-b16" / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, key: None}))

    with pytest.raises(Unsupported, match="does not say"):
        read_decoder(tmp_path)
    with pytest.raises(Usage, match="'int4' is no type"):
        step_work(SMOLLM2, None, Pass(0, 0), "int4")


@given(st.integers(0, 255), st.integers(0, 100_000), st.integers(1, 64), st.sampled_from(["bfloat16", "float32"]))
def test_work_grows_with_all_that_it_is_made_of(nodes, context, batch, dtype):
    """More nodes, context or requests never need fewer bytes or FLOPs of any class, and weights are read once."""
    at = Pass(nodes, context, batch)
    here = step_work(QWEN3_8B, DFLASH, at, dtype)

    for more in (replace(at, nodes=nodes + 1), replace(at, context_tok=context + 1), replace(at, batch=batch + 1)):
        there = step_work(QWEN3_8B, DFLASH, more, dtype)
        assert all(there[name].bytes >= here[name].bytes for name in here)
        assert all(there[name].flops >= here[name].flops for name in here)
        assert there["gemm"].bytes == here["gemm"].bytes

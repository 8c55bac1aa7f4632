"""RoPE tables against transformers, for every scaling, and GGUF's way of saying the same."""

import numpy as np
import pytest
import torch

from stock.checkpoint import open_checkpoint
from stock.rope import Rope
from tests.stock.gguf_file import write_gguf
from tests.stock.tiny import target_config, target_weights

CPU = torch.device("cpu")
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
SCALINGS = {
    "default": None,
    "linear": {"rope_type": "linear", "factor": 3.0},
    "llama3": {**LLAMA3, "original_max_position_embeddings": 64},
    "llama3, narrow band": {**LLAMA3, "high_freq_factor": 1.5, "original_max_position_embeddings": 256},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
    "yarn, whole context": {"rope_type": "yarn", "factor": 2.0},
    "yarn, own betas": {"rope_type": "yarn", "factor": 4.0, "beta_fast": 16.0, "beta_slow": 2.0},
    "yarn, own amplitude": {"rope_type": "yarn", "factor": 4.0, "attention_factor": 1.3},
    "yarn, mscale": {"rope_type": "yarn", "factor": 4.0, "mscale": 0.7, "mscale_all_dim": 1.2},
    "yarn, not truncated": {"rope_type": "yarn", "factor": 4.0, "truncate": False},
    "yarn, shrinking": {"rope_type": "yarn", "factor": 0.5},
}


@pytest.mark.parametrize("theta", [10000.0, 1e6])
@pytest.mark.parametrize("name", SCALINGS)
def test_table_equals_transformers(name, theta, oracle):
    """cos and sin of 600 positions.

    Angles reach 600, and a frequency goes through up to five float32 roundings of 2^-24 of itself on each side.
    """
    config = target_config("llama", head_dim=64, rope_theta=theta, max_position_embeddings=256)
    if SCALINGS[name] is not None:
        config["rope_scaling"] = SCALINGS[name]

    cos, sin = Rope.from_hugging_face(config, 64).table(600, CPU)

    theirs = oracle.ask("rope", config=config, positions=600)
    for ours, expected in ((cos, theirs["cos"]), (sin, theirs["sin"])):
        torch.testing.assert_close(ours, expected, rtol=0, atol=600 * 5 * 2**-24)


def gguf_rope(tmp_path, config, fields, extra=None):
    file = write_gguf(tmp_path / "model.gguf", config, target_weights(config), fields=fields, extra=extra)
    return open_checkpoint(file).model_config().rope.table(300, CPU)


@pytest.mark.parametrize(
    ("scaling", "fields"),
    [
        (None, {"rope.scaling.type": "none"}),
        ({"rope_type": "linear", "factor": 3.0}, {"rope.scaling.type": "linear", "rope.scaling.factor": 3.0}),
        (
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
            {
                "rope.scaling.type": "yarn",
                "rope.scaling.factor": 4.0,
                "rope.scaling.original_context_length": 64,
            },
        ),
        (
            {"rope_type": "yarn", "factor": 4.0, "beta_fast": 16.0, "beta_slow": 2.0},
            {
                "rope.scaling.type": "yarn",
                "rope.scaling.factor": 4.0,
                "rope.scaling.yarn_beta_fast": 16.0,
                "rope.scaling.yarn_beta_slow": 2.0,
            },
        ),
    ],
)
def test_gguf_scaling(scaling, fields, tmp_path):
    """Scaling keys of a GGUF file mean those of config.json; without an original context it is the whole one."""
    config = target_config("llama", head_dim=16)
    expected = Rope.from_hugging_face({**config, "rope_scaling": scaling}, 16).table(300, CPU)

    ours = gguf_rope(tmp_path, config, {f"llama.{key}": value for key, value in fields.items()})

    for one, other in zip(ours, expected, strict=True):
        assert torch.equal(one, other)


def test_gguf_frequency_factors(tmp_path):
    """The tensor rope_freqs, which carries Llama 3's scaling in a GGUF file, divides the frequencies one by one."""
    config = target_config("llama", head_dim=16)
    scaling = SCALINGS["llama3"]
    plain = 10000.0 ** (-np.arange(0, 16, 2) / 16)
    turns = scaling["original_max_position_embeddings"] * plain / (2 * np.pi)
    blend = np.clip((turns - 1) / (4 - 1), 0, 1)
    factors = (1 / ((1 - blend) / scaling["factor"] + blend)).astype(np.float32)
    expected = Rope.from_hugging_face({**config, "rope_scaling": scaling}, 16).table(300, CPU)

    ours = gguf_rope(tmp_path, config, {}, {"rope_freqs.weight": factors})

    for one, other in zip(ours, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=300 * 2**-23)


def test_widths_of_positions(tmp_path):
    """Positions are absolute: a row's rotation depends on nothing but its own position."""
    rope = Rope(16, 10000.0)
    long, short = rope.table(400, CPU), rope.table(100, CPU)

    assert all(torch.equal(one[:100], other) for one, other in zip(long, short, strict=True))

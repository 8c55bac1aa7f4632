"""Targets against transformers: every family, layout and head, in FP32.

The tolerance: both sides sum the same products in FP32 in other orders.  A sum of K terms differs by about
sqrt(K) * 2^-24 of its size, K is at most 96 here, some thirty such sums stand one behind another, and the random
norms amplify: 2^-15 of the largest logit is sixteen times the worst that was seen.  Any mistake in meaning (a
layer's order, a row of RoPE, a missing bias) moves logits by more than 2^-5.
"""

import pytest
import torch

from stock.engine import Engine
from tests.stock.drive import load, run_chain
from tests.stock.tiny import target_config, write_target

TOLERANCE = 2.0**-15
IDS = torch.randint(0, 64, (90,), generator=torch.Generator().manual_seed(5)).tolist()


@torch.inference_mode()
def logits_of(engine: Engine, ids: list[int]) -> torch.Tensor:
    """Logits [n, vocabulary] of all rows of a prompt, through the engine's own pieces."""
    system = engine.system
    passed = run_chain(system, torch.tensor(ids), system.new_cache())
    return torch.cat([system.product(each.hidden) for each in passed])


def assert_close(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    assert ours.shape == theirs.shape
    assert float((ours - theirs).abs().max()) <= TOLERANCE * float(theirs.abs().max())


LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}
YARN = {"factor": 4.0, "original_max_position_embeddings": 32}
TARGETS = {
    "llama": ("llama", {}),
    "llama, tied head": ("llama", {"tie_word_embeddings": True}),
    "llama, biases everywhere": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama, one key head": ("llama", {"num_key_value_heads": 1}),
    "llama, no grouping": ("llama", {"num_key_value_heads": 4}),
    "llama, rope of Llama 3": ("llama", {"rope_scaling": {"rope_type": "llama3", **LLAMA3}}),
    "llama, linear rope": ("llama", {"rope_scaling": {"type": "linear", "factor": 2.0}}),
    "qwen2": ("qwen2", {}),
    "qwen2, tied head": ("qwen2", {"tie_word_embeddings": True}),
    "qwen2, yarn": ("qwen2", {"rope_scaling": {"rope_type": "yarn", **YARN}}),
    "qwen3": ("qwen3", {}),
    "qwen3, new rope keys": (
        "qwen3",
        {"rope_theta": None, "rope_parameters": {"rope_type": "default", "rope_theta": 5e5}},
    ),
    "qwen3, yarn": ("qwen3", {"rope_theta": 1e6, "rope_scaling": {"rope_type": "yarn", **YARN}}),
}


@pytest.mark.parametrize("mode", ["exact", "fast"])
@pytest.mark.parametrize("name", TARGETS)
def test_logits_equal_transformers(name, mode, tmp_path, oracle):
    """The logits of every position are those of transformers, past the first 64 rows too."""
    family, changes = TARGETS[name]
    config = {key: value for key, value in target_config(family, **changes).items() if value is not None}
    path = write_target(tmp_path / "target", config)

    ours = logits_of(load(path, mode=mode), IDS)

    assert_close(ours, oracle.ask("logits", path=path, ids=IDS)["logits"])

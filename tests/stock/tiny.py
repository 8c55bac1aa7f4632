"""Tiny random checkpoints in the published layouts, written by the tests themselves."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

__all__ = ["drafter_config", "drafter_weights", "target_config", "target_weights", "write_drafter", "write_target"]

_ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}


def target_config(family: str, **changes: Any) -> dict[str, Any]:
    """A `config.json` of 3 layers, hidden 32, grouped queries, and for Qwen3 heads wider than the hidden size."""
    config = {
        "architectures": [_ARCHITECTURES[family]],
        "model_type": family,
        "vocab_size": 64,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16 if family == "qwen3" else 8,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "max_position_embeddings": 256,
        "tie_word_embeddings": False,
        "hidden_act": "silu",
        "eos_token_id": 2,
    }
    return {**config, **changes}


def target_weights(config: dict[str, Any], seed: int = 0) -> dict[str, Tensor]:
    """Random float32 weights by Hugging Face name, large enough that neither layers nor positions are alike."""
    make = _Random(seed)
    hidden, middle, vocabulary = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    dim = config["head_dim"]
    queries, keys = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim
    family = config["model_type"]
    weights = {
        "model.embed_tokens.weight": make.matrix(vocabulary, hidden, gain=hidden**0.5),
        "model.norm.weight": make.norm(hidden),
    }
    if not config["tie_word_embeddings"]:
        weights["lm_head.weight"] = make.matrix(vocabulary, hidden, gain=2.0)
    for layer in range(config["num_hidden_layers"]):
        name = f"model.layers.{layer}."
        weights |= _layer(make, name, hidden, middle, queries, keys)
        if family == "qwen3":
            for norm in ("q_norm", "k_norm"):
                weights[name + f"self_attn.{norm}.weight"] = make.norm(dim)
        biased = family == "qwen2" or config.get("attention_bias")
        for part, rows in (("q", queries), ("k", keys), ("v", keys)) if biased else ():
            weights[name + f"self_attn.{part}_proj.bias"] = make.vector(rows)
        if config.get("attention_bias"):
            weights[name + "self_attn.o_proj.bias"] = make.vector(hidden)
        for part, rows in (("gate", middle), ("up", middle), ("down", hidden)) if config.get("mlp_bias") else ():
            weights[name + f"mlp.{part}_proj.bias"] = make.vector(rows)
    return weights


def drafter_config(target: dict[str, Any], *, taps: list[int] | None = None, **changes: Any) -> dict[str, Any]:
    """A DFlash `config.json` of 2 layers and a block of 5 for a target's config; its head counts are its own."""
    config = {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "block_size": 5,
        "num_target_layers": target["num_hidden_layers"],
        "hidden_size": target["hidden_size"],
        "intermediate_size": 40,
        "num_hidden_layers": 2,
        "num_attention_heads": 6,
        "num_key_value_heads": 3,
        "head_dim": 8,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "max_position_embeddings": target["max_position_embeddings"],
        "vocab_size": target["vocab_size"],
        "tie_word_embeddings": False,
        "dflash_config": {"mask_token_id": 1, "target_layer_ids": taps or [0, 1]},
    }
    return {**config, **changes}


def drafter_weights(config: dict[str, Any], seed: int = 100) -> dict[str, Tensor]:
    """Random float32 weights in the published names."""
    make = _Random(seed)
    hidden, dim = config["hidden_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim
    taps = config.get("target_layer_ids") or config["dflash_config"]["target_layer_ids"]
    weights = {
        "fc.weight": make.matrix(hidden, hidden * len(taps)),
        "hidden_norm.weight": make.norm(hidden),
        "norm.weight": make.norm(hidden),
    }
    for layer in range(config["num_hidden_layers"]):
        name = f"layers.{layer}."
        weights |= _layer(make, name, hidden, config["intermediate_size"], queries, keys)
        for norm in ("q_norm", "k_norm"):
            weights[name + f"self_attn.{norm}.weight"] = make.norm(dim)
    return weights


def write_target(folder: Path, config: dict[str, Any], weights: dict[str, Tensor] | None = None) -> Path:
    """Writes a folder of one safetensors file; the weights are `target_weights` by default."""
    return _write(folder, config, target_weights(config) if weights is None else weights)


def write_drafter(folder: Path, config: dict[str, Any], weights: dict[str, Tensor] | None = None) -> Path:
    """Writes a drafter's folder; the weights are `drafter_weights` by default."""
    return _write(folder, config, drafter_weights(config) if weights is None else weights)


def _write(folder: Path, config: dict[str, Any], weights: dict[str, Tensor]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def _layer(make: "_Random", name: str, hidden: int, middle: int, queries: int, keys: int) -> dict[str, Tensor]:
    return {
        name + "input_layernorm.weight": make.norm(hidden),
        name + "self_attn.q_proj.weight": make.matrix(queries, hidden),
        name + "self_attn.k_proj.weight": make.matrix(keys, hidden),
        name + "self_attn.v_proj.weight": make.matrix(keys, hidden),
        name + "self_attn.o_proj.weight": make.matrix(hidden, queries),
        name + "post_attention_layernorm.weight": make.norm(hidden),
        name + "mlp.gate_proj.weight": make.matrix(middle, hidden),
        name + "mlp.up_proj.weight": make.matrix(middle, hidden),
        name + "mlp.down_proj.weight": make.matrix(hidden, middle),
    }


class _Random:
    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def vector(self, size: int) -> Tensor:
        return torch.randn(size, generator=self.generator) / 2

    def norm(self, size: int) -> Tensor:
        return 1 + torch.randn(size, generator=self.generator) / 4

    def matrix(self, rows: int, columns: int, gain: float = 1.5) -> Tensor:
        """Entries that keep the size of what is multiplied, times the gain."""
        return torch.randn(rows, columns, generator=self.generator) * gain / columns**0.5

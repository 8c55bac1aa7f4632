"""Writes tiny GGUF files from Hugging Face weights, in the order and under the names that such files use."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from torch import Tensor

from tests.stock.blocks import packed

__all__ = ["interleaved", "quantised_weights", "write_gguf"]

_PARTS = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
_GLOBALS = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}

Raw = tuple[np.ndarray, gguf.GGMLQuantizationType]


def write_gguf(
    path: Path,
    config: dict[str, Any],
    weights: dict[str, Tensor],
    *,
    kind: str = "F32",
    raw: dict[str, Raw] | None = None,
    fields: dict[str, Any] | None = None,
    extra: dict[str, np.ndarray] | None = None,
) -> Path:
    """A file of the config's family.

    weights: by Hugging Face name; matrices are stored as `kind` (F32, F16, BF16), or as the bytes that `raw` gives for
    them, which are in GGUF's row order already.  fields, extra: more metadata and tensors.
    """
    family = config["model_type"]
    writer = gguf.GGUFWriter(path, family)
    numbers = {
        "block_count": config["num_hidden_layers"],
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.key_length": config["head_dim"],
        "rope.dimension_count": config["head_dim"],
    }
    for key, value in numbers.items():
        writer.add_uint32(f"{family}.{key}", value)
    writer.add_float32(f"{family}.attention.layer_norm_rms_epsilon", config["rms_norm_eps"])
    writer.add_float32(f"{family}.rope.freq_base", config["rope_theta"])
    writer.add_uint32("tokenizer.ggml.eos_token_id", config["eos_token_id"])
    for key, value in (fields or {}).items():
        add = {str: writer.add_string, int: writer.add_uint32, float: writer.add_float32, list: writer.add_array}[
            type(value)
        ]
        add(key, value)
    for name, tensor in weights.items():
        data = interleaved(config, name, tensor).numpy()
        if name in (raw or {}):
            data, stored = raw[name]
            writer.add_tensor(_gguf_name(name), data, raw_dtype=stored)
        elif tensor.dim() == 2:
            stored = gguf.GGMLQuantizationType[kind]
            writer.add_tensor(_gguf_name(name), gguf.quantize(data, stored), raw_dtype=stored)
        else:
            writer.add_tensor(_gguf_name(name), data)
    for name, data in (extra or {}).items():
        writer.add_tensor(name, data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def quantised_weights(
    config: dict[str, Any], weights: dict[str, Tensor], kind: str
) -> tuple[dict[str, Tensor], dict[str, Raw]]:
    """Every matrix replaced by random blocks of a type: the weights by Hugging Face name, and the bytes."""
    values, raw = dict(weights), {}
    for index, (name, tensor) in enumerate(weights.items()):
        if tensor.dim() == 2:
            data, value = packed(kind, *tensor.shape, seed=index)
            raw[name] = (data, gguf.GGMLQuantizationType[kind])
            values[name] = interleaved(config, name, torch.from_numpy(value), back=True)
    return values, raw


def interleaved(config: dict[str, Any], name: str, tensor: Tensor, *, back: bool = False) -> Tensor:
    """Llama's q and k rows with the members of a RoPE pair side by side, as GGUF stores them; `back` undoes it."""
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    part = name.split(".")[-2]
    if config["model_type"] != "llama" or part not in heads:
        return tensor
    half = len(tensor) // heads[part] // 2
    order = [
        head * 2 * half + member * half + pair
        for head in range(heads[part])
        for pair in range(half)
        for member in range(2)
    ]
    if back:
        order = sorted(range(len(order)), key=order.__getitem__)
    return tensor[order].contiguous()


def _gguf_name(name: str) -> str:
    stem, _, kind = name.rpartition(".")
    if stem in _GLOBALS:
        return f"{_GLOBALS[stem]}.{kind}"
    _, _, layer, part = stem.split(".", 3)
    return f"blk.{layer}.{_PARTS[part]}.{kind}"

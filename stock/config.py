"""What a dense target looks like, read from a Hugging Face `config.json` or from GGUF metadata."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stock.errors import EngineError
from stock.rope import Rope

__all__ = ["ModelConfig", "from_gguf", "from_hugging_face"]

_ARCHITECTURES = {"LlamaForCausalLM": "llama", "Qwen2ForCausalLM": "qwen2", "Qwen3ForCausalLM": "qwen3"}


@dataclass(frozen=True)
class ModelConfig:
    """Shapes and constants of a Llama-like decoder.  Biases and q/k norms show in the weights."""

    family: str
    vocabulary: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    eps: float
    rope: Rope
    context: int
    tied: bool
    stop_ids: tuple[int, ...]


def from_hugging_face(config: Mapping[str, Any], generation: Mapping[str, Any] | None = None) -> ModelConfig:
    """Reads `config.json` (and `generation_config.json` for the stop ids)."""
    names = config.get("architectures") or [None]
    family = _ARCHITECTURES.get(names[0])
    if family is None:
        known = ", ".join(_ARCHITECTURES)
        raise EngineError("bad_model", f"architecture '{names[0]}' is not one of {known}")
    _refuse(config)
    heads = _need(config, "num_attention_heads")
    hidden = _need(config, "hidden_size")
    head_dim = config.get("head_dim") or hidden // heads
    return ModelConfig(
        family=family,
        vocabulary=_need(config, "vocab_size"),
        hidden=hidden,
        layers=_need(config, "num_hidden_layers"),
        heads=heads,
        kv_heads=config.get("num_key_value_heads") or heads,
        head_dim=head_dim,
        intermediate=_need(config, "intermediate_size"),
        eps=float(config.get("rms_norm_eps", 1e-6)),
        rope=Rope.from_hugging_face(config, head_dim),
        context=_need(config, "max_position_embeddings"),
        tied=bool(config.get("tie_word_embeddings", False)),
        stop_ids=_stop_ids(generation or {}, config),
    )


def from_gguf(fields: Mapping[str, Any], tensors: Mapping[str, tuple[int, ...]]) -> ModelConfig:
    """Reads GGUF metadata.

    fields: key to value; tensors: name to shape as [out, in].
    """
    family = str(fields.get("general.architecture"))
    if family not in _ARCHITECTURES.values():
        raise EngineError("bad_model", f"GGUF architecture '{family}' is not llama, qwen2 or qwen3")

    def need(key: str) -> Any:
        if f"{family}.{key}" not in fields:
            raise EngineError("bad_model", f"the GGUF file has no '{family}.{key}'")
        return fields[f"{family}.{key}"]

    if fields.get(f"{family}.expert_count"):
        raise EngineError("bad_model", "mixture-of-experts checkpoints are not supported")
    heads, hidden = need("attention.head_count"), need("embedding_length")
    head_dim = fields.get(f"{family}.attention.key_length", hidden // heads)
    stop = [fields[key] for key in ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id") if key in fields]
    return ModelConfig(
        family=family,
        vocabulary=tensors["token_embd.weight"][0],
        hidden=hidden,
        layers=need("block_count"),
        heads=heads,
        kv_heads=fields.get(f"{family}.attention.head_count_kv", heads),
        head_dim=head_dim,
        intermediate=need("feed_forward_length"),
        eps=float(need("attention.layer_norm_rms_epsilon")),
        rope=Rope.from_gguf(fields, family, head_dim),
        context=need("context_length"),
        tied="output.weight" not in tensors,
        stop_ids=tuple(dict.fromkeys(stop)),
    )


def _need(config: Mapping[str, Any], key: str) -> Any:
    if config.get(key) is None:
        raise EngineError("bad_model", f"config.json has no '{key}'")
    return config[key]


def _refuse(config: Mapping[str, Any]) -> None:
    """What would decode to other text if it were ignored."""
    if config.get("hidden_act", "silu") != "silu":
        raise EngineError("bad_model", f"activation '{config['hidden_act']}' is not supported, only silu")
    if config.get("use_sliding_window"):
        raise EngineError("bad_model", "a target with sliding-window attention is not supported")
    if config.get("quantization_config"):
        raise EngineError("bad_model", "a quantised safetensors checkpoint is not supported")
    if config.get("partial_rotary_factor", 1.0) != 1.0:
        raise EngineError("bad_model", "partial rotary embeddings are not supported")


def _stop_ids(*configs: Mapping[str, Any]) -> tuple[int, ...]:
    for config in configs:
        stop = config.get("eos_token_id")
        if stop is not None:
            return tuple(stop) if isinstance(stop, list) else (stop,)
    return ()

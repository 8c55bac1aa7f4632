"""What a dense target looks like, read from a Hugging Face `config.json` or from GGUF metadata."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stock.errors import EngineError
from stock.fields import Fields
from stock.rope import Rope

__all__ = ["ModelConfig", "check_heads", "from_gguf", "from_hugging_face", "refuse"]

_ARCHITECTURES = {"LlamaForCausalLM": "llama", "Qwen2ForCausalLM": "qwen2", "Qwen3ForCausalLM": "qwen3"}


@dataclass(frozen=True)
class ModelConfig:
    """Shapes and constants of a Llama-like decoder.

    context: the most positions.  stop_ids: the ids that end an answer, as far as the model can emit them.
    biased: whether q, k and v must have biases; others show in the weights.  head_norms: whether q and k have norms.
    """

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
    biased: bool
    head_norms: bool


def from_hugging_face(config: Mapping[str, Any], generation: Mapping[str, Any] | None = None) -> ModelConfig:
    """Reads `config.json` (and `generation_config.json` for the stop ids)."""
    fields = Fields(config, "config.json")
    family = _family(fields)
    refuse(fields)
    if fields.get("use_sliding_window"):
        raise EngineError("bad_model", "a target with sliding-window attention is not supported")
    heads, hidden = fields.count("num_attention_heads"), fields.count("hidden_size")
    head_dim = fields.count("head_dim", 128 if family == "qwen3" else max(hidden // heads, 1))
    kv_heads = fields.count("num_key_value_heads", heads)
    check_heads(heads, kv_heads, head_dim)
    vocabulary = fields.count("vocab_size")
    said = Fields(generation or {}, "generation_config.json")
    return ModelConfig(
        family=family,
        vocabulary=vocabulary,
        hidden=hidden,
        layers=fields.count("num_hidden_layers"),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate=fields.count("intermediate_size"),
        eps=fields.number("rms_norm_eps", 1e-6),
        rope=Rope.from_hugging_face(config, head_dim),
        context=fields.count("max_position_embeddings"),
        tied=fields.flag("tie_word_embeddings", False),
        stop_ids=_stop_ids(said.integers("eos_token_id") or fields.integers("eos_token_id"), vocabulary),
        biased=family == "qwen2" or fields.flag("attention_bias", False),
        head_norms=family == "qwen3",
    )


def from_gguf(metadata: Mapping[str, Any], tensors: Mapping[str, tuple[int, ...]]) -> ModelConfig:
    """Reads GGUF metadata.

    metadata: key to value; tensors: name to shape as [out, in].
    """
    family = str(metadata.get("general.architecture"))
    if family not in _ARCHITECTURES.values():
        raise EngineError("bad_model", f"GGUF architecture '{family}' is not llama, qwen2 or qwen3")
    fields = Fields(metadata, "the GGUF file", f"{family}.")
    if fields.get("expert_count"):
        raise EngineError("bad_model", "mixture-of-experts checkpoints are not supported")
    if len(tensors.get("token_embd.weight", ())) != 2:
        raise EngineError("bad_model", "the GGUF file has no matrix 'token_embd.weight'")
    heads, hidden = fields.count("attention.head_count"), fields.count("embedding_length")
    head_dim = fields.count("attention.key_length", max(hidden // heads, 1))
    kv_heads = fields.count("attention.head_count_kv", heads)
    check_heads(heads, kv_heads, head_dim)
    tokenizer = Fields(metadata, "the GGUF file", "tokenizer.ggml.")
    stop = tokenizer.integers("eos_token_id") + tokenizer.integers("eot_token_id")
    vocabulary = tensors["token_embd.weight"][0]
    return ModelConfig(
        family=family,
        vocabulary=vocabulary,
        hidden=hidden,
        layers=fields.count("block_count"),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate=fields.count("feed_forward_length"),
        eps=fields.number("attention.layer_norm_rms_epsilon"),
        rope=Rope.from_gguf(metadata, family, head_dim),
        context=fields.count("context_length"),
        tied="output.weight" not in tensors,
        stop_ids=_stop_ids(stop, vocabulary),
        biased=family == "qwen2",
        head_norms=family == "qwen3",
    )


def _family(fields: Fields) -> str:
    names = fields.get("architectures")
    name = names[0] if isinstance(names, list) and names else names
    if not isinstance(name, str) or name not in _ARCHITECTURES:
        known = ", ".join(_ARCHITECTURES)
        raise EngineError("bad_model", f"architecture '{name}' is not one of {known}")
    return _ARCHITECTURES[name]


def check_heads(heads: int, kv_heads: int, head_dim: int) -> None:
    """EngineError `bad_model` for head counts that attention or RoPE cannot split."""
    if heads % kv_heads:
        raise EngineError("bad_model", f"num_attention_heads {heads} is no multiple of num_key_value_heads {kv_heads}")
    if head_dim % 2:
        raise EngineError("bad_model", f"head_dim {head_dim} is odd, and rotary embeddings turn pairs")


def refuse(fields: Fields) -> None:
    """EngineError `bad_model` for what would decode to other text if it were ignored."""
    if fields.get("hidden_act", "silu") != "silu":
        raise EngineError("bad_model", f"activation '{fields.get('hidden_act')}' is not supported, only silu")
    if fields.get("quantization_config"):
        raise EngineError("bad_model", "a quantised safetensors checkpoint is not supported")
    if fields.get("partial_rotary_factor", 1) != 1:
        raise EngineError("bad_model", "partial rotary embeddings are not supported")


def _stop_ids(ids: tuple[int, ...], vocabulary: int) -> tuple[int, ...]:
    return tuple(token for token in dict.fromkeys(ids) if 0 <= token < vocabulary)

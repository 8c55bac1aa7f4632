"""A DFlash block drafter (Chen, Liang and Liu, arXiv 2602.06036): one pass proposes a whole block.

The outputs of a few target layers (taps) are fused into one vector a token.  Every draft layer projects that vector
to keys and values, which stand before the block's own; they are appended as tokens are accepted and never
recomputed.  The block is the anchor and mask tokens, and attends to the context and to itself.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from stock.cache import Cache, MakeCache
from stock.checkpoint import SafetensorsCheckpoint, read_json
from stock.errors import EngineError
from stock.exact import PaddedLinear
from stock.linear import Linear, Norm
from stock.linear.dense import Dense
from stock.ops.attention import KERNEL_ROWS, Heads, Layer, Rows, append_context, attend, attend_exact, visible_rows
from stock.ops.rms_norm import rms_norm
from stock.rope import Rope
from stock.target import Target

__all__ = ["Drafter", "DrafterConfig", "load_drafter"]


@dataclass(frozen=True)
class DrafterConfig:
    """What a DFlash `config.json` says.

    shifted: whether row i predicts the token after its own position (then the anchor's row predicts too), instead
    of the token at its position.
    windows, causal: for each layer its sliding window (None: all), and whether block rows see only earlier ones.
    """

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    rope: Rope
    block: int
    mask_id: int
    taps: tuple[int, ...]
    shifted: bool
    windows: tuple[int | None, ...]
    causal: tuple[bool, ...]
    vocabulary: int
    target_layers: int | None
    embedding_scale: float
    output_multiplier: float
    softcap: float | None

    @property
    def depths(self) -> int:
        """Positions that one pass proposes."""
        return self.block if self.shifted else self.block - 1

    @classmethod
    def read(cls, config: Mapping[str, Any], alignment: str = "auto") -> "DrafterConfig":
        """Reads the published keys; EngineError `bad_model` names what is missing or not supported."""
        inner = config.get("dflash_config") or {}

        def need(key: str) -> Any:
            value = inner.get(key, config.get(key))
            if value is None:
                raise EngineError("bad_model", f"the drafter's config.json has no '{key}'")
            return value

        if "DFlash2DraftModel" in (config.get("architectures") or []) or inner.get("attention_sink_bias"):
            raise EngineError("bad_model", "DFlash 2 drafters and attention sinks are not supported")
        layers = need("num_hidden_layers")
        heads = need("num_attention_heads")
        head_dim = config.get("head_dim") or need("hidden_size") // heads
        windows, causal = _layer_kinds(config, inner, layers)
        return cls(
            hidden=need("hidden_size"),
            intermediate=need("intermediate_size"),
            layers=layers,
            heads=heads,
            kv_heads=config.get("num_key_value_heads") or heads,
            head_dim=head_dim,
            eps=float(config.get("rms_norm_eps", 1e-6)),
            rope=Rope.from_hugging_face(config, head_dim),
            block=need("block_size"),
            mask_id=need("mask_token_id"),
            taps=tuple(need("target_layer_ids")),
            shifted=_shifted(config, inner, alignment),
            windows=windows,
            causal=causal,
            vocabulary=need("vocab_size"),
            target_layers=config.get("num_target_layers"),
            embedding_scale=float(inner.get("input_embedding_scale") or 1.0),
            output_multiplier=float(inner.get("output_multiplier") or 1.0),
            softcap=inner.get("final_logit_softcapping"),
        )


class Drafter:
    """Weights and the two things a drafter does: take in context, and draft a block.

    weights: `embed`, `head`, `fc`, `hidden_norm`, `norm`, and for each layer the target's names and `kv`, the part of
    `qkv` that context goes through.  to_target: int64 [draft vocabulary], or None where the vocabularies are one.
    """

    def __init__(
        self,
        config: DrafterConfig,
        weights: Mapping[str, Tensor],
        to_target: Tensor | None,
        positions: int,
        exact: bool,
    ) -> None:
        self.config, self.weights, self.to_target, self.exact = config, dict(weights), to_target, exact
        device = self.weights["norm"].device
        cos, sin = config.rope.table(positions + KERNEL_ROWS, device)
        self.heads = Heads(config.heads, config.kv_heads, config.head_dim, config.eps, cos, sin)
        self.linear: Linear = PaddedLinear(Dense(self.weights)) if exact else Dense(self.weights)
        self.attend = attend_exact if exact else attend
        self.offsets = torch.arange(config.block, device=device)
        self.ids = torch.arange(len(self.weights["head"]), device=device)
        self.masks = torch.full((config.block - 1,), config.mask_id, dtype=torch.int64, device=device)
        causal = self.offsets - 1  # each row's parent in a chain: row i sees rows 0..i
        self.visible = {True: self._visible(causal, False), False: self._visible(causal, True)}

    def new_cache(self, make: MakeCache, slots: int) -> Cache:
        """An empty context."""
        config = self.config
        return make(config.layers, config.kv_heads, config.head_dim, slots, self.weights["norm"])

    def append(self, taps: Tensor, position: Tensor, count: Tensor | None, cache: Cache) -> None:
        """Takes in target taps [n, taps * tap_width] of accepted rows at positions int64 [n].

        count: int32 [1], how many of the rows are real (None: all).
        """
        hidden = self.linear("fc", taps)
        norm = self._norm("hidden_norm")
        if self.exact:
            hidden = torch.cat([rms_norm(row, norm.weight, norm.eps) for row in hidden.split(1)])
        else:
            hidden = rms_norm(hidden, norm.weight, norm.eps)
        for layer in range(self.config.layers):
            kv = self.linear(f"layers.{layer}.kv", hidden)
            append_context(kv, self.heads, self._layer(layer, cache), position, count, self.exact)

    def draft(self, anchor: Tensor, cache: Cache) -> Tensor:
        """Logits [depths, draft vocabulary] of the positions after the anchor int64 [1], which is at cache.start."""
        config = self.config
        hidden = F.embedding(torch.cat((anchor, self.masks)), self.weights["embed"]) * config.embedding_scale
        rows = {causal: Rows(cache.start, cache.start + self.offsets, seen) for causal, seen in self.visible.items()}
        for index in range(config.layers):
            name = f"layers.{index}."
            qkv = self.linear(name + "qkv", hidden, norm=self._norm(name + "attn_norm"))
            mixed = self.attend(qkv, self.heads, self._layer(index, cache), rows[config.causal[index]])
            hidden = self.linear(name + "out", mixed, residual=hidden)
            middle = self.linear(name + "gate_up", hidden, norm=self._norm(name + "mlp_norm"), silu_mul=True)
            hidden = self.linear(name + "down", middle, residual=hidden)
        logits = self.linear("head", hidden[-config.depths :], norm=self._norm("norm"))
        if config.output_multiplier != 1.0:
            logits = logits * config.output_multiplier
        return logits if config.softcap is None else torch.tanh(logits / config.softcap) * config.softcap

    def resident_bytes(self) -> int:
        """Bytes of the drafter's own tensors; what it shares with the target is the target's."""
        own = (value for name, value in self.weights.items() if not name.endswith((".kv", "embed", "head")))
        return sum(value.numel() * value.element_size() for value in own)

    def _layer(self, index: int, cache: Cache) -> Layer:
        q_norm, k_norm = (self.weights.get(f"layers.{index}.{name}") for name in ("q_norm", "k_norm"))
        return Layer(cache.layer(index), q_norm, k_norm, self.config.windows[index])

    def _norm(self, name: str) -> Norm:
        return Norm(self.weights[name], self.config.eps)

    def _visible(self, parent: Tensor, full: bool) -> Tensor:
        if parent.is_cuda and not self.exact:
            words = visible_rows(parent)
            return words[-1:].expand(len(parent), -1).contiguous() if full else words
        seen = visible_rows(parent.cpu()).to(parent.device)
        return torch.ones_like(seen) if full else seen


def load_drafter(
    path: Path, target: Target, alignment: str, dtype: torch.dtype, positions: int, exact: bool
) -> Drafter:
    """Reads a drafter folder and checks that it fits the target."""
    config = DrafterConfig.read(read_json(path / "config.json"), alignment)
    _check(config, target)
    source = _DrafterCheckpoint(path)
    device = target.device

    def get(name: str, *shape: int) -> Tensor:
        return source.read(name, shape).to(device).to(dtype)

    hidden, middle = config.hidden, config.intermediate
    queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
    weights = {
        "fc": get("fc.weight", hidden, len(config.taps) * target.tap_width),
        "hidden_norm": get("hidden_norm.weight", hidden),
        "norm": get("norm.weight", hidden),
    }
    for layer in range(config.layers):
        to, of = f"layers.{layer}.", f"layers.{layer}."
        attention, mlp = of + "self_attn.", of + "mlp."
        parts = {"q": queries, "k": keys, "v": keys}
        qkv = [get(attention + f"{part}_proj.weight", rows, hidden) for part, rows in parts.items()]
        weights[to + "qkv"] = torch.cat(qkv)
        weights[to + "kv"] = weights[to + "qkv"][queries:]
        weights[to + "out"] = get(attention + "o_proj.weight", hidden, queries)
        weights[to + "gate_up"] = torch.cat(
            [get(mlp + f"{part}_proj.weight", middle, hidden) for part in ("gate", "up")]
        )
        weights[to + "down"] = get(mlp + "down_proj.weight", hidden, middle)
        weights[to + "attn_norm"] = get(of + "input_layernorm.weight", hidden)
        weights[to + "mlp_norm"] = get(of + "post_attention_layernorm.weight", hidden)
        for name in ("q_norm", "k_norm"):
            if attention + name + ".weight" in source:
                weights[to + name] = get(attention + name + ".weight", config.head_dim)
    weights["embed"], weights["head"], to_target = _vocabulary(source, config, target, dtype)
    return Drafter(config, weights, to_target, positions, exact)


class _DrafterCheckpoint(SafetensorsCheckpoint):
    """A drafter folder, as published in BF16 or in 8 bits: `X.weight` int8 [out, in] times `X.weight_scale` [out]."""

    def _read(self, name: str) -> Tensor:
        tensor = super()._read(name)
        if tensor.dtype == torch.int8:
            tensor = (tensor.float() * super()._read(name + "_scale")[:, None]).bfloat16()
        return tensor


def _vocabulary(
    source: SafetensorsCheckpoint, config: DrafterConfig, target: Target, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Embedding, head and the map to target ids: the target's own, unless the checkpoint brings some."""
    embed, head, to_target = target.draft_embed, target.draft_head, None
    if "embed_tokens.weight" in source:
        embed = source.read("embed_tokens.weight", (config.vocabulary, config.hidden)).to(target.device).to(dtype)
    if "lm_head.weight" in source:
        head = source.read("lm_head.weight").to(target.device).to(dtype)
    if "d2t" in source:
        offsets = source.read("d2t").long().to(target.device)
        to_target = torch.arange(len(offsets), device=target.device) + offsets
    ids = len(head) if to_target is None else int(to_target.max()) + 1
    if head.shape[1] != config.hidden or (to_target is not None and len(to_target) != len(head)):
        raise EngineError(
            "bad_model", f"the drafter's head {tuple(head.shape)} does not fit its hidden size or vocabulary map"
        )
    if ids > target.config.vocabulary:
        raise EngineError("bad_model", f"the drafter proposes id {ids - 1}, the target has {target.config.vocabulary}")
    return embed, head, to_target


def _check(config: DrafterConfig, target: Target) -> None:
    """EngineError `bad_model` for a drafter that was made for another target."""
    ours, layers = target.config, target.config.layers
    if config.target_layers not in (None, layers):
        raise EngineError("bad_model", f"the drafter is for {config.target_layers} layers, the target has {layers}")
    if any(not 0 <= tap < layers for tap in config.taps):
        raise EngineError("bad_model", f"the drafter taps layers {list(config.taps)}, the target has {layers}")
    if config.vocabulary != ours.vocabulary:
        raise EngineError("bad_model", f"the drafter has {config.vocabulary} ids, the target {ours.vocabulary}")
    if not 0 <= config.mask_id < config.vocabulary:
        raise EngineError("bad_model", f"the drafter's mask id {config.mask_id} is outside its {config.vocabulary} ids")
    if config.hidden != target.tap_width:
        raise EngineError("bad_model", f"the drafter's hidden size is {config.hidden}, the target's {target.tap_width}")
    if config.block < 2:
        raise EngineError("bad_model", f"a draft block of {config.block} proposes nothing")


def _shifted(config: Mapping[str, Any], inner: Mapping[str, Any], alignment: str) -> bool:
    """Which token a row predicts.

    `sample_from_anchor` says so.  Without it, files that keep their keys in `dflash_config` predict the token at a
    row's own position, and files with the keys at the top level (DeepSpec's layout) the next.
    """
    if alignment != "auto":
        return alignment == "next"
    explicit = inner.get("sample_from_anchor", config.get("sample_from_anchor"))
    if explicit is not None:
        return bool(explicit)
    return not inner and "target_layer_ids" in config


def _layer_kinds(
    config: Mapping[str, Any], inner: Mapping[str, Any], layers: int
) -> tuple[tuple[int | None, ...], tuple[bool, ...]]:
    """Window and in-block causality of each layer: sliding layers are causal unless the file says otherwise."""
    kinds = config.get("layer_types")
    window = config.get("sliding_window")
    if inner.get("use_swa"):
        window = inner.get("swa_window_size", window)
        kinds = kinds or ["sliding_attention"] * layers
    kinds = kinds or ["full_attention"] * layers
    if len(kinds) != layers or set(kinds) - {"full_attention", "sliding_attention"}:
        raise EngineError("bad_model", f"the drafter's layer_types {kinds} do not describe {layers} layers")
    if "sliding_attention" in kinds and not window:
        raise EngineError("bad_model", "the drafter has sliding layers but no sliding_window")
    explicit = inner.get("causal", config.get("is_causal"))
    sliding = [kind == "sliding_attention" for kind in kinds]
    causal = tuple(slides if explicit is None else bool(explicit) for slides in sliding)
    return tuple(window if slides else None for slides in sliding), causal

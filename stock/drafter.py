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
from stock.config import check_heads, refuse
from stock.errors import EngineError
from stock.exact import PaddedLinear
from stock.fields import Fields
from stock.linear import Linear, Norm
from stock.linear.dense import Dense
from stock.ops import has_kernels
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
        inner = Fields(config, "the drafter's config.json").table("dflash_config").values
        fields = Fields({**config, **inner}, "the drafter's config.json")
        names = fields.get("architectures", [])
        if not isinstance(names, list):
            raise fields.wrong("architectures", "a list")
        if "DFlash2DraftModel" in names or fields.get("attention_sink_bias"):
            raise EngineError("bad_model", "DFlash 2 drafters and attention sinks are not supported")
        refuse(fields)
        if fields.get("attention_bias"):
            raise EngineError("bad_model", "a drafter with attention biases is not supported")
        layers, hidden = fields.count("num_hidden_layers"), fields.count("hidden_size")
        heads = fields.count("num_attention_heads")
        kv_heads = fields.count("num_key_value_heads", heads)
        head_dim = fields.count("head_dim", max(hidden // heads, 1))
        check_heads(heads, kv_heads, head_dim)
        windows, causal = _layer_kinds(fields, layers)
        masks, taps = fields.integers("mask_token_id"), fields.integers("target_layer_ids")
        if len(masks) != 1:
            raise fields.wrong("mask_token_id", "a token id")
        if not taps:
            raise fields.wrong("target_layer_ids", "a list of target layers")
        return cls(
            hidden=hidden,
            intermediate=fields.count("intermediate_size"),
            layers=layers,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            eps=fields.number("rms_norm_eps", 1e-6),
            rope=Rope.from_hugging_face(config, head_dim),
            block=fields.count("block_size"),
            mask_id=masks[0],
            taps=taps,
            shifted=_shifted(fields, config, inner, alignment),
            windows=windows,
            causal=causal,
            vocabulary=fields.count("vocab_size"),
            target_layers=fields.count("num_target_layers") if "num_target_layers" in fields else None,
            embedding_scale=fields.number("input_embedding_scale", 1.0),
            output_multiplier=fields.number("output_multiplier", 1.0),
            softcap=fields.optional("final_logit_softcapping"),
        )


@dataclass(frozen=True)
class _Blocks:
    """The rows of one pass over some blocks: `held` context rows that not all blocks see, then the blocks.

    offset: int64 [rows], positions behind the first anchor's.  visible: for layers that are causal inside a block and
    for those that are not, what each row sees of the others, as `Rows` wants it.
    """

    held: int
    offset: Tensor
    visible: dict[bool, Tensor]


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
        self._blocks = {1: self._make_blocks(1)}  # a step's own must be there before it is captured

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

    @property
    def most_blocks(self) -> int:
        """How many blocks fit into one pass."""
        return max(1, (KERNEL_ROWS + 1) // (self.config.block + 1))

    def draft(self, anchor: Tensor, cache: Cache) -> Tensor:
        """Logits [n * depths, draft vocabulary] of the positions after each of n anchors, block by block.

        anchor: int64 [n], consecutive tokens, the first of them at cache.start: one in a step, and up to `most_blocks`
        where the context of the later ones, n - 1 rows, lies in the cache behind cache.start.  A block sees the context
        before its anchor and itself.
        """
        config = self.config
        blocks = self._blocks.get(len(anchor)) or self._make_blocks(len(anchor))
        self._blocks[len(anchor)] = blocks
        token = torch.cat((anchor[:, None], self.masks.expand(len(anchor), -1)), 1).flatten()
        hidden = F.embedding(token, self.weights["embed"]) * config.embedding_scale
        position = cache.start + blocks.offset
        rows = {causal: Rows(cache.start, position, seen, blocks.held) for causal, seen in blocks.visible.items()}
        for index in range(config.layers):
            name = f"layers.{index}."
            qkv = self.linear(name + "qkv", hidden, norm=self._norm(name + "attn_norm"))
            mixed = self.attend(qkv, self.heads, self._layer(index, cache), rows[config.causal[index]])
            hidden = self.linear(name + "out", mixed, residual=hidden)
            middle = self.linear(name + "gate_up", hidden, norm=self._norm(name + "mlp_norm"), silu_mul=True)
            hidden = self.linear(name + "down", middle, residual=hidden)
        hidden = hidden.unflatten(0, (len(anchor), config.block))[:, -config.depths :].flatten(0, 1)
        logits = self.linear("head", hidden, norm=self._norm("norm"))
        if config.output_multiplier != 1.0:
            logits = logits * config.output_multiplier
        if config.softcap is None:
            return logits
        # Block by block, since tanh may have a scalar tail.
        capped = [torch.tanh(each / config.softcap) * config.softcap for each in logits.split(config.depths)]
        return capped[0] if len(capped) == 1 else torch.cat(capped)

    def tensors(self) -> list[Tensor]:
        """Every tensor, those that are the target's too."""
        return [value for name, value in self.weights.items() if not name.endswith(".kv")]  # kv is a part of qkv

    def _layer(self, index: int, cache: Cache) -> Layer:
        q_norm, k_norm = (self.weights[f"layers.{index}.{name}"] for name in ("q_norm", "k_norm"))
        return Layer(cache.layer(index), q_norm, k_norm, self.config.windows[index])

    def _norm(self, name: str) -> Norm:
        return Norm(self.weights[name], self.config.eps)

    def _make_blocks(self, count: int) -> "_Blocks":
        """Where `count` blocks with consecutive anchors stand: behind the context rows of all but the first."""
        block, held = self.config.block, count - 1
        context, offset = torch.arange(held), torch.arange(block)
        starts = torch.arange(count)[:, None]  # of each block, in positions, is how many context rows it sees
        row = held + block * starts + offset
        # A forest whose paths are what rows see: a block's anchor follows its last context row, then row by row.
        parent = torch.cat((context - 1, torch.where(offset == 0, starts - 1, row - 1).flatten()))
        last = torch.cat((context, row[:, -1:].expand(-1, block).flatten()))  # sees all that its block sees
        device = self.offsets.device
        if has_kernels(self.weights["norm"]) and not self.exact:
            seen = visible_rows(parent.to(device))
        else:
            seen = visible_rows(parent).to(device)
        position = torch.cat((context, (starts + offset).flatten())).to(device)
        return _Blocks(held, position, {True: seen, False: seen[last.to(device)].contiguous()})


def load_drafter(
    path: Path, target: Target, alignment: str, dtype: torch.dtype, positions: int, exact: bool
) -> Drafter:
    """Reads a drafter folder and checks that it fits the target."""
    config = DrafterConfig.read(read_json(path / "config.json"), alignment)
    _check(config, target)
    source = _DrafterCheckpoint(path)
    source.dtype = dtype
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
            weights[to + name] = get(attention + name + ".weight", config.head_dim)
    weights["embed"], weights["head"], to_target = _vocabulary(source, config, target, dtype)
    return Drafter(config, weights, to_target, positions, exact)


class _DrafterCheckpoint(SafetensorsCheckpoint):
    """A drafter folder, as published in BF16 or in 8 bits: `X.weight` int8 [out, in] times `X.weight_scale` [out]."""

    def _read(self, name: str) -> Tensor:
        tensor = super()._read(name)
        if tensor.dtype != torch.int8:
            return tensor
        scale = super()._read(name + "_scale")
        if scale.shape != tensor.shape[:1]:
            raise EngineError("bad_model", f"'{name}' has scales {tuple(scale.shape)} for {tuple(tensor.shape)}")
        return (tensor.float() * scale[:, None]).bfloat16()


def _vocabulary(
    source: SafetensorsCheckpoint, config: DrafterConfig, target: Target, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Embedding, head and the map to target ids: the target's own, unless the checkpoint brings some."""
    embed, head, to_target = target.draft_embed, target.draft_head, None
    if "embed_tokens.weight" in source:
        embed = source.read("embed_tokens.weight", (config.vocabulary, config.hidden)).to(target.device).to(dtype)
    if "lm_head.weight" in source:
        head = source.read("lm_head.weight").to(target.device).to(dtype)
        if head.dim() != 2 or head.shape[1] != config.hidden:
            raise EngineError(
                "bad_model", f"the drafter's head is {tuple(head.shape)}, its hidden size {config.hidden}"
            )
    if "d2t" in source:
        offsets = source.read("d2t", (len(head),), floating=False).long().to(target.device)
        to_target = torch.arange(len(offsets), device=target.device) + offsets
        lowest, highest = int(to_target.min()), int(to_target.max())
        if lowest < 0 or highest >= config.vocabulary:
            wrong = lowest if lowest < 0 else highest
            raise EngineError("bad_model", f"d2t leads to id {wrong}, the target has {config.vocabulary}")
        if len(to_target.unique()) != len(to_target):
            raise EngineError("bad_model", "d2t leads to one id twice")
    elif len(head) != config.vocabulary:
        raise EngineError("bad_model", f"the drafter's head has {len(head)} of {config.vocabulary} ids and no map d2t")
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
    if config.block > KERNEL_ROWS:
        raise EngineError("bad_model", f"a draft block of {config.block} has more than {KERNEL_ROWS} rows")
    if config.depths < 1:
        raise EngineError("bad_model", f"a draft block of {config.block} proposes nothing")
    if any(window is not None and window < config.block for window in config.windows):
        raise EngineError("bad_model", f"sliding_window is shorter than the draft block of {config.block}")


def _shifted(fields: Fields, config: Mapping[str, Any], inner: Mapping[str, Any], alignment: str) -> bool:
    """Which token a row predicts.

    `sample_from_anchor` says so.  Without it, files that keep their keys in `dflash_config` predict the token at a
    row's own position, and files with the keys at the top level (DeepSpec's layout) the next.
    """
    if alignment != "auto":
        return alignment == "next"
    return fields.flag("sample_from_anchor", not inner and "target_layer_ids" in config)


def _layer_kinds(fields: Fields, layers: int) -> tuple[tuple[int | None, ...], tuple[bool, ...]]:
    """Window and in-block causality of each layer: sliding layers are causal unless the file says otherwise."""
    kinds, window = fields.get("layer_types"), "sliding_window"
    if fields.get("use_swa"):
        window = "swa_window_size" if "swa_window_size" in fields else window
        kinds = kinds or ["sliding_attention"] * layers
    kinds = kinds or ["full_attention"] * layers
    known = ("full_attention", "sliding_attention")
    if not isinstance(kinds, list) or len(kinds) != layers or any(kind not in known for kind in kinds):
        raise fields.wrong("layer_types", f"{layers} of {' and '.join(known)}")
    sliding = [kind == "sliding_attention" for kind in kinds]
    windows = tuple(fields.count(window) if slides else None for slides in sliding)
    if "causal" in fields:
        causal = [fields.flag("causal", False)] * layers
    elif "is_causal" in fields:
        causal = [fields.flag("is_causal", False)] * layers
    else:
        causal = sliding
    return windows, tuple(causal)

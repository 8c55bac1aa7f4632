"""The target: a dense Llama-like decoder, as weights and one forward pass over rows.

What a pass attends to is not decided here: `attend` is given by whoever runs the pass.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from zlib import crc32

import torch
from torch import Tensor

from stock.checkpoint import Checkpoint, open_checkpoint
from stock.config import ModelConfig
from stock.linear import Linear, Norm
from stock.widen import check_widen, jittered, widened

__all__ = ["Attend", "Target", "load_target"]

# attend(layer, qkv [n, (heads + 2 * kv_heads) * head_dim]) -> [n, heads * head_dim]
Attend = Callable[[int, Tensor], Tensor]

_MATRIX = {"rows": True, "columns": True}
_VECTOR = {"rows": True, "columns": False}


@dataclass
class Target:
    """Weights by the engine's names, and the narrow parts that a drafter shares.

    weights: `embed` [vocabulary, hidden], `norm`, `head` [vocabulary, hidden], and for each layer i
    `layers.i.` + `attn_norm`, `qkv` (q, k, v stacked), `out`, `mlp_norm`, `gate_up` (stacked), `down`, perhaps
    `q_norm`, `k_norm` and biases as `<name>.bias`.
    draft_embed, draft_head: [vocabulary, tap_width] as in the checkpoint, before any widening.
    """

    config: ModelConfig
    weights: dict[str, Tensor]
    draft_embed: Tensor
    draft_head: Tensor
    tap_width: int

    @property
    def device(self) -> torch.device:
        return self.weights["norm"].device

    @property
    def dtype(self) -> torch.dtype:
        return self.weights["norm"].dtype

    def norm(self, name: str) -> Norm:
        """The RMSNorm of that name."""
        return Norm(self.weights[name], self.config.eps)

    def tensors(self) -> list[Tensor]:
        """Every tensor, some perhaps twice."""
        return [*self.weights.values(), self.draft_embed, self.draft_head]

    def forward(self, token: Tensor, attend: Attend, linear: Linear, taps: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Runs rows through all layers.

        token: int64 [n].  Returns hidden [n, hidden] before the final norm, and the outputs of the layers `taps`
        side by side, [n, len(taps) * tap_width].
        """
        hidden = self.weights["embed"][token]
        tapped = {}
        for layer in range(self.config.layers):
            name = f"layers.{layer}."
            qkv = linear(name + "qkv", hidden, norm=self.norm(name + "attn_norm"))
            hidden = linear(name + "out", attend(layer, qkv), residual=hidden)
            middle = linear(name + "gate_up", hidden, norm=self.norm(name + "mlp_norm"), silu_mul=True)
            hidden = linear(name + "down", middle, residual=hidden)
            if layer in taps:
                tapped[layer] = hidden[:, : self.tap_width].clone()  # the next layer may add into `hidden`
        return hidden, torch.cat([tapped[layer] for layer in taps], 1) if taps else hidden[:, :0]


def load_target(path: Path, dtype: torch.dtype, device: torch.device, widen: int = 1, jitter: int = 0) -> Target:
    """Reads a target from a folder or a GGUF file, widened and jittered (seed; 0 for none)."""
    check_widen(widen)
    checkpoint = open_checkpoint(path, torch.bfloat16 if jitter else dtype)
    loader = _Loader(checkpoint, checkpoint.model_config(), dtype, device, widen, jitter)
    return loader.load()


class _Loader:
    """Reads, fuses, widens and casts one tensor after the other, so that memory holds one narrow tensor at most."""

    def __init__(
        self, source: Checkpoint, config: ModelConfig, dtype: torch.dtype, device: torch.device, widen: int, jitter: int
    ) -> None:
        self.source, self.config, self.dtype, self.device = source, config, dtype, device
        self.widen, self.jitter = widen, jitter
        self.weights: dict[str, Tensor] = {}

    def load(self) -> Target:
        config = self.config
        embed_shape = (config.vocabulary, config.hidden)
        embed = self.source.read("model.embed_tokens.weight", embed_shape)
        head = embed if config.tied else self.source.read("lm_head.weight", embed_shape)
        self._add("embed", embed.repeat(1, self.widen), rows=False, columns=False)
        self._add("norm", self.source.read("model.norm.weight", (config.hidden,)), **_VECTOR)
        if config.tied and self.widen == 1 and not self.jitter:
            self.weights["head"] = self.weights["embed"]
        else:
            self._add("head", head, rows=False, columns=True)
        for layer in range(config.layers):
            self._layer(layer)
        return Target(
            config=self._widened_config(),
            weights=self.weights,
            draft_embed=self._narrow("embed", embed),
            draft_head=self._narrow("head", head),
            tap_width=config.hidden,
        )

    def _layer(self, layer: int) -> None:
        config, to, of = self.config, f"layers.{layer}.", f"model.layers.{layer}."
        queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
        hidden, middle = config.hidden, config.intermediate
        attention, mlp = of + "self_attn.", of + "mlp."
        self._add(to + "attn_norm", self.source.read(of + "input_layernorm.weight", (hidden,)), **_VECTOR)
        self._add(to + "mlp_norm", self.source.read(of + "post_attention_layernorm.weight", (hidden,)), **_VECTOR)
        qkv = [(attention + "q_proj", queries), (attention + "k_proj", keys), (attention + "v_proj", keys)]
        self._fused(to + "qkv", qkv, hidden, biased=config.biased)
        self._fused(to + "out", [(attention + "o_proj", hidden)], queries)
        self._fused(to + "gate_up", [(mlp + "gate_proj", middle), (mlp + "up_proj", middle)], hidden)
        self._fused(to + "down", [(mlp + "down_proj", hidden)], middle)
        for name in ("q_norm", "k_norm") if config.head_norms else ():
            weight = self.source.read(attention + name + ".weight", (config.head_dim,))
            self._add(to + name, weight, rows=False, columns=False)

    def _fused(self, name: str, parts: list[tuple[str, int]], columns: int, biased: bool = False) -> None:
        """Stacks projections that read the same input.  Each part is widened by itself, so that parts stay whole.

        biased: whether biases must be there; otherwise they are taken where all parts have one.
        """
        self._add_parts(name, [self.source.read(of + ".weight", (rows, columns)) for of, rows in parts], _MATRIX)
        if biased or any(of + ".bias" in self.source for of, _ in parts):
            self._add_parts(name + ".bias", [self.source.read(of + ".bias", (rows,)) for of, rows in parts], _VECTOR)

    def _add_parts(self, name: str, parts: list[Tensor], how: dict[str, bool]) -> None:
        made = [self._made(part, f"{name}.{index}", **how) for index, part in enumerate(parts)]
        self.weights[name] = torch.cat(made) if len(made) > 1 else made[0]

    def _add(self, name: str, weight: Tensor, *, rows: bool, columns: bool) -> None:
        self.weights[name] = self._made(weight, name, rows=rows, columns=columns)

    def _made(self, weight: Tensor, stream: str, *, rows: bool, columns: bool) -> Tensor:
        weight = weight.to(self.device).to(torch.bfloat16 if self.jitter else self.dtype)
        weight = widened(weight, self.widen, rows=rows, columns=columns)
        if self.jitter:
            weight = jittered(weight, self.jitter, crc32(stream.encode())).to(self.dtype)
        return weight

    def _narrow(self, name: str, weight: Tensor) -> Tensor:
        """The checkpoint's own tensor for the drafter; shared with the target's where they are equal."""
        if self.widen == 1 and not self.jitter:
            return self.weights[name]
        return weight.to(self.device).to(self.dtype)

    def _widened_config(self) -> ModelConfig:
        config, k = self.config, self.widen
        return replace(
            config,
            hidden=config.hidden * k,
            heads=config.heads * k,
            kv_heads=config.kv_heads * k,
            intermediate=config.intermediate * k,
        )

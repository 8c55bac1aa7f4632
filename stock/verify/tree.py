"""Verification of any draft tree, one request after the other."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stock.cache import Cache
from stock.linear import Linear
from stock.ops import has_kernels
from stock.ops.attention import KERNEL_ROWS, Heads, Layer, Rows, attend, attend_exact, visible_rows
from stock.target import Target
from stock.tree import DraftTree
from stock.verify import MakeVerify, Verified

__all__ = ["TreeVerify", "build"]


def build(target: Target, options: Mapping[str, Any], prepared: Path | None) -> MakeVerify:
    """Tree verification of the target."""
    config = target.config
    # Rows past the last position of a context are padding, but their tables must exist.
    cos, sin = config.rope.table(config.context + KERNEL_ROWS, target.device)
    heads = Heads(config.heads, config.kv_heads, config.head_dim, config.eps, cos, sin)

    def make(linear: Linear, taps: Sequence[int], exact: bool) -> TreeVerify:
        return TreeVerify(target, heads, linear, taps, exact)

    return make


class TreeVerify:
    """Each row attends to the context and to its ancestors."""

    def __init__(self, target: Target, heads: Heads, linear: Linear, taps: Sequence[int], exact: bool) -> None:
        self.target, self.heads, self.linear, self.taps = target, heads, linear, taps
        self.attend = attend_exact if exact else attend
        self.kernels = not exact and has_kernels(target.weights["norm"])

    def __call__(self, trees: Sequence[DraftTree], caches: Sequence[Cache]) -> list[Verified]:
        return [self._verify(tree, cache) for tree, cache in zip(trees, caches, strict=True)]

    def _verify(self, tree: DraftTree, cache: Cache) -> Verified:
        rows = Rows(cache.start, cache.start + tree.depth, self._visible(tree))

        def attend_layer(layer: int, qkv: Tensor) -> Tensor:
            weights = self.target.weights
            q_norm, k_norm = (weights.get(f"layers.{layer}.{name}") for name in ("q_norm", "k_norm"))
            return self.attend(qkv, self.heads, Layer(cache.layer(layer), q_norm, k_norm), rows)

        return Verified(*self.target.forward(tree.token, attend_layer, self.linear, self.taps))

    def _visible(self, tree: DraftTree) -> Tensor:
        count = len(tree.token)
        if self.kernels and count <= KERNEL_ROWS:
            return visible_rows(tree.parent)
        if tree.chain:
            return torch.ones(count, count, dtype=torch.bool, device=tree.token.device).tril_()
        return visible_rows(tree.parent.cpu()).to(tree.token.device)

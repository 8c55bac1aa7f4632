"""Attention of new rows over a context and over one another, with RoPE and the cache append.

One pass adds n rows to a sequence whose first `start` rows are in the cache.  Their keys and values go to the slots
start, start + 1, ...; row i sees the whole context and those new rows that `visible` names.
"""

from dataclasses import dataclass, field
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from stock.ops import has_kernels, wide
from stock.ops.rms_norm import rms_norm

__all__ = ["KERNEL_ROWS", "Heads", "Layer", "Rows", "append_context", "attend", "attend_exact", "visible_rows"]

KERNEL_ROWS = 256  # draft trees are smaller; longer passes are prefill, where the library's kernels are best


@dataclass(frozen=True)
class Heads:
    """Shapes of an attention layer and its rotary tables cos, sin: float32 [positions, dim / 2]."""

    queries: int
    keys: int
    dim: int
    eps: float
    cos: Tensor
    sin: Tensor

    @property
    def split(self) -> list[int]:
        """Widths of q, k and v in a stacked projection."""
        return [self.queries * self.dim, self.keys * self.dim, self.keys * self.dim]


@dataclass(frozen=True)
class Layer:
    """One layer's cache [2, slots, keys, dim], its head norms, and its sliding window in positions (None: all)."""

    cache: Tensor
    q_norm: Tensor | None = None
    k_norm: Tensor | None = None
    window: int | None = None


@dataclass
class Rows:
    """Where the new rows of a pass stand.

    start: int32 [1], rows in the cache.  position: int64 [n].  visible: what each row sees among the new rows,
    itself included: bool [n, n] on a CPU, int64 bit words [n, ceil(n / 64)] for the kernels.
    held: how many of the n rows, from the first, are in the cache too, though not every other row sees them; the pass
    runs those behind them.
    """

    start: Tensor
    position: Tensor
    visible: Tensor
    held: int = 0
    _masks: dict[tuple[int | None, int], Tensor | None] = field(default_factory=dict)

    @cached_property
    def context(self) -> int:
        """Rows in the cache as a number; waits for a GPU, once a pass."""
        return int(self.start)

    def mask(self, window: int | None, group: int, dtype: torch.dtype) -> Tensor | None:
        """What is added to the scores of `group` query heads folded into the rows of the pass; made once.

        [group * (n - held), start + n].

        None where every row sees every key.
        """
        key = (window, group)
        if key not in self._masks:
            self._masks[key] = self._make_mask(window, group, dtype)
        return self._masks[key]

    def _make_mask(self, window: int | None, group: int, dtype: torch.dtype) -> Tensor | None:
        context = self.context
        position, visible = self.position[self.held :], self.visible[self.held :]
        seen = torch.cat((visible.new_ones(len(visible), context), visible), 1)
        if window is not None:
            key_position = torch.cat((torch.arange(context, device=seen.device), self.position))
            seen = seen & (position[:, None] - key_position[None] < window)
        if bool(seen.all()):
            return None
        mask = torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, float("-inf"))
        return mask.repeat(group, 1)


def visible_rows(parent: Tensor) -> Tensor:
    """Ancestors of each row of a draft tree, itself included, from parent int64 [n] (-1 for the root).

    bool [n, n] on a CPU, int64 bit words on a GPU: what `Rows.visible` wants.
    """
    if parent.is_cuda:
        from kernels.ancestors import ancestors

        return ancestors(parent)
    seen = torch.eye(len(parent), dtype=torch.bool)
    for row, above in enumerate(parent.tolist()):
        if above >= 0:
            seen[row] |= seen[above]
    return seen


def attend(qkv: Tensor, heads: Heads, layer: Layer, rows: Rows) -> Tensor:
    """Attention output [n, queries * dim] of the rows with projections qkv [n, (queries + 2 * keys) * dim]."""
    if rows.visible.dtype == torch.int64:
        return _attend_kernels(qkv, heads, layer, rows)
    q = _append(qkv, heads, layer, rows.context + rows.held, rows.position[rows.held :])
    length = rows.context + len(rows.position)
    keys, values = (part[:length].transpose(0, 1) for part in layer.cache)
    # The query heads of a KV head are folded into rows, so that no key is repeated.
    group = heads.queries // heads.keys
    folded = q.view(len(q), heads.keys, group, heads.dim).permute(1, 2, 0, 3).reshape(heads.keys, -1, heads.dim)
    mask = rows.mask(layer.window, group, q.dtype)
    out = F.scaled_dot_product_attention(folded[None], keys[None], values[None], attn_mask=mask)[0]
    return out.view(heads.keys, group, len(q), heads.dim).permute(2, 0, 1, 3).reshape(len(q), -1)


def attend_exact(qkv: Tensor, heads: Heads, layer: Layer, rows: Rows) -> Tensor:
    """As `attend`, with bits that depend on nothing but the row and its own path.

    Each row attends by itself over its keys in position order, gathered: the very call that a single row makes.
    """
    context, held, group = rows.context, rows.held, heads.queries // heads.keys
    # All keys first, since a drafter's rows see later ones too; row by row, so that norms are a single row's sums.
    pieces = enumerate(zip(qkv.split(1), rows.position[held:].split(1), strict=True), start=held)
    queries = [_append(row, heads, layer, context + index, position) for index, (row, position) in pieces]
    out = []
    for index, (q, seen) in enumerate(zip(queries, rows.visible[held:], strict=True), start=held):
        own = seen.nonzero()[:, 0]
        slots = torch.cat((torch.arange(context, device=own.device), context + own))
        if layer.window is not None:
            key_position = torch.cat((slots[:context], rows.position[own]))
            slots = slots[rows.position[index] - key_position < layer.window]
        keys, values = (part[slots].transpose(0, 1).contiguous() for part in layer.cache)
        folded = q.view(1, heads.keys, group, heads.dim)
        out.append(F.scaled_dot_product_attention(folded, keys[None], values[None]).reshape(1, -1))
    return torch.cat(out)


def append_context(kv: Tensor, heads: Heads, layer: Layer, position: Tensor, count: Tensor | None, exact: bool) -> None:
    """Writes rows of a drafter's context, kv [n, 2 * keys * dim], to the slots of their positions int64 [n].

    count: int32 [1], how many of the rows are real (None: all).
    """
    if has_kernels(kv) and len(kv) <= KERNEL_ROWS:
        from kernels.rope_append import rope_append_kv

        keys, values, slot = layer.cache[0], layer.cache[1], _slots(position, count)
        rope_append_kv(kv, position, heads.cos, heads.sin, keys, values, slot, k_norm=layer.k_norm, eps=heads.eps)
        return
    real = len(kv) if count is None else int(count)
    pieces = range(real) if exact else [slice(0, real)]
    for piece in pieces:
        part = slice(piece, piece + 1) if isinstance(piece, int) else piece
        k, v = (half.unflatten(1, (heads.keys, heads.dim)) for half in kv[part].chunk(2, 1))
        layer.cache[0, position[part]] = _rotate(_norm(k, layer.k_norm, heads.eps), heads, position[part])
        layer.cache[1, position[part]] = v


def _attend_kernels(qkv: Tensor, heads: Heads, layer: Layer, rows: Rows) -> Tensor:
    from kernels.rope_append import rope_append
    from kernels.tree_attention import tree_attention

    keys, values, held = layer.cache[0], layer.cache[1], rows.held
    q = rope_append(
        qkv,
        rows.position[held:],
        heads.cos,
        heads.sin,
        keys,
        values,
        rows.start + held if held else rows.start,
        q_norm=layer.q_norm,
        k_norm=layer.k_norm,
        eps=heads.eps,
    )
    if held:
        q = torch.cat((q.new_zeros(held, *q.shape[1:]), q))  # the kernel's keys and queries are the same rows
    mixed = tree_attention(
        q,
        keys,
        values,
        rows.start,
        rows.visible,
        position=rows.position,
        scale=heads.dim**-0.5,
        window=layer.window,
    )
    return mixed[held:] if held else mixed


def _append(qkv: Tensor, heads: Heads, layer: Layer, first: int, position: Tensor) -> Tensor:
    """Rotates the rows, writes keys and values to the slots from `first`, and returns q [n, queries, dim]."""
    q, k, v = (part.unflatten(1, (-1, heads.dim)) for part in qkv.split(heads.split, 1))
    layer.cache[0, first : first + len(k)] = _rotate(_norm(k, layer.k_norm, heads.eps), heads, position)
    layer.cache[1, first : first + len(v)] = v
    return _rotate(_norm(q, layer.q_norm, heads.eps), heads, position)


def _norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    return x if weight is None else rms_norm(x, weight, eps)


def _rotate(x: Tensor, heads: Heads, position: Tensor) -> Tensor:
    """Rotates x [n, h, dim] by its positions; the products are made in x's type, or float32 for narrower ones."""
    x_wide = wide(x)
    cos, sin = (table[position][:, None].to(x_wide.dtype) for table in (heads.cos, heads.sin))
    first, second = x_wide.chunk(2, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1).to(x.dtype)


def _slots(position: Tensor, count: Tensor | None) -> Tensor:
    slots = position.int()
    if count is None:
        return slots
    return torch.where(torch.arange(len(slots), device=slots.device) < count, slots, -1)

"""Moves the cache rows of an accepted path to where a chain would have written them."""

from torch import Tensor

from stock.ops import has_kernels

__all__ = ["compact"]


def compact(cache: Tensor, start: Tensor, path: Tensor, count: Tensor) -> None:
    """cache [layers, 2, slots, heads, dim]: rows start + path[i] to start + i for i < count, in place."""
    if has_kernels(cache):
        from kernels.compact import compact as kernel

        kernel(cache, start, path, count)
        return
    first, rows = int(start), path[: int(count)].long()
    cache[:, :, first : first + len(rows)] = cache[:, :, first + rows]

"""How products with a W12 matrix are cut into pieces, and the twin that both kernels are held against."""

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from kernels.portable import cdiv, wide
from kernels.w12 import GROUP, Packed, padded

__all__ = ["PLACED", "Cut", "most_pieces", "reference", "stored_rows", "tiles_of"]

PLACED = 112  # a placed code is its weight over 2^(base - PLACED): at most 2, at least 2^-14


@dataclass(frozen=True)
class Cut:
    """Tiles of `rows` stored rows, in units of `unit` groups of 128 columns that are dealt out evenly to programs.

    paired: the first half of the matrix's rows are gates of the second half, and a tile holds as many of each.
    """

    rows: int
    paired: bool
    unit: int
    programs: int


def tiles_of(n: int, rows: int, paired: bool) -> int:
    """Tiles of a matrix of n rows."""
    return cdiv(n // 2, rows // 2) if paired else cdiv(n, rows)


def stored_rows(n: int, rows: int, paired: bool, device: torch.device) -> Tensor:
    """The matrix's row in each stored row, -1 for filling: int64 [tiles * rows]."""
    tiles = tiles_of(n, rows, paired)
    if not paired:
        stored = torch.arange(tiles * rows, device=device)
        return torch.where(stored < n, stored, -1)
    half = torch.arange(tiles * (rows // 2), device=device)
    half = torch.where(half < n // 2, half, -1).view(tiles, 1, -1)
    return torch.cat((half, torch.where(half >= 0, half + n // 2, -1)), 1).flatten()


@lru_cache
def most_pieces(tiles: int, per_tile: int, programs: int) -> int:
    """Programs that share a tile of so many units, at most."""
    return max(len(_pieces_of(tile, per_tile, tiles * per_tile, programs)) for tile in range(tiles))


def _pieces_of(tile: int, per_tile: int, units: int, programs: int) -> list[tuple[int, int]]:
    """First and last unit + 1 of each piece of a tile, in the order in which they are added."""
    start, end = tile * per_tile, (tile + 1) * per_tile
    owners = range(_owner_of(start, units, programs), _owner_of(end - 1, units, programs) + 1)
    return [(max(start, p * units // programs), min(end, (p + 1) * units // programs)) for p in owners]


def _owner_of(unit: int, units: int, programs: int) -> int:
    return ((unit + 1) * programs - 1) // units


def reference(
    x: Tensor,
    packed: Packed,
    cut: Cut,
    *,
    view: bool = False,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """x @ weight.T + bias, gated, plus residual, in plain torch: the same pieces in the same order.

    float64 where x is; dtype is x's where it is not given.
    """
    y = _products(wide(x), packed, cut, view)
    if bias is not None:
        y = y + wide(bias)
    if cut.paired:
        gate, up = y.chunk(2, dim=-1)
        y = gate * torch.sigmoid(gate) * up
    if residual is not None:
        y = y + wide(residual)
    return y.to(dtype or x.dtype)


def _products(x: Tensor, packed: Packed, cut: Cut, view: bool) -> Tensor:
    """x @ weight.T in x's type, [t, n]: escapes apart, since kernels add them to the scaled sum."""
    n, k = packed.shape
    x_padded = torch.nn.functional.pad(x, (0, padded(k) - k))
    order = stored_rows(n, cut.rows, cut.paired, x.device)
    tiles, per_tile, width = len(order) // cut.rows, padded(k) // GROUP // cut.unit, cut.unit * GROUP
    y = x.new_empty(len(x), n)
    for tile in range(tiles):
        rows = order[tile * cut.rows : (tile + 1) * cut.rows]
        rows = rows[rows >= 0]
        values = _placed(packed, rows, view).to(x.dtype)
        first = tile * per_tile
        pieces = _pieces_of(tile, per_tile, tiles * per_tile, cut.programs)
        spans = (slice((start - first) * width, (end - first) * width) for start, end in pieces)
        sums = [x_padded[:, span] @ values[:, span].T for span in spans]
        for piece in sums[1:]:
            sums[0] += piece
        y[:, rows] = sums[0]
    y *= torch.ldexp(torch.ones_like(packed.base, dtype=x.dtype), packed.base.int() - PLACED)
    counts = packed.starts.diff()
    for ahead in range(int(counts.max())):
        rows = (counts > ahead).nonzero().squeeze(1)
        escape = packed.starts[rows] + ahead
        y[:, rows] += packed.values[escape].to(x.dtype) * x[:, packed.columns[escape]]
    return y


def _placed(packed: Packed, rows: Tensor, view: bool) -> Tensor:
    """Placed codes of rows, float32 [rows, padded k]; of a view the middle of what its byte leaves open."""
    high = packed.high[rows].to(torch.int16)
    low = packed.low[rows].unflatten(1, (-1, GROUP // 2)).to(torch.int16)
    code = (high & 0x80) << 8 | (high & 0x7F) << 4
    nibbles = torch.cat((low & 15, low >> 4), 2).flatten(1)
    values = (code if view else code | nibbles).view(torch.bfloat16).float() * 2.0**PLACED
    if view:
        values += (code & -0x80).view(torch.bfloat16).float() * 2.0 ** (PLACED - 4)
    return values

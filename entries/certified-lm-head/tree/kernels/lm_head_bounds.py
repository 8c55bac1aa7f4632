"""How far a logit can be from what the high plane of a W12 head says, and which rows may have the best one.

The high plane is a matrix of E4M3FN numbers: each weight cut to three mantissa bits, over a power of two of its row.
A row is those numbers times a gain that fits it best, and a rest r, which has whole weights where there are escapes.
So a logit is that of the plane and x r, and |x r| <= |x| |r| by Cauchy and Schwarz: the plane alone says where it lies.

Rounding.  Of a sum of k products each step is taken to be off by at most 2^-23 of the sum of magnitudes, whatever the
order: so a float32 sum that truncates is, and so are sums of tensor cores, which align 4 to 16 products at 2 more
bits.  64 steps more cover scaling and the bounds' own rounding.  What follows the sum (rounding to the type of logits,
division by the temperature, noise) is monotone, so it is done to the bounds too, and nothing is lost there.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.portable import wide
from kernels.w12 import Packed, decode

__all__ = [
    "COUNTED",
    "LEAST_NORM",
    "MOST_COLUMNS",
    "MOST_NORM",
    "MOST_SCORE",
    "STEP",
    "STEPS",
    "Bounds",
    "candidates",
    "made_bounds",
    "plane8",
]

# What is counted: calls, rows of x, rows of the head that might have had the best logit, calls in which all might.
COUNTED = ("calls", "rows", "candidates", "full")

# Sums of more terms are less accurate than is assumed here.
MOST_COLUMNS = 1 << 16
# |x| within which no product or sum of finite weights leaves float32's normal range by more than the slack allows, and
# what a score and a bound may be: beyond, something may have overflowed on the way, to NaN if it comes to the worst.
LEAST_NORM, MOST_NORM, MOST_SCORE = 2.0**-40, 2.0**60, 2.0**100
STEPS, STEP = 64, 2.0**-23  # of a sum beside one for each product; by how much each may be off
_SMALL = 2.0**-4  # of |r| without escapes: an escape up to here becomes a part of r
_BLOCK = 1 << 22  # weights that are decoded at once


@dataclass(frozen=True)
class Bounds:
    """What the high plane does not say of a head [n, k].

    gain: float32 [n], what a row of the plane is multiplied with.
    reach: float32 [n], by how much a logit may differ from the plane's, over |x|: |r|, and the slack of both sums;
    infinite where the row has an infinity or NaN.
    starts: int32 [n + 1], columns: int32 [e], values: bfloat16 [e]: escapes that are too large for r, and are added to
    the plane's; as in `Packed`.
    """

    gain: Tensor
    reach: Tensor
    starts: Tensor
    columns: Tensor
    values: Tensor


@torch.no_grad()
def made_bounds(packed: Packed) -> Bounds:
    """The bounds of a head, on its device; memory beside it is that of a block of rows."""
    n, k = packed.shape
    if k > MOST_COLUMNS:
        raise ValueError(f"a certified head has at most {MOST_COLUMNS} columns, not {k}")
    gain, reach = (packed.base.new_empty(n, dtype=torch.float32) for _ in range(2))
    row, column = packed.escape_rows(), packed.columns.long()
    large = torch.zeros_like(row, dtype=torch.bool)
    slack = (packed.starts.diff() + k + STEPS).double() * STEP
    rows = max(1, _BLOCK // k)
    for first in range(0, n, rows):
        block = slice(first, min(first + rows, n))
        own = slice(int(packed.starts[block.start]), int(packed.starts[block.stop]))
        at, value = (row[own] - first, column[own]), packed.values[own].double()
        plane = plane8(packed, block).double()
        whole = decode(packed, block).double()
        coded = whole.clone()
        coded[at] = 0.0
        own_gain = (coded * plane).sum(1) / plane.square().sum(1)
        gain[block] = own_gain.nan_to_num_(nan=0.0).float()  # of a row without codes
        view = plane * gain[block].double()[:, None]
        rest = coded - view
        large[own] = value.isfinite() & (value.abs() > rest.norm(dim=1)[at[0]] * _SMALL)
        rest[at] = torch.where(large[own], 0.0, value)
        view[at] = torch.where(large[own], value, 0.0)
        size = whole.norm(dim=1) + view.norm(dim=1)
        reach[block] = ((rest.norm(dim=1) + slack[block] * size) * (1 + 2.0**-20)).float()  # rounds by less than that
    reach.nan_to_num_(nan=torch.inf, posinf=torch.inf)
    starts = torch.cat((packed.starts[:1], torch.bincount(row[large], minlength=n).cumsum(0).int()))
    return Bounds(gain, reach, starts, packed.columns[large], packed.values[large])


def plane8(packed: Packed, block: slice) -> Tensor:
    """The high plane of a block of rows as the numbers that it consists of, float32 [rows, k]."""
    codes = packed.high[block, : packed.shape[1]]
    return codes.view(torch.float8_e4m3fn).float()


@torch.no_grad()
def candidates(x: Tensor, packed: Packed, bounds: Bounds, logits: Tensor, scored: Callable[[Tensor], Tensor]) -> Tensor:
    """Which rows of a head may have the best score, bool [t, n]: the certificate in plain torch, for x of any type.

    logits: of the whole head, of which those of one row a token are read, as `lm_head` makes them beforehand.
    scored: a monotone function of logits [t, n], as choices compare them.
    """
    wide_x = wide(x)
    norm = wide_x.double().norm(dim=1, keepdim=True)
    view = torch.empty(len(x), packed.shape[0], dtype=torch.float64, device=x.device)
    rows = max(1, _BLOCK // packed.shape[1])
    for first in range(0, packed.shape[0], rows):
        block = slice(first, min(first + rows, packed.shape[0]))
        view[:, block] = (wide_x @ plane8(packed, block).to(wide_x.dtype).T) * bounds.gain[block]
    large = torch.repeat_interleave(torch.arange(len(bounds.reach), device=x.device), bounds.starts.diff())
    view.index_add_(1, large, wide_x.double()[:, bounds.columns] * bounds.values)
    apart = norm * bounds.reach.double()
    apart = torch.where(apart < MOST_SCORE, apart, torch.inf)
    upper, lower = (scored((view + sign * apart).to(logits.dtype)) for sign in (1, -1))
    row = lower.nan_to_num(nan=-torch.inf).argmax(1, keepdim=True)
    floor = scored(logits).gather(1, row)
    certain = (norm >= LEAST_NORM) & (norm <= MOST_NORM) & (floor.abs() <= MOST_SCORE)
    return ~((upper < floor) & certain)

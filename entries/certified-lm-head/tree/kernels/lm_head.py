"""The token of each row of an LM head, from 8 of 12 bits a weight, with a certificate that it is the full head's.

The high plane alone bounds each logit (`lm_head_bounds`), and most rows of the head cannot have the best one.  Those
that can are multiplied again, with all 12 bits, in the order in which `w12_gemm` sums them: their logits have its
bits, and so has the choice.

    norms    |x| of each row of x
    bounds   a pass over the high plane: the highest that each logit can be, and the row whose lowest is highest
    floor    that row's logit from all of its bits: what the best logit is at least
    select   the rows that reach the floor of any row of x
    rescore  their logits, and the best of them

How many rows there are is read on the device, and a program without any returns.  There is no capacity: where nothing
is certain (flat logits; NaN, infinities or a vanishing x) all rows are selected, and `rescore` is the full product.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import torch
from torch import Tensor

from kernels import w12_gemm as gemm
from kernels.lm_head_bounds import LEAST_NORM, MOST_NORM, MOST_SCORE, STEP, STEPS, Bounds
from kernels.portable import (
    cdiv,
    check_tensors,
    f32,
    key_id,
    key_score,
    next_power_of_2,
    tl,
    to_bf16,
    triton,
    wide,
)
from kernels.w12_gemm import MOST_ROWS, Plan, Weight

__all__ = [
    "CONFIGS",
    "MOST_ROWS",
    "Config",
    "Limits",
    "config_for",
    "lm_head",
    "lm_head_reference",
    "logit_bounds",
]

_LEAST, _MOST, _CERTAIN = tl.constexpr(LEAST_NORM), tl.constexpr(MOST_NORM), tl.constexpr(MOST_SCORE)
_NOTHING = tl.constexpr(-0x8000000000000000)  # below every key
_NOBODY = tl.constexpr(0x7FFFFFFF)  # above every row
ROUGH = tl.constexpr(2.0**-10)  # what rough noise may be off by
_SPREAD = tl.constexpr(264)  # programs that a few candidates are dealt out to
_SHARE = tl.constexpr(16)  # candidates of each of them
_AT_ONCE = tl.constexpr(
    16
)  # rows of x whose scores are made at once; registers hold sums of more, and not what follows


@dataclass(frozen=True)
class Config:
    """How the pass over the high plane is worked through; no token depends on it."""

    path: str = "mma"  # "mma" or "wgmma", as of a Schedule
    block_n: int = 128  # rows of the head in a program
    unit: int = 1  # groups of 128 columns that are multiplied at a time; divides the head's groups
    num_warps: int = 4
    num_stages: int = 4
    chunk: int = 16  # rows of x in one mma; wgmma takes all at once


# (n, k) -> bucket of rows -> what was best on an H200 without noise; what is missing takes the default.
CONFIGS: Mapping[tuple[int, int], Mapping[int, Config]] = MappingProxyType({})


@dataclass(frozen=True)
class Limits:
    """What is known of a batch before any row is rescored.

    upper: bfloat16 [t, n], the highest that each logit, or score, can be.  row: int64 [t], the one whose lowest is
    highest.  floor: float32 [t], what the best score is at least, minus infinity where nothing is certain.  Both are
    rounded to bfloat16: what is not below another number is not below it once both are rounded.
    """

    upper: Tensor
    row: Tensor
    floor: Tensor


# mma.sync keeps up with memory at up to 64 rows, and wgmma, whose operands come from registers, does not at 32.
_DEFAULTS = {
    16: Config(),
    32: Config(num_stages=3, chunk=32),
    64: Config(num_stages=3),
    128: Config("wgmma", num_warps=8, num_stages=3),
}


# Noise takes so many registers that smaller tiles leave room for more programs.
_HOT = {
    16: Config(block_n=64),
    32: Config(block_n=64, chunk=32),
    64: Config("wgmma", num_warps=8, num_stages=3),
    128: Config("wgmma", num_warps=8, num_stages=3),
}


def config_for(n: int, k: int, bucket: int, hot: bool = False) -> Config:
    """What the pass takes for a head [n, k] and a bucket of rows, with noise or without."""
    return _HOT[bucket] if hot else CONFIGS.get((n, k), _DEFAULTS).get(bucket, _DEFAULTS[bucket])


@dataclass(frozen=True)
class Pass:
    """All that the pass over the high plane is compiled for; names as of a Plan, tiles are its own."""

    n: int
    k: int
    groups: int
    tiles: int
    block_n: int
    unit: int
    wgmma: bool
    block_t: int
    chunk: int
    stages: int
    stored: int  # rows of a tile of the weight
    stored_rows: int
    descriptors: bool = False

    @property
    def chunks(self) -> int:
        return self.block_t // self.chunk

    @property
    def per_tile(self) -> int:
        return self.groups // self.unit


@triton.jit
def lm_head_norms_kernel(
    x_ptr, half_ptr, norm_ptr, unit_ptr, best_ptr, tally_ptr, K: tl.constexpr, BLOCK: tl.constexpr
):
    token, column = tl.program_id(0), tl.arange(0, BLOCK)
    squares, largest = tl.zeros([BLOCK], tl.float32), tl.zeros([BLOCK], tl.float32)
    for first in range(0, K, BLOCK):
        x = f32(tl.load(x_ptr + token * K + first + column, mask=first + column < K, other=0.0))
        squares += x * x
        largest = tl.maximum(largest, tl.abs(x))
    # The sum is off by at most K / 2 roundings up and down; and a root of the device by a few.
    norm = tl.sqrt(tl.sum(squares, 0)) * (1.0 + K * 1.1920928955078125e-07 + 9.5367431640625e-07)
    tl.store(norm_ptr + token, norm)
    tl.store(best_ptr + token, _NOTHING)
    if token == 0:
        tl.store(tally_ptr + tl.arange(0, 2), tl.zeros([2], tl.int32))
    # The largest value becomes one from 2^13 up to 2^14, so that half precision holds all that a norm depends on.
    exponent = (tl.max(largest, 0).to(tl.int32, bitcast=True) >> 23) - 140
    exponent = tl.minimum(tl.maximum(exponent, -120), 120)
    tl.store(unit_ptr + token, ((127 + exponent) << 23).to(tl.float32, bitcast=True))
    scale = ((127 - exponent) << 23).to(tl.float32, bitcast=True)
    for first in range(0, K, BLOCK):
        there = first + column < K
        x = f32(tl.load(x_ptr + token * K + first + column, mask=there, other=0.0))
        tl.store(half_ptr + token * K + first + column, (x * scale).to(tl.float16), mask=there)


@triton.jit
def _word(row, token, rows, noise, like):
    """The 24 bits that docs/protocol.md makes noise of, int32, by tokens and rows of the head, shaped as `like`."""
    position_ptr, seed_ptr, _, position_stride, seed_stride, _ = noise
    there = tl.minimum(token, rows - 1)
    none = tl.zeros_like(like).to(tl.uint32)
    position = tl.load(position_ptr + there * position_stride).to(tl.uint32)[:, None] + none
    seed = tl.load(seed_ptr + there * seed_stride)[:, None]
    word, _, _, _ = tl.philox(seed, position, row.to(tl.uint32)[None, :] + none, none, none)
    return (word >> 8).to(tl.int32)


@triton.jit
def _temperature(token, rows, noise, like):
    """Temperatures by tokens, of the shape of `like`."""
    _, _, temperature_ptr, _, _, temperature_stride = noise
    return tl.load(temperature_ptr + tl.minimum(token, rows - 1) * temperature_stride)[:, None] + tl.zeros_like(like)


@triton.jit
def _score(logit, row, token, rows, noise, HOT: tl.constexpr):
    """What the choice compares, for float32 logits [tokens, rows of the head] rounded to bfloat16."""
    if HOT:
        temperature = _temperature(token, rows, noise, logit)
        hot = temperature > 0.0
        uniform = (_word(row, token, rows, noise, logit).to(tl.float64) + 0.5) * 5.9604644775390625e-08
        drawn = (-tl.log(-tl.log(uniform))).to(tl.float32)
        score = tl.where(hot, tl.div_rn(logit, tl.where(hot, temperature, 1.0)) + drawn, logit)
    else:
        score = logit
    return score


@triton.jit
def rough_noise(word):
    """The noise of 24 bits but for a few 2^-14, in float32: a fortieth of its instructions."""
    uniform = (word.to(tl.float32) + 0.5) * 5.9604644775390625e-08
    rest = ((16777215 - word).to(tl.float32) + 0.5) * 5.9604644775390625e-08  # 1 - uniform, where that would cancel
    series = rest * (1.0 + rest * (0.5 + rest * 0.3333333432674408))
    return -tl.log(tl.where(rest < 0.015625, series, -tl.log(uniform)))


@triton.jit
def _between(lower, upper, row, token, rows, noise, HOT: tl.constexpr):
    """Scores below and above those of logits between two, which are rounded to bfloat16 first."""
    lower, upper = f32(to_bf16(lower)), f32(to_bf16(upper))
    if HOT:
        temperature = _temperature(token, rows, noise, lower)
        hot = temperature > 0.0
        temperature = tl.where(hot, temperature, 1.0)
        drawn = rough_noise(_word(row, token, rows, noise, lower))
        lower = tl.where(hot, tl.div_rn(lower, temperature) + (drawn - ROUGH), lower)
        upper = tl.where(hot, tl.div_rn(upper, temperature) + (drawn + ROUGH), upper)
    return lower, upper


@triton.jit
def _ordered(score):
    """An int32 whose order is that of scores, as in a rank key; -0.0 and 0.0 are equal."""
    bits = tl.where(score == 0.0, 0.0, score).to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


@triton.jit
def _best(score, row, wanted):
    """The rank key of the best score of each token among the wanted rows [rows]: int64 [tokens]; none is _NOTHING."""
    ordered = _ordered(score)
    highest = tl.max(tl.where(wanted[None, :], ordered, -0x80000000), 1)
    lowest = tl.min(tl.where(wanted[None, :] & (ordered == highest[:, None]), row[None, :], _NOBODY), 1)
    return (highest.to(tl.int64) << 32) | (0x7FFFFFFF - lowest).to(tl.int64)


@triton.jit
def _upper_at(tile, row, token, P: tl.constexpr):
    """Where `bounds` keeps the upper bounds of a tile [tokens, rows]; their order is that in which they are made."""
    at = tile.to(tl.int64) * (P.block_t * P.block_n)
    if P.wgmma:
        at += row[None, :] * P.block_t + token[:, None]
    else:
        at += token[:, None] * P.block_n + row[None, :]
    return at


@triton.jit
def _row_at(row, P: tl.constexpr):
    """Where the first bytes of rows of the head are in the low and in the high plane."""
    BLOCK_N: tl.constexpr = P.block_n
    tile, lane = (row // BLOCK_N).to(tl.int64) * (P.groups * BLOCK_N * 64), row % BLOCK_N * 64
    return tile + lane, 2 * tile + lane


@triton.jit
def _plane_product(sums, half_ptr, high_ptr, at, rows, unit, P: tl.constexpr):
    """The sums, and the products of one unit of the plane's own numbers with x in half precision."""
    UNIT: tl.constexpr = P.unit
    for part in tl.static_range(UNIT):
        for half in tl.static_range(2):
            block = (unit * P.unit + part) * 2 + half
            place = at[:, None] + block * (P.stored * 64) + tl.arange(0, 64)[None, :]
            codes = tl.load(high_ptr + place, eviction_policy="evict_first")
            weight = codes.to(tl.float8e4nv, bitcast=True).to(tl.float16)
            sums = gemm._added(sums, weight, half_ptr, rows, block * 64, P)
    return sums


@triton.jit
def _with_escapes(y, row, token, x_ptr, escapes, rows, P: tl.constexpr):
    """Logits [tokens, rows of the head], and escapes that the plane has not."""
    starts_ptr, columns_ptr, values_ptr = escapes
    inside, token = row < P.n, tl.minimum(token, rows - 1)
    row = tl.minimum(row, P.n - 1)
    first = tl.load(starts_ptr + row)
    count = tl.where(inside, tl.load(starts_ptr + row + 1) - first, 0)
    for escape in range(tl.max(count, 0)):
        wanted = escape < count
        column = tl.load(columns_ptr + first + escape, mask=wanted, other=0)
        value = f32(tl.load(values_ptr + first + escape, mask=wanted, other=0.0))
        x = f32(tl.load(x_ptr + token[:, None] * P.k + column[None, :]))
        y = tl.where(wanted[None, :], y + value[None, :] * x, y)
    return y


@triton.jit
def _bound(y, tile, token, head, state, noise, found, rows, P: tl.constexpr, HOT: tl.constexpr):
    """Writes what is known of scores, from the plane's sums [tokens, rows] of a tile."""
    gain, reach, starts_ptr, columns_ptr, values_ptr = head
    x_ptr, norm_ptr, unit_ptr = state
    upper_ptr, most_ptr, least_ptr = found
    lane = tl.arange(0, P.block_n)
    row = tile * P.block_n + lane
    inside, known = row < P.n, tl.minimum(token, rows - 1)
    y = y * gain * tl.load(unit_ptr + known)[:, None]
    y = _with_escapes(y, row, token, x_ptr, (starts_ptr, columns_ptr, values_ptr), rows, P)
    apart = tl.load(norm_ptr + known)[:, None] * reach
    apart = tl.where(apart < _CERTAIN, apart, float("inf"))
    lower, upper = _between(y - apart, y + apart, row, token, rows, noise, HOT)
    kept = to_bf16(tl.where(upper == upper, upper, float("inf")))  # of NaN nothing is known
    tl.store(upper_ptr + _upper_at(tile, lane, token, P), kept)
    most = tl.max(tl.where(inside[None, :], f32(kept), float("-inf")), 1)
    tl.store(most_ptr + token * P.tiles + tile, most)
    tl.store(least_ptr + token * P.tiles + tile, _best(lower, row, inside))


@triton.jit(do_not_specialize=["rows", "position_stride", "seed_stride", "temperature_stride"])
def lm_head_bounds_kernel(
    x_ptr,
    half_ptr,
    high_ptr,
    gain_ptr,
    reach_ptr,
    starts_ptr,
    columns_ptr,
    values_ptr,
    norm_ptr,
    unit_ptr,
    position_ptr,
    seed_ptr,
    temperature_ptr,
    position_stride,
    seed_stride,
    temperature_stride,
    upper_ptr,
    most_ptr,
    least_ptr,
    work_ptr,
    rows,
    P: tl.constexpr,  # the Pass
    HOT: tl.constexpr,
):
    N: tl.constexpr = P.n
    CHUNKS: tl.constexpr = P.chunks
    STORED: tl.constexpr = P.stored
    tile = tl.program_id(0)
    lane = tl.arange(0, P.block_n)
    row = tile * P.block_n + lane
    inside = row < N
    there = tl.minimum(row, P.stored_rows - 1)
    at = (there // STORED).to(tl.int64) * (2 * P.groups * STORED * 64) + there % STORED * 64
    sums = gemm._filled(P, 0.0)
    for unit in tl.range(0, P.per_tile, num_stages=P.stages):
        sums = _plane_product(sums, half_ptr, high_ptr, at, rows, unit, P)
    gain = tl.load(gain_ptr + row, mask=inside, other=0.0)[None, :]
    reach = tl.load(reach_ptr + row, mask=inside, other=0.0)[None, :]
    head = (gain, reach, starts_ptr, columns_ptr, values_ptr)
    state = (x_ptr, norm_ptr, unit_ptr)
    noise = (position_ptr, seed_ptr, temperature_ptr, position_stride, seed_stride, temperature_stride)
    found = (upper_ptr, most_ptr, least_ptr)
    for chunk in tl.static_range(CHUNKS):
        token = chunk * P.chunk + tl.arange(0, P.chunk)
        y = tl.trans(sums[chunk]) if P.wgmma else sums[chunk]
        if P.block_t <= _AT_ONCE or not HOT:
            _bound(y, tile, token, head, state, noise, found, rows, P, HOT)
        else:  # noise takes more registers than the sums leave
            tl.store(work_ptr + _upper_at(tile, lane, token, P), y)
    if P.block_t > _AT_ONCE and HOT:
        tl.debug_barrier()
        for done in range(0, rows, _AT_ONCE):
            few = done + tl.arange(0, _AT_ONCE)
            part = tl.load(work_ptr + _upper_at(tile, lane, few, P), cache_modifier=".cg")
            _bound(part, tile, few, head, state, noise, found, rows, P, HOT)


@triton.jit(do_not_specialize=["rows", "position_stride", "seed_stride", "temperature_stride"])
def lm_head_floor_kernel(
    x_ptr,
    high_ptr,
    low_ptr,
    base_ptr,
    starts_ptr,
    columns_ptr,
    values_ptr,
    norm_ptr,
    position_ptr,
    seed_ptr,
    temperature_ptr,
    position_stride,
    seed_stride,
    temperature_stride,
    least_ptr,
    row_ptr,
    floor_ptr,
    rows,
    P: tl.constexpr,
    HOT: tl.constexpr,
    TILES: tl.constexpr,  # of the pass
    BLOCK: tl.constexpr,
    AT_ONCE: tl.constexpr,  # groups of the row
    STEPS: tl.constexpr,
    STEP: tl.constexpr,
):
    K: tl.constexpr = P.k
    BLOCK_N: tl.constexpr = P.block_n
    GROUPS: tl.constexpr = P.groups
    token = tl.program_id(0)
    tile = tl.arange(0, BLOCK)
    key = tl.max(tl.load(least_ptr + token * TILES + tile, mask=tile < TILES, other=_NOTHING), 0)
    row = key_id(key)
    row = tl.where(row < P.n, row, 0)  # of NaN, whose floor is none
    tl.store(row_ptr + token, row)
    exponent = tl.load(base_ptr + row).to(tl.int32) + gemm._EXPONENT
    escape, end = tl.load(starts_ptr + row), tl.load(starts_ptr + row + 1)
    low_at, high_at = _row_at(row, P)
    group, column = tl.arange(0, AT_ONCE)[:, None], tl.arange(0, 64)[None, :]
    sums, sizes = tl.zeros([AT_ONCE, 64], tl.float32), tl.zeros([AT_ONCE, 64], tl.float32)
    for first in range(0, GROUPS, AT_ONCE):
        there = first + group < GROUPS
        low = tl.load(low_ptr + low_at + (first + group) * (BLOCK_N * 64) + column, mask=there, other=0)
        for half in tl.static_range(2):
            at = high_at + ((first + group) * 2 + half) * (BLOCK_N * 64) + column
            high = tl.load(high_ptr + at, mask=there, other=0)
            weight = f32(gemm.w12_decoded(high, low, half, False, False, 4))
            place = (first + group) * 128 + half * 64 + column
            product = weight * f32(tl.load(x_ptr + token * K + place, mask=place < K, other=0.0))
            sums += product
            sizes += tl.abs(product)
    power = (exponent << 23).to(tl.float32, bitcast=True)
    logit, size = tl.sum(tl.sum(sums, 1), 0) * power, tl.sum(tl.sum(sizes, 1), 0) * power
    slack = 2 * (end - escape + K + STEPS) * STEP * 1.02  # of two sums; their magnitudes are a sum of k terms too
    ahead = tl.arange(0, 64)
    while escape < end:
        wanted = escape + ahead < end
        value = f32(tl.load(values_ptr + escape + ahead, mask=wanted, other=0.0))
        place = tl.load(columns_ptr + escape + ahead, mask=wanted, other=0)
        product = value * f32(tl.load(x_ptr + token * K + place, mask=wanted, other=0.0))
        logit += tl.sum(product, 0)
        size += tl.sum(tl.abs(product), 0)
        escape += 64
    logit = logit - size * slack + tl.zeros([1, 1], tl.float32)
    noise = (position_ptr, seed_ptr, temperature_ptr, position_stride, seed_stride, temperature_stride)
    one = tl.arange(0, 1)
    score = _score(f32(to_bf16(logit)), row + one, token + one, rows, noise, HOT)
    score = tl.maximum(tl.sum(tl.sum(score, 1), 0), key_score(key))
    norm = tl.load(norm_ptr + token)
    certain = (norm >= _LEAST) & (norm <= _MOST) & (tl.abs(score) <= _CERTAIN)
    tl.store(floor_ptr + token, tl.where(certain, f32(to_bf16(score)), float("-inf")))


@triton.jit(do_not_specialize=["rows"])
def lm_head_select_kernel(upper_ptr, most_ptr, floor_ptr, list_ptr, tally_ptr, rows, P: tl.constexpr):
    tile, token, lane = tl.program_id(0), tl.arange(0, P.block_t), tl.arange(0, P.block_n)
    there = token < rows
    floor = tl.load(floor_ptr + token, mask=there, other=float("inf"))
    most = tl.load(most_ptr + token * P.tiles + tile, mask=there, other=float("-inf"))
    if tl.max((there & (most >= floor)).to(tl.int32), 0) > 0:
        upper = f32(tl.load(upper_ptr + _upper_at(tile, lane, token, P), mask=there[:, None], other=0.0))
        row = tile * P.block_n + lane
        reaches = tl.max((there[:, None] & (upper >= floor[:, None])).to(tl.int32), 0)
        reaches = tl.where(row < P.n, reaches, 0)
        first = tl.atomic_add(tally_ptr, tl.sum(reaches, 0))
        tl.store(list_ptr + first + tl.cumsum(reaches, 0) - 1, row, mask=reaches > 0)


@triton.jit
def _gathered(plane_ptr, block, place, listed, P: tl.constexpr):
    """[block_n, 64] bytes of a plane: a block's part of listed rows, wherever their tiles are."""
    at = place[:, None] + block * (P.block_n * 64) + tl.arange(0, 64)[None, :]
    return tl.load(plane_ptr + at, mask=listed[:, None], other=0)


@triton.jit
def _rescored(sums, x_ptr, high_ptr, low_ptr, high_at, low_at, listed, rows, unit, P: tl.constexpr):
    """The sums, and the products of one unit of each listed row: as `w12_gemm` makes them."""
    UNIT: tl.constexpr = P.unit
    VIEW: tl.constexpr = False
    ASM: tl.constexpr = P.asm
    PACK: tl.constexpr = 2 if P.wgmma else 4
    for part in tl.static_range(UNIT):
        group = unit * P.unit + part
        nibbles = _gathered(low_ptr, group, low_at, listed, P)
        for half in tl.static_range(2):
            codes = _gathered(high_ptr, group * 2 + half, high_at, listed, P)
            weight = gemm.w12_decoded(codes, nibbles, half, VIEW, ASM, PACK)
            sums = gemm._added(sums, weight, x_ptr, rows, group * 128 + half * 64, P)
    return sums


@triton.jit
def _cut(sums, totals, cut, P: tl.constexpr):
    """Sums of rows whose piece ends here are added to their totals, and begin again."""
    CHUNKS: tl.constexpr = P.chunks
    begun, added = (), ()
    for chunk in tl.static_range(CHUNKS):
        ends = cut[:, None] if P.wgmma else cut[None, :]
        added += (tl.where(ends, totals[chunk] + sums[chunk], totals[chunk]),)  # type: ignore[assignment]
        begun += (tl.where(ends, 0.0, sums[chunk]),)  # type: ignore[assignment]
    return begun, added


@triton.jit
def _take(total, row, listed, token, x_ptr, record, noise, best_ptr, rows, P: tl.constexpr, HOT: tl.constexpr):
    """The best of the listed rows' scores, from their sums [tokens, rows], counts for each token."""
    N: tl.constexpr = P.n
    y = gemm._scaled(total, row, token, x_ptr, record, best_ptr, rows, N, P)
    score = _score(f32(to_bf16(y)), row, token, rows, noise, HOT)
    tl.atomic_max(best_ptr + token, _best(score, row, listed), mask=token < rows)


@triton.jit(do_not_specialize=["rows", "position_stride", "seed_stride", "temperature_stride"])
def lm_head_rescore_kernel(
    x_ptr,
    high_ptr,
    low_ptr,
    base_ptr,
    starts_ptr,
    columns_ptr,
    values_ptr,
    position_ptr,
    seed_ptr,
    temperature_ptr,
    position_stride,
    seed_stride,
    temperature_stride,
    list_ptr,
    tally_ptr,
    best_ptr,
    work_ptr,
    token_ptr,
    counts_ptr,
    rows,
    P: tl.constexpr,  # the Plan of the product
    HOT: tl.constexpr,
):
    CHUNKS: tl.constexpr = P.chunks
    BLOCK_N: tl.constexpr = P.block_n
    record = (base_ptr, starts_ptr, columns_ptr, values_ptr)
    noise = (position_ptr, seed_ptr, temperature_ptr, position_stride, seed_stride, temperature_stride)
    count = tl.load(tally_ptr)
    share = tl.where(count <= tl.minimum(tl.num_programs(0), _SPREAD) * _SHARE, _SHARE, P.block_n)
    first = tl.program_id(0) * share
    if first >= count:
        return
    lane = tl.arange(0, P.block_n)
    listed = (lane < share) & (first + lane < count)
    row = tl.load(list_ptr + first + lane, mask=listed, other=0)
    low_at, high_at = _row_at(row, P)
    sums, totals = gemm._filled(P, 0.0), gemm._filled(P, -0.0)  # -0.0 and a number are that number, 0.0 among them
    for unit in tl.range(0, P.per_tile, num_stages=P.stages):
        sums = _rescored(sums, x_ptr, high_ptr, low_ptr, high_at, low_at, listed, rows, unit, P)
        if P.programs != P.tiles:
            own = row // BLOCK_N * P.per_tile + unit
            cut = gemm._owner(own, P) != gemm._owner(own + 1, P)
            sums, totals = _cut(sums, totals, cut & (unit + 1 < P.per_tile), P)
    for chunk in tl.static_range(CHUNKS):
        token = chunk * P.chunk + tl.arange(0, P.chunk)
        total = sums[chunk]
        if P.programs != P.tiles:
            total += totals[chunk]
        total = tl.trans(total) if P.wgmma else total
        if P.chunk <= _AT_ONCE:
            _take(total, row, listed, token, x_ptr, record, noise, best_ptr, rows, P, HOT)
        else:
            tl.store(work_ptr + _upper_at(tl.program_id(0), lane, token, P), total)
    if P.chunk > _AT_ONCE:
        tl.debug_barrier()
        for done in range(0, rows, _AT_ONCE):
            few = done + tl.arange(0, _AT_ONCE)
            part = tl.load(work_ptr + _upper_at(tl.program_id(0), lane, few, P), cache_modifier=".cg")
            _take(part, row, listed, few, x_ptr, record, noise, best_ptr, rows, P, HOT)
    tl.debug_barrier()  # all of the program's scores count before it says so
    if tl.atomic_add(tally_ptr + 1, 1, sem="acq_rel") == tl.cdiv(count, share) - 1:
        every = tl.arange(0, P.block_t)
        key = tl.load(best_ptr + every, mask=every < rows, other=0, cache_modifier=".cg")
        tl.store(token_ptr + every, key_id(key).to(tl.int64), mask=every < rows)
        _count(counts_ptr, count, rows, P)


@triton.jit
def _count(counts_ptr, count, rows, P: tl.constexpr):
    which = tl.arange(0, 4)
    full = (count == P.n).to(tl.int32)
    more = tl.where(which == 0, 1, tl.where(which == 1, rows, tl.where(which == 2, count, full)))
    tl.store(counts_ptr + which, tl.load(counts_ptr + which) + more)


def lm_head(
    x: Tensor,  # [t, k] bfloat16, 1 <= t <= 128: normed hidden states
    weight: Weight,  # the head as `w12_gemm` reads it, not gated
    bounds: Bounds,
    position: Tensor,  # [t] int64, seed and temperature: as `sample` takes them, read where `hot`
    seed: Tensor,  # [t] int64
    temperature: Tensor,  # [t] float32
    *,
    hot: bool,
    counts: Tensor,  # int64 [len(COUNTED)], added to
    config: Config | None = None,
    asm: bool = True,  # off: decodes by integer operations; the same values
) -> Tensor:
    """int64 [t]: the id with the best score of the logits of `w12_gemm(x, weight)`, the lowest id where scores tie.

    Scores are logits, and where `hot` logit / T + g in float32, as `sample` has them; T = 0 takes the logit.
    Waits for nothing; one `counts` serves one stream at a time.
    """
    room = _bounded(x, weight, bounds, (position, seed, temperature), hot, config, asm)
    rows, plan = len(x), room.plan
    chosen = x.new_empty(plan.n, dtype=torch.int32)
    lm_head_select_kernel[(room.passed.tiles,)](
        room.upper, room.most, room.floor, chosen, room.tally, rows, P=room.passed
    )
    token = x.new_empty(rows, dtype=torch.int64)
    kept = (plan.tiles, plan.block_t, plan.block_n) if plan.chunk > _AT_ONCE.value else (1,)
    work = x.new_empty(kept, dtype=torch.float32)
    lm_head_rescore_kernel[(plan.tiles,)](
        x,
        weight.high,
        weight.low,
        weight.base,
        weight.starts,
        weight.columns,
        weight.values,
        *room.noise,
        chosen,
        room.tally,
        room.best,
        work,
        token,
        counts,
        rows,
        P=plan,
        HOT=hot,
        num_warps=weight.config.tiles[plan.block_t].num_warps,
    )
    return token


@dataclass(frozen=True)
class _Room:
    """What a call has on the device between its kernels.

    upper: bfloat16 [tiles, block_t x block_n].  most: float32 and least: int64 [block_t, tiles], by tile the highest
    upper bound and the key of the highest lower one.  row: int32 and floor: float32 [t].  best: int64 [t].
    tally: int32 [2]: rows that were selected; programs that are done with theirs.
    """

    plan: Plan  # of the product
    passed: Pass
    noise: tuple[Tensor | int, ...]
    upper: Tensor
    most: Tensor
    least: Tensor
    row: Tensor
    floor: Tensor
    best: Tensor
    tally: Tensor


def _bounded(
    x: Tensor,
    weight: Weight,
    bounds: Bounds,
    noise: tuple[Tensor, Tensor, Tensor],
    hot: bool,
    config: Config | None,
    asm: bool,
) -> _Room:
    """Runs all but the choice."""
    check_tensors(x)
    rows = len(x)
    if x.dtype != torch.bfloat16 or x.shape != (rows, weight.k) or not 1 <= rows <= MOST_ROWS:
        raise ValueError(
            f"lm_head takes 1 to {MOST_ROWS} bfloat16 rows of {weight.k} values, got {x.dtype} {list(x.shape)}"
        )
    if weight.paired:
        raise ValueError("a head is not gated")
    plan = gemm.plan_for(weight, rows, False, False, False, asm)
    plan = replace(plan, descriptors=False, stages=_stages(plan))
    config = config or config_for(weight.n, weight.k, plan.block_t, hot)
    passed = _pass_for(plan, config)
    bucket, tiles = plan.block_t, passed.tiles
    strides = [each.stride(0) for each in noise]

    def room(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return x.new_empty(*shape, dtype=dtype)

    made = _Room(
        plan,
        passed,
        (*noise, *strides),
        upper=room(tiles, bucket * passed.block_n, dtype=torch.bfloat16),
        most=room(bucket, tiles),
        least=room(bucket, tiles, dtype=torch.int64),
        row=room(rows, dtype=torch.int32),
        floor=room(rows),
        best=room(rows, dtype=torch.int64),
        tally=room(2, dtype=torch.int32),
    )
    half, norm, unit = room(rows, weight.k, dtype=torch.float16), room(rows), room(rows)
    block = min(4096, next_power_of_2(weight.k))
    work = room(tiles, bucket, passed.block_n) if hot and bucket > _AT_ONCE.value else norm
    lm_head_norms_kernel[(rows,)](x, half, norm, unit, made.best, made.tally, K=weight.k, BLOCK=block, num_warps=4)
    lm_head_bounds_kernel[(tiles,)](
        x,
        half,
        weight.high,
        bounds.gain,
        bounds.reach,
        bounds.starts,
        bounds.columns,
        bounds.values,
        norm,
        unit,
        *made.noise,
        made.upper,
        made.most,
        made.least,
        work,
        rows,
        P=passed,
        HOT=hot,
        num_warps=config.num_warps,
    )
    lm_head_floor_kernel[(rows,)](
        x,
        weight.high,
        weight.low,
        weight.base,
        weight.starts,
        weight.columns,
        weight.values,
        norm,
        *made.noise,
        made.least,
        made.row,
        made.floor,
        rows,
        P=plan,
        HOT=hot,
        TILES=passed.tiles,
        BLOCK=next_power_of_2(passed.tiles),
        AT_ONCE=min(32, next_power_of_2(plan.groups)),
        STEPS=STEPS,
        STEP=STEP,
        num_warps=8,
    )
    return made


def _stages(plan: Plan) -> int:
    """Few programs rescore, and each waits for its rows: many units are on their way, where two programs still fit."""
    unit_bytes = plan.unit * 128 * (plan.block_n * 3 // 2 + 2 * plan.block_t)
    return min(8, max(3, 112_000 // unit_bytes), max(1, 220_000 // unit_bytes))


def _pass_for(plan: Plan, config: Config) -> Pass:
    if plan.groups % config.unit:
        raise ValueError(f"units of {config.unit} groups do not divide {plan.groups} groups")
    if config.block_n < {"mma": 32, "wgmma": 64}[config.path]:
        raise ValueError(f"{config.path} takes more than {config.block_n} rows")
    wgmma = config.path == "wgmma"
    return Pass(
        n=plan.n,
        k=plan.k,
        groups=plan.groups,
        tiles=cdiv(plan.n, config.block_n),
        block_n=config.block_n,
        unit=config.unit,
        wgmma=wgmma,
        block_t=plan.block_t,
        chunk=plan.block_t if wgmma else min(plan.block_t, config.chunk),
        stages=config.num_stages,
        stored=plan.block_n,
        stored_rows=plan.tiles * plan.block_n,
    )


def logit_bounds(
    x: Tensor,
    weight: Weight,
    bounds: Bounds,
    position: Tensor,
    seed: Tensor,
    temperature: Tensor,
    *,
    hot: bool,
    config: Config | None = None,
    asm: bool = True,
) -> Limits:
    """What `lm_head` knows before it rescores: for tests and measurements."""
    made = _bounded(x, weight, bounds, (position, seed, temperature), hot, config, asm)
    passed = made.passed
    shape = (passed.block_n, passed.block_t) if passed.wgmma else (passed.block_t, passed.block_n)
    upper = made.upper.view(passed.tiles, *shape)
    upper = upper.permute(2, 0, 1) if passed.wgmma else upper.permute(1, 0, 2)
    return Limits(upper.flatten(1)[: len(x), : passed.n], made.row.long(), made.floor)


def lm_head_reference(x: Tensor, weight: Weight, scored: Callable[[Tensor], Tensor] = wide) -> Tensor:
    """The twin of `lm_head` in plain torch, and what it promises: the best score of all logits.

    scored: the scores of logits [t, n]; logits themselves where it is not given.
    """
    scores = scored(gemm.w12_gemm_reference(x, weight))
    best = scores == scores.amax(1, keepdim=True)
    ids = torch.arange(weight.n, device=x.device)
    return torch.where(best, ids, weight.n).amin(1)

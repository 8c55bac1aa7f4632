"""Products of 1 to 128 rows with a W12 matrix: 12 bits a weight are read, or 8, and decoded in registers.

A code becomes a bfloat16 number by placing its eleven bits (e4, mantissa) at the bottom of the number's magnitude and
multiplying by 2^112, which is exact and leaves a zero a zero; the row's power of two is applied to the float32 sum.
Escapes are added to the scaled sum in float32, column by column, once.

The matrix is a sequence of units: `unit` groups of 128 columns by `block_n` rows, tile by tile, column by column
within a tile.  Program p of P takes the units from p U / P to (p + 1) U / P, so a tile's columns are cut at places that
the `Schedule` fixes and the number of rows of x does not.  Each piece is summed in column order, pieces are added in
order, and so a row of x gets the same bits whatever else is in the batch.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from kernels.portable import (
    INTERPRET,
    cdiv,
    check_tensors,
    dot,
    f32,
    narrow,
    next_power_of_2,
    tl,
    to_bf16,
    triton,
)
from kernels.w12 import GROUP, MAX_BASE, MIN_BASE, Packed, padded
from kernels.w12_pieces import PLACED, Cut, most_pieces, reference, stored_rows, tiles_of

__all__ = [
    "BUCKETS",
    "CONFIGS",
    "MOST_ROWS",
    "Config",
    "Schedule",
    "Tile",
    "Weight",
    "arrange",
    "default_config",
    "restore",
    "w12_gemm",
    "w12_gemm_reference",
]

BUCKETS = (16, 32, 64, 128)  # rows that a compiled kernel holds
MOST_ROWS = BUCKETS[-1]
_HALF = GROUP // 2  # columns whose codes share a byte of the low plane with the next as many
_SLOTS = 396  # programs that are resident at once: three on each of an H200's processors


@dataclass(frozen=True)
class Schedule:
    """How a weight is stored and cut; the numeric contract, so a function of (n, k) alone.

    path: "mma" (rows of x by weights through mma.sync) or "wgmma" (weights by rows of x), whose sums differ in order.
    """

    path: str
    block_n: int  # weight rows of a tile; a power of two from 32 on, from 64 on for wgmma
    unit: int  # groups of 128 columns that are multiplied at a time; divides the weight's groups
    programs: int  # at most as many as there are units


@dataclass(frozen=True)
class Tile:
    """How a program works through its units; bits do not depend on it."""

    num_warps: int = 4
    num_stages: int = 4  # units that are on their way or in use
    chunk: int = 16  # rows of x in one mma; wgmma takes all at once
    descriptors: bool = False  # units come through the tensor memory accelerator, else through cp.async
    fused: bool = True  # the last program of a tile adds the pieces, else a second kernel does


@dataclass(frozen=True)
class Config:
    """A schedule, and a tile for each bucket of rows."""

    schedule: Schedule
    tiles: Mapping[int, Tile]


# (n, k, paired) -> what was best on an H200; what is missing takes default_config.
CONFIGS: Mapping[tuple[int, int, bool], Config] = MappingProxyType({})


@dataclass(frozen=True)
class Weight:
    """A W12 matrix [n, k] in the order in which a schedule reads it; all tensors contiguous and on one device.

    high: uint8 [tiles, groups, 2, block_n, 64]; low: uint8 [tiles, groups, block_n, 64]: the record's planes, byte for
    byte.  The second axis of `high` are the columns whose nibbles are low and high ones in `low`.
    paired: the first half of the rows are gates of the second half, and a tile holds as many of these as of those.
    base, starts, columns, values: as in `Packed`.
    turns: int32 [tiles], zeros between calls: one weight serves one stream at a time.
    """

    n: int
    k: int
    config: Config
    paired: bool
    high: Tensor
    low: Tensor
    base: Tensor
    starts: Tensor
    columns: Tensor
    values: Tensor
    turns: Tensor

    @property
    def outputs(self) -> int:
        """Values that a row of x gives."""
        return self.n // 2 if self.paired else self.n

    def resident_bytes(self) -> int:
        """Bytes of all tensors as they stand in memory."""
        tensors = (self.high, self.low, self.base, self.starts, self.columns, self.values, self.turns)
        return sum(each.numel() * each.element_size() for each in tensors)


def default_config(n: int, k: int, paired: bool = False) -> Config:
    """For a weight of [n, k] that nobody tuned: as many programs as stay resident, 512 columns or more each."""
    block_n = 64
    tiles, groups = tiles_of(n, block_n, paired), padded(k) // GROUP
    slices = max(1, min(_SLOTS // tiles, groups // 4))
    tile = Tile(num_warps=4, num_stages=4, fused=False)
    return Config(
        Schedule("wgmma", block_n, 1, tiles * slices),
        {16: replace(tile, num_stages=5, fused=True), 32: tile, 64: tile, 128: replace(tile, num_stages=3)},
    )


def config_for(n: int, k: int, paired: bool = False) -> Config:
    """What `arrange` takes for a weight of [n, k] when it is given no config."""
    return CONFIGS.get((n, k, paired)) or default_config(n, k, paired)


def arrange(packed: Packed, config: Config | None = None, paired: bool = False) -> Weight:
    """A record's bytes in the order in which `w12_gemm` reads them; rows are filled up to tiles with zeros.

    ValueError where the schedule does not fit the weight, or a base is outside of the range of exact scaling.
    """
    n, k = packed.shape
    if paired and n % 2:
        raise ValueError(f"gates come in pairs, got {n} rows")
    config = config or config_for(n, k, paired)
    schedule, groups = config.schedule, padded(k) // GROUP
    tiles = tiles_of(n, schedule.block_n, paired)
    _check_schedule(schedule, tiles, groups)
    if not bool(((packed.base >= MIN_BASE) & (packed.base <= MAX_BASE)).all()):
        raise ValueError(f"a base is outside of {MIN_BASE}..{MAX_BASE}, where scaling is exact")
    order = stored_rows(n, schedule.block_n, paired, packed.high.device)
    planes = []
    for plane in (packed.high, packed.low):
        rows = plane.new_zeros(len(order), plane.shape[1])
        rows[order >= 0] = plane[order[order >= 0]]
        tiled = rows.view(tiles, schedule.block_n, groups, -1, _HALF)
        planes.append(tiled.permute(0, 2, 3, 1, 4).contiguous())
    return Weight(
        n,
        k,
        config,
        paired,
        planes[0],
        planes[1].squeeze(2),
        packed.base,
        packed.starts,
        packed.columns,
        packed.values,
        torch.zeros(tiles, dtype=torch.int32, device=packed.high.device),
    )


def restore(weight: Weight) -> Packed:
    """The record that `arrange` was given, bit for bit."""
    order = stored_rows(weight.n, weight.high.shape[3], weight.paired, weight.high.device)
    planes = []
    for plane in (weight.high, weight.low.unsqueeze(2)):
        stored = plane.permute(0, 3, 1, 2, 4).reshape(len(order), -1)
        rows = stored.new_empty(weight.n, stored.shape[1])
        rows[order[order >= 0]] = stored[order >= 0]
        planes.append(rows)
    return Packed((weight.n, weight.k), planes[0], planes[1], weight.base, weight.starts, weight.columns, weight.values)


def _check_schedule(schedule: Schedule, tiles: int, groups: int) -> None:
    least = {"mma": 32, "wgmma": 64}.get(schedule.path)
    if least is None:
        raise ValueError(f"a path is mma or wgmma, not '{schedule.path}'")
    if schedule.block_n < least or schedule.block_n != next_power_of_2(schedule.block_n):
        raise ValueError(f"{schedule.path} takes a power of two from {least} on as block_n, not {schedule.block_n}")
    if groups % schedule.unit:
        raise ValueError(f"units of {schedule.unit} groups do not divide {groups} groups")
    units = tiles * groups // schedule.unit
    if not 1 <= schedule.programs <= units or (units + 1) * (schedule.programs + 1) >= 1 << 31:
        raise ValueError(
            f"{units} units take 1 to {units} programs, and fewer than 2^31 / {units}, not {schedule.programs}"
        )


# Decoding.  A word holds two half-words [high byte, low byte], in which a code lies four places too high.

_FULL_WORD = """
prmt.b32 z, {high}, {low}, {bytes};
shr.u32 s, z, 4;
and.b32 s, s, {shifted};
lop3.b32 z, z, {kept}, s, 0xEA;
mul.rn.bf16x2 {out}, z, c;
"""
# The middle of what the high byte leaves open is a sixteenth of its power of two above it, which is zero for a zero.
_VIEW_WORD = """
prmt.b32 z, {high}, 0, {bytes};
shr.u32 s, z, 4;
and.b32 s, s, {shifted};
lop3.b32 z, z, {kept}, s, 0xEA;
and.b32 s, z, 0xff80ff80;
mul.rn.bf16x2 z, z, c;
fma.rn.bf16x2 {out}, s, d, z;
"""
_LOW_NIBBLE = {"shifted": "0x07f007f0", "kept": "0x800f800f"}
_HIGH_NIBBLE = {"shifted": "0x07ff07ff", "kept": "0x80008000"}
_NO_NIBBLE = {"shifted": "0x07f007f0", "kept": "0x80008000"}


def _assembly(word: str, pack: int, **masks: str) -> Any:
    """Assembly that turns `pack` bytes of each plane into as many bfloat16 numbers."""
    planes = 1 if word is _VIEW_WORD else 2
    # The bytes of a word are low, high, low, high; a view takes a zero byte for each low one.
    picks = ("0x1504", "0x3726") if planes == 2 else ("0x1707", "0x3727")
    inputs = [f"${pack // 2 + plane}" for plane in range(planes)]
    lines = [".reg .b32 z, s, c, d; mov.b32 c, 0x77807780; mov.b32 d, 0x75807580;"]  # 2^112 and 2^108, twice
    if pack == 2:  # two bytes come in a register of 16 bits
        lines += [f".reg .b32 p{plane}; cvt.u32.u16 p{plane}, {name};" for plane, name in enumerate(inputs)]
        inputs = [f"p{plane}" for plane in range(planes)]
    for out in range(pack // 2):
        lines.append(word.format(high=inputs[0], low=inputs[-1], bytes=picks[out], out=f"${out}", **masks).strip())
    return tl.constexpr("\n".join(["{", *lines, "}"]))


_LOW_4, _LOW_2 = (_assembly(_FULL_WORD, pack, **_LOW_NIBBLE) for pack in (4, 2))
_HIGH_4, _HIGH_2 = (_assembly(_FULL_WORD, pack, **_HIGH_NIBBLE) for pack in (4, 2))
_VIEW_4, _VIEW_2 = (_assembly(_VIEW_WORD, pack, **_NO_NIBBLE) for pack in (4, 2))
_FULL_INPUTS_4, _FULL_INPUTS_2 = tl.constexpr("=r,=r,r,r"), tl.constexpr("=r,h,h")
_VIEW_INPUTS_4, _VIEW_INPUTS_2 = tl.constexpr("=r,=r,r"), tl.constexpr("=r,h")
_SCALE, _MIDDLE = tl.constexpr(2.0**PLACED), tl.constexpr(2.0 ** (PLACED - 4))
_FINISHED = tl.constexpr(16)  # rows of x that are finished at once: more would not fit into registers
_EXPONENT = tl.constexpr(127 - PLACED)  # of a row's power of two: its biased exponent less the row's base


@triton.jit
def w12_decoded(high, low, HALF: tl.constexpr, VIEW: tl.constexpr, ASM: tl.constexpr, PACK: tl.constexpr):
    """bfloat16 numbers of codes, weight / 2^(base - 112): uint8 high bytes, and low bytes of which HALF names a nibble.

    PACK: values that lie side by side in a thread, 2 or 4; only assembly asks.  A view takes no low bytes.
    """
    if ASM and VIEW:
        weight = tl.inline_asm_elementwise(
            _VIEW_4 if PACK == 4 else _VIEW_2,
            _VIEW_INPUTS_4 if PACK == 4 else _VIEW_INPUTS_2,
            [high],
            dtype=tl.bfloat16,
            is_pure=True,
            pack=PACK,
        )
    elif ASM:
        low_nibble: tl.constexpr = _LOW_4 if PACK == 4 else _LOW_2
        high_nibble: tl.constexpr = _HIGH_4 if PACK == 4 else _HIGH_2
        weight = tl.inline_asm_elementwise(
            high_nibble if HALF else low_nibble,
            _FULL_INPUTS_4 if PACK == 4 else _FULL_INPUTS_2,
            [high, low],
            dtype=tl.bfloat16,
            is_pure=True,
            pack=PACK,
        )
    else:
        code = high.to(tl.uint16)
        code = ((code & 0x80) << 8) | ((code & 0x7F) << 4)
        if VIEW:
            power = f32((code & 0xFF80).to(tl.bfloat16, bitcast=True))
            weight = to_bf16(f32(code.to(tl.bfloat16, bitcast=True)) * _SCALE + power * _MIDDLE)
        else:
            code |= (low >> 4 if HALF else low & 15).to(tl.uint16)
            weight = to_bf16(f32(code.to(tl.bfloat16, bitcast=True)) * _SCALE)
    return weight


@triton.jit
def _plane(plane, row, P: tl.constexpr):
    """[block_n, 64] bytes of a plane from a stored row on, rows of all groups counted."""
    if P.descriptors:
        tile = plane.load([row, 0])
    else:
        inner = tl.arange(0, P.block_n)[:, None] * 64 + tl.arange(0, 64)[None, :]
        tile = tl.load(plane + row.to(tl.int64) * 64 + inner, eviction_policy="evict_first")
    return tile


@triton.jit
def _input(x, rows, row, column, P: tl.constexpr):
    """[chunk, 64] values of x; those behind its last column are zeros."""
    if P.descriptors:
        tile = x.load([row, column])
    else:
        at = tl.minimum(row + tl.arange(0, P.chunk), rows - 1)[:, None] * P.k
        column = column + tl.arange(0, 64)[None, :]
        if P.k % 128 == 0:
            tile = tl.load(x + at + column)
        else:
            tile = tl.load(x + at + column, mask=column < P.k, other=0.0)
    return tile


@triton.jit
def _filled(P: tl.constexpr, VALUE: tl.constexpr):
    """A sum for each chunk of x: [chunk, block_n], and for wgmma [block_n, chunk]."""
    CHUNKS: tl.constexpr = P.chunks
    M: tl.constexpr = P.block_n if P.wgmma else P.chunk
    N: tl.constexpr = P.chunk if P.wgmma else P.block_n
    sums = ()
    for _ in tl.static_range(CHUNKS):
        sums += (tl.full([M, N], VALUE, tl.float32),)  # type: ignore[assignment]
    return sums


@triton.jit
def _added(sums, weight, x, rows, column, P: tl.constexpr):
    """The sums, and the products of 64 columns of a weight with each chunk of x, whose first column there is given."""
    CHUNKS: tl.constexpr = P.chunks
    added = ()
    for chunk in tl.static_range(CHUNKS):
        values = _input(x, rows, chunk * P.chunk, column, P)
        if P.wgmma:
            added += (dot(weight, tl.trans(values), sums[chunk]),)  # type: ignore[assignment]
        else:
            added += (dot(values, tl.trans(weight), sums[chunk]),)  # type: ignore[assignment]
    return added


@triton.jit
def _multiplied(sums, x, high, low, rows, unit, P: tl.constexpr):
    """The sums, and the products of one unit."""
    UNIT: tl.constexpr = P.unit
    VIEW: tl.constexpr = P.view
    ASM: tl.constexpr = P.asm
    PACK: tl.constexpr = 2 if P.wgmma else 4  # what a fragment has side by side
    for part in tl.static_range(UNIT):
        group = unit * P.unit + part
        nibbles = None
        if not P.view:
            nibbles = _plane(low, group * P.block_n, P)
        for half in tl.static_range(2):
            codes = _plane(high, (group * 2 + half) * P.block_n, P)
            weight = w12_decoded(codes, nibbles, half, VIEW, ASM, PACK)
            sums = _added(sums, weight, x, rows, group % P.groups * 128 + half * 64, P)
    return sums


@triton.jit
def _owner(unit, P: tl.constexpr):
    """The program that takes a unit."""
    return ((unit + 1) * P.programs - 1) // P.units


@triton.jit
def _pieces(tile, P: tl.constexpr):
    """How many programs share a tile."""
    if P.programs % P.tiles == 0:
        pieces = P.slices
    else:
        pieces = _owner((tile + 1) * P.per_tile - 1, P) - _owner(tile * P.per_tile, P) + 1
    return pieces


@triton.jit
def _piece_at(tile, piece, row, token, P: tl.constexpr):
    """Where the workspace has a piece's sums [tokens, stored rows]; their order is that in which they are made."""
    at = (tile * P.slices + piece).to(tl.int64) * (P.block_t * P.block_n)
    if P.wgmma:
        at += row[None, :] * P.block_t + token[:, None]
    else:
        at += token[:, None] * P.block_n + row[None, :]
    return at


@triton.jit
def _total(work_ptr, tile, row, token, P: tl.constexpr):
    """The pieces of a tile, added in their order."""
    SLICES: tl.constexpr = P.slices
    at = work_ptr + _piece_at(tile, 0, row, token, P)
    pieces = _pieces(tile, P)
    total = tl.load(at, cache_modifier=".cg")
    for piece in tl.static_range(1, SLICES):
        at += P.block_t * P.block_n
        there = (row >= 0)[None, :] & (token >= 0)[:, None] & (piece < pieces)
        total += tl.load(at, mask=there, other=0.0, cache_modifier=".cg")
    return total


@triton.jit
def _scaled(total, row, token, x_ptr, record, bias_ptr, rows, N: tl.constexpr, P: tl.constexpr):
    """Sums [tokens, weight rows below N] in the row's power of two, with escapes and bias."""
    base_ptr, starts_ptr, columns_ptr, values_ptr = record
    inside, row, token = row < N, tl.minimum(row, N - 1), tl.minimum(token, rows - 1)
    exponent = tl.load(base_ptr + row).to(tl.int32) + _EXPONENT
    y = total * (exponent << 23).to(tl.float32, bitcast=True)[None, :]
    first = tl.load(starts_ptr + row)
    count = tl.where(inside, tl.load(starts_ptr + row + 1) - first, 0)
    for escape in range(0, tl.max(count, 0), 4):
        column, value, wanted = (), (), ()
        for ahead in tl.static_range(4):  # four at a time, since each waits twice for memory
            wanted += (escape + ahead < count,)  # type: ignore[assignment]
            at = first + escape + ahead
            column += (tl.load(columns_ptr + at, mask=wanted[ahead], other=0),)  # type: ignore[assignment]
            value += (f32(tl.load(values_ptr + at, mask=wanted[ahead], other=0.0)),)  # type: ignore[assignment]
        for ahead in tl.static_range(4):
            x = f32(tl.load(x_ptr + token[:, None] * P.k + column[ahead][None, :]))
            y = tl.where(wanted[ahead][None, :], y + value[ahead][None, :] * x, y)
    if P.bias:
        y += f32(tl.load(bias_ptr + row))[None, :]
    return y


@triton.jit
def _stored(y, column, token, residual_ptr, y_ptr, rows, P: tl.constexpr):
    """Writes outputs [tokens, columns], with the residual, rounded once."""
    at = token[:, None] * P.outputs + column[None, :]
    inside = (token < rows)[:, None] & (column < P.outputs)[None, :]
    if P.residual:
        y += f32(tl.load(residual_ptr + at, mask=inside, other=0.0))
    tl.store(y_ptr + at, narrow(y, y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _finish(tile, token, x_ptr, record, bias_ptr, residual_ptr, work_ptr, y_ptr, rows, P: tl.constexpr):
    """Adds a tile's pieces and writes its outputs for some rows of x."""
    N: tl.constexpr = P.n
    OUTPUTS: tl.constexpr = P.outputs
    row = tl.arange(0, P.taken)
    column = tile * P.taken + row
    y = _total(work_ptr, tile, row, token, P)
    y = _scaled(y, column, token, x_ptr, record, bias_ptr, rows, OUTPUTS, P)
    if P.paired:
        up = _total(work_ptr, tile, row + P.taken, token, P)
        up = _scaled(up, column + P.outputs, token, x_ptr, record, bias_ptr, rows, N, P)
        y = y / (1.0 + tl.exp(-y)) * up
    _stored(y, column, token, residual_ptr, y_ptr, rows, P)


@triton.jit
def _kept(sums, tile, work_ptr, P: tl.constexpr):
    """Writes what a program has summed of a tile into the workspace."""
    CHUNKS: tl.constexpr = P.chunks
    row = tl.arange(0, P.block_n)
    piece = tl.program_id(0) - _owner(tile * P.per_tile, P)
    for chunk in tl.static_range(CHUNKS):
        token = chunk * P.chunk + tl.arange(0, P.chunk)
        y = tl.trans(sums[chunk]) if P.wgmma else sums[chunk]
        tl.store(work_ptr + _piece_at(tile, piece, row, token, P), y)


@triton.jit
def _taken_turn(tile, x_ptr, record, bias_ptr, residual_ptr, work_ptr, turns_ptr, y_ptr, rows, P: tl.constexpr):
    """Counts a program as done with a tile; the last one, whichever it is, finishes it."""
    if tl.atomic_add(turns_ptr + tile, 1, sem="acq_rel") == _pieces(tile, P) - 1:
        tl.store(turns_ptr + tile, 0)
        for done in range(0, rows, _FINISHED):
            token = done + tl.arange(0, _FINISHED)
            _finish(tile, token, x_ptr, record, bias_ptr, residual_ptr, work_ptr, y_ptr, rows, P)


@triton.jit(do_not_specialize=["rows"])
def w12_gemm_kernel(
    x_ptr,
    x,  # x_ptr, or a descriptor of it; high and low: pointers, or descriptors
    high,
    low,
    base_ptr,
    starts_ptr,
    columns_ptr,
    values_ptr,
    bias_ptr,
    residual_ptr,
    work_ptr,
    turns_ptr,
    y_ptr,
    rows,
    P: tl.constexpr,  # the Plan
):
    N: tl.constexpr = P.n
    CHUNKS: tl.constexpr = P.chunks
    record = (base_ptr, starts_ptr, columns_ptr, values_ptr)
    first = tl.program_id(0) * P.units // P.programs
    end = (tl.program_id(0) + 1) * P.units // P.programs
    tile, last = first // P.per_tile, (end - 1) // P.per_tile
    sums = _filled(P, 0.0)
    for unit in tl.range(first, end, num_stages=P.stages):
        sums = _multiplied(sums, x, high, low, rows, unit, P)
        # No loop may stand in here, else Triton does not let the next units come meanwhile.
        if P.programs % P.tiles != 0:  # noqa: SIM102 (known when compiled; the other is not)
            if ((unit + 1) % P.per_tile == 0) | (unit + 1 == end):
                _kept(sums, unit // P.per_tile, work_ptr, P)
                sums = _filled(P, 0.0)
    if P.split:
        if P.programs % P.tiles == 0:
            _kept(sums, tile, work_ptr, P)
        if P.fused:
            tl.debug_barrier()  # all of the program's sums are written before it says so
            while tile <= last:
                _taken_turn(tile, x_ptr, record, bias_ptr, residual_ptr, work_ptr, turns_ptr, y_ptr, rows, P)
                tile += 1
    else:
        for chunk in tl.static_range(CHUNKS):
            token = chunk * P.chunk + tl.arange(0, P.chunk)
            y = tl.trans(sums[chunk]) if P.wgmma else sums[chunk]
            column = tile * P.block_n + tl.arange(0, P.block_n)
            y = _scaled(y, column, token, x_ptr, record, bias_ptr, rows, N, P)
            _stored(y, column, token, residual_ptr, y_ptr, rows, P)


@triton.jit(do_not_specialize=["rows"])
def w12_gemm_finish_kernel(
    x_ptr,
    base_ptr,
    starts_ptr,
    columns_ptr,
    values_ptr,
    bias_ptr,
    residual_ptr,
    work_ptr,
    y_ptr,
    rows,
    P: tl.constexpr,
):
    record = (base_ptr, starts_ptr, columns_ptr, values_ptr)
    token = tl.program_id(1) * _FINISHED + tl.arange(0, _FINISHED)
    _finish(tl.program_id(0), token, x_ptr, record, bias_ptr, residual_ptr, work_ptr, y_ptr, rows, P)


@dataclass(frozen=True)
class Plan:
    """All that a kernel is compiled for."""

    n: int
    k: int
    groups: int
    tiles: int
    block_n: int
    unit: int
    programs: int
    slices: int  # programs that share a tile, at most
    wgmma: bool
    block_t: int
    chunk: int
    stages: int
    descriptors: bool
    fused: bool
    paired: bool
    view: bool
    asm: bool
    bias: bool
    residual: bool

    @property
    def chunks(self) -> int:
        """Products that share a decoded weight."""
        return self.block_t // self.chunk

    @property
    def per_tile(self) -> int:
        """Units of a tile."""
        return self.groups // self.unit

    @property
    def units(self) -> int:
        return self.tiles * self.per_tile

    @property
    def outputs(self) -> int:
        """Values that a row of x gives."""
        return self.n // 2 if self.paired else self.n

    @property
    def taken(self) -> int:
        """Outputs of a tile."""
        return self.block_n // 2 if self.paired else self.block_n

    @property
    def split(self) -> bool:
        """Whether sums go through the workspace: but for whole tiles that registers hold."""
        return self.programs != self.tiles or self.paired or self.chunk > _FINISHED.value


def w12_gemm(
    x: Tensor,  # [t, k] bfloat16, 1 <= t <= 128
    weight: Weight,
    *,
    view: bool = False,  # reads the high plane alone: each weight is the middle of what its byte leaves open
    bias: Tensor | None = None,  # [n]
    residual: Tensor | None = None,  # [t, outputs]
    dtype: torch.dtype = torch.bfloat16,
    asm: bool = True,  # off: decodes by integer operations; the same values
) -> Tensor:
    """[t, n] of dtype (paired: [t, n / 2]): x @ weight.T + bias, gated, plus residual, in float32, rounded once.

    Exact products, float32 sums, while sums of |x| stay below 2^126 and no |x| but zero is below 2^-112.
    A row's bits do not depend on other rows, nor on how many there are.
    """
    check_tensors(x, bias, residual)
    rows = len(x)
    if x.dtype != torch.bfloat16 or x.shape != (rows, weight.k) or not 1 <= rows <= MOST_ROWS:
        raise ValueError(
            f"w12_gemm takes 1 to {MOST_ROWS} bfloat16 rows of {weight.k} values, got {x.dtype} {list(x.shape)}"
        )
    plan = plan_for(weight, rows, view, bias is not None, residual is not None, asm)
    tile = weight.config.tiles[plan.block_t]
    y = x.new_empty(rows, plan.outputs, dtype=dtype)
    shape = plan.tiles * plan.slices, plan.block_t, plan.block_n
    work = x.new_empty(shape if plan.split else 1, dtype=torch.float32)
    record = (weight.base, weight.starts, weight.columns, weight.values)
    added = (x if bias is None else bias, x if residual is None else residual, work)
    w12_gemm_kernel[(plan.programs,)](
        x, *_operands(x, weight, plan), *record, *added, weight.turns, y, rows, P=plan, num_warps=tile.num_warps
    )
    if plan.split and not plan.fused:
        grid = plan.tiles, cdiv(rows, _FINISHED.value)
        w12_gemm_finish_kernel[grid](x, *record, *added, y, rows, P=plan, num_warps=4)
    return y


def plan_for(weight: Weight, rows: int, view: bool, bias: bool, residual: bool, asm: bool = True) -> Plan:
    """What `w12_gemm` compiles for so many rows of x."""
    schedule = weight.config.schedule
    block_t = next(bucket for bucket in BUCKETS if rows <= bucket)
    tile = weight.config.tiles[block_t]
    tiles, groups = weight.high.shape[:2]
    wgmma = schedule.path == "wgmma"
    return Plan(
        n=weight.n,
        k=weight.k,
        groups=groups,
        tiles=tiles,
        block_n=schedule.block_n,
        unit=schedule.unit,
        programs=schedule.programs,
        slices=most_pieces(tiles, groups // schedule.unit, schedule.programs),
        wgmma=wgmma,
        block_t=block_t,
        chunk=block_t if wgmma else min(block_t, tile.chunk),
        stages=tile.num_stages,
        descriptors=tile.descriptors and weight.k % 8 == 0,  # a descriptor's rows start at multiples of 16 bytes
        fused=tile.fused,
        paired=weight.paired,
        view=view,
        asm=asm and not INTERPRET.value,
        bias=bias,
        residual=residual,
    )


def _operands(x: Tensor, weight: Weight, plan: Plan) -> tuple[Any, Any, Any]:
    """x and the planes as the kernel takes them."""
    if not plan.descriptors:
        return x, weight.high, weight.low
    from triton.tools.tensor_descriptor import TensorDescriptor

    planes = (plane.view(-1, _HALF) for plane in (weight.high, weight.low))
    return (
        TensorDescriptor.from_tensor(x, [plan.chunk, _HALF]),
        *(TensorDescriptor.from_tensor(plane, [plan.block_n, _HALF]) for plane in planes),
    )


def w12_gemm_reference(
    x: Tensor,
    weight: Weight,
    *,
    view: bool = False,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """The twin of `w12_gemm` in plain torch: the same pieces in the same order; takes any number of rows.

    float64 where x is; dtype is x's where it is not given.
    """
    schedule = weight.config.schedule
    cut = Cut(schedule.block_n, weight.paired, schedule.unit, schedule.programs)
    return reference(x, restore(weight), cut, view=view, bias=bias, residual=residual, dtype=dtype)

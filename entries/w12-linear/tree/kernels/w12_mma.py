"""Products of 1 to 128 rows with a W12 matrix on an NVIDIA GPU, through `wgmma`: the kernels are in `w12_cuda`.

The matrix is a sequence of units, `32 warps` rows by 128 columns, tile by tile and column by column within a tile.
Program p of P takes the units from p U / P to (p + 1) U / P.  Each piece of a tile is summed in column order, pieces
are added in order, then come the row's power of two, escapes in column order, bias, gate and residual, in float32.
Nothing of that depends on the number of rows of x, so a row gets the same bits whatever else is in the batch.

A code becomes a bfloat16 number as in `w12_gemm`: its eleven bits at the bottom of the magnitude, times 2^112.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from kernels.portable import cdiv, check_tensors
from kernels.w12 import GROUP, MAX_BASE, MIN_BASE, Packed, decode, padded, put_escapes
from kernels.w12_cuda import Arguments, Machine, address, device
from kernels.w12_pieces import PLACED, Cut, most_pieces, reference, stored_rows, tiles_of

__all__ = [
    "BOTH",
    "CONFIGS",
    "MOST_ROWS",
    "PLAIN",
    "TOKENS",
    "VIEW",
    "Config",
    "Strips",
    "config_for",
    "constants_for",
    "default_config",
    "plain_strips",
    "restore",
    "strips",
    "w12_mma",
    "w12_mma_decode",
    "w12_mma_reference",
]

MOST_ROWS = 128
TOKENS = (16, 32, 48, 64, 96, 128)  # rows of x that kernels are compiled for
STRIP = 32  # rows of the matrix that a warp multiplies
BOTH, VIEW, PLAIN = 0, 1, 2  # what is read: both planes, the high one, or bfloat16 as it is
_PROCESSORS = 132  # of an H200
_SHARED_BYTES = 227 * 1024  # that a program may have there
_STAGES = 4  # groups of x that are in shared memory or on their way
_UNPACK_BYTES = 80  # of shared memory for each row of a tile that `w12_unpack` asks for
_REGISTERS = 65536  # of a processor


@dataclass(frozen=True)
class Config:
    """How a weight is stored and cut: a function of its shape alone.

    warps: strips of 32 rows in a tile.  programs: at most as many as there are units.
    """

    warps: int
    programs: int


# (n, k, paired) -> what was best on an H200; what is missing takes `default_config`.
CONFIGS: Mapping[tuple[int, int, bool], Config] = MappingProxyType(
    {
        (4096, 12288, False): Config(12, 121),
        (4608, 4608, False): Config(12, 120),
        (4608, 12288, False): Config(12, 132),
        (5120, 5120, False): Config(12, 112),
        (7680, 4608, False): Config(12, 120),
        (12288, 4096, False): Config(12, 128),
        (17408, 5120, False): Config(12, 132),
        (24576, 4096, False): Config(12, 128),
        (24576, 4608, True): Config(12, 128),
        (49152, 4608, False): Config(12, 128),
        (151936, 4096, False): Config(12, 132),
    }
)


@dataclass(frozen=True)
class Strips:
    """A W12 matrix [n, k] in the order in which warps read it; all tensors contiguous and on one device.

    high: uint8 [tiles, groups, warps, 4, 2, 32, 16], low: uint8 [tiles, groups, warps, 4, 32, 16]: of a step of 32
    columns each lane's bytes, which are those of four rows, 8 apart, by two of each eight columns; a byte of `low` has
    the nibbles of a row and of the one 8 below it.  Of a plain matrix high is bfloat16 [.., 4, 2, 2, 32, 8].
    paired: the first half of the rows are gates of the second half, and a tile holds as many of these as of those.
    base, starts, columns, values: as in `Packed`.
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
    plain: bool = False

    @property
    def tiles(self) -> int:
        return self.high.shape[0]

    @property
    def groups(self) -> int:
        return self.high.shape[1]

    @property
    def outputs(self) -> int:
        """Values that a row of x gives."""
        return self.n // 2 if self.paired else self.n

    def resident_bytes(self) -> int:
        """Bytes of all tensors as they stand in memory."""
        tensors = (self.high, self.low, self.base, self.starts, self.columns, self.values)
        return sum(each.numel() * each.element_size() for each in tensors)


def default_config(n: int, k: int, paired: bool = False) -> Config:
    """For a weight of [n, k] that nobody tuned: twelve warps a processor, in as many programs as stay resident."""
    warps = 4 if cdiv(n, 8 * STRIP) * (padded(k) // GROUP) < 8 * _PROCESSORS else 12
    units = tiles_of(n, warps * STRIP, paired) * (padded(k) // GROUP)
    return Config(warps, min(units, _PROCESSORS * (12 // warps)))


def config_for(n: int, k: int, paired: bool = False) -> Config:
    """What `strips` takes for a weight of [n, k] when it is given no config."""
    return CONFIGS.get((n, k, paired)) or default_config(n, k, paired)


def strips(packed: Packed, config: Config | None = None, paired: bool = False) -> Strips:
    """A record's bytes in the order in which `w12_mma` reads them; rows are filled up to tiles with zeros.

    ValueError where the config does not fit the weight, or a base is outside of the range of exact scaling.
    """
    n, k = packed.shape
    config = config or config_for(n, k, paired)
    _check(n, k, config, paired)
    if not bool(((packed.base >= MIN_BASE) & (packed.base <= MAX_BASE)).all()):
        raise ValueError(f"a base is outside of {MIN_BASE}..{MAX_BASE}, where scaling is exact")
    high = _in_steps(packed.high, n, config, paired).permute(0, 5, 1, 6, 2, 4, 9, 7, 3, 8, 10)
    low = packed.low.unflatten(1, (-1, GROUP // 2))
    nibbles = torch.cat((low & 15, low >> 4), 2).flatten(1)
    below = _in_steps(nibbles, n, config, paired).permute(3, 0, 5, 1, 6, 4, 9, 2, 7, 8, 10)
    return Strips(
        n,
        k,
        config,
        paired,
        high.flatten(7).flatten(5, 6).contiguous(),
        (below[0] | below[1] << 4).flatten(6).flatten(4, 5).contiguous(),
        packed.base,
        packed.starts,
        packed.columns,
        packed.values,
    )


def plain_strips(matrix: Tensor, config: Config, paired: bool = False) -> Strips:
    """A bfloat16 matrix as it is, in the same order: what products cost where nothing is decoded."""
    n, k = matrix.shape
    _check(n, k, config, paired)
    columns = torch.nn.functional.pad(matrix, (0, padded(k) - k))
    high = _in_steps(columns, n, config, paired).permute(0, 5, 1, 6, 2, 7, 4, 9, 3, 8, 10)
    none = torch.zeros(0, dtype=torch.int32, device=matrix.device)
    base = torch.full((n,), PLACED, dtype=torch.int16, device=matrix.device)  # times one
    starts = torch.zeros(n + 1, dtype=torch.int32, device=matrix.device)
    laid = high.flatten(8).flatten(6, 7).contiguous()
    return Strips(n, k, config, paired, laid, laid, base, starts, none, none.to(torch.bfloat16), plain=True)


def restore(weight: Strips) -> Packed:
    """The record that `strips` was given, bit for bit."""
    warps, shape = weight.config.warps, (weight.tiles, weight.groups)
    high = weight.high.view(*shape, warps, 4, 2, 8, 4, 2, 2, 2, 2).permute(0, 2, 4, 8, 5, 1, 3, 7, 9, 6, 10)
    low = weight.low.view(*shape, warps, 4, 8, 4, 2, 2, 2, 2)
    nibbles = torch.stack((low & 15, low >> 4)).permute(1, 3, 7, 0, 5, 2, 4, 8, 9, 6, 10)
    rows = weight.tiles * weight.config.warps * STRIP
    order = stored_rows(weight.n, warps * STRIP, weight.paired, high.device)
    planes = []
    for plane in (high.reshape(rows, -1), nibbles.reshape(rows, -1)):
        natural = plane.new_empty(weight.n, plane.shape[1])
        natural[order[order >= 0]] = plane[order >= 0]
        planes.append(natural)
    first, second = planes[1].unflatten(1, (-1, 2, GROUP // 2)).unbind(2)
    low = (first | second << 4).flatten(1)
    return Packed((weight.n, weight.k), planes[0], low, weight.base, weight.starts, weight.columns, weight.values)


def _check(n: int, k: int, config: Config, paired: bool) -> None:
    if paired and n % 2:
        raise ValueError(f"gates come in pairs, got {n} rows")
    if config.warps not in (4, 8, 12, 16):
        raise ValueError(f"a tile has 4, 8, 12 or 16 warps, not {config.warps}")
    units = tiles_of(n, config.warps * STRIP, paired) * (padded(k) // GROUP)
    if not 1 <= config.programs <= units or (units + 1) * (config.programs + 1) >= 1 << 62:
        raise ValueError(f"{units} units take 1 to {units} programs, not {config.programs}")


def _in_steps(plane: Tensor, n: int, config: Config, paired: bool) -> Tensor:
    """A plane [n, padded k] by what its rows and columns are to a warp, slowest first.

    [tile, warp, half of 32 rows, half of these, row of 8, group, step, half of 32 columns, half of these, pair, one].
    """
    order = stored_rows(n, config.warps * STRIP, paired, plane.device)
    rows = plane.new_zeros(len(order), plane.shape[1])
    rows[order >= 0] = plane[order[order >= 0]]
    return rows.view(-1, config.warps, 2, 2, 8, plane.shape[1] // GROUP, 4, 2, 2, 4, 2)


def constants_for(rows: int, warps: int, kind: int) -> dict[str, int]:
    """What kernels for so many rows of x are compiled for."""
    tokens = next(tokens for tokens in TOKENS if rows <= tokens)
    # Sums, codes that are on their way, operands of two steps, addresses.
    registers = tokens + (64 if kind == PLAIN else 48) + 32 + 28
    resident = min(_REGISTERS // (registers * 32 * warps), _SHARED_BYTES // _shared_bytes(tokens))
    return {"TOKENS": tokens, "WARPS": warps, "BLOCKS": max(1, resident), "STAGES": _STAGES, "FORMAT": kind}


def _shared_bytes(tokens: int) -> int:
    """What a program of `w12_multiply` asks for: x of some groups, and room to begin at a pattern."""
    return _STAGES * tokens * GROUP * 2 + 1024


def w12_mma(
    x: Tensor,  # [t, k] bfloat16, 1 <= t <= 128
    weight: Strips,
    *,
    view: bool = False,  # reads the high plane alone: each weight is the middle of what its byte leaves open
    bias: Tensor | None = None,  # [n]
    residual: Tensor | None = None,  # [t, outputs]
    dtype: torch.dtype = torch.bfloat16,  # or float32
    machine: Machine | None = None,  # the device of x when left out
) -> Tensor:
    """[t, n] of dtype (paired: [t, n / 2]): x @ weight.T + bias, gated, plus residual, in float32, rounded once.

    Exact products, float32 sums, while sums of |x| stay below 2^126 and no |x| but zero is below 2^-112.
    A row's bits do not depend on other rows, nor on how many there are.
    """
    check_tensors(x, bias, residual)
    rows = len(x)
    if x.dtype != torch.bfloat16 or x.shape != (rows, weight.k) or not 1 <= rows <= MOST_ROWS:
        raise ValueError(
            f"w12_mma takes 1 to {MOST_ROWS} bfloat16 rows of {weight.k} values, got {x.dtype} {list(x.shape)}"
        )
    if dtype not in (torch.bfloat16, torch.float32):
        raise ValueError(f"w12_mma gives bfloat16 or float32, not {dtype}")
    if weight.k % 8:  # rows of x start at multiples of 16 bytes
        x = torch.nn.functional.pad(x, (0, -weight.k % 8))
    y = x.new_empty(rows, weight.outputs, dtype=dtype)
    constants = constants_for(rows, weight.config.warps, PLAIN if weight.plain else VIEW if view else BOTH)
    stored, tokens = weight.config.warps * STRIP, constants["TOKENS"]
    slices = most_pieces(weight.tiles, weight.groups, weight.config.programs)
    work = x.new_empty(weight.tiles * slices * tokens * stored, dtype=torch.float32)
    arguments = _arguments(weight, x=x, bias=bias, residual=residual, work=work, y=y, slices=slices)
    machine = machine or device(x.device.index)
    machine.launch("w12_multiply", constants, (weight.config.programs, 1), stored, _shared_bytes(tokens), arguments)
    grid = cdiv(weight.outputs, 128), cdiv(rows, 4)
    machine.launch("w12_finish", constants, grid, 128, 0, arguments)
    return y


def w12_mma_decode(weight: Strips, out: Tensor, machine: Machine | None = None) -> Tensor:
    """Writes the matrix into `out`, bfloat16 [n, k], contiguous; does not wait for the device."""
    if out.dtype != torch.bfloat16 or out.shape != (weight.n, weight.k) or not out.is_contiguous():
        raise ValueError(f"out is bfloat16 {[weight.n, weight.k]}, got {out.dtype} {list(out.shape)}")
    constants = constants_for(1, weight.config.warps, BOTH)
    arguments = _arguments(weight, x=None, bias=None, residual=None, work=None, y=out, slices=0)
    grid, stored = (weight.tiles * weight.groups, 1), weight.config.warps * STRIP
    (machine or device(out.device.index)).launch(
        "w12_unpack", constants, grid, stored, stored * _UNPACK_BYTES, arguments
    )
    put_escapes(out.view(torch.int16), weight.starts, weight.columns, weight.values)
    return out


def _arguments(
    weight: Strips,
    *,
    x: Tensor | None,
    bias: Tensor | None,
    residual: Tensor | None,
    work: Tensor | None,
    y: Tensor,
    slices: int,
) -> Arguments:
    tensors = (weight.high, weight.low, weight.base, weight.starts, weight.columns, weight.values)
    return Arguments(
        address(x),
        *map(address, (*tensors, bias, residual, work, y)),
        0 if x is None else len(x),
        weight.n,
        weight.k,
        0 if x is None else x.shape[1],
        weight.groups,
        weight.tiles,
        weight.config.programs,
        slices,
        weight.paired,
        y.dtype == torch.float32,
    )


def w12_mma_reference(
    x: Tensor,
    weight: Strips,
    *,
    view: bool = False,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """The twin of `w12_mma` in plain torch: the same pieces in the same order; takes any number of rows.

    float64 where x is; dtype is x's where it is not given.
    """
    cut = Cut(weight.config.warps * STRIP, weight.paired, 1, weight.config.programs)
    return reference(x, restore(weight), cut, view=view, bias=bias, residual=residual, dtype=dtype)


def w12_mma_decode_reference(weight: Strips) -> Tensor:
    """The twin of `w12_mma_decode`: the same through the record itself."""
    return decode(restore(weight))

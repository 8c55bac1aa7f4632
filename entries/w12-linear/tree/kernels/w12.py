"""W12: BF16 matrices in 12 bits a weight without loss, in two planes of which the first is a matrix of its own.

A weight is sign, exponent, mantissa.  The exponents of a trained row lie in few binades, so four bits name one in a
window of the row; what lies outside is an escape, kept whole beside the planes.  Code 0 stands for a true zero, which
leaves 15 binades and makes the high plane a row of E4M3FN numbers: the weights cut to three mantissa bits, times a
power of two.

Nothing here is computed in floating point: NaN payloads, denormals and signs of zero come back as they were.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields

import torch
from torch import Tensor

__all__ = [
    "BINADES",
    "GROUP",
    "MAX_BASE",
    "MAX_BITS",
    "MAX_ESCAPED",
    "MAX_ROW_ESCAPES",
    "MIN_BASE",
    "VERSION",
    "Census",
    "Cost",
    "Packed",
    "census",
    "check",
    "cost",
    "decode",
    "encode",
    "fits",
    "matches",
    "padded",
    "put_escapes",
    "view8",
]

VERSION = 1  # of the record
GROUP = 128  # columns whose low nibbles share 64 bytes
BINADES = 15

# A kernel reads a code as a number near 2^-120 and scales each row by a power of two.  With bases in this range that
# is exact in float32 for |x| < 2^27 and |y| < 2^90; what a row has outside of them is escapes.
MIN_BASE, MAX_BASE = 64, 200

# Beyond these a tensor stays BF16: bits a weight, the share of escapes, the escapes of one row.
MAX_BITS = 14.0
MAX_ESCAPED = 0.005
MAX_ROW_ESCAPES = 256

_FIRST, _END = 1 << 7, 0x7F << 4  # 11-bit codes, e4 and mantissa; from 0x7F on the high byte would be NaN in E4M3FN
_MAGNITUDE, _INFINITE = 0x7FFF, 0x7F80
_BASES = MAX_BASE - MIN_BASE + 1
_BINADES = _BASES + 17
# Weights that are encoded, decoded or counted at once, which bounds the memory: what a CPU's caches hold; and some
# 0.5 GB of a GPU, which wants many at a time.
_BLOCK, _BLOCK_GPU = 1 << 19, 1 << 24


@dataclass(frozen=True)
class Packed:
    """A BF16 matrix [n, k] as two planes, a base a row, and escapes.

    With kp = `padded(k)`, all on one device, contiguous:
    high: uint8 [n, kp]: bit 7 sign, bits 6..3 code e4, bits 2..0 the three top mantissa bits.
    low: uint8 [n, kp / 2]: of each group of 128 columns 64 bytes; byte j has the four low mantissa bits of column j in
    its low nibble and those of column j + 64 in its high nibble.
    base: int16 [n]: the biased exponent of a weight is base + e4, for e4 in 1..15.
    starts: int32 [n + 1], columns: int32 [e], values: bfloat16 [e]: escapes by row, columns ascending.

    Code 0 is a zero of that sign; where an escape stands, at all padding, and nowhere else without need, it is +0.
    """

    shape: tuple[int, int]
    high: Tensor
    low: Tensor
    base: Tensor
    starts: Tensor
    columns: Tensor
    values: Tensor

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor of the record by its field's name."""
        return {field.name: getattr(self, field.name) for field in fields(self) if field.name != "shape"}

    def to(self, device: torch.device | str) -> "Packed":
        """The record on another device."""
        return Packed(self.shape, **{name: each.to(device) for name, each in self.tensors().items()})

    def resident_bytes(self) -> int:
        """Bytes of all tensors as they stand in memory."""
        return sum(each.numel() * each.element_size() for each in self.tensors().values())

    def escape_rows(self) -> Tensor:
        """The row of each escape, int64 [e]."""
        return _rows_of(self.starts, len(self.columns))


@dataclass(frozen=True)
class Cost:
    """Bits a weight of the stored record.

    code: 12, and more where k is no multiple of 128.  rows: the base, a byte.  escapes: value, column, and the rows
    since the escape before, each as narrow as all allow.
    escaped: how many escapes there are; worst_row: of one row at most; widest_gap: rows between two, at most.
    """

    n: int
    k: int
    escaped: int
    worst_row: int
    widest_gap: int

    @classmethod
    def of(cls, shape: tuple[int, int], counts: Tensor) -> "Cost":
        """Of a matrix with so many escapes in each row, int64 [n]."""
        gaps = counts.nonzero().flatten().diff(prepend=counts.new_zeros(1))
        widest = int(gaps.max()) if len(gaps) else 0
        return cls(*shape, escaped=int(counts.sum()), worst_row=int(counts.max()), widest_gap=widest)

    @property
    def code(self) -> float:
        return 12 * padded(self.k) / self.k

    @property
    def rows(self) -> float:
        return 8 / self.k

    @property
    def escapes(self) -> float:
        return self.escaped * (16 + _width(self.k - 1) + _width(self.widest_gap)) / (self.n * self.k)

    @property
    def bits(self) -> float:
        return self.code + self.rows + self.escapes

    def refusal(self) -> str | None:
        """Why the tensor stays BF16; None where packing pays."""
        share = self.escaped / (self.n * self.k)
        if share > MAX_ESCAPED:
            return f"{share:.2%} of its weights are escapes, more than {MAX_ESCAPED:.2%}"
        if self.worst_row > MAX_ROW_ESCAPES:
            return f"one row has {self.worst_row} escapes, more than {MAX_ROW_ESCAPES}"
        if self.bits > MAX_BITS:
            return f"{self.bits:.2f} bits a weight are more than {MAX_BITS:g}"
        return None


@dataclass(frozen=True)
class Census:
    """What a matrix costs in this record and in two that were not chosen.

    binades15: this record.  binades16: all 16 codes are binades, so a zero is an escape and the high plane no E4M3FN
    number.  remapped13: 13 binades, of which the top three have four mantissa bits in the high plane.
    """

    binades15: Cost
    binades16: Cost
    remapped13: Cost


def padded(k: int) -> int:
    """Columns of the high plane for k columns of the matrix."""
    return -(-k // GROUP) * GROUP


@torch.no_grad()
def encode(weight: Tensor) -> Packed:
    """The record of a bfloat16 matrix [n, k] on its device, which `decode` turns back into the same bits.

    A row's base is the one that leaves the fewest escapes, of equals the highest.  Temporary memory is that of a
    block of rows, whatever the matrix.
    """
    n, k = _shape(weight)
    device = weight.device
    high = torch.zeros(n, padded(k), dtype=torch.uint8, device=device)
    low = torch.zeros(n, padded(k) // 2, dtype=torch.uint8, device=device)
    base = torch.zeros(n, dtype=torch.int16, device=device)
    counts, columns, values = [], [], []
    for block in _blocks(n, k, device):
        bits = weight[block].view(torch.int16)
        magnitude = bits & _MAGNITUDE
        base[block] = _best(_coded(_histogram(magnitude)))
        code = magnitude - (base[block] << 7)[:, None]
        inside = (code >= _FIRST) & (code < _END) & (magnitude < _INFINITE)
        escape = ~inside & (magnitude != 0)
        code *= inside
        high[block, :k] = ((code >> 4) | ((bits < 0) & ~escape).to(torch.int16) << 7).to(torch.uint8)
        low[block] = _paired((code & 15).to(torch.uint8))
        counts.append(escape.sum(1))
        row, column = escape.nonzero(as_tuple=True)
        columns.append(column)
        values.append(bits[row, column])
    starts = torch.cat((torch.zeros(1, dtype=torch.int64, device=device), torch.cat(counts).cumsum(0)))
    return Packed(
        (n, k),
        high,
        low,
        base,
        starts.to(torch.int32),
        torch.cat(columns).to(torch.int32),
        torch.cat(values).view(torch.bfloat16),
    )


@torch.no_grad()
def decode(packed: Packed, rows: slice | None = None, out: Tensor | None = None) -> Tensor:
    """The matrix of a record, bfloat16 [n, k], or of a slice of its rows; into `out` where it is given."""
    first, end, _ = (rows or slice(None)).indices(packed.shape[0])
    k = packed.shape[1]
    if out is None:
        out = torch.empty(end - first, k, dtype=torch.bfloat16, device=packed.high.device)
    bits = out.view(torch.int16)
    for block in _blocks(end - first, k, out.device):
        at = slice(first + block.start, first + block.stop)
        high = packed.high[at, :k]
        code = (high & 0x7F).to(torch.int16) << 4 | _unpaired(packed.low[at])[:, :k]
        bits[block] = _placed(code, high, packed.base[at])
    if len(bits) == packed.shape[0]:
        put_escapes(bits, packed.starts, packed.columns, packed.values)
    else:
        own = slice(int(packed.starts[first]), int(packed.starts[end]))
        starts = packed.starts[first : end + 1] - packed.starts[first]
        put_escapes(bits, starts, packed.columns[own], packed.values[own])
    return out


def put_escapes(bits: Tensor, starts: Tensor, columns: Tensor, values: Tensor) -> None:
    """Writes escapes into the bits of their matrix, int16 [n, k]; does not wait for the device."""
    place = _rows_of(starts, len(columns)) * bits.shape[1] + columns
    bits.view(-1).index_copy_(0, place, values.view(torch.int16))


@torch.no_grad()
def view8(packed: Packed, *, escapes: bool = True, dtype: torch.dtype = torch.float32) -> Tensor:
    """The matrix that the high plane alone stands for, [n, k]: each weight in the middle of what its byte leaves open.

    The low nibble is taken as 8, so that a weight is off by at most 2^-4 of its power of two; zeros are zeros.
    escapes: put in as they are, else left out as +0.
    """
    n, k = packed.shape
    view = torch.empty(n, k, dtype=torch.bfloat16, device=packed.high.device)
    bits = view.view(torch.int16)
    for block in _blocks(n, k, view.device):
        high = packed.high[block, :k]
        code = (high & 0x7F).to(torch.int16) << 4
        bits[block] = _placed(code | (code != 0).to(torch.int16) << 3, high, packed.base[block])
    if escapes:
        put_escapes(bits, packed.starts, packed.columns, packed.values)
    return view.to(dtype)


@torch.no_grad()
def census(weight: Tensor) -> Census:
    """Counts what a bfloat16 matrix [n, k] costs, without encoding it."""
    n, k = _shape(weight)
    escaped: dict[str, list[Tensor]] = {"binades15": [], "binades16": [], "remapped13": []}
    for block in _blocks(n, k, weight.device):
        magnitude = weight[block].view(torch.int16) & _MAGNITUDE
        histogram = _histogram(magnitude)
        counts, others = histogram.sum(2), (magnitude != 0).sum(1)
        lowest = histogram[:, 1 : 1 + _BASES, _ZERO]  # in a remapped byte its code is that of zero
        escaped["binades15"].append(others - _coded(histogram).amax(1))
        escaped["binades16"].append(k - _windows(counts, 16).amax(1))
        escaped["remapped13"].append(others - (_windows(counts, 13) - lowest).amax(1))
    totals = {name: torch.cat(rows) for name, rows in escaped.items()}
    return Census(**{name: Cost.of((n, k), counts) for name, counts in totals.items()})


def cost(packed: Packed) -> Cost:
    """What a record costs."""
    return Cost.of(packed.shape, packed.starts.diff().long())


@torch.no_grad()
def matches(packed: Packed, weight: Tensor) -> bool:
    """Whether a record decodes to this bfloat16 matrix, bit for bit; block by block, on the record's device."""
    return packed.shape == _shape(weight) and all(
        torch.equal(decode(packed, block).view(torch.int16), weight[block].view(torch.int16))
        for block in _blocks(*packed.shape, weight.device)
    )


def fits(packed: Packed) -> bool:
    """Whether packing pays; `cost(packed).refusal()` says why not."""
    return cost(packed).refusal() is None


def check(packed: Packed) -> None:
    """ValueError unless the record is one that `encode` could have made: no tensor of it leads outside of another."""
    n, k = packed.shape
    count = len(packed.columns)
    kinds = {
        "high": (torch.uint8, (n, padded(k))),
        "low": (torch.uint8, (n, padded(k) // 2)),
        "base": (torch.int16, (n,)),
        "starts": (torch.int32, (n + 1,)),
        "columns": (torch.int32, (count,)),
        "values": (torch.bfloat16, (count,)),
    }
    for name, tensor in packed.tensors().items():
        dtype, shape = kinds[name]
        if tensor.dtype != dtype or tensor.shape != shape or not tensor.is_contiguous():
            raise ValueError(f"'{name}' is {tensor.dtype} {list(tensor.shape)}, not {dtype} {list(shape)}")
    if not bool(((packed.base >= MIN_BASE) & (packed.base <= MAX_BASE)).all()):
        raise ValueError(f"a base is outside of {MIN_BASE}..{MAX_BASE}")
    if int(packed.starts[0]) != 0 or int(packed.starts[-1]) != count or bool((packed.starts.diff() < 0).any()):
        raise ValueError("'starts' does not count the escapes")
    if count and not bool(((packed.columns >= 0) & (packed.columns < k)).all()):
        raise ValueError(f"an escape is outside of {k} columns")
    place = packed.escape_rows() * k + packed.columns
    if bool((place.diff() <= 0).any()):
        raise ValueError("the columns of a row's escapes do not ascend")
    row, column = packed.escape_rows(), packed.columns.long()
    pair = packed.low[row, column // GROUP * (GROUP // 2) + column % (GROUP // 2)]
    nibble = torch.where(column % GROUP < GROUP // 2, pair & 15, pair >> 4)
    if bool(packed.high[row, column].any()) or bool(nibble.any()):
        raise ValueError("an escape stands where a code is")
    last = _unpaired(packed.low[:, -GROUP // 2 :])[:, GROUP - (padded(k) - k) :]
    if bool(packed.high[:, k:].any()) or bool(last.any()):
        raise ValueError(f"there are codes beyond {k} columns")


# Counting.  A histogram has the binades that a window from some base can reach, and one at each end for all others.

_ZERO, _OTHER, _TOP = 0, 1, 2  # mantissas: 0; those below; those whose three top bits are ones


def _histogram(magnitude: Tensor) -> Tensor:
    """How many weights of each row lie in each binade from MIN_BASE on, by mantissa: int64 [n, _BINADES, 3].

    magnitude: int16 [n, k].
    """
    mantissa = magnitude & 0x7F
    kind = (mantissa != 0).to(torch.int16) + (mantissa >= 0x70)
    binade = (magnitude >> 7).clamp_(MIN_BASE, MIN_BASE + _BINADES - 1) - MIN_BASE
    row = torch.arange(len(magnitude), dtype=torch.int32, device=magnitude.device)[:, None] * (_BINADES * 3)
    bins = torch.bincount((row + (binade * 3 + kind)).reshape(-1), minlength=len(magnitude) * _BINADES * 3)
    return bins.view(-1, _BINADES, 3)


def _windows(counts: Tensor, width: int) -> Tensor:
    """Sums over the `width` binades above each base: [n, _BINADES] -> [n, _BASES]."""
    sums, first, span = torch.zeros_like(counts[:, :_BASES]), 1, 1
    while True:  # counts[:, i] is that of `span` binades from i on: 1, 2, 4, ... as the digits of the width want it
        if width & span:
            sums += counts[:, first : first + _BASES]
            first += span
        if (span := 2 * span) > width:
            return sums
        counts = counts[:, : -span // 2] + counts[:, span // 2 :]


def _coded(histogram: Tensor) -> Tensor:
    """How many weights other than zeros have a code, for each base from MIN_BASE on: [n, _BASES]."""
    return _windows(histogram.sum(2), BINADES) - histogram[:, BINADES : BINADES + _BASES, _TOP]


def _best(coded: Tensor) -> Tensor:
    """The base that codes most, of equals the highest: int16 [n]."""
    order = torch.arange(_BASES, device=coded.device)
    best = (coded * _BASES + order).amax(1) % _BASES  # one integer, so that no device has a say in ties
    return (best + MIN_BASE).to(torch.int16)


# Bits.


def _paired(nibble: Tensor) -> Tensor:
    """uint8 [n, k] below 16 -> the low plane, [n, padded(k) / 2]."""
    whole = torch.nn.functional.pad(nibble, (0, padded(nibble.shape[1]) - nibble.shape[1]))
    halves = whole.view(len(nibble), -1, 2, GROUP // 2)
    return (halves[:, :, 0] | halves[:, :, 1] << 4).flatten(1)


def _unpaired(low: Tensor) -> Tensor:
    """The low plane [n, kp / 2] -> int16 [n, kp] below 16."""
    pairs = low.view(len(low), -1, GROUP // 2)
    return torch.stack((pairs & 15, pairs >> 4), 2).flatten(1).to(torch.int16)


def _placed(code: Tensor, high: Tensor, base: Tensor) -> Tensor:
    """BF16 bits of 11-bit codes [n, k] in rows with these bases; the sign is the high plane's.

    What is no code is a zero, as it is to a kernel.
    """
    magnitude = (code + (base << 7)[:, None]) * (code >= _FIRST)
    return magnitude | (high & 0x80).to(torch.int16) << 8


def _rows_of(starts: Tensor, count: int) -> Tensor:
    """The row of each of `count` escapes, int64; does not wait for the device."""
    order = torch.arange(count, dtype=torch.int32, device=starts.device)
    return torch.searchsorted(starts, order, right=True) - 1


def _blocks(n: int, k: int, device: torch.device) -> Iterator[slice]:
    """Slices of rows that hold a block of weights, or as many bins of a histogram."""
    rows = max(1, (_BLOCK_GPU if device.type == "cuda" else _BLOCK) // max(k, 3 * _BINADES))
    return (slice(first, min(first + rows, n)) for first in range(0, n, rows))


def _shape(weight: Tensor) -> tuple[int, int]:
    if weight.dim() != 2 or weight.dtype != torch.bfloat16 or not weight.numel():
        raise ValueError(f"W12 packs bfloat16 matrices, not {weight.dtype} {list(weight.shape)}")
    n, k = weight.shape
    return n, k


def _width(most: int) -> int:
    """Bits of the narrowest stored integer that holds numbers up to `most`."""
    return 8 if most < 1 << 8 else 16 if most < 1 << 16 else 32


if __name__ == "__main__":
    # The command reads checkpoints, which is the engine's business; the format itself needs none of it.
    from stock.packing import main

    main()

"""The record of w12-linear: exact in both directions, and laid out as its docstring says."""

import dataclasses
import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.overlay import overlay

overlay("w12-linear")

from kernels import w12  # noqa: E402

settings.register_profile("w12", deadline=None, derandomize=True, database=None)
EVERY = torch.arange(1 << 16).to(torch.int32).to(torch.int16).view(torch.bfloat16)


def bits(tensor):
    """BF16 numbers as their 16 bits, unsigned."""
    return tensor.contiguous().view(torch.int16).to(torch.int32) & 0xFFFF


def exact(weight):
    """The record of a matrix, which is one, and which decodes to the same bits, whole and in slices."""
    packed = w12.encode(weight)
    w12.check(packed)
    assert torch.equal(bits(w12.decode(packed)), bits(weight))
    middle = slice(len(weight) // 3, len(weight) // 2 + 1)
    assert torch.equal(bits(w12.decode(packed, middle)), bits(weight[middle]))
    assert w12.matches(packed, weight)
    return packed


def of_bits(rows):
    return torch.tensor(rows, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)


@pytest.mark.parametrize("shape", [(256, 256), (1, 65536), (65536, 1), (512, 128), (8, 8192)], ids=str)
def test_every_pattern(shape):
    """All 65,536 patterns come back, NaN payloads, infinities, denormals and -0 among them, in any arrangement."""
    packed = exact(EVERY.view(shape))
    transposed = EVERY.view(shape).t()

    assert torch.equal(bits(w12.decode(w12.encode(transposed))), bits(transposed))
    assert len(packed.columns) > 0


@st.composite
def matrices(draw):
    """Odd shapes; rows that look trained, with outliers, or of any bits at all."""
    n, k = draw(st.integers(1, 9)), draw(st.integers(1, 300))
    rows = []
    for _ in range(n):
        generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
        kind = draw(st.sampled_from(["trained", "outliers", "any", "same", "zeros", "special"]))
        row = torch.randn(k, generator=generator) * 2.0 ** draw(st.integers(-130, 120))
        if kind == "outliers":
            row *= torch.where(torch.rand(k, generator=generator) < 0.1, 4096.0, 1.0)
        row = row.bfloat16()
        if kind == "any":
            row = EVERY[torch.randint(1 << 16, (k,), generator=generator)]
        elif kind == "same":
            row = EVERY[draw(st.integers(0, (1 << 16) - 1))].expand(k)
        elif kind == "zeros":
            row = of_bits([0, 0x8000])[torch.randint(2, (k,), generator=generator)]
        elif kind == "special":
            row = of_bits([0, 0x8000, 0x7F80, 0xFF80, 0x7FC1, 0xFFFF, 0x7F81, 1, 0x807F, 0x80, 0x7F7F])[
                torch.randint(11, (k,), generator=generator)
            ]
        rows.append(row)
    return torch.stack(rows)


@settings(max_examples=150, parent=settings.get_profile("w12"))
@given(matrices())
def test_any_matrix(weight):
    """encode and decode are inverses on every BF16 matrix, and what is counted is what is there."""
    packed = exact(weight)

    assert w12.census(weight).binades15 == w12.cost(packed)
    assert w12.cost(packed).escaped == len(packed.columns)


@settings(max_examples=40, parent=settings.get_profile("w12"))
@given(matrices())
def test_layout(weight):
    """The planes hold what the docstring says, weight by weight, and a base leaves as few escapes as any."""
    packed, (n, k) = w12.encode(weight), weight.shape
    words, high, low = bits(weight).tolist(), packed.high.tolist(), packed.low.tolist()
    escapes = list(zip(packed.escape_rows().tolist(), packed.columns.tolist(), strict=True))

    def escaped(word, base):
        code, magnitude = (word & 0x7FFF) - (base << 7), word & 0x7FFF
        return magnitude != 0 and not (magnitude < 0x7F80 and code >= 128 and code >> 4 < 0x7F)

    assert escapes == [(i, j) for i in range(n) for j in range(k) if escaped(words[i][j], int(packed.base[i]))]
    for i, j in itertools.product(range(n), range(w12.padded(k))):
        half, at = j % 128 // 64, j // 128 * 64 + j % 64
        code = (high[i][j] & 0x7F) << 4 | low[i][at] >> 4 * half & 15
        word = words[i][j] if j < k and (i, j) not in escapes else 0
        magnitude = code + (int(packed.base[i]) << 7) if code else 0
        assert (high[i][j] >> 7) << 15 | magnitude == word
    for i in range(n):
        counts = {base: sum(escaped(word, base) for word in words[i]) for base in range(w12.MIN_BASE, w12.MAX_BASE + 1)}
        assert int(packed.base[i]) == max(base for base in counts if counts[base] == min(counts.values()))


def test_high_plane_is_e4m3(trained):
    """Read as E4M3FN, the high plane is each weight cut to three mantissa bits over one power of two a row; no NaN."""
    packed = w12.encode(trained)
    read = packed.high[:, :300].contiguous().view(torch.float8_e4m3fn).double()
    cut = (bits(w12.decode(packed)) & 0xFFF0).to(torch.int16).view(torch.bfloat16).double()
    cut[packed.escape_rows(), packed.columns.long()] = 0

    assert bool(read.isfinite().all())
    assert torch.equal(read * 2.0 ** (packed.base.double() - 127 + 7)[:, None], cut)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_view_of_the_high_plane(trained, dtype):
    """The 8-bit view is within 2^-4 of each weight's power of two, and zeros and escapes are as they are."""
    packed = w12.encode(trained)
    view, weight = w12.view8(packed, dtype=dtype), trained.double()
    power = 2.0 ** torch.floor(torch.log2(weight.abs()))
    escapes = torch.zeros_like(trained, dtype=torch.bool)
    escapes[packed.escape_rows(), packed.columns.long()] = True

    assert view.dtype == dtype
    assert bool(((view.double() - weight).abs() <= power / 16)[~escapes].all())
    assert torch.equal(view[trained == 0], trained[trained == 0].to(dtype))
    assert torch.equal(view[escapes], trained[escapes].to(dtype))
    assert bool((w12.view8(packed, escapes=False)[escapes] == 0).all())
    assert float((view.double() - weight).norm() / weight.norm()) < 0.03


@pytest.fixture
def trained():
    """A matrix as it is trained, with zeros, an outlier column and an outlier row."""
    weight = torch.randn(40, 300, generator=torch.Generator().manual_seed(3)) / 20
    weight[:, 7] *= 40
    weight[5] *= 1000
    weight[3, 50:60] = 0
    return weight.bfloat16()


def test_into_a_buffer(trained):
    """A scratch buffer takes the matrix, whatever it held; nothing else of it changes."""
    scratch = torch.full((60, 300), torch.nan, dtype=torch.bfloat16)
    out = w12.decode(w12.encode(trained), out=scratch[10:50])

    assert out.data_ptr() == scratch[10:].data_ptr()
    assert torch.equal(scratch[10:50], trained)
    assert bool(scratch[:10].isnan().all()) and bool(scratch[50:].isnan().all())


def test_blocks_change_nothing(trained, monkeypatch):
    """The same record comes out of blocks of any size."""
    whole, counted = w12.encode(trained), w12.census(trained)
    monkeypatch.setattr(w12, "_BLOCK", 1000)
    pieces = w12.encode(trained)

    assert all(
        torch.equal(one, other) for one, other in zip(whole.tensors().values(), pieces.tensors().values(), strict=True)
    )
    assert w12.census(trained) == counted
    exact(trained)


def test_cost_is_what_is_stored():
    """Bits are counted by hand: 12 a weight and 12 a padded column, a base a row; value, column and gap an escape."""
    weight = torch.ones(400, 200, dtype=torch.bfloat16)
    weight[100, :3] = 1e-20
    weight[399, 8] = 1e-20
    cost = w12.cost(w12.encode(weight))

    assert (cost.escaped, cost.worst_row, cost.widest_gap) == (4, 3, 299)
    assert cost.code == 12 * 256 / 200
    assert cost.rows == 8 / 200
    assert cost.escapes == 4 * (16 + 8 + 16) / 80000
    assert cost.bits == cost.code + cost.rows + cost.escapes


def test_what_does_not_pay():
    """Narrow rows, many escapes and a row full of them stay BF16, each for its own reason; a usual matrix is packed."""
    usual = (torch.randn(64, 512, generator=torch.Generator().manual_seed(0)) / 9).bfloat16()
    spread, one_row = usual.repeat(64, 1), usual.repeat(64, 1)
    spread[:, ::100] *= 1e-20
    one_row[9, :400] *= 1e-20

    assert w12.fits(w12.encode(usual))
    assert "bits a weight" in w12.cost(w12.encode(usual[:, :150].contiguous())).refusal()
    assert "of its weights are escapes" in w12.cost(w12.encode(spread)).refusal()
    assert "one row has 400 escapes" in w12.cost(w12.encode(one_row)).refusal()


def test_the_other_records_by_hand():
    """Sixteen binades hold one more and no zero; a remapped byte holds 13, the lowest without its power of two."""
    binades = [2.0**-e * 1.5 for e in range(20)]
    weight = torch.tensor([[0.0, *binades]]).bfloat16()
    census = w12.census(weight)

    assert census.binades15.escaped == 20 - 15
    assert census.binades16.escaped == 1 + 20 - 16
    assert census.remapped13.escaped == 20 - 13
    assert w12.census(weight / 1.5).remapped13.escaped == 20 - 13 + 1


@pytest.mark.parametrize("weight", [torch.ones(3), torch.ones(2, 2), torch.ones(0, 4).bfloat16()], ids=str)
def test_what_is_no_matrix_of_bf16(weight):
    """Anything else is refused in one line."""
    with pytest.raises(ValueError, match="W12 packs bfloat16 matrices"):
        w12.encode(weight)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"base": lambda base: base + 200}, "a base is outside"),
        ({"columns": lambda columns: columns + 300}, "outside of 300 columns"),
        ({"columns": lambda columns: columns.flip(0)}, "do not ascend|where a code is"),
        ({"starts": lambda starts: starts.flip(0)}, "does not count"),
        ({"low": lambda low: low[:, 1:]}, "'low' is"),
        ({"values": lambda values: values.float()}, "'values' is"),
        ({"high": lambda high: high | 1}, "where a code is"),
        ({"low": lambda low: low | 1}, "where a code is"),
        ({"high": lambda high: torch.cat((high[:, :300], high[:, 300:] | 1), 1)}, "codes beyond 300 columns"),
        ({"low": lambda low: torch.cat((low[:, :-1], low[:, -1:] | 16), 1)}, "codes beyond 300 columns"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_is_no_record(trained, change, problem):
    """A record whose tensors lead astray is refused before anything is read through them."""
    packed = w12.encode(trained)
    ((name, how),) = change.items()
    broken = dataclasses.replace(packed, **{name: how(getattr(packed, name))})

    with pytest.raises(ValueError, match=problem):
        w12.check(broken)

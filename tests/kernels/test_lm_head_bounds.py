"""The bounds of certified-lm-head: they hold for any hidden state, any order of sums, and are reached."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.overlay import overlay

overlay("w12-linear")
overlay("certified-lm-head", "kernels")

from kernels.lm_head_bounds import MOST_SCORE, candidates, made_bounds, plane8  # noqa: E402
from kernels.w12 import decode, encode  # noqa: E402

settings.register_profile("bounds", deadline=None, derandomize=True, database=None)
BF16, F64 = torch.bfloat16, torch.float64


@st.composite
def heads(draw):
    """Odd shapes; rows as trained, with outliers, at the ends of their bytes, of escapes, of zeros, or of any bits."""
    n, k = draw(st.integers(1, 12)), draw(st.integers(1, 400))
    rows = []
    for _ in range(n):
        generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
        kind = draw(st.sampled_from(["trained", "outliers", "lowest", "highest", "escapes", "zeros", "any"]))
        row = torch.randn(k, generator=generator) * 2.0 ** draw(st.integers(-20, 20))
        if kind == "outliers":
            row[torch.rand(k, generator=generator) < 0.05] *= 2.0 ** draw(st.integers(4, 30))
        if kind == "escapes":
            row *= 2.0 ** torch.randint(-40, 40, (k,), generator=generator)
        if kind == "zeros":
            row[torch.rand(k, generator=generator) < 0.9] = 0.0
        bits = row.to(BF16).view(torch.int16)
        if kind in ("lowest", "highest"):
            bits = bits & ~15 | (15 if kind == "highest" else 0)
        if kind == "any":
            bits = torch.randint(-(1 << 15), 1 << 15, (k,), generator=generator).to(torch.int16)
            bits = torch.where((bits & 0x7F80) == 0x7F80, 0, bits).to(torch.int16)
        rows.append(bits)
    return torch.stack(rows).view(BF16)


def said(packed, bounds, x):
    """What plane, gains and large escapes say of each logit, float64 [t, n]."""
    n = packed.shape[0]
    plane = plane8(packed, slice(0, n)).to(F64) * bounds.gain.to(F64)[:, None]
    row = torch.repeat_interleave(torch.arange(n), bounds.starts.diff())
    plane[row, bounds.columns.long()] += bounds.values.to(F64)
    return x.to(F64) @ plane.T


def worst(packed, bounds):
    """Hidden states along what each row leaves out, which is where a bound by norms is reached: bfloat16 [n, k]."""
    n = packed.shape[0]
    rest = decode(packed).to(F64) - plane8(packed, slice(0, n)).to(F64) * bounds.gain.to(F64)[:, None]
    row = torch.repeat_interleave(torch.arange(n), bounds.starts.diff())
    rest[row, bounds.columns.long()] = 0.0
    return (rest / rest.norm(dim=1, keepdim=True).clamp(min=1e-300)).to(BF16)


def truncated(x, matrix, order):
    """Logits by float32 sums that drop what they cannot hold, one product after the other in an order."""
    sums = torch.zeros(len(x), len(matrix), dtype=torch.float32)
    for column in order:
        wanted = sums.to(F64) + x[:, column, None].to(F64) * matrix[None, :, column].to(F64)
        sums = wanted.float()
        beyond = sums.to(F64).abs() > wanted.abs()
        sums = torch.where(beyond, torch.nextafter(sums, torch.zeros_like(sums)), sums)
    return sums


@settings(settings.get_profile("bounds"), max_examples=60)
@given(heads(), st.integers(0, 2**32), st.integers(-12, 12))
def test_no_logit_is_beyond_its_bound(matrix, seed, binade):
    """Exact logits, and those of truncating sums in any order, are no further from the plane's than |x| times reach."""
    generator = torch.Generator().manual_seed(seed)
    packed = encode(matrix)
    bounds = made_bounds(packed)
    drawn = torch.randn(3, matrix.shape[1], generator=generator)
    signs = matrix.float().sign()[:3]
    x = (torch.cat((drawn, signs, worst(packed, bounds).float())) * 2.0**binade).to(BF16)
    apart = x.to(F64).norm(dim=1, keepdim=True) * bounds.reach.to(F64)
    middle = said(packed, bounds, x)
    order = torch.randperm(matrix.shape[1], generator=generator).tolist()
    for logits in (x.to(F64) @ matrix.to(F64).T, truncated(x, matrix, order).to(F64)):
        assert ((logits - middle).abs() <= apart)[apart < MOST_SCORE].all()


@settings(settings.get_profile("bounds"), max_examples=60)
@given(heads(), st.integers(0, 2**32), st.sampled_from([torch.float32, F64, BF16]), st.sampled_from([0.0, 0.3, 2.0]))
def test_the_best_is_among_the_candidates(matrix, seed, dtype, heat):
    """Whatever is added to logits, the ids with the best score are candidates, all of them where they tie."""
    generator = torch.Generator().manual_seed(seed)
    packed = encode(matrix)
    bounds = made_bounds(packed)
    noise = torch.rand(4, len(matrix), generator=generator)
    x = torch.randn(4, matrix.shape[1], generator=generator).to(BF16).to(dtype)
    x[2:] = matrix[torch.arange(2) % len(matrix)].clamp(-(2.0**30), 2.0**30).to(dtype)

    def scored(logits):
        logits = logits if logits.dtype == F64 else logits.float()
        return logits / heat + noise if heat else logits

    logits = (x.to(F64) @ matrix.to(F64).T).to(dtype)
    scores = scored(logits)
    left = candidates(x, packed, bounds, logits, scored)
    assert left.shape == scores.shape
    assert left[scores == scores.amax(1, keepdim=True)].all()


def test_bounds_are_reached_and_narrow():
    """As trained, a rest is 3 % of a row, and a hidden state along it comes within 2 % of the bound."""
    matrix = (torch.randn(50, 2048, generator=torch.Generator().manual_seed(1)) / 16).to(BF16)
    packed = encode(matrix)
    bounds = made_bounds(packed)
    x = worst(packed, bounds)
    apart = x.to(F64).norm(dim=1) * bounds.reach.to(F64)
    away = (x.to(F64) @ matrix.to(F64).T - said(packed, bounds, x)).diagonal().abs()
    assert (away > 0.98 * apart).all()
    assert (bounds.reach < 0.03 * matrix.float().norm(dim=1)).all()
    assert len(bounds.columns) == 0 < len(packed.columns)


def test_large_escapes_are_added_and_small_ones_bounded():
    """An escape that would widen the bound is kept by itself; the bound stays what it is without it."""
    matrix = (torch.randn(3, 512, generator=torch.Generator().manual_seed(1)) / 16).to(BF16)
    plain = made_bounds(encode(matrix))
    matrix[0, 7], matrix[1, 9] = 2.0**40, 2.0**-60
    packed = encode(matrix)
    bounds = made_bounds(packed)
    assert bounds.starts.tolist() == [0, 1, 1, 1]
    assert (bounds.columns.tolist(), bounds.values.tolist()) == ([7], [2.0**40])
    assert (bounds.reach[1:] < 1.01 * plain.reach[1:]).all()
    # The slack of sums is of the escape's size, and the rest is not.
    assert bounds.reach[0] < plain.reach[0] + 2.0**40 * 2 * (512 + 65) * 2.0**-23 * 1.01


@pytest.mark.parametrize("special", [torch.inf, -torch.inf, torch.nan])
def test_rows_that_are_not_finite_are_always_candidates(special):
    """A row with an infinity or NaN has no bound, and no other row is wider for it."""
    matrix = (torch.randn(20, 256, generator=torch.Generator().manual_seed(1)) / 16).to(BF16)
    plain = made_bounds(encode(matrix)).reach
    matrix[4, 5] = special
    packed = encode(matrix)
    bounds = made_bounds(packed)
    assert bounds.reach[4] == torch.inf
    assert torch.equal(bounds.reach[5:], plain[5:])
    x = 8 * matrix[[9]]
    logits = (x.float() @ matrix.float().T).to(BF16)
    left = candidates(x, packed, bounds, logits, lambda logits: logits.float())
    assert left[0, [4, 9]].all() and left.sum() < 10


@pytest.mark.parametrize("special", [torch.nan, torch.inf, 0.0, 2.0**-100, 2.0**100])
def test_hidden_states_out_of_range_leave_all(special):
    """NaN, infinite, vanishing and huge hidden states certify nothing, each for itself."""
    matrix = (torch.randn(20, 256, generator=torch.Generator().manual_seed(1)) / 16).to(BF16)
    packed = encode(matrix)
    x = 8 * matrix[[9, 3]]
    x[0] *= special
    logits = (x.float() @ matrix.float().T).to(BF16)
    left = candidates(x, packed, made_bounds(packed), logits, lambda logits: logits.float())
    assert left[0].all() and left[1].sum() < 10

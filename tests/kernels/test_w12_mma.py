"""w12_mma: products with a W12 matrix by CUDA C++, on a GPU, and on a CPU that stands in for one."""

import itertools
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from benchmarks.cuda_on_cpu import Cpu
from benchmarks.overlay import overlay
from tests.kernels.conftest import ON_DEVICE
from tests.kernels.w12_matrices import exact, trained

overlay("w12-linear")

from kernels import w12_mma as op  # noqa: E402
from kernels.w12 import encode, view8  # noqa: E402
from kernels.w12_mma import (  # noqa: E402
    CONFIGS,
    TOKENS,
    Config,
    config_for,
    default_config,
    plain_strips,
    restore,
    strips,
    w12_mma_decode,
    w12_mma_decode_reference,
    w12_mma_reference,
)

BF16, F32 = torch.bfloat16, torch.float32
MACHINE = None if ON_DEVICE else Cpu()


def w12_mma(x, weight, **options):
    return op.w12_mma(x, weight, machine=MACHINE, **options)


@pytest.mark.parametrize("warps", [4, 8])
@pytest.mark.parametrize(
    ("t", "n", "k", "programs"),
    [
        (1, 1, 1, 1),
        (3, 65, 129, 2),
        (16, 64, 128, 1),
        (17, 70, 200, 2),
        (33, 300, 130, 3),
        (64, 31, 640, 5),
        (65, 130, 257, 3),
        (128, 129, 300, 3),
    ],
    ids=str,
)
def test_product_equals_torch(randn, agree, warps, t, n, k, programs):
    """Every output equals the twin's and torch's own, whether or not rows, columns and tokens fill the tiles."""
    matrix, x = trained(randn, n, k), randn(t, k, dtype=BF16)
    weight = strips(encode(matrix), Config(warps, programs))
    y = w12_mma(x, weight)

    agree(y, w12_mma_reference(x, weight), atol=1e-5)
    agree(y, F.linear(x.double(), matrix.double()).float().to(BF16), atol=1e-5)


@pytest.mark.parametrize("programs", [1, 2, 3, 4, 7, 12, 18], ids="{} programs".format)
def test_every_schedule_sums_everything_once(device, programs):
    """Whole tiles, tiles in equal pieces and pieces that straddle tiles give the exact sum where it is exact."""
    x, matrix = exact(device, 2, 280, 700)  # three tiles of six groups
    wanted = F.linear(x.double(), matrix.double()).float()
    weight = strips(encode(matrix), Config(4, programs))
    assert torch.equal(w12_mma(x, weight, dtype=F32), wanted)
    assert torch.equal(w12_mma_reference(x, weight, dtype=F32), wanted)


@pytest.mark.parametrize(
    ("warps", "programs", "view"),
    [(4, 2, False), *(pytest.param(*each, marks=pytest.mark.full) for each in ((4, 3, True), (8, 2, False)))],
)
def test_a_row_has_the_same_bits_in_any_batch(randn, warps, programs, view):
    """Row 0, and any other, is bit for bit what it is alone, at any number of rows and next to any values."""
    matrix, x = trained(randn, 70, 384), randn(128, 384, dtype=BF16)
    weight = strips(encode(matrix), Config(warps, programs))
    whole = w12_mma(x, weight, view=view, dtype=F32)
    for t in (1, 2, *(tokens + more for tokens in TOKENS[:-1] for more in (0, 1))):
        assert torch.equal(w12_mma(x[:t], weight, view=view, dtype=F32), whole[:t])
    assert torch.equal(w12_mma(x[77:78], weight, view=view, dtype=F32), whole[77:78])
    x[1:] = torch.nan
    assert torch.equal(w12_mma(x, weight, view=view, dtype=F32)[0], whole[0])


@pytest.mark.parametrize("paired", [False, True])
@pytest.mark.parametrize("warps", [4, 8, 12])
def test_arranging_moves_bytes_and_nothing_else(randn, warps, paired):
    """`restore` gives the record back bit for bit, and what was filled up is zeros."""
    packed = encode(trained(randn, 130, 300))
    weight = strips(packed, Config(warps, 3), paired)
    back = restore(weight)
    for name, tensor in packed.tensors().items():
        assert torch.equal(getattr(back, name).view(torch.uint8), tensor.view(torch.uint8)), name
    counts = torch.bincount(weight.high.flatten().int(), minlength=256)
    counts[0] -= weight.high.numel() - packed.high.numel()
    assert torch.equal(counts, torch.bincount(packed.high.flatten().int(), minlength=256))
    bytes_held = sum(each.numel() * each.element_size() for each in vars(weight).values() if torch.is_tensor(each))
    assert weight.resident_bytes() == bytes_held


@pytest.mark.parametrize("paired", [False, True])
@pytest.mark.parametrize("k", [296, 301])
def test_unpacking_gives_the_matrix_bit_for_bit(randn, paired, k):
    """The whole matrix comes back, escapes, zeros of both signs and all, into memory that held something else."""
    matrix = trained(randn, 130, k)
    weight = strips(encode(matrix), Config(4, 3), paired)
    out = torch.full_like(matrix, 7.0)
    assert w12_mma_decode(weight, out, MACHINE) is out
    assert torch.equal(out.view(torch.int16), matrix.view(torch.int16))
    assert torch.equal(w12_mma_decode_reference(weight).view(torch.int16), matrix.view(torch.int16))


@pytest.mark.parametrize(
    ("paired", "bias", "residual"),
    [(True, True, True), (False, True, False), (True, False, False), (False, False, True)],
)
def test_fusions_equal_the_twin(randn, agree, paired, bias, residual):
    """Gate, bias and residual give, in every combination, what the twin gives."""
    n, k, t = 134, 200, 19
    matrix, x = trained(randn, n, k), randn(t, k, dtype=BF16)
    added = {
        "bias": randn(n, dtype=BF16) if bias else None,
        "residual": randn(t, n // 2 if paired else n, dtype=BF16) if residual else None,
    }
    weight = strips(encode(matrix), Config(4, 3), paired)
    y = w12_mma(x, weight, **added)

    agree(y, w12_mma_reference(x, weight, **added), atol=1e-3)
    z = F.linear(x.float(), matrix.float(), None if added["bias"] is None else added["bias"].float())
    if paired:
        z = F.silu(z[:, : n // 2]) * z[:, n // 2 :]
    if added["residual"] is not None:
        z += added["residual"].float()
    agree(y, z.to(BF16), atol=1e-3)


@pytest.mark.parametrize("paired", [False, True])
def test_the_view_is_the_middle_of_each_byte(randn, agree, paired):
    """The second entry point multiplies with what `view8` says, zeros and escapes among it, and reads no low byte."""
    n, k, t = 66, 260, 18
    packed, x = encode(trained(randn, n, k)), randn(t, k, dtype=BF16)
    weight = strips(packed, Config(4, 2), paired)
    weight.low.fill_(0xA5)
    y = w12_mma(x, weight, view=True)
    z = F.linear(x.float(), view8(packed))
    if paired:
        z = F.silu(z[:, : n // 2]) * z[:, n // 2 :]

    agree(y, z.to(BF16), atol=1e-4)
    agree(y, w12_mma_reference(x, weight, view=True), atol=1e-4)


def test_a_plain_matrix_is_multiplied_as_it_is(device):
    """The same kernel on BF16 gives the exact sum where it is exact."""
    x, matrix = exact(device, 20, 150, 390)
    wanted = F.linear(x.double(), matrix.double()).float()
    for programs in (2, 5):
        assert torch.equal(w12_mma(x, plain_strips(matrix, Config(4, programs)), dtype=F32), wanted)


@pytest.mark.parametrize("view", [False, True])
def test_decoding_says_what_the_record_says(device, view):
    """Every high byte with every nibble, at every place in a strip, makes the number that integers say.

    What multiplies is 1, at one column a row of x, so that an output is a decoded weight.
    """
    n, k = 256, 256
    packed = encode(torch.ones(n, k, dtype=BF16, device=device))
    cells = torch.arange(n * k, device=device).view(n, k)
    high, nibbles = (cells * 40503 >> 4 & 255).to(torch.uint8), (cells * 40503 & 15).to(torch.uint8)
    low = nibbles.view(n, 2, 2, 64)
    packed = replace(packed, high=high, low=(low[:, :, 0] | low[:, :, 1] << 4).flatten(1))
    assert len(torch.unique(high.int() * 16 + nibbles)) == 4096
    weight = strips(packed, Config(8, 2))
    y = torch.cat(
        [
            w12_mma(torch.eye(k, dtype=BF16, device=device)[at : at + 128], weight, view=view, dtype=F32)
            for at in (0, 128)
        ]
    ).T
    code, wide_high = (high >> 3 & 15).int(), high.int()
    mantissa = (wide_high & 7) * 16 + (8 if view else nibbles.int())
    wanted = torch.ldexp(1 + mantissa.double() / 128, code + packed.base.int()[:, None] - 127)
    wanted = wanted * (1 - 2 * (wide_high >> 7))
    coded = code > 0

    assert torch.equal(y.double()[coded], wanted[coded])
    zeros = (wide_high & 127 == 0) & ((nibbles == 0) | view)
    assert (y[zeros] == 0).all()


def test_escapes_stand_anywhere(device):
    """Escapes in the first and last rows and columns of tiles, and rows of nothing else, are added once each."""
    x, matrix = exact(device, 3, 130, 390)
    for row, column in itertools.product((0, 63, 64, 127, 128, 129), (0, 63, 64, 127, 128, 383, 389)):
        matrix[row, column] = 2.0**-17
    matrix[2] = torch.tensor([1.0, 2.0**-17, 2.0**-17], device=device, dtype=BF16).repeat(130)
    packed = encode(matrix)
    assert packed.starts.diff()[2] >= 130
    wanted = F.linear(x.double(), matrix.double()).float()
    for programs in (3, 7):
        assert torch.equal(w12_mma(x, strips(packed, Config(4, programs)), dtype=F32), wanted)


@pytest.mark.parametrize("special", [torch.inf, -torch.inf, torch.nan])
def test_infinities_and_nan_reach_their_row_alone(randn, special):
    """A weight that is infinite or NaN makes its output so, and no other."""
    matrix, x = trained(randn, 40, 130), randn(3, 130, dtype=BF16)
    clean = w12_mma(x, strips(encode(matrix), Config(4, 1)))
    matrix[7, 129] = special
    y = w12_mma(x, strips(encode(matrix), Config(4, 1)))
    wanted = F.linear(x.float(), matrix.float())[:, 7].to(BF16)

    assert torch.equal(y[:, 7], wanted) or (y[:, 7].isnan() & wanted.isnan()).all()
    assert not y[:, 7].isfinite().any()
    y[:, 7] = clean[:, 7]
    assert torch.equal(y, clean)


@pytest.mark.parametrize("size", [2.0**-100, 2.0**-60, 1.0, 2.0**60, 2.0**110])
def test_scaling_is_exact_for_huge_and_tiny_rows(randn, size):
    """Rows of x from 2^-112 to where sums pass 2^126 give the bits that rows of order one give, scaled."""
    matrix, x = trained(randn, 70, 256), randn(3, 256, dtype=BF16)
    x = x.sign() * x.abs().clamp(2.0**-10, 8.0)
    weight = strips(encode(matrix), Config(4, 2))
    y = w12_mma(x, weight, dtype=F32)
    assert torch.equal(w12_mma((x.float() * size).to(BF16), weight, dtype=F32), y * size)


@pytest.mark.parametrize("binade", [-48, -20, 30, 79])
def test_scaling_is_exact_for_extreme_rows(randn, binade):
    """Rows of any base that a record has give the bits of the same row near one, scaled."""
    plain, x = randn(5, 256, dtype=BF16).clamp(-3, 3), randn(2, 256, dtype=BF16)
    plain[plain.abs() < 2.0**-7] = 1.0
    near, far = (encode(each) for each in (plain, (plain.float() * 2.0**binade).to(BF16)))
    assert bool((far.base - near.base == binade).all()) and not len(far.columns)
    one, other = (w12_mma(x, strips(each, Config(4, 2)), dtype=F32) for each in (near, far))
    assert torch.equal(other, one * 2.0**binade)


def test_what_does_not_fit_is_refused(randn):
    """Rows, types, bases and configs that a kernel would compute wrongly are errors that say so."""
    packed = encode(trained(randn, 70, 300))
    weight = strips(packed, Config(4, 1))
    for x in (randn(129, 300, dtype=BF16), randn(1, 299, dtype=BF16), randn(1, 300), randn(0, 300, dtype=BF16)):
        with pytest.raises(ValueError, match="1 to 128 bfloat16 rows of 300 values"):
            w12_mma(x, weight)
    with pytest.raises(ValueError, match="contiguous"):
        w12_mma(randn(300, 4, dtype=BF16).t(), weight)
    with pytest.raises(ValueError, match="bfloat16 or float32"):
        w12_mma(randn(2, 300, dtype=BF16), weight, dtype=torch.float16)
    with pytest.raises(ValueError, match="out is bfloat16"):
        w12_mma_decode(weight, randn(70, 300), MACHINE)
    with pytest.raises(ValueError, match=r"outside of 64\.\.200"):
        strips(replace(packed, base=packed.base + 120), Config(4, 1))
    for wrong, words in (
        (Config(6, 1), "4, 8, 12 or 16 warps"),
        (Config(4, 4), "1 to 3 programs"),
        (Config(4, 0), "1 to 3 programs"),
    ):
        with pytest.raises(ValueError, match=words):
            strips(packed, wrong)
    with pytest.raises(ValueError, match="pairs"):
        strips(encode(trained(randn, 71, 300)), Config(4, 1), paired=True)


@pytest.mark.parametrize("n", [2, 64, 576, 5120, 17408, 151936, 248320])
@pytest.mark.parametrize("k", [1, 576, 4096, 4608, 12288])
def test_default_configs_fit_every_weight(n, k):
    """The default config is one that `strips` takes, gated or not."""
    for paired in (False, True):
        op._check(n, k, default_config(n, k, paired), paired)
    for (rows, columns, paired), config in CONFIGS.items():
        op._check(rows, columns, config, paired)
        assert config_for(rows, columns, paired) == config


@pytest.mark.device
@pytest.mark.parametrize(("n", "k"), [(5120, 5120), (17408, 5120), (4608, 12288), (7680, 4608)], ids=str)
def test_real_shapes_equal_the_twin(randn, agree, n, k):
    """At the shapes of real targets every output equals the twin's, in any batch, call after call and replayed."""
    matrix, x = randn(n, k, dtype=BF16, scale=k**-0.5), randn(128, k, dtype=BF16)
    for config in (default_config(n, k), config_for(n, k)):
        weight = strips(encode(matrix), config)
        whole = w12_mma(x, weight)
        agree(whole, w12_mma_reference(x, weight), atol=1e-4)
        for t in (1, 8, 16, 17, 33, 64, 65, 128):
            assert torch.equal(w12_mma(x[:t], weight), whole[:t])
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            replayed = w12_mma(x, weight)
        for _ in range(20):
            graph.replay()
            assert torch.equal(replayed, whole)


@pytest.mark.device
def test_products_in_a_row_wait_for_one_another(randn):
    """Kernels that start early read nothing that the one before has yet to write: a chain of products, replayed."""
    matrix, x = randn(4608, 4608, dtype=BF16, scale=4608**-0.5), randn(33, 4608, dtype=BF16)
    weight = strips(encode(matrix))

    def chained():
        y = x
        for _ in range(12):
            y = w12_mma(y, weight, residual=x)
        return y

    wanted = x
    for _ in range(12):
        wanted = w12_mma(wanted, weight, residual=x)
        torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = chained()
    for _ in range(50):
        graph.replay()
        assert torch.equal(found, wanted)

"""w12_gemm: products with a W12 matrix, and with the view that its high plane is."""

import itertools
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from benchmarks.overlay import overlay
from tests.kernels.w12_matrices import exact, trained

overlay("w12-linear")

from kernels import w12_gemm as op  # noqa: E402
from kernels.portable import tl, triton  # noqa: E402
from kernels.w12 import encode, view8  # noqa: E402
from kernels.w12_gemm import (  # noqa: E402
    BUCKETS,
    CONFIGS,
    Config,
    Schedule,
    Tile,
    arrange,
    default_config,
    restore,
    w12_gemm,
    w12_gemm_reference,
)

BF16, F32, F64 = torch.bfloat16, torch.float32, torch.float64
PATHS = ["mma", pytest.param("wgmma", marks=pytest.mark.full)]


def config(path="mma", block_n=64, unit=1, programs=1, **tile):
    return Config(Schedule(path, block_n, unit, programs), {bucket: Tile(**tile) for bucket in BUCKETS})


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("t", "n", "k", "programs"),
    [
        (1, 1, 1, 1),
        (3, 65, 129, 4),
        (16, 64, 128, 1),
        (17, 70, 200, 3),
        (33, 130, 130, 5),
        (64, 31, 640, 5),
        (128, 65, 257, 5),
    ],
    ids=str,
)
def test_product_equals_torch(randn, agree, path, t, n, k, programs):
    """Every output equals the twin's and torch's own, whether or not rows, columns and tokens fill the tiles."""
    matrix, x = trained(randn, n, k), randn(t, k, dtype=BF16)
    weight = arrange(encode(matrix), config(path, programs=programs))
    y = w12_gemm(x, weight)

    agree(y, w12_gemm_reference(x, weight), atol=1e-5)
    agree(y, F.linear(x.double(), matrix.double()).float().to(BF16), atol=1e-5)
    assert not weight.turns.any()


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("programs", [1, 2, 3, 4, 7, 12], ids="{} programs".format)
def test_every_schedule_sums_everything_once(device, path, programs):
    """Whole tiles, tiles in equal pieces and pieces that straddle tiles give the exact sum where it is exact."""
    x, matrix = exact(device, 2, 120, 700)  # two tiles of six groups
    wanted = F.linear(x.double(), matrix.double()).float()
    for unit, fused in itertools.product((1, 2), (True, False)):
        if programs <= 12 // unit:
            weight = arrange(encode(matrix), config(path, 64, unit, programs, fused=fused))
            assert torch.equal(w12_gemm(x, weight, dtype=F32), wanted)
            assert torch.equal(w12_gemm_reference(x, weight, dtype=F32), wanted)


@pytest.mark.parametrize(
    ("path", "programs", "view"),
    [
        ("mma", 2, False),
        ("wgmma", 4, True),
        pytest.param("mma", 3, True, marks=pytest.mark.full),
        pytest.param("wgmma", 5, False, marks=pytest.mark.full),
    ],
)
def test_a_row_has_the_same_bits_in_any_batch(randn, path, programs, view):
    """Row 0, and any other, is bit for bit what it is alone, at any number of rows and next to any values."""
    matrix, x = trained(randn, 70, 384), randn(128, 384, dtype=BF16)
    weight = arrange(encode(matrix), config(path, programs=programs))
    whole = w12_gemm(x, weight, view=view, dtype=F32)
    for t in (1, 2, 16, 17, 64):
        assert torch.equal(w12_gemm(x[:t], weight, view=view, dtype=F32), whole[:t])
    assert torch.equal(w12_gemm(x[77:78], weight, view=view, dtype=F32), whole[77:78])
    x[1:] = torch.nan
    assert torch.equal(w12_gemm(x, weight, view=view, dtype=F32)[0], whole[0])


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("view", [False, True])
def test_tiles_do_not_change_bits(randn, path, view):
    """Warps, stages, chunks, descriptors and the second kernel leave every bit as it is."""
    matrix, x = trained(randn, 100, 384), randn(33, 384, dtype=BF16)
    packed = encode(matrix)
    first, *others = [
        w12_gemm(x, arrange(packed, config(path, programs=4, **tile)), view=view, dtype=F32)
        for tile in (
            {},
            {"num_warps": 8, "num_stages": 2},
            {"chunk": 32},
            {"descriptors": True},
            {"fused": False},
            {"fused": False, "descriptors": True, "chunk": 32},
        )
    ]
    for other in others:
        assert torch.equal(other, first)


def test_descriptors_fill_up_columns(randn):
    """A last group that k does not fill, and a k whose rows no descriptor can hold, change nothing."""
    for k in (200, 201):
        matrix, x = trained(randn, 70, k), randn(18, k, dtype=BF16)
        packed = encode(matrix)
        plain = w12_gemm(x, arrange(packed, config(programs=2)))
        assert torch.equal(w12_gemm(x, arrange(packed, config(programs=2, descriptors=True))), plain)


@pytest.mark.parametrize("paired", [False, True])
@pytest.mark.parametrize(("path", "block_n"), [("mma", 32), ("mma", 128), ("wgmma", 64)], ids=str)
def test_arranging_moves_bytes_and_nothing_else(randn, path, block_n, paired):
    """`restore` gives the record back bit for bit, and what was filled up is zeros."""
    packed = encode(trained(randn, 130, 300))
    weight = arrange(packed, config(path, block_n, programs=3), paired)
    back = restore(weight)
    for name, tensor in packed.tensors().items():
        assert torch.equal(getattr(back, name).view(torch.uint8), tensor.view(torch.uint8)), name
    for plane, source in ((weight.high, packed.high), (weight.low, packed.low)):
        counts = torch.bincount(plane.flatten().int(), minlength=256)
        counts[0] -= plane.numel() - source.numel()
        assert torch.equal(counts, torch.bincount(source.flatten().int(), minlength=256))
    bytes_held = sum(each.numel() * each.element_size() for each in vars(weight).values() if torch.is_tensor(each))
    assert weight.resident_bytes() == bytes_held


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize(
    ("paired", "bias", "residual"),
    [(True, True, True), (False, True, False), (True, False, False), (False, False, True)],
)
def test_fusions_equal_the_twin(randn, agree, path, fused, paired, bias, residual):
    """Gate, bias and residual give, in every combination, what the twin gives."""
    n, k, t = 134, 200, 19
    matrix, x = trained(randn, n, k), randn(t, k, dtype=BF16)
    added = {
        "bias": randn(n, dtype=BF16) if bias else None,
        "residual": randn(t, n // 2 if paired else n, dtype=BF16) if residual else None,
    }
    weight = arrange(encode(matrix), config(path, programs=6 if path == "mma" else 2, fused=fused), paired)
    y = w12_gemm(x, weight, **added)

    agree(y, w12_gemm_reference(x, weight, **added), atol=1e-3)
    z = F.linear(x.float(), matrix.float(), None if added["bias"] is None else added["bias"].float())
    if paired:
        z = F.silu(z[:, : n // 2]) * z[:, n // 2 :]
    if added["residual"] is not None:
        z += added["residual"].float()
    agree(y, z.to(BF16), atol=1e-3)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("paired", [False, True])
def test_the_view_is_the_middle_of_each_byte(randn, agree, path, paired):
    """The second entry point multiplies with what `view8` says, zeros and escapes among it, and reads no low byte."""
    n, k, t = 66, 260, 18
    packed, x = encode(trained(randn, n, k)), randn(t, k, dtype=BF16)
    weight = arrange(packed, config(path, programs=2), paired)
    weight.low.fill_(0xA5)
    y = w12_gemm(x, weight, view=True)
    z = F.linear(x.float(), view8(packed))
    if paired:
        z = F.silu(z[:, : n // 2]) * z[:, n // 2 :]

    agree(y, z.to(BF16), atol=1e-4)
    agree(y, w12_gemm_reference(x, weight, view=True), atol=1e-4)


@pytest.mark.parametrize("path", PATHS)
def test_escapes_stand_anywhere(device, path):
    """Escapes in the first and last rows and columns of tiles, and rows of nothing else, are added once each."""
    x, matrix = exact(device, 3, 130, 390)
    for row, column in itertools.product((0, 63, 64, 127, 128, 129), (0, 63, 64, 127, 128, 383, 389)):
        matrix[row, column] = 2.0**-17
    matrix[2] = torch.tensor([1.0, 2.0**-17, 2.0**-17], device=device, dtype=BF16).repeat(130)
    packed = encode(matrix)
    counts = packed.starts.diff()
    assert counts[2] >= 130 and int(counts.min()) < 4
    wanted = F.linear(x.double(), matrix.double()).float()
    for programs in (3, 7):
        assert torch.equal(w12_gemm(x, arrange(packed, config(path, programs=programs)), dtype=F32), wanted)


def test_escapes_keep_their_order(randn):
    """Escapes are added one by one by column, after everything else: the twin's bits where a row has nothing else."""
    matrix = torch.zeros(3, 200, dtype=BF16, device=randn(1).device)
    matrix[:, 0] = 2.0**-60
    matrix[0, 1::7] = randn(29, dtype=BF16)
    matrix[:, 1] = 2.0**60
    matrix[1, 100:140] = randn(40, dtype=BF16) * 2.0**-90
    packed, x = encode(matrix), randn(4, 200, dtype=BF16)
    assert packed.starts.diff().tolist()[1] > 20
    weight = arrange(packed, config(programs=2))
    assert torch.equal(w12_gemm(x, weight, dtype=F32), w12_gemm_reference(x, weight, dtype=F32))


@pytest.mark.parametrize("special", [torch.inf, -torch.inf, torch.nan])
def test_infinities_and_nan_reach_their_row_alone(randn, special):
    """A weight that is infinite or NaN makes its output so, and no other."""
    matrix, x = trained(randn, 40, 130), randn(3, 130, dtype=BF16)
    clean = w12_gemm(x, arrange(encode(matrix), config()))
    matrix[7, 129] = special
    y = w12_gemm(x, arrange(encode(matrix), config()))
    wanted = F.linear(x.float(), matrix.float())[:, 7].to(BF16)

    assert torch.equal(y[:, 7], wanted) or (y[:, 7].isnan() & wanted.isnan()).all()
    assert not y[:, 7].isfinite().any()
    y[:, 7] = clean[:, 7]
    assert torch.equal(y, clean)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("size", [2.0**-100, 2.0**-60, 1.0, 2.0**60, 2.0**110])
def test_scaling_is_exact_for_huge_and_tiny_rows(randn, path, size):
    """Rows of x from 2^-112 to where sums pass 2^126 give the bits that rows of order one give, scaled."""
    matrix, x = trained(randn, 70, 256), randn(3, 256, dtype=BF16)
    x = x.sign() * x.abs().clamp(2.0**-10, 8.0)
    weight = arrange(encode(matrix), config(path, programs=4))
    y = w12_gemm(x, weight, dtype=F32)
    assert torch.equal(w12_gemm((x.float() * size).to(BF16), weight, dtype=F32), y * size)


@pytest.mark.parametrize("binade", [-48, -20, 30, 79])
def test_scaling_is_exact_for_extreme_rows(randn, binade):
    """Rows of any base that a record has give the bits of the same row near one, scaled."""
    plain, x = randn(5, 256, dtype=BF16).clamp(-3, 3), randn(2, 256, dtype=BF16)
    plain[plain.abs() < 2.0**-7] = 1.0
    near, far = (encode(each) for each in (plain, (plain.float() * 2.0**binade).to(BF16)))
    assert bool((far.base - near.base == binade).all()) and not len(far.columns)
    one, other = (w12_gemm(x, arrange(each, config(programs=2)), dtype=F32) for each in (near, far))
    assert torch.equal(other, one * 2.0**binade)


def test_what_does_not_fit_is_refused(randn):
    """Rows, types, bases and schedules that a kernel would compute wrongly are errors that say so."""
    packed = encode(trained(randn, 70, 300))
    weight = arrange(packed, config())
    for x in (randn(129, 300, dtype=BF16), randn(1, 299, dtype=BF16), randn(1, 300), randn(0, 300, dtype=BF16)):
        with pytest.raises(ValueError, match="1 to 128 bfloat16 rows of 300 values"):
            w12_gemm(x, weight)
    with pytest.raises(ValueError, match="contiguous"):
        w12_gemm(randn(300, 4, dtype=BF16).t(), weight)
    with pytest.raises(ValueError, match=r"outside of 64\.\.200"):
        arrange(replace(packed, base=packed.base + 120), config())
    for wrong, words in (
        (config("simt"), "'simt'"),
        (config(block_n=48), "power of two"),
        (config("wgmma", 32), "from 64 on"),
        (config(unit=2), "do not divide 3 groups"),
        (config(programs=7), "1 to 6 programs"),
    ):
        with pytest.raises(ValueError, match=words):
            arrange(packed, wrong)
    with pytest.raises(ValueError, match="pairs"):
        arrange(encode(trained(randn, 71, 300)), config(), paired=True)


@pytest.mark.parametrize("n", [2, 64, 576, 5120, 17408, 151936, 248320])
@pytest.mark.parametrize("k", [1, 576, 4096, 4608, 12288])
def test_default_configs_fit_every_weight(n, k):
    """The default schedule is one that `arrange` takes, gated or not, with a tile for each bucket."""
    for paired in (False, True):
        schedule = default_config(n, k, paired).schedule
        op._check_schedule(schedule, op.tiles_of(n, schedule.block_n, paired), -(-k // 128))
    assert set(default_config(n, k).tiles) == set(BUCKETS)


def test_table_entries_fit_their_shapes():
    """Every tuned entry has a schedule that its weight takes, and a tile for each bucket."""
    for (n, k, paired), tuned in CONFIGS.items():
        op._check_schedule(tuned.schedule, op.tiles_of(n, tuned.schedule.block_n, paired), -(-k // 128))
        assert set(tuned.tiles) == set(BUCKETS)


@triton.jit
def decoding_kernel(
    high_ptr, low_ptr, out_ptr, HALF: tl.constexpr, VIEW: tl.constexpr, ASM: tl.constexpr, PACK: tl.constexpr
):
    at = tl.program_id(0) * 1024 + tl.arange(0, 1024)
    high, low = tl.load(high_ptr + at), tl.load(low_ptr + at)
    tl.store(out_ptr + at, op.w12_decoded(high, low, HALF, VIEW, ASM, PACK))


def decoded(device, half, view, asm, pack):
    """What each of the 65,536 pairs of bytes stands for, and the two bytes."""
    pairs = torch.arange(1 << 16, device=device)
    high, low = (pairs >> 8).to(torch.uint8), (pairs & 255).to(torch.uint8)
    out = torch.empty(1 << 16, dtype=BF16, device=device)
    decoding_kernel[(64,)](high, low, out, HALF=half, VIEW=view, ASM=asm, PACK=pack)
    return out, high.int(), low.int()


@pytest.mark.parametrize("view", [False, True])
@pytest.mark.parametrize("half", [0, 1])
def test_decoding_says_what_the_record_says(device, half, view):
    """All 65,536 pairs of bytes: sign, exponent code and mantissa make the number, of a view its byte's middle."""
    out, high, low = decoded(device, half, view, False, 4)
    code, nibble = high >> 3 & 15, low >> 4 if half else low & 15
    mantissa = (high & 7) * 16 + (8 if view else nibble)
    wanted = torch.ldexp(1 + mantissa.double() / 128, code - 15) * (1 - 2 * (high >> 7))
    coded = code > 0

    assert torch.equal(out.double()[coded], wanted[coded])
    zeros = (high & 127 == 0) & ((nibble == 0) | view)
    assert torch.equal(out.view(torch.int16)[zeros].int(), -(high[zeros] >> 7 << 15))


@pytest.mark.device
@pytest.mark.parametrize("pack", [2, 4])
@pytest.mark.parametrize("view", [False, True])
@pytest.mark.parametrize("half", [0, 1])
def test_assembly_equals_integers(device, half, view, pack):
    """On a GPU the assembly makes the bits that integer operations make, for all 65,536 pairs of bytes."""
    assembly, integers = (decoded(device, half, view, asm, pack)[0] for asm in (True, False))
    assert torch.equal(assembly.view(torch.int16), integers.view(torch.int16))


@pytest.mark.device
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("view", [False, True])
@pytest.mark.parametrize("t", [1, 17, 64, 128])
def test_products_do_not_depend_on_assembly(randn, path, view, t):
    """On a GPU a product by assembly has the bits of the product by integer operations."""
    matrix, x = trained(randn, 300, 1030), randn(t, 1030, dtype=BF16)
    weight = arrange(encode(matrix), config(path, programs=7, num_stages=3))
    assert torch.equal(w12_gemm(x, weight, view=view), w12_gemm(x, weight, view=view, asm=False))


@pytest.mark.device
@pytest.mark.parametrize(("n", "k"), [(5120, 5120), (17408, 5120), (4608, 12288), (7680, 4608)], ids=str)
def test_real_shapes_equal_the_twin(randn, agree, n, k):
    """At the shapes of real targets every output equals the twin's, in any batch, call after call and replayed."""
    matrix, x = randn(n, k, dtype=BF16, scale=k**-0.5), randn(128, k, dtype=BF16)
    for default in (default_config(n, k), *([CONFIGS[n, k, False]] if (n, k, False) in CONFIGS else [])):
        weight = arrange(encode(matrix), default)
        whole = w12_gemm(x, weight)
        agree(whole, w12_gemm_reference(x, weight), atol=1e-4)
        for t in (1, 8, 16, 17, 33, 64, 65, 128):
            assert torch.equal(w12_gemm(x[:t], weight), whole[:t])
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            replayed = w12_gemm(x, weight)
        for _ in range(20):
            graph.replay()
            assert torch.equal(replayed, whole)
        assert not weight.turns.any()

"""lm_head: the full product's token from the high plane, bounds, and what is multiplied again."""

from dataclasses import replace

import pytest
import torch

from benchmarks.overlay import overlay
from tests.kernels import w12_matrices

overlay("w12-linear")
overlay("certified-lm-head")

from kernels import lm_head as op  # noqa: E402
from kernels.lm_head import Config, lm_head, lm_head_reference, logit_bounds  # noqa: E402
from kernels.lm_head_bounds import COUNTED, MOST_COLUMNS, made_bounds  # noqa: E402
from kernels.portable import tl, triton  # noqa: E402
from kernels.sample import gumbel_reference, sample, sample_reference  # noqa: E402
from kernels.w12 import encode  # noqa: E402
from kernels.w12_gemm import BUCKETS, Schedule, Tile, arrange, w12_gemm  # noqa: E402
from kernels.w12_gemm import Config as HeadConfig  # noqa: E402

BF16, F32, F64 = torch.bfloat16, torch.float32, torch.float64


def stored(path="mma", block_n=64, unit=1, programs=None, **tile):
    """Config of the head's own product; programs are as many as there are tiles where none are said."""
    return lambda n: HeadConfig(
        Schedule(path, block_n, unit, programs or -(-n // block_n)), {bucket: Tile(**tile) for bucket in BUCKETS}
    )


class Case:
    """A head [n, k] with everything that a call takes; `asked` calls it for hidden states."""

    def __init__(self, matrix, how=None):
        self.matrix, self.packed = matrix, encode(matrix)
        self.weight = arrange(self.packed, (how or stored())(len(matrix)))
        self.bounds = made_bounds(self.packed)
        self.counts = torch.zeros(len(COUNTED), dtype=torch.int64, device=matrix.device)

    def noise(self, rows, heat):
        device = self.matrix.device
        position = torch.arange(7, 7 + rows, device=device)
        return position, torch.full_like(position, 2**62 + 5), torch.full((rows,), heat, device=device)

    def asked(self, x, heat=0.0, **how):
        return lm_head(x, self.weight, self.bounds, *self.noise(len(x), heat), hot=heat > 0, counts=self.counts, **how)

    def full(self, x, heat=0.0):
        """The token of all logits of the full product, chosen by the kernel that stock draws with."""
        logits = torch.cat([w12_gemm(part, self.weight) for part in x.split(128)])
        return sample(logits, *self.noise(len(x), heat))

    def told(self):
        return dict(zip(COUNTED, self.counts.tolist(), strict=True))


def trained(randn, n, k):
    """A head as trained: a matrix whose rows differ less, with fewer outliers."""
    return w12_matrices.trained(randn, n, k, spread=0.5, every=(1531, 1591))


def near(matrix, rows, randn, size=6.0):
    """Hidden states in whose direction a row of the head lies, and noise."""
    chosen = matrix[torch.arange(rows, device=matrix.device) * 13 % len(matrix)].float()
    chosen = chosen / chosen.norm(dim=1, keepdim=True).clamp(min=1e-3)
    return (size * chosen + randn(rows, matrix.shape[1], scale=matrix.shape[1] ** -0.5)).to(BF16)


HEADS = {
    "mma": stored(),
    "mma, 32 rows": stored(block_n=32),
    "mma in pieces": stored(programs=10),
    "wgmma": stored("wgmma"),
    "wgmma stream": stored("wgmma", programs=7),
    "two groups": stored(unit=2, num_stages=2),
}
PASSES = [
    Config(),
    Config("mma", 32),
    Config("wgmma", 64),
    Config("wgmma", 128, unit=2, num_stages=2),
    Config("mma", 64, chunk=32),
]


@pytest.mark.parametrize("heat", [0.0, 0.7])
@pytest.mark.parametrize("head", HEADS)
def test_tokens_are_those_of_the_full_product(randn, head, heat):
    """Whatever the head's schedule, greedy and sampled tokens are those that the full product's logits give."""
    case = Case(trained(randn, 300, 500), HEADS[head])
    x = torch.cat((near(case.matrix, 3, randn), randn(2, 500, dtype=BF16)))

    assert torch.equal(case.asked(x, heat), case.full(x, heat))
    told = case.told()
    assert (told["calls"], told["rows"], told["full"]) == (1, 5, 0)
    assert 5 <= told["candidates"] < 150


@pytest.mark.parametrize("config", PASSES, ids=str)
def test_the_pass_changes_no_token(randn, config):
    """Any tile, path and number of groups of the pass over the plane leads to the same tokens, rows filled or not."""
    case = Case(trained(randn, 150, 512), stored(block_n=64))
    for x in (near(case.matrix, 2, randn), near(case.matrix, 19, randn, size=2.0)):
        assert torch.equal(case.asked(x, config=config), case.full(x))


@pytest.mark.parametrize(
    ("rows", "path", "heat"),
    [
        (33, "mma", 0.0),
        *(pytest.param(*each, marks=pytest.mark.full) for each in ((64, "wgmma", 0.0), (100, "wgmma", 0.0))),
        pytest.param(40, "wgmma", 1.0, marks=pytest.mark.full),
    ],
    ids=str,
)
def test_many_rows(randn, rows, path, heat):
    """Larger batches, whose sums no registers hold, give the same tokens; so does a row alone where it is greedy."""
    case = Case(trained(randn, 140, 256), stored(path, chunk=32))
    x = near(case.matrix, rows, randn, size=3.0)
    tokens = case.asked(x, heat)

    assert torch.equal(tokens, case.full(x, heat))
    if not heat:
        assert torch.equal(case.asked(x[rows - 1 :]), tokens[rows - 1 :])


@pytest.mark.parametrize("config", [Config(), Config("wgmma")], ids=str)
@pytest.mark.parametrize("heat", [0.0, 1.3])
def test_bounds_hold_and_every_place_is_written(randn, config, heat):
    """No score of the full product, or of float64, is above its bound, and the best is not below the floor."""
    case = Case(trained(randn, 130, 300))
    x = torch.cat((near(case.matrix, 2, randn), randn(2, 300, dtype=BF16)))
    noise = case.noise(len(x), heat)
    found = logit_bounds(x, case.weight, case.bounds, *noise, hot=heat > 0, config=config)
    drawn = gumbel_reference(noise[1][:, None], noise[0][:, None], torch.arange(130, device=x.device))
    for logits in (w12_gemm(x, case.weight), (x.double() @ case.matrix.double().T).to(BF16)):
        scores = (logits.float() / heat + drawn if heat else logits.float()).to(BF16).float()
        assert (found.upper.float() >= scores).all()
        assert (found.floor <= scores.amax(1)).all()
    assert found.floor.isfinite().all()
    assert (scores.gather(1, found.row[:, None])[:, 0] >= found.floor).all()


@pytest.mark.parametrize("heat", [0.0, 1.0])
def test_what_is_not_certain_takes_all_rows(randn, heat):
    """NaN, infinities, zero, huge and vanishing hidden states rescore the whole head, for their own row alone wrong."""
    case = Case(trained(randn, 140, 200))
    plain = near(case.matrix, 1, randn)
    for special in (torch.nan, torch.inf, -torch.inf):
        x = plain.repeat(2, 1)
        x[0, 5] = special
        before = case.told()["full"]
        assert torch.equal(case.asked(x, heat), case.full(x, heat))
        assert case.told()["full"] == before + 1
        assert torch.equal(case.asked(x, heat)[1:], case.asked(plain, heat))
    for size in (0.0, 2.0**-130, 2.0**-80, 2.0**100):
        x = (plain.float() * size).to(BF16)
        assert torch.equal(case.asked(x, heat), case.full(x, heat))
    assert case.told()["calls"] - case.told()["full"] == 3  # those without a special row


@pytest.mark.parametrize("binade", [-35, -10, 25, 55])
def test_norms_within_reach_are_certified(randn, binade):
    """Hidden states of any usual size are certified with the same candidates, since everything scales."""
    case = Case(trained(randn, 140, 200))
    x = near(case.matrix, 3, randn)
    wanted = case.asked(x)
    few = case.told()["candidates"]
    scaled = (x.float() * 2.0**binade).to(BF16)

    assert torch.equal(case.asked(scaled), wanted)
    assert case.told()["candidates"] == 2 * few < 280


def test_ties_take_the_lowest_id(randn):
    """Equal rows, and logits that are equal once rounded, give the lowest id, though all are candidates."""
    half = trained(randn, 70, 256)
    case = Case(torch.cat((half, half, half)))
    x = near(half, 4, randn)
    tokens = case.asked(x)
    assert torch.equal(tokens, case.full(x)) and (tokens < 70).all()
    flat = Case(torch.ones(200, 256, dtype=BF16, device=x.device))
    assert torch.equal(flat.asked(x), torch.zeros_like(tokens))
    assert flat.told()["full"] == 1


def test_near_ties_are_decided_by_all_bits(randn):
    """Rows that the high plane cannot tell apart are told apart by what follows, in favour of none."""
    row = randn(1, 256).abs() + 1.0
    bits = row.to(BF16).view(torch.int16) & ~15
    rows = (bits | (torch.arange(150, device=row.device) % 16).to(torch.int16)[:, None]).view(BF16)
    case = Case(rows[torch.randperm(150, generator=torch.Generator().manual_seed(1))])
    x = randn(8, 256, dtype=BF16)
    assert torch.equal(case.asked(x), case.full(x))
    assert len(set(case.asked(x.abs()).tolist())) == 1


@pytest.mark.parametrize("nibble", [0, 15])
def test_weights_at_the_ends_of_their_byte(randn, nibble):
    """Where every low nibble is 0, or 15, and x has the weights' own signs, the rest is as large as it can be."""
    bits = randn(140, 256, scale=0.05).to(BF16).view(torch.int16) & ~15 | nibble
    case = Case(bits.view(BF16))
    for row in (3, 60):
        for x in (case.matrix[row].sign(), case.matrix[row], -case.matrix[row]):
            assert torch.equal(case.asked(x[None].contiguous()), case.full(x[None].contiguous()))


@pytest.mark.parametrize("large", [False, True])
def test_escapes_that_dominate(randn, large):
    """Rows whose logits come from escapes, huge or tiny, or from nothing else, are what the full product makes them."""
    weight = randn(140, 256, scale=2.0**-6)
    weight[::3, 7] = 2.0**30 if large else 2.0**-40
    weight[1::3, 5:9] = torch.tensor([2.0**20, -(2.0**20), 2.0**-60, 1e-39], device=weight.device)
    weight[20] = 0.0
    weight[20, 9] = 2.0**60 if large else 2.0**-70
    case = Case(weight.to(BF16))
    assert len(case.packed.columns) > 140
    for x in (randn(3, 256, dtype=BF16), near(case.matrix, 3, randn)):
        assert torch.equal(case.asked(x), case.full(x))
    assert case.told()["full"] == 0
    assert case.told()["candidates"] < 140


def test_overflow_on_the_way(randn):
    """A row whose escapes overflow in float32, one way and back, has a logit of NaN, as it has in the full product."""
    matrix = trained(randn, 140, 256)
    matrix[30, :2] = torch.tensor([3e38, -3e38], device=matrix.device)
    case = Case(matrix)
    x = near(matrix, 2, randn)
    x[:, :2] = torch.tensor([2.0**10, 2.0**11], device=x.device)
    assert w12_gemm(x, case.weight)[:, 30].isnan().all()
    assert torch.equal(case.asked(x), case.full(x))


@pytest.mark.parametrize("special", [torch.inf, -torch.inf, torch.nan])
def test_weights_that_are_not_finite(randn, special):
    """A head with infinities or NaN says what its full product says, and rescores those rows in every call."""
    matrix = trained(randn, 140, 256)
    matrix[[9, 77], 3] = special
    case = Case(matrix)
    x = near(matrix, 3, randn)
    x[2, 3] = 0.0
    assert torch.equal(case.asked(x), case.full(x))


def test_denormals(randn):
    """A head of denormals and a hidden state of denormals give the full product's token."""
    matrix = trained(randn, 70, 64)
    matrix[::9] = (randn(8, 64) * 2.0**-128).to(BF16)
    case = Case(matrix)
    for x in (near(matrix, 2, randn), (randn(2, 64) * 2.0**-130).to(BF16)):
        assert torch.equal(case.asked(x), case.full(x))


@triton.jit
def rough_kernel(word_ptr, out_ptr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + at, op.rough_noise(tl.load(word_ptr + at)))


def rough(words):
    """By how much rough noise is off, for words below 2^24, of which there is a multiple of 4,096."""
    out = torch.empty(len(words), device=words.device)
    rough_kernel[(len(words) // 4096,)](words.int(), out, BLOCK=4096)
    return (out.double() + torch.log(-torch.log((words.double() + 0.5) * 2.0**-24))).abs().max()


def test_rough_noise_is_as_near_as_it_says(device):
    """At both ends, where it changes its formula and all over, rough noise is a sixteenth of what it may be off."""
    words = [torch.arange(first, first + 4096) for first in (0, (1 << 24) - (1 << 18) - 2048, (1 << 24) - 4096)]
    words.append(torch.arange(4096) * 4096 + 1234)
    assert rough(torch.cat(words).to(device)) < op.ROUGH.value / 16


@pytest.mark.device
def test_rough_noise_of_every_word(device):
    """On a GPU too, for all words."""
    assert rough(torch.arange(1 << 24, device=device)) < op.ROUGH.value / 16


def test_counts_add_up(randn):
    """Counts are of calls, rows and rescored rows, and only grow."""
    case = Case(trained(randn, 100, 256))
    for calls in (1, 2, 3):
        case.asked(near(case.matrix, 2, randn))
        told = case.told()
        assert (told["calls"], told["rows"], told["full"]) == (calls, 2 * calls, 0)
        assert 2 * calls <= told["candidates"] < 100 * calls


def test_what_does_not_fit_is_refused(randn):
    """Rows, types, heads and configs that a kernel would compute wrongly are errors that say so."""
    case = Case(trained(randn, 70, 384))
    for x in (randn(129, 384, dtype=BF16), randn(1, 383, dtype=BF16), randn(1, 384), randn(0, 384, dtype=BF16)):
        with pytest.raises(ValueError, match="1 to 128 bfloat16 rows of 384 values"):
            case.asked(x)
    with pytest.raises(ValueError, match="do not divide 3 groups"):
        case.asked(randn(1, 384, dtype=BF16), config=Config(unit=2))
    with pytest.raises(ValueError, match="takes more than 32 rows"):
        case.asked(randn(1, 384, dtype=BF16), config=Config("wgmma", 32))
    case.weight = arrange(case.packed, stored()(70), paired=True)
    with pytest.raises(ValueError, match="not gated"):
        case.asked(randn(1, 384, dtype=BF16))
    wide = replace(case.packed, shape=(70, MOST_COLUMNS + 1))
    with pytest.raises(ValueError, match="at most 65536 columns"):
        made_bounds(wide)


def test_the_twin_is_the_best_of_all_logits(randn):
    """The twin takes the lowest id of the best logits, and of the best scores where it is given any."""
    case = Case(trained(randn, 70, 256))
    x = near(case.matrix, 3, randn)
    noise = case.noise(3, 0.9)
    assert torch.equal(lm_head_reference(x, case.weight), case.full(x))
    ids = torch.arange(70, device=x.device)

    def scored(logits):
        return logits.float() / 0.9 + gumbel_reference(noise[1][:, None], noise[0][:, None], ids)

    assert torch.equal(lm_head_reference(x, case.weight, scored), sample_reference(w12_gemm(x, case.weight), *noise))


def test_table_entries_fit_their_heads():
    """Every tuned config is one that the head of its shape takes."""
    for (_, k), tiles in op.CONFIGS.items():
        assert set(tiles) <= set(BUCKETS)
        assert all(-(-k // 128) % config.unit == 0 for config in tiles.values())


@pytest.mark.device
@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("heat", [0.0, 1.0])
def test_real_heads_say_the_full_products_tokens(randn, head, heat):
    """On a GPU, at a real head's size and at any number of rows, tokens are the full product's, replayed too."""
    n, k = 49152, 4608
    case = Case(
        randn(n, k, dtype=BF16, scale=k**-0.5), HEADS[head] if "in pieces" not in head else stored(programs=1536)
    )
    x = torch.cat((near(case.matrix, 64, randn, size=20.0), randn(64, k, dtype=BF16)))
    for config in PASSES:
        for rows in (1, 8, 16, 17, 33, 64, 128):
            for some in (x[:rows], x[-rows:]):
                assert torch.equal(case.asked(some, heat, config=config), case.full(some, heat))
    assert case.told()["full"] == 0
    graph = torch.cuda.CUDAGraph()
    few, wanted = x[56:72].clone(), case.full(x[56:72], heat)
    with torch.cuda.graph(graph):
        tokens = case.asked(few, heat)
    for _ in range(20):
        graph.replay()
        assert torch.equal(tokens, wanted)
    few.zero_()
    graph.replay()
    assert torch.equal(tokens, case.full(few, heat))
    assert case.told()["full"] == 1


@pytest.mark.device
@pytest.mark.parametrize("path", ["mma", "wgmma"])
def test_rescored_logits_have_the_products_bits(randn, path):
    """On a GPU near ties by the thousand are decided as the full product decides them: every bit is the same."""
    row = randn(1, 4096, scale=2.0**-6)
    matrix = row.to(BF16).repeat(20000, 1)
    flips = torch.randint(0, 4096, (20000, 3), generator=torch.Generator().manual_seed(2)).to(matrix.device)
    matrix.view(torch.int16)[torch.arange(20000, device=matrix.device)[:, None], flips] ^= 1
    case = Case(matrix, stored(path))
    x = randn(128, 4096, dtype=BF16)
    for rows in (1, 16, 33, 128):
        for heat in (0.0, 1e-3):
            assert torch.equal(case.asked(x[:rows], heat), case.full(x[:rows], heat))

"""The choice of a token from logits, against the independent implementation, and its distribution."""

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import settings as examples
from hypothesis import strategies as st
from scipy import stats

from stock.sampling import Noise, Sampling, choose, kept
from tests.stock import reference

CPU = torch.device("cpu")
# Whole and half logits tie often; scaled by powers of two nothing is rounded, so that boundaries are exact.
LOGITS = st.lists(st.integers(-8, 8).map(lambda n: n / 2), min_size=1, max_size=20)
TEMPERATURES = st.sampled_from([0.25, 0.5, 1.0, 2.0, 8.0])
TOP_P = st.sampled_from([0.05, 0.3, 0.5, 0.7, 0.9, 0.99, 1.0])
TOP_K = st.sampled_from([0, 1, 2, 3, 5, 20, 1000])
SEEDS = st.integers(0, 2**64 - 1)


def ours(logits, position, sampling, dtype=torch.float32):
    row = torch.tensor([logits], dtype=dtype)
    return int(choose(row, torch.tensor([position]), sampling, Noise.of(sampling, CPU)))


def kept_ids(logits, sampling):
    row = torch.tensor([logits], dtype=torch.float32)
    return set(kept(row, Noise.of(sampling, CPU))[0].nonzero().flatten().tolist())


@given(LOGITS, TEMPERATURES, TOP_P, TOP_K)
@examples(max_examples=300)
@example([0.0] * 10, 1.0, 0.3, 0)
@example([0.0] * 10, 1.0, 0.7, 0)
@example([1.0, 1.0, 1.0, 0.0], 1.0, 0.9, 2)
@example([0.0, 1.0, 1.0, 1.0], 1.0, 0.5, 1)
def test_kept_set(logits, temperature, top_p, top_k):
    """Ties at the k-th logit are all kept, top-p counts what top-k kept, and equal logits enter by lower id first.

    p is compared in float64, so that a mass before an id that reaches it exactly ends the set.
    """
    scaled = np.array(logits) / temperature

    assert kept_ids(logits, Sampling(temperature, top_p, top_k)) == reference.kept(scaled, top_k, top_p)


def test_kept_set_in_words():
    """The documented semantics on a row that can be worked out by hand: masses 1/2, 1/4, 1/8, 1/8."""
    logits = [float(np.log(mass)) for mass in (1 / 8, 1 / 2, 1 / 8, 1 / 4)]
    assert kept_ids(logits, Sampling(1.0, top_k=3)) == {0, 1, 2, 3}  # two ids tie for third place
    assert kept_ids(logits, Sampling(1.0, top_k=2)) == {1, 3}
    assert kept_ids(logits, Sampling(1.0, top_p=0.49)) == {1}
    assert kept_ids(logits, Sampling(1.0, top_p=0.51)) == {1, 3}
    assert kept_ids(logits, Sampling(1.0, top_p=0.76)) == {0, 1, 3}  # of the tied ones the lower id
    assert kept_ids(logits, Sampling(1.0, top_p=0.01)) == {1}  # the best id is always kept
    assert kept_ids(logits, Sampling(1.0, top_p=0.6, top_k=2)) == {1}  # 2/3 of what top-k kept
    assert kept_ids(logits, Sampling(0.5, top_p=0.51)) == {1}  # at T = 1/2 its mass is 16/22


@given(LOGITS, TEMPERATURES, TOP_P, TOP_K, SEEDS, st.integers(0, 100000))
@examples(max_examples=150)
def test_choice(logits, temperature, top_p, top_k, seed, position):
    """The argmax of logit/T + g over what is kept."""
    sampling = Sampling(temperature, top_p, top_k, seed)
    expected = reference.Settings(temperature, top_p, top_k, seed)

    assert ours(logits, position, sampling) == reference.choose(np.array(logits, np.float32), position, expected)
    in_double = ours(logits, position, sampling, torch.float64)
    assert in_double == reference.choose(np.array(logits, np.float64), position, expected)


@given(LOGITS)
def test_greedy(logits):
    """Temperature 0 is the argmax, the lowest id on ties, whatever the cuts say."""
    best = logits.index(max(logits))
    assert ours(logits, 3, Sampling()) == best
    assert ours(logits, 3, Sampling(0.0, 0.1, 1, 5)) == best


@given(st.integers(0, 2**64 - 1), st.sampled_from([1, 2, 64, 65, 200]))
@examples(max_examples=40)
def test_shortcut_leaves_nothing_out(seed, vocabulary):
    """The engine scores only ids that can still win; on flat, steep and spiked rows the best is that of all."""
    random = np.random.default_rng(seed % 2**32)
    for shape in ("flat", "steep", "spiked"):
        logits = random.normal(size=vocabulary).astype(np.float32)
        if shape == "steep":
            logits = np.linspace(0, 60, vocabulary, dtype=np.float32)
        if shape == "spiked":
            logits[vocabulary // 2] = 17.3
        sampling = Sampling(1.0, seed=seed)
        noise = np.array([reference.gumbel(seed, 9, token) for token in range(vocabulary)])
        best = max(range(vocabulary), key=lambda token: ((logits + noise)[token], -token))

        assert ours(logits.tolist(), 9, sampling) == best


def frequencies(logits, sampling, count):
    """How often each id is chosen over positions 0 .. count - 1."""
    rows = torch.tensor(logits).expand(count, -1)
    return Counter(choose(rows, torch.arange(count), sampling, Noise.of(sampling, CPU)).tolist())


@pytest.mark.parametrize(
    ("temperature", "top_p", "top_k"), [(1.0, 1.0, 0), (0.7, 1.0, 0), (2.5, 1.0, 0), (1.0, 0.8, 0), (1.5, 0.9, 4)]
)
def test_distribution(temperature, top_p, top_k):
    """Over many positions the tokens follow softmax(logits/T) restricted to the kept set (chi-square, 0.1 %)."""
    logits = [0.3, 1.7, -0.4, 2.0, 0.0, 1.1, -1.5]
    count = 600
    scaled = np.array(logits) / temperature
    allowed = sorted(reference.kept(scaled, top_k, top_p))
    mass = np.exp(scaled[allowed])
    expected = count * mass / mass.sum()

    found = frequencies(logits, Sampling(temperature, top_p, top_k, seed=11), count)

    assert set(found) <= set(allowed)
    assert stats.chisquare([found[token] for token in allowed], expected).pvalue > 0.001


def test_seeds_and_positions_are_independent():
    """Tokens of neighbouring positions, and of two seeds at one position, are independent (chi-square, 0.1 %)."""
    logits, count = [0.0, 0.5, 1.0], 800
    rows = torch.tensor(logits).expand(count, -1)
    tokens = [
        choose(rows, torch.arange(count), each, Noise.of(each, CPU)).numpy()
        for each in (Sampling(1.0, seed=1), Sampling(1.0, seed=2))
    ]
    for first, second in ((tokens[0][1:], tokens[0][:-1]), tokens):
        table = np.histogram2d(first, second, bins=3)[0]
        assert stats.chi2_contingency(table).pvalue > 0.001


def test_rows_are_chosen_by_themselves():
    """A row's token depends on its logits and position only, not on its neighbours."""
    logits = torch.randn(6, 50, generator=torch.Generator().manual_seed(0))
    position = torch.tensor([4, 4, 9, 100, 0, 7])
    sampling = Sampling(1.3, 0.9, 20, 77)
    noise = Noise.of(sampling, CPU)

    together = choose(logits, position, sampling, noise)

    alone = [choose(logits[row : row + 1], position[row : row + 1], sampling, noise) for row in range(6)]
    assert together.tolist() == [int(each) for each in alone]


def test_settings_taken_over_in_place():
    """A context that serves the next request reads all of its settings."""
    first, second = Sampling(0.5, 0.4, 3, 1), Sampling(2.0, 0.9, 7, 2**64 - 1)
    noise = Noise.of(first, CPU)
    before = [getattr(noise, name).data_ptr() for name in ("seed", "temperature", "top_p", "top_k")]

    noise.set(second)

    fresh = Noise.of(second, CPU)
    for name, pointer in zip(("seed", "temperature", "top_p", "top_k"), before, strict=True):
        assert torch.equal(getattr(noise, name), getattr(fresh, name))
        assert getattr(noise, name).data_ptr() == pointer

"""The noise of docs/protocol.md: its test vectors, an independent Philox, and its distribution."""

import hashlib
import math
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from stock.noise import gumbel, philox_word, seed_tensor
from tests.stock import reference

PAGE = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text()
VECTORS = [
    tuple(cell.strip() for cell in row.strip("|").split("|"))
    for row in PAGE.split("Test vectors")[1].splitlines()
    if row.startswith("| ") and row[2].isdigit()
]
UINT64, UINT32 = st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1)


def test_page_has_the_vectors():
    """Four seeds, each at four places, among them the largest seed."""
    assert len(VECTORS) == 16
    assert {int(seed) for seed, *_ in VECTORS} >= {0, 1, 2**64 - 1}


@pytest.mark.parametrize("vector", VECTORS, ids=["-".join(vector[:3]) for vector in VECTORS])
def test_vector(vector):
    """Word and noise have the documented bits."""
    seed, position, token = (int(cell) for cell in vector[:3])
    word, noise = int(vector[3], 16), struct.unpack(">f", bytes.fromhex(vector[4].split("0x")[1].rstrip(")")))[0]
    place = torch.tensor([position]), torch.tensor([token])

    assert philox_word(seed_tensor([seed]), *place).item() == word
    assert gumbel(seed_tensor([seed]), *place).item() == noise


def test_documented_seed():
    """The third seed of the vectors is what the client derives for choice 0 of seed 7."""
    digest = hashlib.sha256(b"7:0").digest()
    assert str(int.from_bytes(digest[:8], "little")) in {seed for seed, *_ in VECTORS}


@given(seed=UINT64, position=UINT32, token=UINT32)
def test_any_place_equals_the_independent_philox(seed, position, token):
    """Word 0 for any key and counter, and the noise rounded once from float64."""
    place = seed_tensor([seed]), torch.tensor([position]), torch.tensor([token])
    word = reference.philox4x32((seed & 0xFFFFFFFF, seed >> 32), (position, token, 0, 0))[0]

    assert philox_word(*place).item() == word
    # One unit in the last place: two libraries' logarithms may round a float64 differently.
    np.testing.assert_array_max_ulp(gumbel(*place).numpy()[0], reference.gumbel(seed, position, token), maxulp=1)


def test_random_access():
    """A block of positions and ids has the values that each has alone, in any order."""
    position, token = torch.tensor([[3], [900], [0]]), torch.tensor([[7, 0, 49151, 12]])
    block = gumbel(seed_tensor([99]), position, token)

    for row, at in enumerate((3, 900, 0)):
        for column, name in enumerate((7, 0, 49151, 12)):
            alone = gumbel(seed_tensor([99]), torch.tensor([at]), torch.tensor([name]))
            assert block[row, column] == alone[0]


def test_distribution():
    """50,000 values are standard Gumbel (Kolmogorov-Smirnov), uncorrelated along ids, positions and seeds."""
    values = gumbel(seed_tensor([5]), torch.arange(100)[:, None], torch.arange(500)[None]).double()
    other = gumbel(seed_tensor([6]), torch.arange(100)[:, None], torch.arange(500)[None]).double()

    assert stats.kstest(values.flatten().numpy(), stats.gumbel_r.cdf).pvalue > 0.001
    for first, second in ((values[1:], values[:-1]), (values[:, 1:], values[:, :-1]), (values, other)):
        correlation = np.corrcoef(first.flatten().numpy(), second.flatten().numpy())[0, 1]
        assert abs(correlation) < 4 / math.sqrt(first.numel())


def test_bounds():
    """The ceiling that the engine's shortcut relies on: no noise exceeds that of the largest u, 1 - 2^-25."""
    from stock.sampling import _NOISE_CEILING

    assert -math.log(-math.log(1 - 2.0**-25)) < _NOISE_CEILING
    assert math.isfinite(-math.log(-math.log(2.0**-25)))

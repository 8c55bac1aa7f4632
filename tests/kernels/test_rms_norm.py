"""rms_norm: Llama's order of roundings at any width."""

import pytest
import torch

from kernels.rms_norm import rms_norm, rms_norm_reference

# Widths below, at and above a power of two, and the hidden sizes of small models.
SHAPES = [(1, 576), (3, 64), (2, 896), (5, 33), (1, 4608)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_rows_equal_the_twin(randn, agree, shape, dtype):
    """Every row is normalised as the twin does it, in both types."""
    x, weight = randn(*shape, dtype=dtype, scale=3), randn(shape[1], dtype=dtype)
    agree(rms_norm(x, weight, 1e-5), rms_norm_reference(x, weight, 1e-5), unequal=0.04)


def test_a_row_does_not_see_its_neighbours(randn):
    """A row has the same bits alone and among rows of other content, NaN included."""
    x, weight = randn(4, 100, dtype=torch.bfloat16), randn(100, dtype=torch.bfloat16)
    alone = rms_norm(x[1:2], weight, 1e-6)
    x[0], x[2], x[3] = float("nan"), 1e30, 0
    assert torch.equal(rms_norm(x, weight, 1e-6)[1:2], alone)


def test_twin_is_rms_norm_of_torch(randn):
    """In float32 the twin is torch's own RMSNorm."""
    x, weight = randn(3, 80), randn(80)
    torch.testing.assert_close(
        rms_norm_reference(x, weight, 1e-5), torch.nn.functional.rms_norm(x, (80,), weight, 1e-5)
    )

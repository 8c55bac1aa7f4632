"""silu_mul: the gate of an MLP, rounded once."""

import pytest
import torch

from kernels.silu_mul import silu_mul, silu_mul_reference


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(1, 1536), (3, 7), (2, 1025), (16, 96)], ids=str)
def test_rows_equal_the_twin(randn, agree, shape, dtype):
    """Every value equals the twin's in both types, at widths that fill no block."""
    gate_up = randn(shape[0], 2 * shape[1], dtype=dtype, scale=4)
    agree(silu_mul(gate_up), silu_mul_reference(gate_up), rtol=4e-6)


def test_far_gates_close_or_open(device):
    """A very negative gate gives zero and a very positive one passes itself, without NaN."""
    gate_up = torch.tensor([[-200.0, 200.0, 0.0, 3.0, 3.0, 3.0]], device=device)
    assert silu_mul(gate_up).tolist() == [[0.0, 600.0, 0.0]]

"""gemv: one row through a linear layer with what surrounds it."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernels.gemv import CONFIGS, Config, default_config, gemv, gemv_reference

BF16, F32 = torch.bfloat16, torch.float32


def operands(randn, n, k, dtype, norm=False, bias=False, residual=False, silu_mul=False):
    """x, weight and the fusions of one call; weights of unit row norm, so that outputs are of order one."""
    x, weight = randn(1, k, dtype=dtype), randn(n, k, dtype=dtype, scale=k**-0.5)
    fused = {"silu_mul": silu_mul, "eps": 1e-5}
    if norm:
        fused["norm"] = randn(k, dtype=dtype)
    if bias:
        fused["bias"] = randn(n, dtype=dtype)
    if residual:
        fused["residual"] = randn(1, n // 2 if silu_mul else n, dtype=dtype)
    return x, weight, fused


@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize(("n", "k"), [(8, 576), (7, 896), (2, 96), (12, 33), (6, 1537)])
def test_product_equals_the_twin(randn, agree, n, k, dtype):
    """Every output equals the twin's, whether or not rows and columns fill the tiles."""
    x, weight, _ = operands(randn, n, k, dtype)
    agree(gemv(x, weight), gemv_reference(x, weight))


@pytest.mark.parametrize("silu_mul", [False, True])
@pytest.mark.parametrize(("norm", "bias", "residual"), list(itertools.product([False, True], repeat=3)))
def test_fusions_equal_the_twin(randn, agree, norm, bias, residual, silu_mul):
    """Norm, bias, gate and residual give, in every combination, what the twin gives."""
    x, weight, fused = operands(randn, 10, 300, BF16, norm, bias, residual, silu_mul)
    agree(gemv(x, weight, **fused), gemv_reference(x, weight, **fused), atol=1e-2)


@pytest.mark.parametrize(
    "config",
    [Config(1, 256, 1), Config(2, 512, 2), Config(8, 1024, 4), Config(4, 256, 1, 3), Config(4, 512, 1)],
    ids=str,
)
def test_every_config_computes_the_same_product(randn, agree, config):
    """A configuration changes the order of the sum and nothing else."""
    x, weight, fused = operands(randn, 12, 700, F32, norm=True, bias=True)
    agree(gemv(x, weight, config=config, **fused), gemv_reference(x, weight, **fused), rtol=1e-5, atol=1e-5)


def test_fused_norm_rounds_as_rms_norm_does(randn):
    """The fused norm feeds the product what the twin of rms_norm returns, bit for bit where the weights select it."""
    x, norm = randn(1, 64, dtype=BF16, scale=5), randn(64, dtype=BF16)
    identity = torch.eye(64, dtype=BF16, device=x.device)
    assert torch.equal(gemv(x, identity, norm=norm, eps=1e-5), gemv_reference(x, identity, norm=norm, eps=1e-5))


def test_more_rows_are_refused(randn):
    """gemv is for one row; two rows are an error, not a slow path."""
    with pytest.raises(ValueError, match="one row of 64 values"):
        gemv(randn(2, 64), randn(4, 64))


def test_gates_come_in_pairs(randn):
    """silu_mul needs as many gate rows as up rows, and both in one program."""
    x, weight = randn(1, 64), randn(4, 64)
    with pytest.raises(ValueError, match="pairs weight rows"):
        gemv(x, weight, silu_mul=True, config=Config(1, 256, 1))
    with pytest.raises(ValueError, match="pairs weight rows"):
        gemv(x, weight[:3], silu_mul=True)


@given(st.integers(1, 300_000), st.integers(1, 30_000))
def test_default_config_is_one_that_triton_takes(n, k):
    """Defaults are powers of two that serve silu_mul, and a tile is not twice as wide as the row."""
    config = default_config(n, k)
    for value in (config.block_n, config.block_k, config.num_warps):
        assert value >= 1 and value & (value - 1) == 0
    assert config.block_n >= 2 and config.block_k < max(257, 2 * k)


def test_table_entries_are_configs_of_their_shape():
    """Every tuned entry is a Config keyed by two positive sizes."""
    for (n, k), config in CONFIGS.items():
        assert n > 0 and k > 0 and isinstance(config, Config)


@pytest.mark.device
@pytest.mark.parametrize(("n", "k"), [(4608, 4608), (7680, 4608), (24576, 4608), (4608, 12288), (576, 1536)])
def test_target_shapes_equal_the_twin(randn, agree, n, k):
    """At the shapes of a real target every output equals the twin's."""
    x, weight, fused = operands(randn, n, k, BF16, norm=True, silu_mul=n == 24576)
    agree(gemv(x, weight, **fused), gemv_reference(x, weight, **fused), atol=1e-2)

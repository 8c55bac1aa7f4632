"""One row times a matrix on a GPU, with its norm, bias, activation and residual in one kernel."""

from torch import Tensor

from stock.linear import Norm

__all__ = ["gemv"]


def gemv(
    x: Tensor, weight: Tensor, bias: Tensor | None, norm: Norm | None, residual: Tensor | None, silu_mul: bool
) -> Tensor:
    """The product that `stock.linear.Linear` describes, for x [1, features] on a GPU."""
    from kernels.gemv import gemv as kernel

    return kernel(
        x,
        weight,
        bias=bias,
        norm=None if norm is None else norm.weight,
        eps=0.0 if norm is None else norm.eps,
        residual=residual,
        silu_mul=silu_mul,
    )

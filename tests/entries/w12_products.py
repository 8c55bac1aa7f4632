"""Products of w12-linear through its kernels, as the engine asks for them, against stock's on the same weights.

    python w12_products.py DEVICE

The system's folder is on PYTHONPATH; on a CPU TRITON_INTERPRET is set.  Prints how many products there were.
"""

import itertools
import sys

import torch

N, K = 128, 140
ROWS = (5, 130)


def drawn(device: str, *shape: int, seed: int) -> torch.Tensor:
    return (torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) / 8).bfloat16().to(device)


def main(device: str) -> None:
    """Every form of a product, gated and plain, within BF16's rounding of stock's, and of the same bits in a batch."""
    from kernels.w12_gemm import arrange
    from stock.linear import Norm
    from stock.linear.dense import Dense
    from stock.linear.w12 import W12
    from stock.ops.w12 import encode
    from stock.ops.w12_gemm import ROWS as MOST

    weights = {name: drawn(device, N, K, seed=seed) for seed, name in enumerate(("plain", "biased", "gate_up"))}
    weights["plain"][:, 7] *= 2.0**-40
    others = {"norm": drawn(device, K, seed=9), "biased.bias": drawn(device, N, seed=8)}
    packed = {name: arrange(encode(weight), paired=name == "gate_up") for name, weight in weights.items()}
    linear, dense, norm = W12(others, packed, {}), Dense(weights | others), Norm(others["norm"], 1e-5)
    forms = list(itertools.product(weights, ROWS, (None, norm), (False, True), (False, True)))
    decoded = 0
    for name, rows, normed, gated, added in forms:
        x = drawn(device, rows, K, seed=rows)
        residual = drawn(device, rows, N // 2 if gated else N, seed=3) if added else None

        def asked(of, x=x, name=name, normed=normed, gated=gated, residual=residual):
            own = None if residual is None else residual[: len(x)].clone()
            return of(name, x, norm=normed, residual=own, silu_mul=gated)

        ours, theirs = asked(linear), asked(dense)
        decoded += rows > MOST
        assert int(linear.decoded) == decoded
        assert ours.dtype == torch.bfloat16 and ours.shape == theirs.shape
        # Stock rounds the product, its sum with the bias and the gated product each; here all are rounded once.
        torch.testing.assert_close(ours.float(), theirs.float(), rtol=2e-2, atol=2e-2)
        if rows <= MOST and gated == (name == "gate_up"):
            assert torch.equal(asked(linear, x=x[:1].contiguous()), ours[:1])
    print(len(forms))


if __name__ == "__main__":
    main(sys.argv[1])

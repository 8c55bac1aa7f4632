"""The contract of w12-linear: python checks/w12-linear/check.py, from the root of a system that has it.

What is packed comes back bit for bit, and where no kernel runs every product has the bits of stock's.
"""

import torch
from torch import Tensor

from stock.linear import Norm
from stock.linear.dense import Dense
from stock.linear.w12 import W12
from stock.ops.w12 import cost, decode, encode, matches
from stock.ops.w12_gemm import ROWS, ready
from stock.options import resolve


def drawn(*shape: int, seed: int = 0) -> Tensor:
    """Numbers that BF16 holds, as float32."""
    return (torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) / 16).bfloat16().float()


def check_every_pattern() -> None:
    """All 65,536 patterns come back, and a record of other bits is told."""
    every = torch.arange(1 << 16).to(torch.int32).to(torch.int16).view(torch.bfloat16).view(64, 1024)
    packed = encode(every)
    assert torch.equal(decode(packed).view(torch.int16), every.view(torch.int16)) and matches(packed, every)
    for at in packed.high.view(-1).nonzero()[::997].flatten():
        packed.high.view(-1)[at] ^= 1
        assert not matches(packed, every)
        packed.high.view(-1)[at] ^= 1
    assert cost(packed).refusal() is not None


def check_products(dtype: torch.dtype) -> None:
    """Every form of a product has stock's bits, and a matrix is decoded for more than ROWS rows alone."""
    weights = {name: drawn(512, 256, seed=seed).to(dtype) for seed, name in enumerate(("up", "head", "biased"))}
    weights |= {"norm": drawn(256).to(dtype), "biased.bias": drawn(512).to(dtype)}
    packed = {name: ready(encode(weights[name].bfloat16()), dtype) for name in ("up", "head", "biased")}
    linear, dense = W12({"norm": weights["norm"], "biased.bias": weights["biased.bias"]}, packed, {}), Dense(weights)
    norm, many = Norm(weights["norm"], 1e-5), 0
    for rows in (1, 64, ROWS, ROWS + 1, 300):
        x = drawn(rows, 256, seed=rows).to(dtype)
        for name in packed:
            for how in ({}, {"norm": norm}, {"silu_mul": True}, {"norm": norm, "silu_mul": True}):
                residual = drawn(rows, 256 if "silu_mul" in how else 512, seed=9).to(dtype)
                for added in (None, residual):
                    ours = linear(name, x, residual=None if added is None else added.clone(), **how)
                    assert torch.equal(ours, dense(name, x, residual=added, **how))
                    many += rows > ROWS
    assert int(linear.decoded) == many == 48


check_every_pattern()
for dtype in (torch.float32, torch.float64, torch.bfloat16):
    check_products(dtype)
assert resolve({"draft": "none"})["linear"] == "dense"
print("w12-linear: what is packed comes back, and products on a CPU have stock's bits")

"""Matrices that products with W12 weights are tried on."""

import torch

BF16 = torch.bfloat16


def trained(randn, n, k, spread=1.0, every=(153, 159)):
    """A matrix [n, k] as trained, with escapes, zeros of both signs, outliers and a row of zeros.

    spread: SD of its rows' exponents.  every: how far outliers, and tiny values, are apart.
    """
    weight = randn(n, k, scale=k**-0.5)
    weight *= 2.0 ** (spread * randn(n, 1)).round()
    weight.view(-1)[::37] = 0.0
    weight.view(-1)[::41] = -0.0
    weight.view(-1)[5 :: every[0]] = 3.0
    weight.view(-1)[7 :: every[1]] *= 2.0**-30
    weight[n // 2] = 0.0
    return weight.to(BF16)


def exact(device, t, n, k):
    """x and a matrix whose products and sums are exact in float32 in any order, escapes among them."""
    generator = torch.Generator().manual_seed(t * n + k)
    x = torch.randint(-3, 4, (t, k), generator=generator)
    weight = torch.randint(-9, 10, (n, k), generator=generator) / 8
    weight[torch.rand(n, k, generator=generator) < 0.01] = 2.0**-17
    return x.to(BF16).to(device), weight.to(BF16).to(device)

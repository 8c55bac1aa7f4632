"""Attention of many draft blocks at once, each behind a context of its own: the kernels' path and the plain one."""

import pytest
import torch

from kernels.ancestors import ancestors_reference
from stock.ops import attention
from stock.ops.attention import Heads, Layer, Rows, attend, visible_rows

BLOCK, COUNT, START = 4, 3, 7


@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize("causal", [True, False])
def test_blocks_through_kernels(window, causal, device, randn):
    """Rows held in the cache are keys and no queries; blocks go behind them; the same output and the same cache."""
    held = COUNT - 1
    context, offset, block = torch.arange(held), torch.arange(BLOCK), torch.arange(COUNT)[:, None]
    row = held + BLOCK * block + offset
    parent = torch.cat((context - 1, torch.where(offset == 0, block - 1, row - 1).flatten()))
    last = torch.cat((context, row[:, -1:].expand(-1, BLOCK).flatten()))
    position = (START + torch.cat((context, (block + offset).flatten()))).to(device)
    seen, words = visible_rows(parent).to(device), ancestors_reference(parent).to(device)
    if not causal:
        seen, words = seen[last], words[last].contiguous()
    angle = torch.arange(64 * 4, device=device).view(64, 4) / 9
    heads = Heads(4, 2, 8, 1e-6, angle.cos(), angle.sin())
    start = torch.tensor([START], dtype=torch.int32, device=device)
    qkv, cache = randn(COUNT * BLOCK, 8 * 8), randn(2, 40, 2, 8)
    plain, kernels = cache.clone(), cache.clone()

    expected = attend(qkv, heads, Layer(plain, window=window), Rows(start, position, seen, held))
    found = attention._attend_kernels(qkv, heads, Layer(kernels, window=window), Rows(start, position, words, held))

    # Float32 sums over at most 24 keys, in two orders.
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(kernels, plain, rtol=0, atol=1e-6)

"""The paths of a draft tree as bit words, what `tree_attention` masks with."""

import torch
from torch import Tensor

from kernels.portable import cdiv, check_tensors, next_power_of_2, tl, triton

__all__ = ["ancestors", "ancestors_reference"]

WORD = 64


@triton.jit(do_not_specialize=["n"])
def ancestors_kernel(parent_ptr, words_ptr, n, BLOCK: tl.constexpr, ROUNDS: tl.constexpr):
    # Pointer jumping: after round r a word holds 2^r generations, and `jump` skips as many.
    word = tl.program_id(0)
    node = tl.arange(0, BLOCK)
    jump = tl.load(parent_ptr + node, mask=node < n, other=-1).to(tl.int32)
    bits = tl.where(node // 64 == word, tl.full([BLOCK], 1, tl.int64) << (node % 64).to(tl.int64), 0)
    for _ in tl.static_range(ROUNDS):
        rooted, there = jump < 0, tl.maximum(jump, 0)
        bits |= tl.where(rooted, 0, tl.gather(bits, there, 0))
        jump = tl.where(rooted, -1, tl.gather(jump, there, 0))
    tl.store(words_ptr + node * tl.num_programs(0) + word, bits, mask=node < n)


def ancestors(
    parent: Tensor,  # [n] int32 or int64, n <= 1024: parents before children; -1 for node 0 and for padding
) -> Tensor:
    """int64 [n, ceil(n / 64)]: bit j % 64 of word j // 64 of row i is set where j is i or an ancestor of i."""
    check_tensors(parent)
    (n,) = parent.shape
    words = torch.empty(n, cdiv(n, WORD), dtype=torch.int64, device=parent.device)
    block = max(16, next_power_of_2(n))
    ancestors_kernel[(cdiv(n, WORD),)](
        parent, words, n, BLOCK=block, ROUNDS=block.bit_length() - 1, num_warps=min(8, max(1, block // 64))
    )
    return words


def ancestors_reference(parent: Tensor) -> Tensor:
    """The twin of `ancestors` in plain torch, node by node; syncs the host."""
    n = parent.shape[0]
    words = torch.zeros(n, cdiv(n, WORD), dtype=torch.int64)
    for node, above in enumerate(parent.tolist()):
        if above >= 0:
            words[node] = words[above]
        words[node, node // WORD] |= torch.tensor(1) << node % WORD
    return words.to(parent.device)

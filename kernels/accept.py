"""The walk of verification: which nodes of a draft tree the target agrees with."""

import torch
from torch import Tensor

from kernels.portable import check_tensors, next_power_of_2, tl, triton

__all__ = ["accept", "accept_reference"]


@triton.jit(do_not_specialize=["n", "length"])
def accept_kernel(
    token_ptr,
    parent_ptr,
    choice_ptr,
    path_ptr,
    count_ptr,
    next_token_ptr,
    n,
    length,
    BLOCK: tl.constexpr,
    BLOCK_M: tl.constexpr,
):
    node = tl.arange(0, BLOCK)
    parent = tl.load(parent_ptr + node, mask=node < n, other=-1).to(tl.int32)
    token = tl.load(token_ptr + node, mask=node < n, other=-1)
    agreed = (parent >= 0) & (token == tl.load(choice_ptr + tl.maximum(parent, 0)))
    last = tl.min(node, 0)
    count = last + 1
    tl.store(path_ptr, last)
    # A round a generation, most often few; the lowest child goes on, whatever stands twice among siblings.
    child = tl.min(tl.where(agreed & (parent == last), node, BLOCK), 0)
    while (child < BLOCK) & (count < length):
        tl.store(path_ptr + count, child)
        last = child
        count += 1
        child = tl.min(tl.where(agreed & (parent == last), node, BLOCK), 0)
    place = tl.arange(0, BLOCK_M)
    tl.store(path_ptr + place, tl.zeros([BLOCK_M], tl.int32) + last, mask=(place >= count) & (place < length))
    tl.store(count_ptr, count)
    tl.store(next_token_ptr, tl.load(choice_ptr + last))


def accept(
    token: Tensor,  # [n] int32 or int64, n <= 1024: node 0 is the anchor
    parent: Tensor,  # [n] int32 or int64: parents before children; -1 for node 0 and for padding
    choice: Tensor,  # [n]: the token that the target chose after each node
    length: int | None = None,  # m, the most nodes to accept; n by default
) -> tuple[Tensor, Tensor, Tensor]:
    """(path [m] int32, count [1] int32, next_token [1] of choice's type).

    Node 0 is accepted, and of an accepted node the first child whose token is what the target chose there.  `path`
    holds the accepted nodes by depth and then repeats the last; `count` is their number, the anchor included;
    `next_token` is the target's choice after the last.
    """
    check_tensors(token, parent, choice)
    (n,) = token.shape
    length = length or n
    path = torch.empty(length, dtype=torch.int32, device=token.device)
    count = torch.empty(1, dtype=torch.int32, device=token.device)
    next_token = choice.new_empty(1)
    block = max(16, next_power_of_2(n))
    accept_kernel[(1,)](
        token,
        parent,
        choice,
        path,
        count,
        next_token,
        n,
        length,
        BLOCK=block,
        BLOCK_M=next_power_of_2(length),
        num_warps=min(8, max(1, block // 64)),
    )
    return path, count, next_token


def accept_reference(
    token: Tensor, parent: Tensor, choice: Tensor, length: int | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """The twin of `accept` in plain torch, node by node; syncs the host."""
    tokens, parents, choices = token.tolist(), parent.tolist(), choice.tolist()
    path = [0]
    for node in range(1, len(tokens)):
        if parents[node] == path[-1] and tokens[node] == choices[path[-1]]:
            path.append(node)
    length = length or len(tokens)
    path = path[:length]
    padded = path + path[-1:] * (length - len(path))
    return (
        torch.tensor(padded, dtype=torch.int32, device=token.device),
        torch.tensor([len(path)], dtype=torch.int32, device=token.device),
        choice[path[-1:]],
    )

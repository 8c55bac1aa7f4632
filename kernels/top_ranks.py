"""The best tokens of each row with their log-probabilities: what a drafter's lattice holds.

Each chunk of the vocabulary gives its own candidates and its part of the softmax's sum; a second kernel merges them.
A logit and its id are one int64 key, so the order (logit descending, id ascending) is exact also where BF16 logits tie.
"""

import torch
from torch import Tensor

from kernels.portable import cdiv, check_tensors, f32, key_id, key_score, next_power_of_2, rank_key, tl, triton, wide

__all__ = ["top_ranks", "top_ranks_reference"]

CHUNKS = 64  # at most so many of a row; fewer where they would hold less than a warp's 1,024 logits
NOTHING = tl.constexpr(-0x8000000000000000)  # below every key


@triton.jit
def chunk_ranks_kernel(
    logits_ptr, key_ptr, highest_ptr, total_ptr, V: tl.constexpr, RANKS: tl.constexpr, CHUNK: tl.constexpr
):
    row, chunk, chunks = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    token = chunk * CHUNK + tl.arange(0, CHUNK)
    logit = f32(tl.load(logits_ptr + row * V + token, mask=token < V, other=float("-inf")))
    highest = tl.max(logit, 0)
    base = tl.where(highest == float("-inf"), 0.0, highest)
    tl.store(highest_ptr + row * chunks + chunk, highest)
    tl.store(total_ptr + row * chunks + chunk, tl.sum(tl.exp(logit - base), 0))
    keys = tl.where(token < V, rank_key(logit, token), NOTHING)
    # One maximum after the other: a sorting network is ten times the code and compiles for seconds.
    for rank in range(RANKS):
        best = tl.max(keys, 0)
        tl.store(key_ptr + (row * chunks + chunk) * RANKS + rank, best)
        keys = tl.where(keys == best, NOTHING, keys)


@triton.jit
def merge_ranks_kernel(
    key_ptr,
    highest_ptr,
    total_ptr,
    id_ptr,
    logprob_ptr,
    chunks,
    RANKS: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    chunk, candidate = tl.arange(0, BLOCK_C), tl.arange(0, BLOCK_K)
    highest = tl.load(highest_ptr + row * chunks + chunk, mask=chunk < chunks, other=float("-inf"))
    total = tl.load(total_ptr + row * chunks + chunk, mask=chunk < chunks, other=0.0)
    top = tl.max(highest, 0)
    log_sum = tl.log(tl.sum(total * tl.exp(highest - top), 0))
    keys = tl.load(key_ptr + row * chunks * RANKS + candidate, mask=candidate < chunks * RANKS, other=NOTHING)
    for rank in range(RANKS):
        best = tl.max(keys, 0)
        tl.store(id_ptr + row * RANKS + rank, key_id(best))
        tl.store(logprob_ptr + row * RANKS + rank, key_score(best) - top - log_sum)
        keys = tl.where(keys == best, NOTHING, keys)


def top_ranks(
    logits: Tensor,  # [n, v] bfloat16 or float32, contiguous, no NaN
    ranks: int,  # 1 .. 64, at most v
) -> tuple[Tensor, Tensor]:
    """(ids [n, ranks] int32, log-probabilities [n, ranks] float32) of the `ranks` largest logits of each row.

    In order of (logit descending, id ascending), exactly; log-probabilities are those of the full float32 softmax.
    """
    check_tensors(logits)
    n, v = logits.shape
    width = max(1024, next_power_of_2(cdiv(v, CHUNKS)))
    chunks = cdiv(v, width)
    keys = torch.empty(n, chunks, ranks, dtype=torch.int64, device=logits.device)
    highest, total = (torch.empty(n, chunks, dtype=torch.float32, device=logits.device) for _ in range(2))
    ids = torch.empty(n, ranks, dtype=torch.int32, device=logits.device)
    logprobs = torch.empty(n, ranks, dtype=torch.float32, device=logits.device)
    chunk_ranks_kernel[(n, chunks)](
        logits, keys, highest, total, V=v, RANKS=ranks, CHUNK=width, num_warps=min(8, width // 1024)
    )
    block_k = next_power_of_2(chunks * ranks)
    merge_ranks_kernel[(n,)](
        keys,
        highest,
        total,
        ids,
        logprobs,
        chunks,
        RANKS=ranks,
        BLOCK_C=next_power_of_2(chunks),
        BLOCK_K=block_k,
        num_warps=min(8, max(1, block_k // 256)),
    )
    return ids, logprobs


def top_ranks_reference(logits: Tensor, ranks: int) -> tuple[Tensor, Tensor]:
    """The twin of `top_ranks` in plain torch: a stable sort keeps the lower id first."""
    ids = torch.sort(wide(logits), dim=-1, descending=True, stable=True).indices[:, :ranks]
    logprobs = torch.log_softmax(wide(logits), dim=-1).gather(-1, ids)
    return ids.int(), logprobs

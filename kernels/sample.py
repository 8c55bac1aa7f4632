"""Sampling with counter-based noise: argmax over v of logit / T + g.

g is Gumbel noise, a function of (seed, position, token id) alone, so a token is the same in whatever batch, order or
draft tree it is drawn: Philox4x32-10 (Salmon et al., SC 2011), word 0, key = the two halves of the seed, counter =
(position, token id, 0, 0); u = ((word >> 8) + 0.5) 2^-24; g = -log(-log u) in float64, rounded to float32.
"""

import torch
from torch import Tensor

from kernels.portable import cdiv, check_tensors, f32, key_id, next_power_of_2, rank_key, tl, triton, wide

__all__ = ["gumbel_reference", "sample", "sample_reference"]

CHUNK = 1024
NOTHING = tl.constexpr(-0x8000000000000000)  # below every key


@triton.jit
def philox_word(seed, position, token):
    """Word 0 of Philox4x32-10, uint32, for int64 seed and position (scalars) and int32 tokens (a block)."""
    low = token.to(tl.uint32)
    zero = low & 0
    word, _, _, _ = tl.philox(seed, zero + position.to(tl.uint32), low, zero, zero)
    return word


@triton.jit
def gumbel(seed, position, token):
    """The float32 noise of `philox_word`."""
    uniform = ((philox_word(seed, position, token) >> 8).to(tl.float64) + 0.5) * 5.9604644775390625e-08
    return (-tl.log(-tl.log(uniform))).to(tl.float32)


@triton.jit
def chunk_sample_kernel(
    logits_ptr,
    position_ptr,
    seed_ptr,
    temperature_ptr,
    key_ptr,
    position_stride,
    seed_stride,
    temperature_stride,
    V: tl.constexpr,
    CHUNK: tl.constexpr,
):
    row, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    token = chunk * CHUNK + tl.arange(0, CHUNK)
    score = f32(tl.load(logits_ptr + row * V + token, mask=token < V, other=float("-inf")))
    temperature = tl.load(temperature_ptr + row * temperature_stride)
    if temperature > 0.0:
        seed, position = tl.load(seed_ptr + row * seed_stride), tl.load(position_ptr + row * position_stride)
        noise = gumbel(seed, position, token)
        score = tl.div_rn(score, temperature + tl.zeros([CHUNK], tl.float32)) + noise
    keys = tl.where(token < V, rank_key(score, token), NOTHING)
    tl.store(key_ptr + row * tl.num_programs(1) + chunk, tl.max(keys, 0))


@triton.jit
def merge_sample_kernel(key_ptr, token_ptr, chunks, BLOCK: tl.constexpr):
    row, chunk = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    keys = tl.load(key_ptr + row * chunks + chunk, mask=chunk < chunks, other=NOTHING)
    tl.store(token_ptr + row, key_id(tl.max(keys, 0)).to(tl.int64))


def sample(
    logits: Tensor,  # [n, v] bfloat16 or float32, contiguous, no NaN; -inf where a cut removed the id
    position: Tensor,  # [n] int64: the index of the token that is chosen, prompt included
    seed: Tensor,  # [n] int64 with the bits of the uint64 request seed
    temperature: Tensor,  # [n] float32; 0 takes the argmax of the logits
) -> Tensor:
    """int64 [n]: the id with the largest logit / T + g in float32, the lowest id where scores tie.

    position, seed and temperature may have any stride: one value expanded to n serves all rows.
    """
    check_tensors(logits)
    n, v = logits.shape
    chunks = cdiv(v, CHUNK)
    keys = torch.empty(n, chunks, dtype=torch.int64, device=logits.device)
    token = torch.empty(n, dtype=torch.int64, device=logits.device)
    chunk_sample_kernel[(n, chunks)](
        logits,
        position,
        seed,
        temperature,
        keys,
        position.stride(0),
        seed.stride(0),
        temperature.stride(0),
        V=v,
        CHUNK=CHUNK,
        num_warps=4,
    )
    merge_sample_kernel[(n,)](keys, token, chunks, BLOCK=next_power_of_2(chunks), num_warps=1)
    return token


def gumbel_reference(seed: Tensor, position: Tensor, token: Tensor) -> Tensor:
    """The noise of `sample` in plain torch: float32, for int64 tensors that broadcast together."""
    mask = 0xFFFFFFFF
    key0, key1 = seed & mask, (seed >> 32) & mask
    seed, word0, word1 = torch.broadcast_tensors(seed, position & mask, token & mask)
    word2 = word3 = torch.zeros_like(word0)
    for _ in range(10):
        # An int64 product may wrap, but its 64 bits are those of the uint64 product.
        product0, product2 = word0 * 0xD2511F53, word2 * 0xCD9E8D57
        word0, word2 = ((product2 >> 32) & mask) ^ word1 ^ key0, ((product0 >> 32) & mask) ^ word3 ^ key1
        word1, word3 = product2 & mask, product0 & mask
        key0, key1 = (key0 + 0x9E3779B9) & mask, (key1 + 0xBB67AE85) & mask
    uniform = ((word0 >> 8).double() + 0.5) * 2.0**-24
    return (-torch.log(-torch.log(uniform))).float()


def sample_reference(logits: Tensor, position: Tensor, seed: Tensor, temperature: Tensor) -> Tensor:
    """The twin of `sample` in plain torch."""
    scores, ids = wide(logits), torch.arange(logits.shape[1], device=logits.device)
    noise = gumbel_reference(seed[:, None], position[:, None], ids[None])
    hot = (temperature > 0)[:, None]
    scores = torch.where(hot, scores / torch.where(hot, temperature[:, None], 1) + noise, scores)
    best = scores == scores.max(dim=-1, keepdim=True).values
    return torch.where(best, ids, logits.shape[1]).min(dim=-1).values

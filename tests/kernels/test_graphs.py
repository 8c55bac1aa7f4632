"""Captured once, every kernel follows the values of its tensors: nothing of the host is frozen into a CUDA graph."""

import pytest
import torch

from kernels.accept import accept, accept_reference
from kernels.ancestors import ancestors, ancestors_reference
from kernels.compact import compact, compact_reference
from kernels.gemv import gemv, gemv_reference
from kernels.rms_norm import rms_norm, rms_norm_reference
from kernels.rope_append import rope_append, rope_append_kv, rope_append_kv_reference, rope_append_reference
from kernels.sample import sample, sample_reference
from kernels.silu_mul import silu_mul, silu_mul_reference
from kernels.top_ranks import top_ranks, top_ranks_reference
from kernels.tree_attention import tree_attention, tree_attention_reference

pytestmark = pytest.mark.device
CONTEXT, N, HQ, HKV, D = 512, 16, 6, 2, 64


@pytest.fixture
def replayed():
    """call -> a function that replays it from a graph, captured after two warm-up runs on a side stream."""

    def capture(call):
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            call()
            call()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = call()

        def replay():
            graph.replay()
            torch.cuda.synchronize()
            return result

        return replay

    return capture


def test_attention_follows_start_and_tree(randn, device, replayed, agree):
    """Context length, positions and ancestors may change between replays."""
    k, v = (randn(CONTEXT, HKV, D, dtype=torch.bfloat16) for _ in range(2))
    q = randn(N, HQ, D, dtype=torch.bfloat16)
    start = torch.zeros(1, dtype=torch.int32, device=device)
    parent = torch.arange(-1, N - 1, device=device)
    position = torch.zeros(N, dtype=torch.int64, device=device)

    def call():
        return tree_attention(q, k, v, start, ancestors(parent), scale=0.125, window=200, position=position)

    replay = replayed(call)
    for length, parents in [
        (0, range(-1, N - 1)),
        (130, [-1] + [0] * (N - 1)),
        (400, [-1, *range(N // 2), *range(N // 2 - 1)]),
    ]:
        start.fill_(length)
        parent.copy_(torch.tensor(list(parents)))
        words = ancestors_reference(parent)
        position.copy_(length + torch.tensor([bin(word & (2**64 - 1)).count("1") - 1 for word in words[:, 0].tolist()]))
        wanted = tree_attention_reference(q, k, v, start, words, scale=0.125, window=200, position=position)
        agree(replay(), wanted, atol=5e-3, unequal=0.5)


def test_appends_follow_start_and_slots(randn, device, replayed, agree):
    """Rows land where `start` and `slot` say at the time of the replay."""
    qkv = randn(N, (HQ + 2 * HKV) * D, dtype=torch.bfloat16)
    kv = qkv[:, HQ * D :].contiguous()
    cos, sin = randn(CONTEXT, D // 2), randn(CONTEXT, D // 2)
    start = torch.zeros(1, dtype=torch.int32, device=device)
    slot = torch.full((N,), -1, dtype=torch.int32, device=device)
    position = torch.arange(N, device=device)
    mine = [torch.zeros(CONTEXT, HKV, D, dtype=torch.bfloat16, device=device) for _ in range(4)]
    twins = [torch.zeros_like(cache) for cache in mine]

    def call():
        rope_append_kv(kv, position, cos, sin, *mine[2:], slot)
        return rope_append(qkv, position, cos, sin, *mine[:2], start)

    replay = replayed(call)
    for first in (0, 77, CONTEXT - N):
        start.fill_(first)
        position.copy_(first + torch.arange(N))
        slot.copy_(torch.arange(N) * 3 + first % 100)
        slot[::4] = -1
        for cache in mine + twins:
            cache.zero_()
        q = replay()
        agree(q, rope_append_reference(qkv, position, cos, sin, *twins[:2], start))
        rope_append_kv_reference(kv, position, cos, sin, *twins[2:], slot)
        for cache, twin in zip(mine, twins, strict=True):
            agree(cache, twin)


def test_verification_follows_choices(randn, device, replayed):
    """Path, count and moved rows follow the tokens of each replay."""
    kv = randn(3, 2, CONTEXT, HKV, D, dtype=torch.bfloat16)
    held = kv.clone()
    start = torch.zeros(1, dtype=torch.int32, device=device)
    parent = torch.tensor([-1, 0, 0, 1, 1, 2, 2, 5], dtype=torch.int32, device=device)
    token = torch.tensor([0, 1, 2, 3, 4, 5, 6, 7], device=device)
    choice = torch.zeros(8, dtype=torch.int64, device=device)

    def call():
        walked = accept(token, parent, choice)
        compact(kv, start, *walked[:2])
        return walked

    replay = replayed(call)
    for first, choices in [(5, [2, 0, 5, 0, 0, 7, 0, 9]), (300, [1, 4, 0, 0, 8, 0, 0, 0]), (0, [9] * 8)]:
        start.fill_(first)
        choice.copy_(torch.tensor(choices))
        kv.copy_(held)
        walked, wanted, twin = replay(), accept_reference(token, parent, choice), held.clone()
        compact_reference(twin, start, *wanted[:2])
        assert all(torch.equal(a, b) for a, b in zip(walked, wanted, strict=True))
        assert torch.equal(kv, twin)


def test_rows_follow_their_inputs(randn, device, replayed, agree):
    """Norm, gate, products, ranks and samples read their inputs anew."""
    x, gate_up, logits = randn(1, 576, dtype=torch.bfloat16), randn(4, 192, dtype=torch.bfloat16), randn(4, 5000)
    weight, norm = randn(1152, 576, dtype=torch.bfloat16, scale=0.04), randn(576, dtype=torch.bfloat16)
    position, seed = torch.arange(4, device=device), torch.arange(4, device=device)
    heat = torch.ones(4, device=device)

    def call():
        y = gemv(x, weight, norm=norm, eps=1e-5)
        return (
            rms_norm(x, norm, 1e-5),
            silu_mul(gate_up),
            y,
            gemv(y[:, :576], weight),
            *top_ranks(logits, 8),
            sample(logits, position, seed, heat),
        )

    replay = replayed(call)
    for step in range(3):
        x.copy_(randn(1, 576, dtype=torch.bfloat16))
        gate_up.copy_(randn(4, 192, dtype=torch.bfloat16))
        logits.copy_(randn(4, 5000, scale=3))
        position += 1000 * step
        heat.fill_(step / 2)
        normed, gated, y, z, ids, logprobs, token = replay()
        agree(normed, rms_norm_reference(x, norm, 1e-5), unequal=0.04)
        agree(gated, silu_mul_reference(gate_up))
        agree(y, gemv_reference(x, weight, norm=norm, eps=1e-5), atol=1e-2, unequal=0.04)
        agree(z, gemv_reference(y[:, :576], weight), atol=1e-3)
        wanted_ids, wanted_logprobs = top_ranks_reference(logits, 8)
        assert torch.equal(ids, wanted_ids)
        torch.testing.assert_close(logprobs, wanted_logprobs, rtol=1e-5, atol=1e-5)
        assert torch.equal(token, sample_reference(logits, position, seed, heat))

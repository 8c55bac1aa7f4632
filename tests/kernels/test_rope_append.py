"""rope_append: q turned, k and v in their slots, nothing else touched."""

import pytest
import torch

from kernels.rope_append import rope_append, rope_append_kv, rope_append_kv_reference, rope_append_reference

BF16, F32 = torch.bfloat16, torch.float32
CONTEXT = 40
# (hq, hkv, d): groups of 1, 3 and 16, head sizes that are no power of two, heads that fill no program.
HEADS = [(9, 3, 64), (2, 2, 80), (16, 1, 96), (3, 1, 128), (4, 2, 256)]


@pytest.fixture
def angles(device):
    def build(d):
        frequency = 10000.0 ** (-torch.arange(0, d, 2) / d)
        angle = torch.arange(CONTEXT)[:, None] * frequency
        return angle.cos().to(device), angle.sin().to(device)

    return build


def poison(hkv, d, dtype, device):
    return [torch.full((CONTEXT, hkv, d), float("nan"), dtype=dtype, device=device) for _ in range(2)]


def same(actual, wanted, agree):
    """Equal where the twin wrote, and untouched where it did not."""
    written = ~wanted.isnan()
    assert torch.equal(~actual.isnan(), written)
    agree(actual[written], wanted[written])


@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("norm", [False, True], ids=["plain", "norm"])
@pytest.mark.parametrize("heads", HEADS, ids=str)
def test_rows_equal_the_twin(randn, agree, angles, device, heads, norm, dtype):
    """q, and the slots start .. start + n - 1 of both caches, equal the twin's; other slots keep what they held."""
    (hq, hkv, d), n = heads, 3
    qkv = randn(n, (hq + 2 * hkv) * d, dtype=dtype)
    position = torch.tensor([7, 8, 8], device=device)
    start = torch.tensor([5], dtype=torch.int32, device=device)
    fused = {"q_norm": randn(d, dtype=dtype), "k_norm": randn(d, dtype=dtype), "eps": 1e-6} if norm else {}
    mine, twins = poison(hkv, d, dtype, device), poison(hkv, d, dtype, device)
    q = rope_append(qkv, position, *angles(d), *mine, start, **fused)
    agree(q, rope_append_reference(qkv, position, *angles(d), *twins, start, **fused))
    for cache, twin in zip(mine, twins, strict=True):
        same(cache, twin, agree)


@pytest.mark.parametrize("dtype", [F32, BF16])
def test_context_rows_go_to_their_own_slots(randn, agree, angles, device, dtype):
    """rope_append_kv writes each row to its slot, and a negative slot writes nothing."""
    hkv, d = 3, 64
    kv = randn(5, 2 * hkv * d, dtype=dtype)
    position = torch.tensor([3, 4, 5, 0, 39], dtype=torch.int32, device=device)
    slot = torch.tensor([30, 2, 17, -1, 39], dtype=torch.int32, device=device)
    mine, twins = poison(hkv, d, dtype, device), poison(hkv, d, dtype, device)
    norm = {"k_norm": randn(d, dtype=dtype), "eps": 1e-5}
    rope_append_kv(kv, position, *angles(d), *mine, slot, **norm)
    rope_append_kv_reference(kv, position, *angles(d), *twins, slot, **norm)
    for cache, twin in zip(mine, twins, strict=True):
        same(cache, twin, agree)
        assert cache.isnan().all(dim=(1, 2)).sum() == CONTEXT - 4


def test_rows_past_the_end_write_nothing(randn, angles, device):
    """Padding rows whose slot or position lies past the end leave the caches alone, and their q is zero."""
    hkv, d = 1, 64
    mine = poison(hkv, d, BF16, device)
    start = torch.tensor([CONTEXT - 1], dtype=torch.int32, device=device)
    position = torch.tensor([CONTEXT - 1, CONTEXT, CONTEXT + 1], device=device)
    q = rope_append(randn(3, 4 * d, dtype=BF16), position, *angles(d), *mine, start)
    assert all(cache.isnan().all(dim=(1, 2)).sum() == CONTEXT - 1 for cache in mine)
    assert (q[0] != 0).any() and (q[1:] == 0).all()


def test_position_zero_turns_nothing(randn, angles, device):
    """At position 0 q is what came in, bit for bit."""
    qkv = randn(1, 4 * 64, dtype=BF16)
    start = torch.zeros(1, dtype=torch.int32, device=device)
    q = rope_append(
        qkv, torch.zeros(1, dtype=torch.int64, device=device), *angles(64), *poison(1, 64, BF16, device), start
    )
    assert torch.equal(q.flatten(), qkv[0, : 2 * 64])


def test_twin_turns_as_complex_numbers_do(randn, angles, device):
    """The twin multiplies the pairs (i, i + d/2), read as complex numbers, by exp(i position theta)."""
    qkv, (cos, sin) = randn(1, 4 * 64), angles(64)
    position, start = torch.tensor([11], device=device), torch.zeros(1, dtype=torch.int32, device=device)
    q = rope_append_reference(qkv, position, cos, sin, *poison(1, 64, F32, device), start)
    pairs = torch.view_as_complex(qkv[0, :128].reshape(2, 2, 32).transpose(1, 2).contiguous())
    wanted = torch.view_as_real(pairs * torch.complex(cos[11], sin[11])).transpose(1, 2).reshape(1, 2, 64)
    torch.testing.assert_close(q, wanted)

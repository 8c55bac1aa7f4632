"""sample: the protocol's noise, bit for bit, and the argmax over it."""

import re
from pathlib import Path

import pytest
import torch

from kernels.portable import tl, triton
from kernels.sample import gumbel, gumbel_reference, philox_word, sample, sample_reference

PROTOCOL = Path(__file__).parents[2] / "docs" / "protocol.md"
ROW = re.compile(r"^\| (\d+) \| (\d+) \| (\d+) \| (0x[0-9a-f]{8}) \| \S+ \((0x[0-9a-f]{8})\) \|$", re.MULTILINE)
VECTORS = [
    (int(seed), int(position), int(token), int(word, 16), int(bits, 16))
    for seed, position, token, word, bits in ROW.findall(PROTOCOL.read_text())
]


def int64(value):
    return value - (1 << 64) if value >= 1 << 63 else value


@triton.jit
def noise_kernel(seed_ptr, position_ptr, token_ptr, word_ptr, noise_ptr, BLOCK: tl.constexpr):
    row, lane = tl.program_id(0), tl.arange(0, BLOCK)
    seed, position = tl.load(seed_ptr + row), tl.load(position_ptr + row)
    token = tl.load(token_ptr + row) + lane
    tl.store(word_ptr + row * BLOCK + lane, philox_word(seed, position, token).to(tl.int64))
    tl.store(noise_ptr + row * BLOCK + lane, gumbel(seed, position, token))


def test_noise_equals_the_vectors_of_the_protocol(device):
    """Word 0 and the float32 bits of g are those of docs/protocol.md, in kernel and twin."""
    assert len(VECTORS) == 16
    seeds, positions, tokens, words, bits = zip(*VECTORS, strict=True)
    seed = torch.tensor([int64(value) for value in seeds], device=device)
    position, token = torch.tensor(positions, device=device), torch.tensor(tokens, dtype=torch.int32, device=device)
    word = torch.empty(16, 16, dtype=torch.int64, device=device)
    noise = torch.empty(16, 16, dtype=torch.float32, device=device)
    noise_kernel[(16,)](seed, position, token, word, noise, BLOCK=16)
    assert word[:, 0].tolist() == list(words)
    wanted = torch.tensor([value - (1 << 32) if value >> 31 else value for value in bits], device=device).int()
    assert torch.equal(noise[:, 0].view(torch.int32), wanted)
    assert torch.equal(gumbel_reference(seed, position, token.long()).view(torch.int32), wanted)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("n", "v"), [(1, 50), (4, 2500), (2, 1024)])
def test_rows_equal_the_twin(randn, device, n, v, dtype):
    """Tokens equal the twin's at temperatures 0, low, 1 and high, one in each row."""
    logits = randn(n, v, dtype=dtype, scale=2)
    position = torch.arange(70000, 70000 + n, device=device)
    seed = torch.tensor([0, -1, 8344382540683018229, 12345][:n], device=device)
    for temperature in ([0.0, 0.5, 1.0, 3.0][:n], [1.3] * n):
        heat = torch.tensor(temperature, device=device)
        token = sample(logits, position, seed, heat)
        assert token.dtype == torch.int64 and torch.equal(token, sample_reference(logits, position, seed, heat))


def test_settings_may_be_expanded(randn, device):
    """One seed and temperature expanded over the rows mean the same as a value for each row."""
    logits, position = randn(3, 200), torch.arange(3, device=device)
    seed, heat = torch.tensor([77], device=device), torch.tensor([1.5], device=device)
    token = sample(logits, position, seed.expand(3), heat.expand(3))
    assert torch.equal(token, sample(logits, position, seed.repeat(3), heat.repeat(3)))


def test_ties_and_cuts(device):
    """At temperature 0 the lowest id wins a tie, and an id cut to minus infinity is never drawn at any temperature."""
    logits = torch.full((2, 1500), float("-inf"), device=device)
    logits[:, [1400, 3]] = 2.0
    zero = torch.zeros(2, dtype=torch.int64, device=device)
    token = sample(logits, zero, zero, torch.tensor([0.0, 50.0], device=device))
    assert token[0] == 3 and token[1] in (3, 1400)


def test_frequencies_follow_the_softmax(device):
    """Over 400 positions tokens are drawn with the probabilities of softmax(logits / T) (4 sigma)."""
    logits = torch.tensor([[0.0, 1.0, 2.0]], device=device).repeat(400, 1)
    position, seed = torch.arange(400, device=device), torch.full((400,), 7, device=device)
    token = sample_reference(logits, position, seed, torch.full((400,), 2.0, device=device))
    share = torch.bincount(token, minlength=3) / 400
    wanted = torch.softmax(logits[0] / 2, dim=-1)
    assert ((share - wanted).abs() < 4 * (wanted * (1 - wanted) / 400).sqrt()).all()


@pytest.mark.device
@pytest.mark.parametrize(("n", "v"), [(64, 49152), (3, 262144)])
def test_target_shapes_equal_the_twin(randn, device, n, v):
    """At real vocabularies tokens are the twin's."""
    logits = randn(n, v, dtype=torch.bfloat16)
    position, seed = torch.arange(n, device=device), torch.arange(n, device=device) * 7919
    heat = torch.linspace(0, 2, n, device=device)
    assert torch.equal(sample(logits, position, seed, heat), sample_reference(logits, position, seed, heat))

"""top_ranks: the best ids of each row, exactly ordered, with log-probabilities of the full softmax."""

import pytest
import torch

from kernels.top_ranks import top_ranks, top_ranks_reference


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("n", "v", "ranks"), [(1, 100, 1), (2, 2500, 5), (1, 1025, 64), (3, 64, 64), (1, 70000, 3)])
def test_rows_equal_the_twin(randn, n, v, ranks, dtype):
    """Ids are the twin's exactly, ties of BF16 included; log-probabilities agree to float32 rounding."""
    logits = randn(n, v, dtype=dtype, scale=3)
    ids, logprobs = top_ranks(logits, ranks)
    wanted_ids, wanted_logprobs = top_ranks_reference(logits, ranks)
    assert ids.dtype == torch.int32 and torch.equal(ids, wanted_ids)
    torch.testing.assert_close(logprobs, wanted_logprobs, rtol=1e-5, atol=1e-5)


def test_ties_go_to_the_lower_id(device):
    """Equal logits are ordered by id across chunks, and zero equals minus zero."""
    logits = torch.full((1, 3000), -1.0, dtype=torch.bfloat16, device=device)
    logits[0, [2999, 5, 1500]] = torch.tensor([0.0, -0.0, 0.0], dtype=torch.bfloat16, device=device)
    ids, logprobs = top_ranks(logits, 5)
    assert ids.tolist() == [[5, 1500, 2999, 0, 1]]
    assert logprobs[0, 0] == logprobs[0, 2] > logprobs[0, 3] == logprobs[0, 4]


def test_cut_ids_come_last(device):
    """Logits of minus infinity, a whole chunk of them too, have probability zero and the last ranks."""
    logits = torch.full((1, 2100), float("-inf"), device=device)
    logits[0, [2050, 7]] = torch.tensor([1.0, 0.0], device=device)
    ids, logprobs = top_ranks(logits, 4)
    assert ids.tolist() == [[2050, 7, 0, 1]]
    torch.testing.assert_close(logprobs[0, :2].exp().sum().item(), 1.0)
    assert logprobs[0, 2:].tolist() == [float("-inf")] * 2


@pytest.mark.device
@pytest.mark.parametrize(("n", "v", "ranks"), [(15, 49152, 32), (128, 151936, 8), (2, 262144, 64), (64, 49152, 1)])
def test_target_shapes_equal_the_twin(randn, n, v, ranks):
    """At real vocabularies ids are the twin's exactly."""
    logits = randn(n, v, dtype=torch.bfloat16, scale=4)
    ids, logprobs = top_ranks(logits, ranks)
    wanted_ids, wanted_logprobs = top_ranks_reference(logits, ranks)
    assert torch.equal(ids, wanted_ids)
    torch.testing.assert_close(logprobs, wanted_logprobs, rtol=1e-5, atol=2e-5)

"""tree_attention: every node sees the context and its own path, and nothing else reaches it."""

import pytest
import torch

from kernels.ancestors import ancestors_reference
from kernels.tree_attention import PROGRAMS, default_splits, tree_attention, tree_attention_reference

BF16, F32 = torch.bfloat16, torch.float32
CONTEXT = 300
# (n, hq, hkv, d, start): one row, groups 1 to 16, two ancestor words, odd head sizes, contexts around a block's edge.
SHAPES = [
    (1, 6, 2, 64, 0),
    (1, 6, 2, 64, 129),
    (7, 3, 3, 64, 128),
    (5, 16, 1, 80, 63),
    (65, 1, 1, 96, 70),
    (3, 8, 4, 128, 64),
    (4, 2, 1, 256, 33),
    (70, 1, 1, 8, 3),
]


@pytest.fixture
def case(randn, device):
    """Operands of one call: a random tree, caches that hold NaN wherever nothing was written."""

    def build(n, hq, hkv, d, start, dtype):
        generator = torch.Generator().manual_seed(n)
        parent = torch.tensor([-1, *(int(torch.randint(node, (), generator=generator)) for node in range(1, n))])
        depth = torch.zeros(n, dtype=torch.int64)
        for node in range(1, n):
            depth[node] = depth[parent[node]] + 1
        caches = [torch.full((CONTEXT, hkv, d), float("nan"), dtype=dtype, device=device) for _ in range(2)]
        for cache in caches:
            cache[: start + n] = randn(start + n, hkv, d, dtype=dtype)
        return {
            "q": randn(n, hq, d, dtype=dtype),
            "k_cache": caches[0],
            "v_cache": caches[1],
            "start": torch.tensor([start], dtype=torch.int32, device=device),
            "ancestors": ancestors_reference(parent).to(device),
            "position": (start + depth).to(device),
            "scale": d**-0.5,
        }

    return build


@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_rows_equal_the_twin(case, agree, shape, dtype):
    """Every row attends to exactly its keys, whatever the group, head size and length."""
    call = case(*shape, dtype) | {"splits": 2}
    # BF16: the softmax's weights are rounded too, which moves a mean of values of order one by less than 2^-8.
    atol = 2.0**-8 if dtype == BF16 else 1e-5
    agree(tree_attention(**call), tree_attention_reference(**call), rtol=1e-5, atol=atol, unequal=0.6)


@pytest.mark.parametrize("splits", [1, 2, 5, 40])
def test_splits_change_only_the_order_of_the_sum(case, agree, splits):
    """Any number of splits, more than there are blocks included, gives the same attention."""
    call = case(3, 6, 2, 64, 200, F32)
    agree(tree_attention(**call, splits=splits), tree_attention_reference(**call), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("window", [1, 3, 17, 64, 1000])
def test_window_keeps_the_nearest_positions(case, agree, window):
    """With a window a row sees only keys less than `window` positions before it, in context and tree."""
    call = case(9, 4, 2, 64, 150, F32)
    agree(tree_attention(**call, window=window), tree_attention_reference(**call, window=window), rtol=1e-5, atol=1e-5)


def test_unseen_slots_cannot_reach_a_row(case):
    """NaN and infinity in a sibling's slot, or after the tree, leave the bits of a row as they are."""
    call = case(3, 4, 2, 64, 70, BF16)
    call["ancestors"] = torch.tensor([[0b001], [0b011], [0b101]], device=call["q"].device)
    before = tree_attention(**call)
    call["k_cache"][72], call["v_cache"][72] = float("nan"), float("inf")
    after = tree_attention(**call)
    assert torch.equal(after[:2], before[:2]) and after[2].isnan().any()


def test_a_row_that_sees_nothing_is_zero(case):
    """A padding row without ancestors before an empty context gives zeros, not NaN."""
    call = case(2, 2, 1, 64, 0, F32)
    call["ancestors"][1] = 0
    assert (tree_attention(**call)[1] == 0).all()


def test_length_is_read_on_the_device(case):
    """The same tensors with another value in `start` give the attention of the new length."""
    call = case(1, 3, 1, 64, 180, F32)
    call["start"].fill_(90)
    call["position"].fill_(90)
    torch.testing.assert_close(tree_attention(**call), tree_attention_reference(**call), rtol=1e-5, atol=1e-5)


def test_twin_is_causal_attention_on_a_chain(case):
    """For a chain the twin is torch's causal attention over context and chain."""
    call = case(4, 4, 2, 64, 20, F32)
    call["ancestors"] = torch.tensor([[0b1], [0b11], [0b111], [0b1111]], device=call["q"].device)
    q = call["q"].transpose(0, 1)
    k, v = (call[name][:24].transpose(0, 1).repeat_interleave(2, 0) for name in ("k_cache", "v_cache"))
    mask = torch.ones(4, 24, dtype=torch.bool, device=q.device).tril(20)
    wanted = torch.nn.functional.scaled_dot_product_attention(q, k, v, mask, scale=call["scale"])
    torch.testing.assert_close(tree_attention_reference(**call), wanted.transpose(0, 1).reshape(4, -1))


def test_a_window_without_positions_is_an_error(case):
    """A window is in positions, so it is refused without them."""
    call = case(1, 2, 1, 64, 5, F32)
    del call["position"]
    with pytest.raises(ValueError, match="positions"):
        tree_attention(**call, window=4)


@pytest.mark.parametrize("heads", [1, 2, 3, 8, 24, 400])
def test_default_splits_fill_the_device_once(heads):
    """The default shares a context among at most PROGRAMS programs, and never among more than it has blocks."""
    assert 1 <= default_splits(heads, 32) <= 32 and default_splits(heads, 1) == 1
    assert default_splits(heads, 1000) == 1 or heads * default_splits(heads, 1000) <= PROGRAMS


@pytest.mark.device
@pytest.mark.parametrize("n", [1, 16, 64, 128])
@pytest.mark.parametrize("heads", [(72, 24, 64), (32, 8, 128), (16, 1, 256)], ids=str)
def test_target_shapes_equal_the_twin(randn, agree, device, heads, n):
    """At the shapes of real targets and 4,000 keys the kernel equals the twin."""
    (hq, hkv, d), start = heads, 4000
    parent = torch.tensor([-1, *(node // 2 for node in range(n - 1))])
    k, v = (randn(start + n, hkv, d, dtype=BF16) for _ in range(2))
    call = {
        "q": randn(n, hq, d, dtype=BF16, scale=2),
        "k_cache": k,
        "v_cache": v,
        "start": torch.tensor([start], dtype=torch.int32, device=device),
        "ancestors": ancestors_reference(parent).to(device),
        "scale": d**-0.5,
    }
    agree(tree_attention(**call), tree_attention_reference(**call), atol=5e-3, unequal=0.5)

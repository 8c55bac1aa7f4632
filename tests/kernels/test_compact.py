"""compact: accepted rows close ranks, everything else keeps what it held."""

import pytest
import torch

from kernels.compact import compact, compact_reference

# (layers, context, hkv, d), start, path with its padding, count
CASES = [
    ((2, 40, 3, 64), 5, [0, 2, 3, 9, 9, 9], 4),
    ((1, 40, 1, 80), 0, [0, 1, 2, 3], 4),
    ((3, 20, 2, 16), 7, [0, 0, 0], 1),
    ((2, 40, 5, 24), 9, [0, 7, 8, 20, 30], 5),
    ((1, 300, 2, 64), 40, [0, *range(2, 200, 2)], 100),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("shape", "start", "path", "count"), CASES, ids=range(len(CASES)))
def test_rows_equal_the_twin(randn, device, shape, start, path, count, dtype):
    """The whole cache, NaN where nothing was written, has the twin's bits."""
    layers, context, hkv, d = shape
    kv = randn(layers, 2, context, hkv, d, dtype=dtype)
    kv[:, :, start + path[-1] + 1 :] = float("nan")
    twin = kv.clone()
    place = torch.tensor([start], dtype=torch.int32, device=device)
    path, count = (torch.tensor(values, dtype=torch.int32, device=device) for values in (path, [count]))
    compact(kv, place, path, count)
    compact_reference(twin, place, path, count)
    assert torch.equal(kv.nan_to_num(7), twin.nan_to_num(7)) and torch.equal(kv.isnan(), twin.isnan())


def test_twin_moves_what_the_path_names(device):
    """Slot start + path[i] lands in start + i, and slots after the path keep their rows."""
    kv = torch.arange(8.0, device=device).reshape(1, 1, 8, 1, 1).repeat(1, 2, 1, 1, 1)
    start, count = torch.tensor([1], device=device), torch.tensor([3], device=device)
    compact_reference(kv, start, torch.tensor([0, 2, 5, 5], device=device), count)
    assert kv[0, 1].flatten().tolist() == [0, 1, 3, 6, 4, 5, 6, 7]

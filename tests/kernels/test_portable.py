"""portable: the same numbers under the interpreter and on a device, and an import that needs no triton."""

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernels.portable import (
    cdiv,
    dot,
    f32,
    key_id,
    key_score,
    next_power_of_2,
    rank_key,
    rms_normed,
    tl,
    to_bf16,
    triton,
    wide,
)
from kernels.silu_mul import silu_mul

ROOT = Path(__file__).parents[2]


@triton.jit
def casts_kernel(narrow_ptr, up_ptr, wide_ptr, down_ptr, BLOCK: tl.constexpr):
    lane = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(up_ptr + lane, f32(tl.load(narrow_ptr + lane)))
    tl.store(down_ptr + lane, to_bf16(tl.load(wide_ptr + lane)))


@triton.jit
def dot_kernel(a_ptr, b_ptr, c_ptr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    m, n, k = tl.arange(0, M)[:, None], tl.arange(0, N), tl.arange(0, K)
    a, b = tl.load(a_ptr + m * K + k[None, :]), tl.load(b_ptr + k[:, None] * N + n[None, :])
    acc = tl.load(c_ptr + m * N + n[None, :])
    tl.store(c_ptr + m * N + n[None, :], dot(a, b, acc))


@triton.jit
def keys_kernel(score_ptr, id_ptr, key_ptr, score_back_ptr, id_back_ptr, BLOCK: tl.constexpr):
    lane = tl.arange(0, BLOCK)
    key = rank_key(tl.load(score_ptr + lane), tl.load(id_ptr + lane))
    tl.store(key_ptr + lane, key)
    tl.store(score_back_ptr + lane, key_score(key))
    tl.store(id_back_ptr + lane, key_id(key))


def test_casts_are_those_of_torch(device):
    """All 65,536 bfloat16 values widen exactly; float32 rounds to nearest even, ties, overflow and NaN included."""
    narrow = torch.arange(-(2**15), 2**15).to(torch.int16).view(torch.bfloat16).to(device)
    # Around every bfloat16 value: itself, below, at and above the tie with its neighbour.
    offset = torch.tensor([0, 0x7FFF, 0x8000, 0x8001], dtype=torch.int32, device=device).repeat(2**14)
    values = ((narrow.view(torch.int16).int() << 16) + offset).view(torch.float32)
    up = torch.empty(2**16, dtype=torch.float32, device=device)
    down = torch.empty(2**16, dtype=torch.bfloat16, device=device)
    casts_kernel[(4,)](narrow, up, values, down, BLOCK=2**14)
    assert torch.equal(up.isnan(), narrow.isnan()) and torch.equal(down.isnan(), values.isnan())
    numbers = ~narrow.isnan()
    assert torch.equal(up[numbers].view(torch.int32), narrow[numbers].float().view(torch.int32))
    numbers = ~values.isnan()
    assert torch.equal(down[numbers].view(torch.int16), values[numbers].bfloat16().view(torch.int16))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dot_multiplies_exactly(randn, dtype):
    """Products are exact and sums float32 in both types: 64 of them are within 64 eps of float64."""
    a, b, c = randn(16, 64, dtype=dtype), randn(64, 32, dtype=dtype), randn(16, 32)
    wanted = c.double() + a.double() @ b.double()
    dot_kernel[(1,)](a, b, c, M=16, N=32, K=64)
    bound = 64 * 2.0**-23 * (1 + a.double().abs() @ b.double().abs())
    assert ((c.double() - wanted).abs() <= bound).all()


def test_keys_order_scores_then_ids(device):
    """Keys sort as (score descending, id ascending), infinities and both zeros included, and give both back."""
    scores = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        1e-45,
        -1e-45,
        3e38,
        -3e38,
        float("inf"),
        float("-inf"),
        0.0,
        1.0,
        2.5,
        2.5,
        -7.0,
        0.5,
    ]
    score = torch.tensor(scores, device=device)
    ids = torch.tensor([3, 2, 9, 0, 2**31 - 1, 4, 5, 6, 7, 8, 1, 10, 12, 11, 13, 14], dtype=torch.int32, device=device)
    key = torch.empty(16, dtype=torch.int64, device=device)
    score_back, id_back = torch.empty_like(score), torch.empty_like(ids)
    keys_kernel[(1,)](score, ids, key, score_back, id_back, BLOCK=16)
    order = sorted(range(16), key=lambda place: (-scores[place], int(ids[place])))
    assert torch.argsort(key, descending=True).tolist() == order
    assert torch.equal(score_back, score) and torch.equal(id_back, ids)


def test_what_would_be_read_wrongly_is_refused(randn):
    """Values that do not lie side by side, and float64, are errors: never other numbers, never fewer digits."""
    with pytest.raises(ValueError, match=r"contiguous tensors, got \[4, 2\] with \(1, 4\)"):
        silu_mul(randn(2, 4).T)
    with pytest.raises(ValueError, match="computes in float32"):
        silu_mul(randn(2, 4, dtype=torch.float64))


def test_every_op_has_a_twin_and_stands_alone():
    """kernels/<op>.py exports <op> and <op>_reference, and imports of ours nothing but kernels.portable."""
    files = [path for path in (ROOT / "kernels").glob("*.py") if path.stem not in ("__init__", "portable")]
    assert len(files) == 10
    for path in files:
        module = importlib.import_module(f"kernels.{path.stem}")
        assert {path.stem, f"{path.stem}_reference"} <= set(module.__all__)
        imports = re.findall(r"^(?:from|import) ([\w.]+)", path.read_text(), re.MULTILINE)
        assert set(imports) <= {"dataclasses", "torch", "torch.nn.functional", "kernels.portable"}


@given(st.integers(1, 10**6), st.integers(1, 10**4))
def test_host_arithmetic(value, divisor):
    """cdiv rounds up, and next_power_of_2 is the smallest one that holds the value."""
    assert divisor * (cdiv(value, divisor) - 1) < value <= divisor * cdiv(value, divisor)
    assert next_power_of_2(value) // 2 < value <= next_power_of_2(value)


def test_twins_compute_in_float64_where_asked():
    """Twins widen to float32, and keep float64."""
    assert wide(torch.zeros(1, dtype=torch.bfloat16)).dtype == torch.float32
    assert rms_normed(torch.ones(1, 4).double(), torch.ones(4).double(), 0.0).dtype == torch.float64


def test_without_triton_twins_run_and_launches_say_why():
    """Where triton is not installed every op imports, its twin works, and a launch is a clear error."""
    script = """
import importlib, pathlib, sys
sys.modules["triton"] = None
import torch
for path in pathlib.Path("kernels").glob("*.py"):
    importlib.import_module(f"kernels.{path.stem}")
from kernels.silu_mul import silu_mul, silu_mul_reference
print(silu_mul_reference(torch.zeros(1, 4)).tolist())
silu_mul(torch.zeros(1, 4))
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout == "[[0.0, 0.0]]\n"
    assert done.returncode == 1 and "RuntimeError: a kernel needs triton, which is not installed" in done.stderr

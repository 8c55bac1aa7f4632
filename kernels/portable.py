"""What every kernel shares: right under the interpreter and on a device, and importable without triton.

Triton's interpreter keeps bfloat16 as bit patterns and computes on them as integers, and its casts truncate.
So kernels up-cast every load with `f32`, compute in float32, and round with `narrow` on the way down; `dot`
is the only place where bfloat16 operands stay narrow, and only on a device.
"""

import torch
from torch import Tensor

__all__ = [
    "INTERPRET",
    "cdiv",
    "check_tensors",
    "dot",
    "f32",
    "key_id",
    "key_score",
    "narrow",
    "next_power_of_2",
    "normalised",
    "rank_key",
    "rms_normed",
    "tl",
    "to_bf16",
    "triton",
    "wide",
]


class _Absent:
    """Stands for triton where it is not installed: modules import, twins run, a launch says what is missing."""

    def __getattr__(self, name: str) -> "_Absent":
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *args: object, **kwargs: object) -> "_Absent":
        return self

    def __getitem__(self, grid: object) -> "_Absent":
        raise RuntimeError("a kernel needs triton, which is not installed; its `_reference` twin needs only torch")


try:
    import triton
    import triton.language as tl

    INTERPRET = tl.constexpr(bool(triton.knobs.runtime.interpret))
except ModuleNotFoundError as error:
    if error.name != "triton":
        raise
    triton = tl = INTERPRET = _Absent()


def cdiv(value: int, divisor: int) -> int:
    """value / divisor, rounded up; both positive."""
    return -(-value // divisor)


def check_tensors(*tensors: Tensor | None) -> None:
    """Refuses what a kernel would silently read wrongly: values that do not lie side by side, and float64."""
    for tensor in tensors:
        if tensor is not None and not tensor.is_contiguous():
            raise ValueError(f"a kernel takes contiguous tensors, got {list(tensor.shape)} with {tensor.stride()}")
        if tensor is not None and tensor.dtype == torch.float64:
            raise ValueError("a kernel computes in float32; its `_reference` twin takes float64")


def next_power_of_2(value: int) -> int:
    """The smallest power of two that is at least value (value >= 1)."""
    return 1 << (value - 1).bit_length()


def wide(x: Tensor) -> Tensor:
    """x in the type that twins compute in: float32, or float64 where x is float64."""
    return x if x.dtype == torch.float64 else x.float()


def rms_normed(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMSNorm of x [..., d] by weight [d], in x's type: the normalised value is rounded before the product."""
    rstd = torch.rsqrt(wide(x).pow(2).mean(-1, keepdim=True) + eps)
    return (wide((wide(x) * rstd).to(x.dtype)) * wide(weight)).to(x.dtype)


@triton.jit
def f32(x):
    """x as float32, exactly."""
    if INTERPRET and x.dtype == tl.bfloat16:
        y = (x.to(tl.uint16, bitcast=True).to(tl.uint32) << 16).to(tl.float32, bitcast=True)
    else:
        y = x.to(tl.float32)
    return y


@triton.jit
def to_bf16(x):
    """float32 x rounded to the nearest bfloat16, ties to even; NaN stays NaN."""
    if INTERPRET:
        bits = x.to(tl.uint32, bitcast=True)
        bits = tl.where(x == x, bits + 0x7FFF + ((bits >> 16) & 1), 0x7FC00000)
        y = (bits >> 16).to(tl.uint16).to(tl.bfloat16, bitcast=True)
    else:
        y = x.to(tl.bfloat16)
    return y


@triton.jit
def narrow(x, dtype: tl.constexpr):
    """float32 x rounded once to dtype."""
    if dtype == tl.bfloat16:
        y = to_bf16(x)
    else:
        y = x.to(dtype)
    return y


@triton.jit
def normalised(x, rstd, weight, dtype: tl.constexpr):
    """RMSNorm's last step on float32 tensors: x * rstd is rounded to dtype, so is its product with weight."""
    return f32(narrow(f32(narrow(x * rstd, dtype)) * weight, dtype))


@triton.jit
def dot(a, b, acc):
    """acc + a @ b with float32 products and sums; a and b share one type, acc is float32."""
    if INTERPRET:
        a, b = f32(a), f32(b)
    return tl.dot(a, b, acc, input_precision="ieee")


@triton.jit
def rank_key(score, index):
    """An int64 that orders (score descending, index ascending) as its own descending order.

    score: float32 (no NaN); index: int32, not negative.  -0.0 and 0.0 are equal.
    """
    bits = tl.where(score == 0.0, 0.0, score).to(tl.int32, bitcast=True)
    ordered = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(tl.int64)
    return (ordered << 32) | (0x7FFFFFFF - index).to(tl.int64)


@triton.jit
def key_score(key):
    """The float32 score of a rank key."""
    bits = (key >> 32).to(tl.int32)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(tl.float32, bitcast=True)


@triton.jit
def key_id(key):
    """The int32 index of a rank key."""
    return 0x7FFFFFFF - (key & 0x7FFFFFFF).to(tl.int32)

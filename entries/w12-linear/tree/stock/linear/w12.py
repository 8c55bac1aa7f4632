"""Weights in 12 bits without loss: products of up to 128 rows read packed bytes and nothing else.

Above, which is prefill, one matrix at a time is decoded into one buffer, and stock's own product follows.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stock.errors import EngineError
from stock.linear import Linear, Norm
from stock.linear.dense import Dense
from stock.ops.w12 import Damaged, Folder, Packed, Writer, cost, encode, matches, narrowed
from stock.ops.w12_gemm import ROWS, Ready, dense_product, product, ready, shape_of, tensors_of, unpacked
from stock.target import Target

__all__ = ["W12", "build", "prepare"]

FOLDER = "w12"
GATED = "gate_up"  # the one weight whose products are gated
_READERS = 4  # files that are hashed and read at once


def prepare(target: Target, options: Mapping[str, Any], folder: Path) -> None:
    """Packs the target's matrices into the folder."""
    writer = Writer(folder / FOLDER)
    for name in _matrices(target):
        packed = _packed(target.weights[name], options)
        if isinstance(packed, Packed):
            writer.add(name, packed)
        else:
            writer.leave(name, packed)
    writer.close()


def build(target: Target, options: Mapping[str, Any], prepared: Path | None) -> Linear:
    """Products with packed weights, from the folder that `prepare` filled, or packed now.

    Every record is decoded and compared with the target's matrix bit for bit, which is then dropped.
    """
    made: dict[str, Ready] = {}
    stays: dict[str, str] = {}
    for name, packed in _loaded(target, prepared) if prepared else _made(target, options):
        weight = target.weights[name]
        if isinstance(packed, str):
            stays[name] = packed
            continue
        source = narrowed(weight)
        if source is None or not matches(packed, source):
            raise EngineError("bad_model", f"the packed '{name}' is not the target's, bit for bit")
        made[name] = ready(packed, weight.dtype, silu_mul=name.endswith(GATED))
        _drop(target, name, options)
    return W12(target.weights, made, stays)


class W12:
    """Products with packed weights; `stays` says of each matrix that is not packed why.

    decoded: int64 [1], how often a matrix was decoded for more rows than the kernel takes; counted on the device, so
    that a replay counts as well.
    """

    def __init__(self, weights: Mapping[str, Tensor], packed: Mapping[str, Ready], stays: Mapping[str, str]) -> None:
        self.weights, self.packed, self.stays = weights, packed, stays
        self.dense = Dense(weights)
        device = weights["norm"].device
        # The head is the largest by far, and only a scorer asks for many of its rows: it gets a buffer when it does.
        sizes = [math.prod(shape_of(weight)) for name, weight in packed.items() if name != "head"]
        self.scratch = torch.empty(max(sizes, default=0), dtype=torch.bfloat16, device=device)
        self.decoded = torch.zeros(1, dtype=torch.int64, device=device)

    def __call__(
        self, name: str, x: Tensor, *, norm: Norm | None = None, residual: Tensor | None = None, silu_mul: bool = False
    ) -> Tensor:
        weight = self.packed.get(name)
        if weight is None:
            return self.dense(name, x, norm=norm, residual=residual, silu_mul=silu_mul)
        bias = self.weights.get(name + ".bias")
        if len(x) <= ROWS:
            return product(x, weight, bias, norm, residual, silu_mul)
        self.decoded += 1
        matrix = unpacked(weight, self._buffer(*shape_of(weight)))
        return dense_product(x, matrix, bias, norm, residual, silu_mul)

    def _buffer(self, n: int, k: int) -> Tensor:
        room = self.scratch if n * k <= len(self.scratch) else self.scratch.new_empty(n * k)
        return room[: n * k].view(n, k)

    def tensors(self) -> list[Tensor]:
        return [self.scratch, *(tensor for weight in self.packed.values() for tensor in tensors_of(weight))]


def _matrices(target: Target) -> list[str]:
    """Names of the weights that are multiplied with; `embed` is looked up."""
    return sorted(name for name, weight in target.weights.items() if weight.dim() == 2 and name != "embed")


def _packed(weight: Tensor, options: Mapping[str, Any]) -> Packed | str:
    """The record of a matrix, or why it stays as it is."""
    least = options["w12_least_mb"]
    if 2 * weight.numel() < least * 10**6:
        return f"it has {2 * weight.numel() / 10**6:.1f} MB in BF16, and w12_least_mb is {least}"
    source = narrowed(weight)
    if source is None:
        return "it holds numbers that BF16 does not"
    packed = encode(source)
    return cost(packed).refusal() or packed


def _made(target: Target, options: Mapping[str, Any]) -> Iterator[tuple[str, Packed | str]]:
    for name in _matrices(target):
        yield name, _packed(target.weights[name], options)


def _loaded(target: Target, prepared: Path) -> Iterator[tuple[str, Packed | str]]:
    """What `prepare` wrote, a few matrices ahead of who takes them."""
    names = _matrices(target)
    try:
        folder = Folder(prepared / FOLDER)
        if sorted([*folder.packed, *folder.left]) != names:
            raise Damaged(f"'{prepared / FOLDER}' was packed from another target")
        yield from folder.left.items()
        with ThreadPoolExecutor(_READERS) as pool:
            for first in range(0, len(folder.packed), _READERS):
                yield from _read(pool, folder, list(folder.packed)[first : first + _READERS], target.device)
    except Damaged as error:
        raise EngineError("bad_model", str(error)) from error


def _read(
    pool: ThreadPoolExecutor, folder: Folder, names: Sequence[str], device: torch.device
) -> Iterator[tuple[str, Packed]]:
    for name, packed in zip(names, pool.map(lambda name: folder.load(name, device), names), strict=True):
        assert isinstance(packed, Packed)
        yield name, packed


def _drop(target: Target, name: str, options: Mapping[str, Any]) -> None:
    """Lets a matrix go; the head that a drafter shares is the drafter's, and nobody's where nothing is drafted."""
    weight = target.weights.pop(name)
    if target.draft_head is weight and options["draft"] == "none":
        target.draft_head = weight.new_empty(0, weight.shape[1])

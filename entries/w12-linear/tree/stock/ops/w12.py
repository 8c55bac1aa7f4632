"""The record of W12 and its files, for the engine: what packs, loads and compares."""

from kernels.w12 import Census, Cost, Packed, census, cost, decode, encode, matches
from kernels.w12_file import Damaged, Folder, Writer

__all__ = [
    "Census",
    "Cost",
    "Damaged",
    "Folder",
    "Packed",
    "Writer",
    "census",
    "cost",
    "decode",
    "encode",
    "matches",
    "narrowed",
]

import torch
from torch import Tensor


def narrowed(weight: Tensor) -> Tensor | None:
    """The same numbers in bfloat16; None where it cannot hold them."""
    narrow = weight.to(torch.bfloat16)
    return narrow if torch.equal(narrow.to(weight.dtype), weight) else None

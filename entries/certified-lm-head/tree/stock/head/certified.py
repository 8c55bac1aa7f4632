"""The full head's token from 8 of 12 bits of most weights, with a certificate that it can be no other.

Greedy choices and draws at a temperature are certified; cuts, log-probabilities and digests need all logits.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stock.errors import EngineError
from stock.exact import PaddedLinear, rows_of
from stock.head import Chosen, Head, MakeHead, Product, Wanted, full
from stock.linear.w12 import W12
from stock.ops.lm_head import COUNTED, bounds_of, may_be_chosen, token_of
from stock.ops.rms_norm import rms_norm
from stock.ops.w12 import Packed
from stock.ops.w12_gemm import ROWS, Ready, tiled
from stock.sampling import Noise, Sampling, choose
from stock.target import Target

__all__ = ["Certified", "build"]


def build(target: Target, options: Mapping[str, Any], prepared: Path | None) -> MakeHead:
    """The certified head of a packed one; EngineError `bad_option` where the head is not packed."""
    if options["linear"] != "w12":
        raise EngineError("bad_option", f"head 'certified' reads packed weights: linear is '{options['linear']}'")
    make_full = full.build(target, options, prepared)

    def make(product: Product) -> Head:
        exact = isinstance(product.linear, PaddedLinear)
        linear = product.linear.inner if isinstance(product.linear, PaddedLinear) else product.linear
        if not isinstance(linear, W12):  # the head that scores keeps weights of its own
            return make_full(product)
        if "head" not in linear.packed:
            raise EngineError("bad_option", f"head 'certified' reads a packed head: {linear.stays['head']}")
        # The product takes over the head in the order that is certified: both have the same bits, and one copy is all.
        weight = tiled(linear.packed["head"])
        linear.packed = {**linear.packed, "head": weight}
        return Certified(product, make_full(product), weight, options["certified_rows"], exact)

    return make


class Certified:
    """Chooses with a certificate, and without one what needs all logits; most_rows: in a pass with one."""

    def __init__(self, product: Product, full_head: Head, weight: Ready, most_rows: int, exact: bool) -> None:
        self.product, self.full, self.weight, self.exact = product, full_head, weight, exact
        self.most_rows = min(most_rows, ROWS)
        self.bounds = bounds_of(weight)
        self.counts = torch.zeros(len(COUNTED), dtype=torch.int64, device=self.bounds.reach.device)

    def __call__(self, hidden: Tensor, position: Tensor, sampling: Sampling, noise: Noise, wanted: Wanted) -> Chosen:
        # Float32 and float64 on a GPU have no kernel, and a batch for which the head is decoded has another order.
        plain = len(hidden) > self.most_rows or (hidden.is_cuda and isinstance(self.weight, Packed))
        if plain or sampling.cuts or wanted.logprobs or wanted.logits:
            return self.full(hidden, position, sampling, noise, wanted)
        if isinstance(self.weight, Packed):
            return Chosen(self._checked(hidden, position, sampling, noise))
        x = self._normed(hidden)
        return Chosen(token_of(x, self.weight, self.bounds, position, sampling, noise, self.counts))

    def _checked(self, hidden: Tensor, position: Tensor, sampling: Sampling, noise: Noise) -> Tensor:
        """The choice among the ids that the certificate leaves, of logits that stock's own product makes."""
        logits, x = self.product(hidden), self._normed(hidden)
        left = may_be_chosen(x, self.weight, self.bounds, logits, position, sampling, noise)
        rows = int(left.any(0).sum())
        self.counts += torch.tensor([1, len(x), rows, rows == left.shape[1]])
        return choose(logits.masked_fill(~left, float("-inf")), position, sampling, noise)

    def _normed(self, hidden: Tensor) -> Tensor:
        """The head's input, with the bits that the product makes of it."""
        weight, eps = self.product.norm.weight, self.product.norm.eps
        rows = rows_of(hidden) if self.exact else [hidden]
        return torch.cat([rms_norm(row, weight, eps) for row in rows]).contiguous()

    def counters(self) -> dict[str, int]:
        """What was certified since the head was built; waits for the device."""
        return {f"certified_{name}": count for name, count in zip(COUNTED, self.counts.tolist(), strict=True)}

    def tensors(self) -> list[Tensor]:
        return [*vars(self.bounds).values(), self.counts]

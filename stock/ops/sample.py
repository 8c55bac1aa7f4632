"""The draw of a token with the shared noise, for many rows at once on a GPU."""

from torch import Tensor

__all__ = ["sample"]


def sample(logits: Tensor, position: Tensor, seed: Tensor, temperature: Tensor) -> Tensor:
    """argmax of logit/T + g for float32 logits [n, vocabulary] on a GPU, int64 [n]; the lowest id wins ties.

    position: int64 [n].  seed: int64 [1], the bits of the uint64.  temperature: float32 [1].
    """
    from kernels.sample import sample as kernel

    rows = len(logits)
    return kernel(logits, position, seed.expand(rows), temperature.expand(rows))

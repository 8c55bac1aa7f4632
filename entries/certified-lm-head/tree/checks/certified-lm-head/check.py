"""The contract of certified-lm-head: python checks/certified-lm-head/check.py, from the root of a system that has it.

Where no kernel runs the choice is stock's, among the ids that the certificate leaves: so the certificate never leaves
the right one out, and leaves few where one logit stands out.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from stock.head import Product, Wanted, full
from stock.head.certified import Certified, build
from stock.linear import Norm
from stock.linear.w12 import W12
from stock.ops.w12 import encode
from stock.options import resolve
from stock.sampling import Noise, Sampling

VOCABULARY, HIDDEN = 600, 256


def drawn(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def heads(weight: Tensor, dtype: torch.dtype) -> tuple[Certified, Callable[..., Tensor]]:
    """The certified head of a matrix, and the tokens of the full one."""
    packed = {"head": encode(weight.bfloat16())}
    norm = Norm(torch.ones(HIDDEN, dtype=dtype), 1e-5)
    product = Product(W12({"norm": norm.weight}, packed, {}), norm)
    options = {"linear": "w12", "certified_rows": 128}
    certified, whole = build(None, options, None)(product), full.build(None, options, None)(product)  # type: ignore[arg-type]
    assert isinstance(certified, Certified)
    return certified, lambda *asked: whole(*asked).token


def check(weight: Tensor, hidden: Tensor, dtype: torch.dtype) -> int:
    """Greedy and sampled tokens are the full head's; returns how many rows of the head were candidates."""
    certified, whole = heads(weight, dtype)
    position = torch.arange(len(hidden))
    for sampling in (Sampling(), Sampling(temperature=0.7, seed=5), Sampling(temperature=3.0, seed=2**63 + 1)):
        noise = Noise.of(sampling, hidden.device)
        asked = hidden.to(dtype), position, sampling, noise, Wanted()
        assert torch.equal(certified(*asked).token, whole(*asked))
    told = certified.counters()
    assert (told["certified_calls"], told["certified_rows"]) == (3, 3 * len(hidden))
    return told["certified_candidates"]


def check_what_is_not_certified() -> None:
    """Cuts, log-probabilities and logits come from the full head, whole."""
    certified, whole = heads(drawn(VOCABULARY, HIDDEN, seed=1).bfloat16(), torch.float32)
    hidden, position = drawn(5, HIDDEN, seed=2), torch.arange(5)
    for sampling, wanted in (
        (Sampling(0.8, 0.9, 7, 3), Wanted()),
        (Sampling(), Wanted(logprobs=True)),
        (Sampling(), Wanted(logits=True)),
    ):
        asked = hidden, position, sampling, Noise.of(sampling, hidden.device), wanted
        chosen = certified(*asked)
        assert torch.equal(chosen.token, whole(*asked))
        assert (chosen.logprob is not None, chosen.logits is not None) == (wanted.logprobs, wanted.logits)
    assert certified.counters()["certified_calls"] == 0


plain = drawn(VOCABULARY, HIDDEN, seed=0).bfloat16().float()
twice = torch.cat((plain[:300], plain[:300]))
spread = plain.clone()
spread[::7, 3] = 2.0**40
spread[1::7] *= 2.0**-30
for dtype in (torch.float32, torch.float64, torch.bfloat16):
    for weight in (plain, twice, spread):
        near = 3 * weight[[5, 200, 310]] / weight[[5, 200, 310]].norm(dim=1, keepdim=True) * HIDDEN**0.5
        for hidden in (drawn(4, HIDDEN, seed=3), near, near * 1e30, near * 1e-30, torch.zeros(2, HIDDEN)):
            left = check(weight, hidden, dtype)
            assert hidden is not near or weight is spread or left < 3 * len(near) * 40
check_what_is_not_certified()
assert resolve({"draft": "none"})["head"] == "full"
print("certified-lm-head: the full head's tokens, whatever the hidden states, and few candidates where one stands out")

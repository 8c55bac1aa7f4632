"""The contract of confident-budget: python checks/confident-budget/check.py, from the root of a system that has it.

A floor only leaves out rows of a best-first tree: what stays is a prefix of it, and every node that stays is above the
floor.
"""

import math

import torch

from stock.options import resolve
from stock.select.best_first import BestFirst
from stock.select.confident import Confident, padded
from stock.tree import Lattice


def lattice(seed: int) -> Lattice:
    generator = torch.Generator().manual_seed(seed)
    logprobs, ids = (3 * torch.randn(6, 64, generator=generator)).log_softmax(1).topk(4)
    return Lattice(torch.tensor([7]), ids, logprobs.half().float())


for seed in range(20):
    marginals, whole = lattice(seed), BestFirst(40, 4)
    tree, score = whole.grow(marginals)
    for floor in (0.0, 1e-6, 0.01, 0.2, 1.0):
        (cut,) = Confident(whole, floor)([marginals])
        rows = len(cut.token)
        least = math.log(floor) if floor else -math.inf
        assert 1 <= rows <= len(tree.token)
        assert torch.equal(cut.token, tree.token[:rows]) and torch.equal(cut.parent, tree.parent[:rows])
        assert bool((score[:rows] >= least).all()) and bool((score[rows:] < least).all())
        # In a captured pass the same rows stand, and the rest is padding: no parent, at the anchor's depth.
        same = padded(tree, score >= least)
        assert torch.equal(same.token[:rows], cut.token) and torch.equal(same.parent[:rows], cut.parent)
        assert bool((same.parent[rows:] == -1).all()) and bool((same.depth[rows:] == 0).all())
assert resolve({})["confident_floor"] == 0.0
print("confident-budget: what stays is the confident prefix of the tree")

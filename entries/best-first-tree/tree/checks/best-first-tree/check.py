"""The contract of best-first-tree: python checks/best-first-tree/check.py, from the root of a system that has it.

A draft tree only picks which rows are verified, so whatever it is, the text is stock's; what is checked here is that
it is a tree, that it is the best one, and that its corners are the chain and the bare anchor.
"""

import itertools

import torch

from stock.options import resolve
from stock.select.best_first import BestFirst
from stock.select.chain import Chain
from stock.tree import Lattice


def lattice(depths: int, ranks: int, seed: int, ties: bool) -> Lattice:
    """Random marginals over 64 ids; with `ties`, rounded so that many paths score the same."""
    generator = torch.Generator().manual_seed(seed)
    logprobs, ids = (3 * torch.randn(depths, 64, generator=generator)).log_softmax(1).topk(ranks)
    logprobs = (2 * logprobs).round() / 2 if ties else logprobs.half().float()
    return Lattice(torch.tensor([7]), ids, logprobs)


def every_path(marginals: Lattice, positions: int) -> list[float]:
    """The scores of all paths of a lattice, best first."""
    table = marginals.logprobs.double().tolist()
    paths = (itertools.product(*table[:depth]) for depth in range(1, positions + 1))
    return sorted((sum(path) for level in paths for path in level), reverse=True)


def check_best(depths: int, ranks: int, nodes: int, positions: int, seed: int, ties: bool) -> None:
    """The tree is a tree, has the scores of the best `nodes` paths, and names each child of a node once."""
    marginals = lattice(depths, ranks, seed, ties)
    tree, score = BestFirst(nodes, ranks, positions).grow(marginals)
    token, parent, depth = tree.token.tolist(), tree.parent.tolist(), tree.depth.tolist()
    assert (token[0], parent[0], depth[0]) == (7, -1, 0)
    assert all(0 <= above < row for row, above in enumerate(parent) if row)
    assert all(depth[row] == depth[above] + 1 for row, above in enumerate(parent) if row)
    assert len({(above, token[row]) for row, above in enumerate(parent)}) == len(token)
    assert max(depth) <= (positions or depths) and tree.depth_limit >= max(depth)
    best = every_path(marginals, positions or depths)[: len(token) - 1]
    assert torch.equal(score[1:], torch.tensor(best, dtype=torch.float64))
    assert len(token) - 1 == min(nodes, len(every_path(marginals, positions or depths)))


def check_corners() -> None:
    """One rank is the chain, no node the bare anchor, and the default selection stays stock's."""
    marginals = lattice(15, 8, 5, ties=False)
    (chain,), (spine,) = Chain(0)([marginals]), BestFirst(15, 1)([marginals])
    assert torch.equal(chain.token, spine.token) and torch.equal(chain.parent, spine.parent) and spine.chain
    (bare,) = BestFirst(0, 8)([marginals])
    assert bare.token.tolist() == [7]
    assert resolve({})["select"] == "chain"
    (whole,) = BestFirst(200, 64)([lattice(2, 5, 5, ties=False)])  # fewer ranks than asked for: all paths there are
    assert len(whole.token) == 1 + 5 + 25


for seed, ties in itertools.product(range(4), (False, True)):
    for depths, ranks, nodes, positions in ((1, 1, 3, 0), (3, 2, 6, 2), (4, 4, 40, 0), (5, 3, 200, 3), (2, 5, 255, 0)):
        check_best(depths, ranks, nodes, positions, seed, ties)
check_corners()
print("best-first-tree: the best paths, as trees; corners are the chain and the anchor")

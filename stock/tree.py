"""What a drafter proposes and what the target verifies: lattices and draft trees."""

from dataclasses import dataclass

from torch import Tensor

__all__ = ["DraftTree", "Lattice", "TreeLimits", "chain_tree"]


@dataclass(frozen=True)
class TreeLimits:
    """The most rows of a draft tree, anchor included, and its greatest depth."""

    rows: int
    depth: int


@dataclass
class Lattice:
    """The drafter's top ranks at each depth after an anchor, from one drafter pass.

    anchor: int64 [1].  ids: int64 [depth, rank].  logprobs: float32 [depth, rank], best first, ties by lower id.
    """

    anchor: Tensor
    ids: Tensor
    logprobs: Tensor


@dataclass
class DraftTree:
    """Rows of one verify pass: row 0 is the anchor, parents come before children.

    token: int64 [rows].  parent: int64 [rows], -1 for the anchor.  depth: int64 [rows], 0 for the anchor.
    chain: whether row i + 1 is the only child of row i, so that no row has to move when a path is accepted.
    depth_limit: no row is deeper; a path has at most depth_limit + 1 rows.
    """

    token: Tensor
    parent: Tensor
    depth: Tensor
    chain: bool
    depth_limit: int


def chain_tree(token: Tensor, rows: Tensor) -> DraftTree:
    """The one-child tree of token [n]; rows: int64 [n], 0, 1, 2, ... on the same device."""
    return DraftTree(token, rows - 1, rows, chain=True, depth_limit=len(token) - 1)

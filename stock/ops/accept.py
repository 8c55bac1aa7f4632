"""The walk of verification: which drafts the target's own choices confirm."""

from dataclasses import dataclass

import torch
from torch import Tensor

from stock.tree import DraftTree

__all__ = ["Accepted", "accept"]


@dataclass
class Accepted:
    """A root path of a draft tree.

    path: int32 [depth_limit + 1], accepted rows by depth, padded with the last; count: int32 [1], how many, the
    anchor included; emitted: int64 [depth_limit + 1], the target's choice at each row of the path, of which the
    first `count` are new tokens; the last of those is the next anchor.
    """

    path: Tensor
    count: Tensor
    emitted: Tensor


def accept(tree: DraftTree, choice: Tensor) -> Accepted:
    """Follows the target's choice [rows] from the anchor, child by child, until no child holds it."""
    if choice.is_cuda:
        from kernels.accept import accept as kernel

        path, count, _ = kernel(tree.token, tree.parent, choice, tree.depth_limit + 1)
        return Accepted(path, count, choice[path.long()])
    token, parent, chosen = tree.token.tolist(), tree.parent.tolist(), choice.tolist()
    children = {(above, token[row]): row for row, above in enumerate(parent)}
    rows = [0]
    while (child := children.get((rows[-1], chosen[rows[-1]]))) is not None:
        rows.append(child)
    padding = [rows[-1]] * (tree.depth_limit + 1 - len(rows))
    path = torch.tensor(rows + padding, dtype=torch.int32)
    return Accepted(path, torch.tensor([len(rows)], dtype=torch.int32), choice[path.long()])

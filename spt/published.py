"""The published tau of the SpecPilot system by exact replay: a chain, then trees of more positions and more nodes."""

from spt.policy import Chain, Policy, Tree

__all__ = ["PUBLISHED"]

# Blocks of 16 draft 15 positions.  The width of the published trees is not known; 16 ranks hide nothing of 63 nodes.
PUBLISHED: tuple[tuple[Policy, float], ...] = (
    (Chain(), 4.25),
    (Tree(32, 8, 16), 5.38),
    (Tree(32, 0, 16), 5.85),
    (Tree(63, 0, 16), 6.25),
)

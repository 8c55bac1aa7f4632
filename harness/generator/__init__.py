"""Unseen requests without end, from template families and a seed (docs/requests.md)."""

from harness.generator.sets import FAMILIES, FINAL, SEALED_FAMILIES, SETS, Set, digest

__all__ = ["FAMILIES", "FINAL", "SEALED_FAMILIES", "SETS", "Set", "digest"]

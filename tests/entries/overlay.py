"""Lets a test import an entry's modules beside those of the checkout, as if the entry were composed."""

import importlib
from pathlib import Path

__all__ = ["overlay"]

ENTRIES = Path(__file__).parents[2] / "entries"


def overlay(entry: str) -> None:
    """Adds the entry's folders to the packages that they extend; nothing of the checkout is hidden."""
    tree = ENTRIES / entry / "tree"
    for folder in sorted({path.parent for path in tree.rglob("*.py")}):
        name = ".".join(folder.relative_to(tree).parts)
        if folder.relative_to(tree).parts[0] in ("stock", "kernels"):
            package = importlib.import_module(name)
            if str(folder) not in package.__path__:
                package.__path__.append(str(folder))

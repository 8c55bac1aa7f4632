"""Lets a benchmark or a test import an entry's modules beside those of the checkout, as if it were composed."""

import importlib
from pathlib import Path

__all__ = ["overlay"]

ENTRIES = Path(__file__).parents[1] / "entries"


def overlay(entry: str, *packages: str) -> None:
    """Adds the entry's folders to the packages that they extend; nothing of the checkout is hidden.

    packages: of `stock` and `kernels`, both where none is named.
    """
    tree = ENTRIES / entry / "tree"
    for folder in sorted({path.parent for path in tree.rglob("*.py")}):
        name = ".".join(folder.relative_to(tree).parts)
        if folder.relative_to(tree).parts[0] in (packages or ("stock", "kernels")):
            package = importlib.import_module(name)
            if str(folder) not in package.__path__:
                package.__path__.append(str(folder))

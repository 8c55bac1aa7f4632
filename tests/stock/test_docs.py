"""docs/engine.md says what the code says."""

import importlib
from pathlib import Path

import pytest

from stock.options import SEAMS, declared

PAGE = (Path(__file__).parents[2] / "docs" / "engine.md").read_text()
ROWS = {
    row.split("`")[1]: row for row in PAGE.split("## Seams")[1].split("## ")[0].splitlines() if row.startswith("| `")
}


def test_every_seam_has_a_row():
    """The table of seams lists them in the engine's order."""
    assert tuple(ROWS) == SEAMS


@pytest.mark.parametrize("seam", SEAMS)
def test_signature_and_values(seam):
    """A row has the seam's own signature and the values that stock brings."""
    (signature,) = [line for line in importlib.import_module(f"stock.{seam}").__doc__.splitlines() if "build(" in line]
    values = ROWS[seam].rsplit("|", 2)[1]

    assert f"`{signature.strip()}`" in ROWS[seam]
    assert set(values.split("`")[1::2]) == set(declared()[seam].values)


def test_files_that_the_page_names_exist():
    """Every module of the reading order is there, and every module is in it."""
    order = PAGE.split("## How to read it")[1].split("##")[0]
    named = {each for each in order.split("`") if each.endswith(".py")}
    root = Path(__file__).parents[2] / "stock"
    there = {path.name for path in root.glob("*.py")} - {"__init__.py", "errors.py", "graph.py"}

    assert {name for name in named if "/" not in name} == there
    assert all((root / name).exists() for name in named)

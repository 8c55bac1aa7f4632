"""What a walk reads: lattices of several paths, a selection of their requests, and what was recorded beside them."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from spt.errors import Missing, Usage
from spt.formats import read_file, read_lines
from spt.lattice import Lattice, read_lattice

__all__ = ["read_agreement", "read_lattices"]


def read_lattices(paths: Sequence[Path], only: Sequence[str] = ()) -> list[Lattice]:
    """The lattice of each path, all of the same models, with the requests whose id or family is one of `only`.

    Raises Usage for a name that selects nothing, and what `read_lattice` raises.
    """
    read = [read_lattice(paths[0])]
    read += [read_lattice(path, read[0].origin) for path in paths[1:]]
    if not only:
        return read
    names = set(only)
    for name in only:
        if not any(name in _names(each) for one in read for each in one.requests):
            raise Usage(f"'{name}' selects nothing: it is no request and no family of these lattices")
    return [replace(one, requests=tuple(each for each in one.requests if _names(each) & names)) for one in read]


def _names(each: Any) -> set[str]:
    """What a request can be selected by: the id of its answer, its own, and its family."""
    return {each.request, each.request.rpartition("#")[0], each.category} - {None, ""}


def read_agreement(path: Path) -> dict[str, list[bool]]:
    """{request: for each token of its answer whether a cheap pass says it too}, from lines {"request", "agrees"}."""
    if not path.is_file():
        raise Missing(f"no agreement at '{path}'")
    found: dict[str, list[bool]] = {}
    for row, where in read_lines(read_file(path), str(path)):
        if not _is_agreement(row):
            raise Usage(f"{where} is not an object of 'request' and 'agrees', a list of true and false")
        if row["request"] in found:
            raise Usage(f"{where}: '{row['request']}' was there before")
        found[row["request"]] = row["agrees"]
    return found


def _is_agreement(row: Any) -> bool:
    if not isinstance(row, dict) or row.keys() != {"request", "agrees"} or type(row["request"]) is not str:
        return False
    return type(row["agrees"]) is list and all(type(one) is bool for one in row["agrees"])

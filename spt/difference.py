"""What is not as it must be, by path and by the first entry that diverges."""

from collections.abc import Iterator
from dataclasses import dataclass

from spt.git.compose import Composition
from spt.git.objects import Oid
from spt.git.tree import Row, compare

__all__ = ["Difference", "row_difference", "tree_differences"]


@dataclass(frozen=True)
class Difference:
    """One thing that is not as it must be.

    kind: path (there or not there), mode, blob, dependency, order, conflict, residual, record or history.
    entry: the first entry, in composition order, that diverges; None where no entry touches the path.
    """

    kind: str
    text: str
    path: str | None = None
    entry: str | None = None


def tree_differences(
    composition: Composition, names: frozenset[str], expected: Oid, found: Oid, *, dependency: bool = False
) -> Iterator[Difference]:
    """Each path where two trees differ, with the first entry of `names` that touches it."""
    for row in compare(composition.objects, expected, found).rows:
        touching = composition.ordered(names & set(composition.touchers(row.path)))
        first = touching[0] if touching else None
        yield row_difference(row, first, dependency=dependency and first is not None)


def row_difference(row: Row, entry: str | None, *, dependency: bool = False) -> Difference:
    """What one differing path means; `old` is what was expected, `new` what is there."""
    expected, found = row.old, row.new
    if expected is None or found is None:
        kind, text = "path", f"'{row.path}' {'must not be there' if expected is None else 'is not there'}"
    elif expected.mode != found.mode:
        kind, text = "mode", f"'{row.path}' has mode {found.mode:06o}, not {expected.mode:06o}"
    else:
        kind, text = "blob", f"'{row.path}' is {found.oid[:12]}, not {expected.oid[:12]}"
    if dependency:
        kind, text = "dependency", f"{text}: the base is not what requirement '{entry}' makes of it"
    whose = f" (first diverging entry: {entry})" if entry else " (no entry touches it)"
    return Difference(kind, text + whose, row.path, entry)

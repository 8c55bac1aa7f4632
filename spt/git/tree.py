"""Git trees as maps from path to State: walked, compared, changed at some paths.

A path is text with `/` between names.  Only blobs, links and gitlinks have a State here; directories exist
because something is in them.
"""

import hashlib
import unicodedata
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from spt.errors import Conflict, Unsupported
from spt.git.objects import EMPTY_TREE, TREE, Listing, Objects, Oid, State

__all__ = ["Delta", "Row", "compare", "fold", "splice", "subtree", "walk", "without"]


_MAX_DEPTH = 256
_FEW = 8


class Row(NamedTuple):
    """One path of a delta: what it held before and what it holds after; None where nothing is there."""

    path: str
    old: State | None
    new: State | None


@dataclass(frozen=True)
class Delta:
    """Rows sorted by path, each path once: a change of a tree, exact to the byte and the mode."""

    rows: tuple[Row, ...]

    @cached_property
    def id(self) -> str:
        """sha256 over the rows (docs/records.md): the same change has the same id wherever it is applied."""
        digest = hashlib.sha256()
        for path, old, new in self.rows:
            digest.update(f"{path}\0{_state_text(old)}\0{_state_text(new)}\n".encode(errors="surrogateescape"))
        return digest.hexdigest()


def _state_text(state: State | None) -> str:
    return f"{0:06o} {0:040x}" if state is None else f"{state.mode:06o} {state.oid}"


def walk(objects: Objects, tree: Oid) -> Iterator[tuple[str, State]]:
    """Every path of a tree with its state, in name order.  Unsupported for one nested deeper than any file system."""
    waiting = [("", State(TREE, tree))]
    while waiting:
        path, state = waiting.pop()
        if state.mode != TREE:
            yield path, state
            continue
        if path.count("/") >= _MAX_DEPTH:
            raise Unsupported(f"tree '{tree[:12]}' is nested deeper than {_MAX_DEPTH}")
        prefix = f"{path}/" if path else ""
        waiting += [(f"{prefix}{name}", inner) for name, inner in reversed(objects.entries(state.oid).items())]


def subtree(objects: Objects, tree: Oid, path: str) -> Oid | None:
    """The tree at a folder's path, or None."""
    state = objects.lookup(tree, path)
    return state.oid if state is not None and state.mode == TREE else None


def without(objects: Objects, tree: Oid, name: str) -> Oid:
    """The tree less one of its own names."""
    return objects.build(tree, {name: None}) if name in objects.entries(tree) else tree


def compare(objects: Objects, old: Oid | None, new: Oid | None) -> Delta:
    """The delta from one tree to the other; None is the empty tree.  Renames are a removal and an addition."""
    rows = (Row(*row) for row in objects.differences(old, new))
    return Delta(tuple(sorted(rows, key=lambda row: row.path)))


def splice(objects: Objects, tree: Oid | None, states: Mapping[str, State | None]) -> Oid:
    """The tree with every given path set or (None) removed; folders that become empty vanish.

    Raises Conflict where a file would stand where a folder is, or where an added name differs from a
    neighbour's only in case or in Unicode form, so that a checkout elsewhere would lose one of the two.
    """
    return _splice(objects, tree, states, "") or objects.build(None, {})


def _splice(objects: Objects, tree: Oid | None, states: Mapping[str, State | None], prefix: str) -> Oid | None:
    if prefix.count("/") > _MAX_DEPTH:
        raise Unsupported(f"'{prefix[:40]}...' is nested deeper than {_MAX_DEPTH}")
    own: dict[str, State | None] = {}
    below: dict[str, dict[str, State | None]] = defaultdict(dict)
    for path, state in states.items():
        name, slash, rest = path.partition("/")
        if slash:
            below[name][rest] = state
        else:
            own[name] = state
    listing = objects.listing(tree) if tree is not None else None
    held = {name: listing.get(name) if listing else None for name in (*own, *below)}
    changes = dict(own)
    for name, inner in below.items():
        here = held[name]
        folder = here.oid if here is not None and here.mode == TREE else None
        changed = _splice(objects, folder, inner, f"{prefix}{name}/")
        if changed is not None:
            if own.get(name) or (here is not None and folder is None and name not in own):
                raise Conflict(f"'{prefix}{name}' would be both a file and a folder")
            changes[name] = State(TREE, changed)
        elif folder is not None:
            changes.setdefault(name, None)
    for name in own.keys() - below.keys():
        if (here := held[name]) is not None and here.mode == TREE:
            raise Conflict(f"'{prefix}{name}' would be both a file and a folder")
    built = objects.build(tree, changes)
    added = [name for name, state in changes.items() if state is not None and held[name] is None]
    if added:
        _refuse_twins(objects.listing(built), added, prefix)
    return None if built == EMPTY_TREE else built


def _refuse_twins(listing: Listing, added: Sequence[str], prefix: str) -> None:
    """Conflict where an added name is a neighbour's but for case or Unicode form."""
    # A search in the names as they lie is quicker than a table of them, unless there are many to look for.
    plain = listing.plain_ascii() if len(added) <= _FEW else None
    if plain is not None:
        owns = [f"\0{name.lower()}\0".encode() for name in added]
        if all(plain.find(own) == plain.rfind(own) for own in owns):
            return
    alike: dict[str, list[str]] = defaultdict(list)
    for name in listing.names():
        alike[fold(name)].append(name)
    for name in added:
        if len(twins := sorted(alike[fold(name)])) > 1:
            raise Conflict(f"'{prefix}{twins[0]}' and '{prefix}{twins[1]}' are one name where case does not count")


def fold(name: str) -> str:
    """The name as a file system without case or Unicode form would see it."""
    return name.casefold() if name.isascii() else unicodedata.normalize("NFC", name).casefold()

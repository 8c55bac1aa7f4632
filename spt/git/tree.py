"""Git trees as maps from path to State: walked, compared, changed at some paths.

A path is text with `/` between names.  Only blobs, links and gitlinks have a State here; directories exist
because something is in them.
"""

import hashlib
import unicodedata
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from spt.errors import Conflict
from spt.git.objects import EMPTY_TREE, TREE, Objects, Oid, State

__all__ = ["Delta", "Row", "compare", "lookup", "splice", "subtree", "walk", "without"]


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


def walk(objects: Objects, tree: Oid, prefix: str = "") -> Iterator[tuple[str, State]]:
    """Every path of a tree with its state, in name order."""
    for name, state in objects.entries(tree).items():
        if state.mode == TREE:
            yield from walk(objects, state.oid, f"{prefix}{name}/")
        else:
            yield f"{prefix}{name}", state


def lookup(objects: Objects, tree: Oid, path: str) -> State | None:
    """What a path holds in a tree (a directory too), or None."""
    *folders, name = path.split("/")
    for folder in folders:
        state = objects.entries(tree).get(folder)
        if state is None or state.mode != TREE:
            return None
        tree = state.oid
    return objects.entries(tree).get(name)


def subtree(objects: Objects, tree: Oid, path: str) -> Oid | None:
    """The tree at a folder's path, or None."""
    state = lookup(objects, tree, path)
    return state.oid if state is not None and state.mode == TREE else None


def without(objects: Objects, tree: Oid, name: str) -> Oid:
    """The tree less one of its own names."""
    return objects.build(tree, {name: None}) if name in objects.entries(tree) else tree


def compare(objects: Objects, old: Oid | None, new: Oid | None) -> Delta:
    """The delta from one tree to the other; None is the empty tree.  Renames are a removal and an addition."""
    return Delta(tuple(sorted(_differences(objects, old, new, ""))))


def _differences(objects: Objects, old: Oid | None, new: Oid | None, prefix: str) -> Iterator[Row]:
    before: Mapping[str, State] = {} if old is None else objects.entries(old)
    after: Mapping[str, State] = {} if new is None else objects.entries(new)
    for name in before.keys() | after.keys():
        was, now = before.get(name), after.get(name)
        if was == now:
            continue
        path = f"{prefix}{name}"
        was_folder = was is not None and was.mode == TREE
        now_folder = now is not None and now.mode == TREE
        if was_folder or now_folder:
            old_folder = was.oid if was is not None and was_folder else None
            new_folder = now.oid if now is not None and now_folder else None
            yield from _differences(objects, old_folder, new_folder, f"{path}/")
        was, now = None if was_folder else was, None if now_folder else now
        if was != now:
            yield Row(path, was, now)


def splice(objects: Objects, tree: Oid | None, states: Mapping[str, State | None]) -> Oid:
    """The tree with every given path set or (None) removed; folders that become empty vanish.

    Raises Conflict where a file would stand where a folder is, or where an added name differs from a
    neighbour's only in case or in Unicode form, so that a checkout elsewhere would lose one of the two.
    """
    return _splice(objects, tree, states, "") or objects.build(None, {})


def _splice(objects: Objects, tree: Oid | None, states: Mapping[str, State | None], prefix: str) -> Oid | None:
    own: dict[str, State | None] = {}
    below: dict[str, dict[str, State | None]] = defaultdict(dict)
    for path, state in states.items():
        name, slash, rest = path.partition("/")
        if slash:
            below[name][rest] = state
        else:
            own[name] = state
    entries: Mapping[str, State] = {} if tree is None else objects.entries(tree)
    changes = dict(own)
    for name, inner in below.items():
        here = entries.get(name)
        folder = here.oid if here and here.mode == TREE else None
        changed = _splice(objects, folder, inner, f"{prefix}{name}/")
        if changed is not None:
            if own.get(name) or (here and folder is None and name not in own):
                raise Conflict(f"'{prefix}{name}' would be both a file and a folder")
            changes[name] = State(TREE, changed)
        elif folder is not None:
            changes.setdefault(name, None)
    for name in own.keys() - below.keys():
        if (here := entries.get(name)) and here.mode == TREE:
            raise Conflict(f"'{prefix}{name}' would be both a file and a folder")
    _refuse_twins(entries, changes, prefix)
    built = objects.build(tree, changes)
    return None if built == EMPTY_TREE else built


def _refuse_twins(entries: Mapping[str, State], changes: Mapping[str, State | None], prefix: str) -> None:
    added = [name for name, state in changes.items() if state is not None and name not in entries]
    if not added:
        return
    names = {name for name in entries if name not in changes} | {name for name, state in changes.items() if state}
    folded: dict[str, list[str]] = defaultdict(list)
    for name in names:
        folded[fold(name)].append(name)
    for name in added:
        if len(twins := sorted(folded[fold(name)])) > 1:
            raise Conflict(f"'{prefix}{twins[0]}' and '{prefix}{twins[1]}' are one name where case does not count")


def fold(name: str) -> str:
    """The name as a file system without case or Unicode form would see it."""
    return name.casefold() if name.isascii() else unicodedata.normalize("NFC", name).casefold()

"""The memory of one repository: its stock, its entries, and how an entry lies in git.

    stock (or composed base) -> P, the code alone -> R, R2, ...: records alone, below .spt/entries/<name>/

`entry/<name>` is the newest R; every P stays under refs/spt/patch/<name>/<first 12 of the delta id>.  P says in
trailers which deltas it was made on, so that it can be recomposed without any YAML; R says it too, with the
trees, and entry.yaml in R is the authority that both are checked against.
"""

import contextlib
import json
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from spt.entry import Card, check_name, check_path, flags, lint, read_card
from spt.errors import Missing, SptError, Usage
from spt.formats import schema_digest
from spt.git.compose import Composition, Part, topological
from spt.git.message import TOOL, Trailers, compose_message, read_trailers
from spt.git.objects import FILE, Commit, Objects, Oid, State
from spt.git.store import Store
from spt.git.tree import Delta, compare, splice, subtree, walk
from spt.system import layout_of

__all__ = [
    "BRANCH",
    "CURRENT",
    "PATCH",
    "RESCUE",
    "SHIPPED_TIP",
    "SOURCE",
    "STOCK",
    "Memory",
    "Recorded",
    "load",
    "patch_reference",
    "reachable",
    "records_path",
    "way_out_of_clone",
]

BRANCH = "refs/heads/entry/"
PATCH = "refs/spt/patch/"
STOCK = "refs/spt/stock/"
CURRENT = "refs/spt/stock/current"
SOURCE = "refs/spt/source/"
RESCUE = "refs/spt/rescue/"
SHIPPED_TIP = "refs/spt/shipped/"


def records_path(name: str) -> str:
    """The folder of an entry's records in R's tree."""
    return f".spt/entries/{name}"


def patch_reference(name: str, delta_id: str) -> str:
    """The reference that keeps the P of a delta."""
    return f"{PATCH}{name}/{delta_id[:12]}"


def way_out_of_clone(store: Store) -> str | None:
    """How a plain clone of a deployment is left for a deployment of one's own; None where this is no such clone."""
    url = store.remote_of("entry/")
    if url is None:
        return None
    shown = "URL" if "@" in url else f"'{url}'"  # what stands before an @ may be a secret
    return (
        f"a clone leaves refs/spt behind: `spt init DIR` makes a deployment, `spt entry import {shown}` there fills it"
    )


@dataclass(frozen=True)
class Recorded:
    """An entry as its branch holds it."""

    name: str
    tip: Commit
    patch: Commit
    base: Commit
    stock: Oid
    delta: Delta
    pins: tuple[tuple[str, str], ...]  # (name, delta id) of what it requires directly, from P's trailers
    records: Oid | None  # the tree of its records

    @cached_property
    def part(self) -> Part:
        return Part(self.name, frozenset(name for name, _ in self.pins), self.delta)


class Memory:
    """Stock and entries of a repository, or of none: then it lives in this process alone."""

    def __init__(self, store: Store, stock: Oid) -> None:
        self.store = store
        self.objects: Objects = store.objects
        self.stock = stock
        self.layout = layout_of(self.objects, stock)
        self.cards = _CardCache(store)
        self.rescued: dict[str, str] = {}  # entry -> the reference that keeps the tip it was moved away from
        self.own_commits: dict[Oid, Oid] = {}  # copy of a source's commit -> the user's own
        self._parts: dict[tuple[str, str], tuple[Part, Commit]] = {}
        self._compositions: dict[Oid, Composition] = {}

    @classmethod
    def open(cls, path: Path) -> "Memory":
        """The memory of the repository that `path` lies in; Usage where `spt init` has not been run in it."""
        return cls.of(Store.find(path))

    @classmethod
    def of(cls, store: Store) -> "Memory":
        """The memory of an opened repository."""
        current = store.reference(CURRENT)
        if current is None:
            hint = "`spt init --stock REV` names the stock of this repository, `spt init DIR` makes a new one"
            raise Usage("this repository has no stock yet", way_out_of_clone(store) or hint)
        return cls(store, store.objects.commit(current).tree)

    # Entries.

    @cached_property
    def closures_by_tree(self) -> dict[Oid, str]:
        """The systems of now: the tree of each entry on its requirements, and that entry."""
        return {entry.patch.tree: name for name, entry in self.entries.items()}

    @cached_property
    def _loaded(self) -> tuple[dict[str, Recorded], dict[str, SptError]]:
        found: dict[str, Recorded] = {}
        broken: dict[str, SptError] = {}
        for reference, oid in self.store.references(BRANCH).items():
            name = reference.removeprefix(BRANCH)
            try:
                found[name] = load(self.objects, check_name(name), oid)
            except SptError as error:
                broken[name] = error
        return found, broken

    @property
    def entries(self) -> dict[str, Recorded]:
        """The entries whose branch has the shape of one, by name."""
        return self._loaded[0]

    @property
    def broken(self) -> dict[str, SptError]:
        """Why the other branches below entry/ are no entries."""
        return self._loaded[1]

    def entry(self, name: str) -> Recorded:
        """The entry of this name; Missing where there is none."""
        if name in self.broken:
            raise self.broken[name]
        if name not in self.entries:
            raise Missing(f"there is no entry '{name}'", "`spt entry list` names those that there are")
        return self.entries[name]

    def card(self, name: str) -> Card:
        """What the entry.yaml on the tip of the entry's branch says."""
        records = self.entry(name).records
        state = self.objects.entries(records).get("entry.yaml") if records else None
        if state is None:
            raise Usage(f"entry '{name}' has no '{records_path(name)}/entry.yaml' on its branch")
        return self.cards.card(self.objects, state.oid, f"entry/{name}:entry.yaml")

    def records(self, name: str) -> dict[str, bytes]:
        """The entry's records by path."""
        tree = self.entry(name).records
        return {path: self.objects.blob(state.oid) for path, state in walk(self.objects, tree)} if tree else {}

    def flags(self, name: str) -> list[str]:
        """What a reviewer of the entry must look at."""
        return flags(self.entry(name).delta, self.layout)

    # Composition.

    def composition(self, stock: Oid | None = None) -> Composition:
        """All entries whose requirements are there, over this repository's stock or another one."""
        stock = stock or self.stock
        if stock not in self._compositions:
            parts = [self.entries[name].part for name in resolvable(self._requires())]
            self._compositions[stock] = Composition(self.objects, stock, parts)
        return self._compositions[stock]

    def _requires(self) -> dict[str, frozenset[str]]:
        return {name: entry.part.requires for name, entry in self.entries.items()}

    def closure(self, names: Iterable[str]) -> frozenset[str]:
        """The names with all that they require; the error says which is not there, or which go in circles."""
        composition = self.composition()
        closed: set[str] = set()
        for name in names:
            self.entry(name)
            if name not in composition.parts:
                topological(reachable(name, self._requires()))
            closed |= composition.closures[name]
        return frozenset(closed)

    def part_at(self, name: str, delta_id: str) -> tuple[Part, Commit]:
        """An entry's part and P with this very delta, current or old; Missing where no reference keeps it."""
        key = (name, delta_id)
        if key not in self._parts:
            oid = self.store.reference(patch_reference(name, delta_id))
            if oid is None:
                raise Missing(f"the delta {name}@{delta_id[:12]} is not in this repository")
            commit = self.objects.commit(oid)
            part = _part_of(self.objects, name, commit)
            if part.delta.id != delta_id:
                raise Usage(f"reference '{patch_reference(name, delta_id)}' holds another delta than it says")
            self._parts[key] = (part, commit)
        return self._parts[key]

    # Writing: everything is staged in the store; `store.publish` makes it last.

    def stage_stock(self, tree: Oid, *, current: bool) -> Oid:
        """Stages the deterministic commit of a stock tree and its pin; with `current`, makes it this one's stock."""
        commit = self.objects.add_commit(tree, [], TOOL, f"{tree}\n")
        self.store.stage(f"{STOCK}{tree[:12]}", commit)
        if current:
            self.store.stage_symbolic(CURRENT, f"{STOCK}{tree[:12]}")
        return commit

    def stage_patch(self, card: Card, delta: Delta, base_tree: Oid) -> tuple[Commit, Commit]:
        """Stages base and P of an entry, and the reference that keeps P; returns both commits.

        Raises Usage where the entry leaves its room or its card does not tell the truth about it.
        """
        objects = self.objects
        for row in delta.rows:
            check_path(row.path)
        result = splice(objects, base_tree, {row.path: row.new for row in delta.rows})
        lint(objects, card, delta, base_tree, result, self.layout)
        pins = tuple((other, self.entry(other).delta.id) for other in card.requires)
        message = compose_message(card.subject, card.body, Trailers(entry=card.name, delta=delta.id, requires=pins))
        stock = self.stage_stock(self.stock, current=False)
        base = stock if base_tree == self.stock else objects.add_commit(base_tree, [stock], TOOL, f"{base_tree}\n")
        patch = objects.add_commit(result, [base], card.author, message)
        self.store.stage(patch_reference(card.name, delta.id), patch)
        return objects.commit(base), objects.commit(patch)

    def stage_entry(self, card: Card, delta: Delta, base_tree: Oid, records: Mapping[str, bytes]) -> Recorded:
        """Stages base, P, R and their references for an entry of this memory's stock; returns what it will be.

        `base_tree` is its requirements composed on stock.  An old tip that is no ancestor of the new one is kept
        under refs/spt/rescue.  An entry that is there already, unchanged, stages nothing.
        """
        objects, name = self.objects, card.name
        base, patch = self.stage_patch(card, delta, base_tree)
        files = {f"{records_path(name)}/{path}": State(FILE, objects.add_blob(data)) for path, data in records.items()}
        tree = splice(objects, patch.tree, files)
        old = self.entries.get(name)
        if old is not None and (old.patch.oid, old.tip.tree) == (patch.oid, tree):
            return old
        all_said = Trailers(name, delta.id, read_trailers(patch.message).requires, base.tree, patch.tree)
        parent = old.tip.oid if old is not None and old.patch.oid == patch.oid else patch.oid
        tip = objects.add_commit(tree, [parent], card.author, compose_message(f"entry {name}: records", "", all_said))
        if old is not None and parent == patch.oid:
            self.rescued[name] = f"{RESCUE}{name}/{old.tip.oid[:12]}"
            self.store.stage(self.rescued[name], old.tip.oid)
        self.store.stage(f"{BRANCH}{name}", tip)
        recorded = load(objects, name, tip)
        self.entries[name] = recorded
        if old is None:
            for composition in self._compositions.values():
                composition.add(recorded.part)
        else:
            self._compositions.clear()
        return recorded


def load(objects: Objects, name: str, tip: Oid) -> Recorded:
    """The entry whose branch ends at `tip`; Usage, naming the commit, where the branch has another shape."""
    commit = newest = objects.commit(tip)
    parent = _only_parent(objects, name, commit)
    while objects.code_of(commit.tree) == objects.code_of(parent.tree):
        commit, parent = parent, _only_parent(objects, name, parent)
    if commit is newest:
        raise Usage(f"entry '{name}': commit '{tip[:12]}' holds code and records at once, or no records")
    base = parent
    stock = base if not base.parents else _only_parent(objects, name, base)
    if stock.parents:
        raise Usage(f"entry '{name}': its base '{base.oid[:12]}' is neither stock nor composed on stock")
    return Recorded(
        name=name,
        tip=newest,
        patch=commit,
        base=base,
        stock=stock.tree,
        delta=compare(objects, base.tree, commit.tree),
        pins=read_trailers(commit.message).requires,
        records=subtree(objects, newest.tree, records_path(name)),
    )


def _only_parent(objects: Objects, name: str, commit: Commit) -> Commit:
    if len(commit.parents) != 1:
        what = "is a merge" if commit.parents else "has no parent"
        raise Usage(f"entry '{name}': commit '{commit.oid[:12]}' {what}", "a branch entry/NAME is base, P, R in a row")
    return objects.commit(commit.parents[0])


def _part_of(objects: Objects, name: str, patch: Commit) -> Part:
    delta = compare(objects, _only_parent(objects, name, patch).tree, patch.tree)
    return Part(name, frozenset(other for other, _ in read_trailers(patch.message).requires), delta)


def resolvable(requires: Mapping[str, frozenset[str]]) -> list[str]:
    """The names whose requirements are all there and do not go in circles, requirements first."""
    missing = {name: len(needs) for name, needs in requires.items()}
    needed_by: dict[str, list[str]] = defaultdict(list)
    for name, needs in requires.items():
        for other in needs:
            needed_by[other].append(name)
    done = [name for name, count in missing.items() if count == 0]
    for name in done:  # grows while it is walked
        for other in needed_by[name]:
            missing[other] -= 1
            if missing[other] == 0:
                done.append(other)
    return done


def reachable(name: str, requires: Mapping[str, frozenset[str]]) -> dict[str, frozenset[str]]:
    """The part of the requirement graph that can be reached from one name."""
    found: dict[str, frozenset[str]] = {}
    waiting = [name]
    while waiting:
        one = waiting.pop()
        if one in requires and one not in found:
            found[one] = requires[one]
            waiting.extend(sorted(requires[one]))
    return found


class _CardCache:
    """Cards that were parsed and checked before, by blob id: reading YAML costs more than composing an entry."""

    def __init__(self, store: Store) -> None:
        self.path = None if store.common is None else store.common / "spt" / "cache" / "cards.json"
        self.known: dict[str, Any] = {}
        self.grown = False
        if self.path is not None and self.path.is_file():
            # A damaged cache is no one's data: it is made anew.
            with contextlib.suppress(ValueError, OSError, TypeError, KeyError):
                held = json.loads(self.path.read_bytes())
                if held["schema"] == schema_digest("entry"):
                    self.known = dict(held["cards"])

    def card(self, objects: Objects, blob: Oid, where: str) -> Card:
        if blob not in self.known:
            self.known[blob] = read_card(objects.blob(blob), where).data
            self.grown = True
        return Card(self.known[blob])

    def save(self) -> None:
        """Keeps what was parsed for the next command, where that can be written: looking needs no right to write."""
        if self.path is None or not self.grown:
            return
        with contextlib.suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=".spt-", dir=self.path.parent) as folder:
                part = Path(folder) / self.path.name
                part.write_text(json.dumps({"schema": schema_digest("entry"), "cards": self.known}))
                part.replace(self.path)

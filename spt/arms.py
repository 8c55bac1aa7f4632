"""The arms of a job: systems that the user named, as tree, options and files, and whether their code is trusted."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spt.errors import Missing, Usage
from spt.git.objects import Objects, Oid
from spt.git.store import Store
from spt.git.tree import walk
from spt.home import find_home
from spt.memory import STOCK
from spt.resolve import resolve_at
from spt.system import Value, export, options_of

__all__ = ["Arm", "arm_of", "export_arms", "refuse_untrusted"]

MAIN = "refs/heads/main"


@dataclass(frozen=True)
class Arm:
    """A system as a verdict names it: options that stand at their default are left out, so one system has one name."""

    label: str
    tree: Oid
    options: dict[str, Value]
    objects: Objects
    left_out: tuple[str, ...] = ()  # changes of the working tree that are not in it

    @property
    def system(self) -> dict[str, Any]:
        """What a verdict calls it."""
        return {"tree": self.tree, "options": self.options}

    def record(self, folder: str) -> dict[str, Any]:
        """The arm of a job whose files lie in `folder`."""
        return {"dir": folder, **self.system}


def arm_of(word: str, *, own_engine: bool) -> Arm:
    """The system that `word` names here; Missing where it has no engine and `own_engine` says that it needs one."""
    objects, found = resolve_at(Path(), word)
    if own_engine and objects.lookup(found.tree, "stock/worker.py") is None:
        raise Missing(
            f"system '{found.label}' has no 'stock/worker.py', which is the engine that is judged by default",
            "`engine: {kind: command, command: [...]}` in deployment.yaml names another (docs/protocol.md)",
        )
    declared = options_of(objects, found.tree)
    options = {name: value for name, value in sorted(found.options.items()) if value != declared[name].default}
    return Arm(found.label, found.tree, options, objects, tuple(found.left_out))


def export_arms(arms: Mapping[str, Arm], folder: Path) -> dict[str, dict[str, Any]]:
    """Writes each tree once into `folder`, under the last name that has it; returns the arms of a job."""
    places = {arm.tree: name for name, arm in arms.items()}
    for arm in arms.values():
        place = folder / places[arm.tree]
        if not place.exists():
            export(arm.objects, arm.tree, place)
    return {name: arm.record(places[arm.tree]) for name, arm in arms.items()}


def refuse_untrusted(arms: Iterable[Arm], store: Store) -> None:
    """Usage, naming the first foreign path, unless every file of every arm was taken in before.

    What runs without a sandbox can do all that its user can.  So each path must hold the very blob, with its mode,
    that it has on the branch main, in a stock tree or on an entry's branch.
    """
    known = set(_trusted(store))
    for arm in arms:
        for path, state in walk(arm.objects, arm.tree):
            if (path, state) not in known:
                raise Usage(
                    f"without a sandbox only trusted code is judged, and '{path}' of '{arm.label}' is not: it is "
                    "neither on main, nor in a stock tree, nor in an entry",
                    "judge it in the sandbox: leave out --no-sandbox",
                )


def _trusted(store: Store) -> Iterator[tuple[str, Any]]:
    memory = find_home(Path()).memory
    yield from walk(memory.objects, memory.stock)
    for entry in memory.entries.values():
        yield from walk(memory.objects, entry.tip.tree)
    commits = [store.reference(MAIN), *store.references(STOCK).values()]
    for tree in {store.objects.commit(commit).tree for commit in commits if commit is not None}:
        yield from walk(store.objects, tree)

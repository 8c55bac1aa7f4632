"""A linked worktree for people, on what a round has: its current best, a direction's newest candidate, or a rescue.

Agents never get one: a linked worktree shares objects, references and configuration with the trusted repository.
"""

from dataclasses import dataclass
from pathlib import Path

from spt.errors import Missing, Usage
from spt.git.objects import Oid
from spt.git.store import Store
from spt.git.worktree import add_worktree
from spt.round.bundle import RESCUE
from spt.round.journal import best_reference, try_reference

__all__ = ["CheckedOut", "checkout"]


@dataclass(frozen=True)
class CheckedOut:
    """A worktree, the commit that it is detached at, and the reference that holds that."""

    folder: Path
    commit: Oid
    reference: str


def checkout(store: Store, round_: str, direction: str | None, folder: Path | None) -> CheckedOut:
    """The worktree of a round's best (direction None) or of a direction's work; one that is there already is completed.

    `folder` is where; `spt/checkouts/` below the git common directory by default.  Missing where the round has no such
    work, Usage where something else is at the place.
    """
    with store.locked():
        reference = _reference(store, round_, direction)
        commit = store.reference(reference)
        assert commit is not None
        if folder is None:
            folder = store.state / "checkouts" / round_ / (direction or "best")
            folder.parent.mkdir(parents=True, exist_ok=True)
        folder = folder.absolute()
        linked = Store.at(folder)
        if linked is not None and linked.common == store.common and linked.head()[1] != commit:
            hint = "keep what you want of it, then `git worktree remove` and check out again; or --dir names another"
            raise Usage(f"'{folder}' is a worktree on another commit than {commit[:12]}", hint)
        add_worktree(store, folder, commit)
    return CheckedOut(folder, commit, reference)


def _reference(store: Store, round_: str, direction: str | None) -> str:
    name = best_reference(round_) if direction is None else try_reference(round_, direction)
    if store.reference(name) is not None:
        return name
    if direction is None:
        raise Missing(f"the round '{round_}' has no best yet", "`spt round status` says where it stands")
    rescued = list(store.references(f"{RESCUE}{round_}/{direction}/"))
    if len(rescued) == 1:
        return rescued[0]
    if rescued:
        names = ", ".join(rescued)
        raise Usage(
            f"direction '{direction}' has {len(rescued)} rescued works", f"`git worktree add` takes any: {names}"
        )
    prefix = try_reference(round_, "")
    there = ", ".join(found.removeprefix(prefix) for found in store.references(prefix)) or "none"
    raise Missing(f"the round '{round_}' has no work of a direction '{direction}'", f"there are: {there}")

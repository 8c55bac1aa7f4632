"""`spt entry apply`: where the result goes, in which order things are written, what switches it on."""

from dataclasses import dataclass
from pathlib import Path

from spt.apply import Applied, apply
from spt.enable import enable, enabled, switches_of
from spt.errors import Usage
from spt.git.objects import Oid
from spt.git.store import Store
from spt.git.worktree import add_worktree, advance
from spt.memory import BRANCH, Memory
from spt.system import export, system_tree

__all__ = ["Done", "Request", "run"]


@dataclass(frozen=True)
class Request:
    """What the user asked for; at most one of branch, worktree, tree_only and folder."""

    names: tuple[str, ...]
    onto: str | None = None
    branch: str | None = None
    worktree: Path | None = None
    tree_only: bool = False
    folder: Path | None = None
    variant: str | None = None
    enable: bool = False


@dataclass(frozen=True)
class Done:
    """What came of it: the commits, whether they are kept in the repository, and how the entries are switched on."""

    applied: Applied
    kept: bool
    switches: tuple[str, ...]


def run(path: Path, request: Request) -> Done:
    """Applies entries in the repository at `path`, as the request says; the user's mistakes are errors before
    anything is written."""
    elsewhere = [request.branch, request.worktree, request.tree_only or None, request.folder]
    if sum(one is not None for one in elsewhere) > 1:
        raise Usage("--branch, --worktree, --tree-only and --export exclude each other")
    here = not any(one is not None for one in elsewhere)
    if request.onto and here:
        raise Usage("--onto needs --branch, --worktree, --tree-only or --export", "your branch stays what it is")
    if request.variant and not request.enable:
        raise Usage(f"--variant '{request.variant}' says what --enable takes", "add --enable, or leave --variant away")
    if request.enable and not here:
        raise Usage("--enable goes with applying to the current branch")
    store = Store.find(path)
    with store.locked():
        memory = Memory.of(store)
        applied = apply(memory, request.names, _start(store, request))
        switch = _prepared_switch(memory, store, request, applied)
        kept = _write(memory, store, request, applied)
        if switch is None:
            names = [*(name for name, _ in applied.made), *applied.already]
            said = [line for name in names for line in switches_of(memory.card(name))]
        else:
            file, text, said = switch
            enable(file, text)
        memory.cards.save()
    return Done(applied, kept, tuple(said))


def _prepared_switch(
    memory: Memory, store: Store, request: Request, applied: Applied
) -> tuple[Path, bytes, list[str]] | None:
    """The deployment file with the entries switched on, made before anything is written; None if not asked for."""
    if not request.enable:
        return None
    if store.work_tree is None:
        raise Usage("a bare repository has no deployment.yaml")
    file = store.work_tree / "deployment.yaml"
    tree = system_tree(memory.objects, applied.tree, memory.layout)
    cards = [memory.card(name) for name in request.names]
    return file, *enabled(file, cards, request.variant, memory.objects, tree)


def _start(store: Store, request: Request) -> Oid:
    if request.onto is not None:
        return store.resolve(request.onto)
    if request.branch is not None and (tip := store.reference(_full_name(store, request.branch))) is not None:
        return tip
    branch, head = store.head()
    if head is None:
        raise Usage("the current branch has no commit yet", "`--onto refs/spt/stock/current --branch NAME` starts one")
    here = not (request.branch or request.worktree or request.tree_only or request.folder)
    if here and branch is not None and branch.startswith(BRANCH):
        raise Usage(f"the current branch '{branch.removeprefix('refs/heads/')}' is an entry's own", "switch to another")
    if branch is None and here:
        raise Usage("HEAD is detached", "switch to a branch, or name one with --branch")
    return head


def _full_name(store: Store, branch: str) -> str:
    if branch.startswith(("entry/", "refs/")):
        raise Usage(f"branch '{branch}' is not yours to write", "choose a name outside entry/")
    if not store.is_name(branch):
        raise Usage(f"'{branch}' cannot be a branch", "`git check-ref-format --branch NAME` says what can")
    return f"refs/heads/{branch}"


def _write(memory: Memory, store: Store, request: Request, applied: Applied) -> bool:
    """Writes what was asked for, objects before everything; returns whether the commits are kept."""
    reason = f"spt entry apply {' '.join(request.names)}"
    if request.folder is not None:
        export(memory.objects, system_tree(memory.objects, applied.tree, memory.layout), request.folder)
        return False
    if request.tree_only:
        with store.written([applied.tree]):
            return False
    if request.branch is not None:
        _write_branch(store, request, applied, reason)
    elif request.worktree is not None:
        with store.written([applied.commit]):
            add_worktree(store, request.worktree, applied.commit)
    elif applied.made:
        _write_here(store, applied, reason)
    return True


def _write_branch(store: Store, request: Request, applied: Applied, reason: str) -> None:
    assert request.branch is not None
    name = _full_name(store, request.branch)
    if (folder := store.is_checked_out(name)) is not None:
        raise Usage(f"branch '{request.branch}' is checked out in '{folder}'", "apply there, without --branch")
    if request.onto is not None and store.reference(name) is not None:
        raise Usage(f"branch '{request.branch}' is there already", "leave --onto away, or choose another name")
    store.stage(name, applied.commit)
    store.publish(reason)


def _write_here(store: Store, applied: Applied, reason: str) -> None:
    branch, head = store.head()
    assert branch is not None and head is not None
    if store.work_tree is None:
        raise Usage("a bare repository has no working tree", "name a branch with --branch")
    with store.written([applied.commit]):
        advance(store, branch, head, applied.commit, reason)

"""The SYSTEM grammar: from the user's word to a tree and option values."""

import re
from dataclasses import replace
from pathlib import Path

from spt.entry import check_name
from spt.errors import Missing, Usage
from spt.git.objects import Objects
from spt.git.worktree import uncommitted
from spt.home import Repository, find_home
from spt.initialise import plain_tree
from spt.memory import Memory
from spt.system import (
    FOLDERS,
    WHOLE,
    System,
    check_options,
    options_of,
    read_options,
    recorded_options,
    split_system,
    system_tree,
)

__all__ = ["resolve", "resolve_at"]

_NAMES = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}(\+[a-z0-9][a-z0-9._-]{0,63})*")


def resolve_at(path: Path, text: str | None) -> tuple[Objects, System]:
    """The system that a command at `path` means, with the objects that hold its tree.

    None is HEAD's system in a deployment repository that has a commit, else stock.
    """
    home = find_home(path)
    if not isinstance(home, Repository) and text in (None, "stock"):
        objects = Objects()  # no entry need be looked at for this
        return objects, System(plain_tree(objects, home.root), {}, "stock")
    memory = home.memory
    if text is None:
        text = "stock" if memory.store.head()[1] is None else "rev:HEAD"
    found = resolve(memory, text)
    if split_system(text)[0] in ("rev:HEAD", "HEAD"):
        found = replace(found, left_out=tuple(_left_out(memory)))
    return memory.objects, found


def _left_out(memory: Memory) -> list[str]:
    paths = uncommitted(memory.store)
    if memory.layout == WHOLE:
        return [path for path in paths if not path.startswith(".spt/")]
    return [path for path in paths if path.startswith(tuple(f"{folder}/" for folder in FOLDERS))]


def resolve(memory: Memory, text: str) -> System:
    """The system that `text` names (docs/deployment.md), its options checked against what its tree declares.

    A name that is an entry is the entry; `rev:REV` forces a revision.  Missing where it is neither.
    """
    head, file = split_system(text)
    tree, options = _tree(memory, head)
    declared = options_of(memory.objects, tree)
    checked = check_options(declared, options, head)
    if file is not None:
        checked |= check_options(declared, read_options(Path(file)), file)
    return System(tree, checked, text)


def _tree(memory: Memory, head: str) -> tuple[str, dict[str, object]]:
    if head == "stock":
        return memory.stock, {}
    if head.startswith("rev:"):
        return _revision(memory, head.removeprefix("rev:"))
    names = head.split("+") if _NAMES.fullmatch(head) else []
    known = [name for name in names if name in memory.entries or name in memory.broken]
    if names and len(known) == len(names):
        for name in names:
            check_name(name)
        composition = memory.composition()
        return composition.tree(memory.closure(names)), {}
    if known:
        absent = next(name for name in names if name not in known)
        raise Missing(f"'{absent}' in '{head}' is no entry", "`spt entry list` names those that there are")
    try:
        return _revision(memory, head)
    except Missing as error:
        raise Missing(f"'{head}' is neither `stock`, nor an entry, nor a commit", error.hint) from error
    except Usage as error:
        raise Usage(f"'{head}' names no system: {error.message}", error.hint) from error


def _revision(memory: Memory, revision: str) -> tuple[str, dict[str, object]]:
    objects = memory.objects
    whole = objects.commit(memory.store.resolve(revision)).tree
    return system_tree(objects, whole, memory.layout), dict(recorded_options(objects, whole))

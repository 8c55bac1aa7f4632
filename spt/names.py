"""The names of entries, found by a look at files alone: for a shell's completion, which has no time for more.

A look is no proof: what is named here may still be no entry.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import spt.share

__all__ = ["entry_names"]

_BRANCH = "refs/heads/entry/"


def entry_names(path: Path) -> list[str]:
    """The names of the entries that a command at `path` would find, sorted."""
    for folder in (path.absolute(), *path.absolute().parents):
        if (git_dir := _git_dir(folder)) is not None and (found := {*_packed(git_dir), *_loose(git_dir)}):
            return sorted(found)
        if git_dir is not None or (folder / "entries").is_dir():
            break
    else:
        folder = spt.share.shipped_root()
    root = folder if (folder / "entries").is_dir() else spt.share.shipped_root()
    return sorted(card.parent.name for card in (root / "entries").glob("*/entry.yaml"))


def _git_dir(folder: Path) -> Path | None:
    """The folder of the branches of a repository whose working tree this is."""
    git_dir = folder / ".git"
    if git_dir.is_file():
        git_dir = folder / os.fsdecode(git_dir.read_bytes()).removeprefix("gitdir: ").strip()
    pointer = git_dir / "commondir"
    if pointer.is_file():
        git_dir = git_dir / os.fsdecode(pointer.read_bytes()).strip()
    return git_dir if (git_dir / "HEAD").is_file() else None


def _packed(git_dir: Path) -> Iterator[str]:
    file = git_dir / "packed-refs"
    for line in os.fsdecode(file.read_bytes()).splitlines() if file.is_file() else ():
        _, mark, name = line.partition(f" {_BRANCH}")
        if mark:
            yield name


def _loose(git_dir: Path) -> Iterator[str]:
    for path in (git_dir / _BRANCH).glob("*"):
        if path.is_file() and path.suffix != ".lock":
            yield path.name

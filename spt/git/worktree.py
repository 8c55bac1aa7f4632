"""Working trees: moved forward safely, added, and told apart from what the user has in them.

A checkout moves like git's own: files and index first, the branch last and by compare-and-swap.  While it moves, a
note in `spt/` says from which tree to which, so that the same command run again finishes what a killed one began,
half-written files included; without that note every path must hold exactly what HEAD says.
"""

import contextlib
import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from spt.errors import Unsupported, Usage
from spt.git.objects import EMPTY_TREE, EXECUTABLE, FILE, LINK, Oid, State
from spt.git.patch import blob_id
from spt.git.program import GitFailed, git
from spt.git.store import Store
from spt.git.tree import compare

__all__ = ["add_worktree", "advance", "noted", "open_changes", "uncommitted", "write_note"]


# Creating many files waits for the disk more than for a processor.
_UNFINISHED = {
    "MERGE_HEAD": "merge",
    "CHERRY_PICK_HEAD": "cherry-pick",
    "REVERT_HEAD": "revert",
    "rebase-merge": "rebase",
    "rebase-apply": "rebase",
}
_NOTE = "spt-note"
_WORKERS = (("checkout.workers", "4"),)


def _in(store: Store, *arguments: str, stdin: bytes = b"") -> bytes:
    where = store.work_tree
    return git(*arguments, git_dir=store.git_dir, work_tree=where, cwd=where, stdin=stdin, switches=_WORKERS)


@dataclass(frozen=True)
class _Status:
    """One path that is not as HEAD says: its state in the index, and whether the file differs from that."""

    path: str
    index: State | None
    tracked: bool
    file_differs: bool


@dataclass(frozen=True)
class _Found:
    """Paths that are not as HEAD says but as a move left them: at their new state, or torn on the way there."""

    done: tuple[tuple[str, State | None], ...]
    torn: tuple[str, ...]


def _look(store: Store, old: Oid, new: Oid, *, resuming: bool) -> _Found:
    """Usage unless every path of the working tree holds what tree `old` says, or what tree `new` says.

    Untracked files are left alone where `new` has nothing at their place.  Where a killed move is resumed, a file
    may also be missing, or hold the beginning of what is to be written: overwriting it loses nothing.
    """
    target = {row.path: row.new for row in compare(store.objects, old, new).rows}
    written = _Written(path for path, state in target.items() if state is not None)
    done, torn = [], []
    for status in _statuses(store):
        if status.path not in target:
            if status.tracked:
                raise _dirty(status.path)
            if (name := written.at(status.path)) is not None:
                text = f"'{status.path}' is in the way: it is not tracked, and '{name}' is to be written"
                raise Usage(text, "move it away")
            continue
        wanted, before = target[status.path], store.objects.lookup(old, status.path)
        has_own_file = status.file_differs or not status.tracked
        if status.index not in (wanted, before):
            raise _dirty(status.path)
        if has_own_file and _file_state(store, status.path) != wanted:
            if not resuming or not _is_torn(store, status.path, wanted):
                raise _dirty(status.path)
            torn.append(status.path)
        if has_own_file or status.index == wanted:
            done.append((status.path, wanted))
    return _Found(tuple(done), tuple(torn))


def _is_torn(store: Store, path: str, wanted: State | None) -> bool:
    assert store.work_tree is not None
    file = store.work_tree / path
    if wanted is None or wanted.mode not in (FILE, EXECUTABLE) or file.is_symlink() or file.is_dir():
        return False
    return not file.exists() or store.objects.blob(wanted.oid).startswith(file.read_bytes())


def _dirty(path: str) -> Usage:
    return Usage(f"'{path}' has changes that are not committed", "commit or stash them, then run the command again")


class _Written:
    """Paths that are to be written, and the folders that must be there for them: looked up, never searched."""

    def __init__(self, paths: Iterable[str]) -> None:
        self.paths: set[str] = set()
        self.folders: dict[str, str] = {}
        for path in paths:
            self.paths.add(path)
            for end in _slashes(path):
                self.folders.setdefault(path[:end], path)

    def at(self, path: str) -> str | None:
        """A path to be written that is this one, below it, or above it; `path` may end in a slash."""
        plain = path.rstrip("/")
        if plain in self.paths:
            return plain
        above = (plain[:end] for end in _slashes(plain))
        return self.folders.get(plain) or next((name for name in above if name in self.paths), None)


def _slashes(path: str) -> Iterator[int]:
    return (at for at, letter in enumerate(path) if letter == "/")


def _statuses(store: Store) -> Iterator[_Status]:
    options = ("--untracked-files=all", "--ignored=matching", "--no-renames", "--ignore-submodules=all")
    said = _in(store, "status", "--porcelain=v2", "-z", *options)
    for record in said.decode(errors="surrogateescape").split("\0"):
        kind, _, rest = record.partition(" ")
        if kind in ("?", "!"):
            yield _Status(rest, None, False, True)
        elif kind == "1":
            code, _, _, mode, _, _, oid, path = rest.split(" ", 7)
            state = None if int(mode, 8) == 0 else State(int(mode, 8), oid)
            yield _Status(path, state, True, code[1] != ".")
        elif kind == "u":
            raise _dirty(rest.split(" ", 9)[-1])


def uncommitted(store: Store) -> list[str]:
    """The paths of the working tree that are not as HEAD says, sorted; what is ignored does not count."""
    if store.work_tree is None:
        return []
    said = _in(store, "status", "--porcelain", "-z", "--untracked-files=all", "--no-renames", "--ignore-submodules=all")
    records = said.decode(errors="surrogateescape").split("\0")
    return sorted(record[3:] for record in records if record)


def _file_state(store: Store, path: str) -> State | None:
    """What `git add` would record for a path of the working tree."""
    assert store.work_tree is not None
    file = store.work_tree / path
    try:
        mode = file.lstat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None
    if stat.S_ISLNK(mode):
        return State(LINK, blob_id(os.fsencode(file.readlink())))
    if not stat.S_ISREG(mode):
        return State(0, "")
    said = _in(store, "hash-object", f"--path={path}", "--", path)
    return State(EXECUTABLE if mode & stat.S_IXUSR else FILE, said.decode().strip())


def advance(store: Store, branch: str, old: Oid | None, new: Oid, reason: str) -> None:
    """Moves the checked-out branch from one commit (None: unborn) to a descendant, files and index with it.

    The objects must be there.  Usage where the working tree is not clean, Unsupported where someone holds a lock
    or moves the branch meanwhile; the branch has not moved then.
    """
    _refuse_unfinished(store)
    old_tree = store.objects.commit(old).tree if old else EMPTY_TREE
    with _moved(store, old_tree, store.objects.commit(new).tree):
        try:
            git("update-ref", "-m", reason, branch, new, old or "0" * 40, git_dir=store.git_dir)
        except GitFailed as error:
            raise Unsupported(f"'{branch}' was moved or is locked: {error.message}", "run the command again") from error


def _refuse_unfinished(store: Store) -> None:
    """Usage in the midst of a merge or the like, whose commit would take ours for its own."""
    assert store.git_dir is not None
    for name, word in _UNFINISHED.items():
        if (store.git_dir / name).exists():
            raise Usage(f"a {word} is not concluded here ('{name}')", "`git status` says how to conclude it")


@contextlib.contextmanager
def _moved(store: Store, old_tree: Oid, new_tree: Oid) -> Iterator[None]:
    """Moves files and index from one tree to another, then runs the block; a note stands until its end."""
    assert store.git_dir is not None
    note, text = store.state / f"moving-{store.git_dir.name}", f"{old_tree} {new_tree}\n"
    store.objects.build(None, {})  # the empty tree, which git knows without having it
    found = _look(store, old_tree, new_tree, resuming=note.is_file() and note.read_text() == text)
    store.state.mkdir(exist_ok=True)
    note.write_text(text)
    _checkout(store, old_tree, new_tree, found)
    yield
    note.unlink()


def _checkout(store: Store, old_tree: Oid, new_tree: Oid, found: _Found) -> None:
    lines = [_index_line(path, state) for path, state in found.done]
    try:
        if found.done:
            _in(store, "update-index", "-z", "--index-info", stdin=b"".join(lines))
        _in(store, "update-index", "-q", "--refresh")  # a copied repository has the times of other files
        _in(store, "read-tree", "-m", "-u", old_tree, new_tree)
        if found.torn:
            torn = b"".join(os.fsencode(path) + b"\0" for path in found.torn)
            _in(store, "checkout-index", "-f", "-u", "-z", "--stdin", stdin=torn)
    except GitFailed as error:
        assert store.git_dir is not None
        if "index.lock" in error.stderr or (store.git_dir / "index.lock").exists():
            hint = "another git process is at work; if there is none, the lock is left over from one that was killed"
            raise Unsupported("the index is locked by 'index.lock'", hint) from error
        raise Usage(f"the working tree cannot be moved: {error.message}", "nothing was committed") from error


def _index_line(path: str, state: State | None) -> bytes:
    mode, oid = (f"{state.mode:06o}", state.oid) if state is not None else ("0", "0" * 40)
    return f"{mode} {oid}\t".encode() + os.fsencode(path) + b"\0"


def add_worktree(store: Store, folder: Path, commit: Oid) -> None:
    """A linked worktree, detached at a commit; one that is there already at this commit is completed.

    The commit must be in the repository.  Usage where something else is at the place, or where the files of the
    worktree that is there were changed.
    """
    with _moved(_linked(store, folder, commit), EMPTY_TREE, store.objects.commit(commit).tree):
        pass


def open_changes(store: Store, folder: Path, base: Oid, changed: Oid, note: str) -> bool:
    """A linked worktree at a commit whose files and index hold another tree: `git diff HEAD` shows the difference.

    `note` is kept beside git's own state of the worktree, and goes when that is removed; `noted` reads it.
    Returns whether one was open there already, on the same commit; that one is left as it is.
    """
    linked = _linked(store, folder, base)
    assert linked.git_dir is not None
    if (linked.git_dir / "index").exists():  # written last, so that a killed run is completed
        return True
    write_note(linked, note)
    with _moved(linked, EMPTY_TREE, changed):
        pass
    return False


def write_note(linked: Store, note: str) -> None:
    """Replaces the note of a linked worktree."""
    assert linked.git_dir is not None
    part = linked.git_dir / f"{_NOTE}.part"
    part.write_text(note)
    part.replace(linked.git_dir / _NOTE)


def noted(linked: Store) -> str | None:
    """The note of a linked worktree, None where it has none."""
    assert linked.git_dir is not None
    path = linked.git_dir / _NOTE
    return path.read_text() if path.is_file() else None


def _linked(store: Store, folder: Path, commit: Oid) -> Store:
    """The linked worktree at a place, added without files where there is none yet."""
    assert store.common is not None
    folder = folder.absolute()
    if not _is_worktree_at(store, folder, commit):
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise Usage(f"folder '{folder}' is not empty", "name a folder that does not exist yet")
        if not folder.parent.is_dir():
            raise Usage(f"folder '{folder.parent}' does not exist")
        command = ["worktree", "add", "-q", "--detach", "--no-checkout", "--end-of-options", str(folder), commit]
        try:
            git(*command, git_dir=store.common)
        except GitFailed as error:
            hint = "`git worktree list` shows what git remembers; `git worktree prune` forgets folders that are gone"
            raise Usage(f"no worktree can be added at '{folder}': {error.message}", hint) from error
    return Store.find(folder)


def _is_worktree_at(store: Store, folder: Path, commit: Oid) -> bool:
    if not (folder / ".git").is_file():
        return False
    linked = Store.find(folder)
    return linked.common == store.common and linked.head()[1] == commit

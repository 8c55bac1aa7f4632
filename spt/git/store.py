"""A repository as a transaction: references are staged beside the objects, and `publish` writes both.

Every command works in memory until it calls `publish`, so that an error on the way leaves nothing behind.
`publish` writes objects first (one pack, kept from a concurrent gc), then the references that only pin, then
symbolic ones, then the branches; a kill between two steps leaves at most objects and pins that nobody misses,
and the same command run again finishes the work.
"""

import contextlib
import fcntl
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pygit2

from spt.errors import Missing, Unsupported, Usage
from spt.git.objects import Objects, Oid, user_configuration
from spt.git.program import GitFailed, git

__all__ = ["Store"]

_ZERO = "0" * 40
_KEEP = "spt: being published"
_LOCK_WAIT_S = 60.0
_LOCK_OLD_S = 2.0  # a reference is written in milliseconds
_UNREADABLE = {
    "extensions.objectformat": "object ids",
    "extensions.refstorage": "references",
    "extensions.partialclone": "objects",
}
_READABLE = (("extensions.objectformat", "sha1"), ("extensions.refstorage", "files"))


class Store:
    """Objects and references of one repository, or of none (`Store()`), where nothing can be published."""

    def __init__(self, git_dir: Path | None = None, work_tree: Path | None = None) -> None:
        self.git_dir = git_dir
        self.work_tree = work_tree
        self.common = None if git_dir is None else _common_dir(git_dir)
        folders = [] if self.common is None else [self.common / "objects"]
        self.objects = Objects(*folders)
        self._repository = None if git_dir is None else _open_for_references(git_dir)
        self._staged: dict[str, tuple[Oid | None, Oid | None]] = {}
        self._staged_symbolic: dict[str, str] = {}
        self._read_references()

    @classmethod
    def find(cls, path: Path) -> "Store":
        """The store of the repository that `path` lies in; Usage where it lies in none."""
        found = pygit2.discover_repository(str(path)) if path.is_dir() else None
        if found is None:
            _refuse_broken(path)
            raise Usage(f"'{path}' is not in a git repository", "`spt init DIR` makes one")
        git_dir = Path(found).resolve()
        _refuse_unsupported(git_dir)
        return cls(git_dir, _work_tree(git_dir))

    @classmethod
    def at(cls, folder: Path) -> "Store | None":
        """The store of the repository whose working tree is this very folder, or None."""
        found = pygit2.discover_repository(str(folder), False, str(folder.parent)) if folder.is_dir() else None
        return None if found is None else cls.find(folder)

    @property
    def place(self) -> Path:
        """A folder by which `find` finds this repository."""
        return self.work_tree or self.state.parent

    def again(self) -> "Store":
        """Another handle on this repository, with its references as they are now."""
        return Store.find(self.place)

    @property
    def state(self) -> Path:
        """The folder of everything that is neither object nor reference: `spt/` below the git common directory."""
        if self.common is None:
            raise Usage("this needs a git repository", "`spt init DIR` makes one")
        return self.common / "spt"

    # References: what the repository says, overlaid with what is staged.

    def _read_references(self) -> None:
        self._references: dict[str, Oid] = {}
        self._symbolic: dict[str, str] = {}
        if self._repository is None:
            return
        for reference in self._repository.references.iterator():
            if isinstance(reference.target, str):
                self._symbolic[reference.name] = reference.target
            else:
                self._references[reference.name] = str(reference.target)

    def reference(self, name: str) -> Oid | None:
        """The id that a full reference name leads to, or None."""
        name = self._staged_symbolic.get(name) or self._symbolic.get(name) or name
        if name in self._staged:
            return self._staged[name][0]
        return self._references.get(name)

    def references(self, prefix: str) -> dict[str, Oid]:
        """Direct references whose full name starts with `prefix`, sorted by name."""
        found = {name: oid for name, oid in self._references.items() if name.startswith(prefix)}
        for name, (new, _) in self._staged.items():
            if name.startswith(prefix):
                found.pop(name, None)
                if new is not None:
                    found[name] = new
        return dict(sorted(found.items()))

    def head(self) -> tuple[str | None, Oid | None]:
        """(full name of the branch that is checked out, or None when detached; its commit, or None when unborn)."""
        if self._repository is None or self.git_dir is None:
            return None, None
        branch = _head_branch(self.git_dir)
        if branch is not None:
            return branch, self.reference(branch)
        return None, self.resolve("HEAD")

    def resolve(self, revision: str) -> Oid:
        """The commit that a revision names; Missing where it names none."""
        if self._repository is not None:
            with contextlib.suppress(KeyError, ValueError, pygit2.GitError):
                return str(self._repository.revparse_single(revision).peel(pygit2.Commit).id)
        raise Missing(f"no commit is named '{revision}'", "`git log --all --oneline` lists what there is")

    def remote_of(self, prefix: str) -> str | None:
        """The URL of a remote from which branches came whose name there starts so; None where there is none."""
        for name in self.references("refs/remotes/"):
            remote, _, branch = name.removeprefix("refs/remotes/").partition("/")
            if branch.startswith(prefix) and self._repository is not None:
                with contextlib.suppress(KeyError, ValueError, pygit2.GitError):
                    return str(self._repository.remotes[remote].url)
        return None

    def is_checked_out(self, branch: str) -> Path | None:
        """The working tree that has the branch (a full name) checked out, or None."""
        return self._checked_out().get(branch)

    def _checked_out(self) -> dict[str, Path]:
        """The branches that working trees stand on, each with its folder."""
        if self.common is None:
            return {}
        found = {}
        for git_dir in (self.common, *sorted((self.common / "worktrees").glob("*"))):
            branch = _head_branch(git_dir) if (git_dir / "HEAD").is_file() else None
            folder = _work_tree_of(git_dir)
            if branch is not None and folder is not None:
                found[branch] = folder
        return found

    def is_name(self, branch: str) -> bool:
        """Whether git would let a branch have this short name."""
        fits: bool = pygit2.reference_is_valid_name(f"refs/heads/{branch}")
        return fits and not branch.startswith("-") and branch != "HEAD"

    # The transaction.

    def stage(self, name: str, new: Oid | None) -> None:
        """Lets a reference be created, moved or (None) removed by `publish`, unless someone moves it before."""
        old = self._references.get(name)
        self._staged.pop(name, None)
        if new != old:
            self._staged[name] = (new, old)

    def stage_symbolic(self, name: str, target: str) -> None:
        """Lets a symbolic reference be written by `publish`, between pins and branches."""
        if self._symbolic.get(name) != target:
            self._staged_symbolic[name] = target

    def adopt(self, other: "Store") -> None:
        """Takes over the objects and all that is staged of a store without a repository, as if made here."""
        self.objects = other.objects
        for name, (new, _) in other._staged.items():
            self.stage(name, new)
        for name, target in other._staged_symbolic.items():
            self.stage_symbolic(name, target)

    def publish(self, reason: str) -> None:
        """Writes what is staged: objects, pins, symbolic references, branches, in this order.

        Raises Unsupported where a reference is locked or was moved by someone else, and Usage where a branch is
        checked out, whose files would stay behind; then no branch has moved.
        """
        checked_out = self._checked_out() if self._staged else {}
        for name, (_, old) in self._staged.items():
            if old is not None and name in checked_out:
                short = name.removeprefix("refs/heads/")
                hint = "switch to another branch there, then run the command again"
                raise Usage(f"branch '{short}' is to move, and is checked out in '{checked_out[name]}'", hint)
        roots = [new for new, _ in self._staged.values() if new is not None]
        self._refuse_in_the_way()
        with self.written(roots):
            pins = {name: move for name, move in self._staged.items() if name.startswith("refs/spt/")}
            branches = {name: move for name, move in self._staged.items() if name not in pins}
            self._update(pins, reason)
            for name, target in self._staged_symbolic.items():
                git("symbolic-ref", "-m", reason, name, target, git_dir=self.common)
            self._update(branches, reason)
        self._staged, self._staged_symbolic = {}, {}
        self._read_references()

    def _refuse_in_the_way(self) -> None:
        """Usage where a reference would be a folder of references too, which git cannot store."""
        made = {name for name, (new, old) in self._staged.items() if new is not None and old is None}
        if not made:
            return
        folders = {name[:at]: name for name in self.references("") for at, sign in enumerate(name) if sign == "/"}
        for name in sorted(made):
            above = (name[:at] for at, sign in enumerate(name) if sign == "/")
            there = folders.get(name) or next((one for one in above if self.reference(one) is not None), None)
            if there is not None:
                short = name.removeprefix("refs/heads/")
                raise Usage(f"'{there}' is in the way of '{short}'", "give that reference another name")

    @contextlib.contextmanager
    def written(self, roots: Iterable[Oid]) -> Iterator[None]:
        """Stores commits or trees with all that they need, and protects them from gc until the block ends."""
        pack = self.objects.pack(roots)
        if pack is None or self.common is None:
            yield
            return
        said = git("index-pack", "--stdin", "--strict", f"--keep={_KEEP}", git_dir=self.common, stdin=pack).decode()
        keep = self.common / "objects" / "pack" / f"pack-{said.split()[-1]}.keep"
        try:
            yield
        finally:
            keep.unlink(missing_ok=True)

    def _update(self, moves: dict[str, tuple[Oid | None, Oid | None]], reason: str) -> None:
        if not moves:
            return
        lines = [f"update {name} {new or _ZERO} {old or _ZERO}\n" for name, (new, old) in sorted(moves.items())]
        script = "".join(["start\n", *lines, "prepare\n", "commit\n"]).encode()
        try:
            git("update-ref", "--stdin", "-m", reason, git_dir=self.common, stdin=script)
        except GitFailed as error:
            raise _not_moved(error) from error

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Holds this repository's one `spt` lock, which a killed process gives up by itself."""
        self.state.mkdir(exist_ok=True)
        with (self.state / "lock").open("w") as handle:
            _wait_for(handle)
            self._sweep_keeps()
            self._read_references()
            yield

    def sweep_locks(self, prefixes: tuple[str, ...]) -> None:
        """Removes git's own locks of references that begin so, once they are older than any update takes.

        The caller holds this repository's lock, and nobody else writes such references: what is left was a git that
        was killed with the command that had started it.
        """
        if self.common is None:
            return
        for lock in (self.common / "refs").rglob("*.lock"):
            if lock.relative_to(self.common).as_posix().startswith(prefixes):
                with contextlib.suppress(FileNotFoundError):
                    time.sleep(max(0.0, min(_LOCK_OLD_S, lock.stat().st_mtime + _LOCK_OLD_S - time.time())))
                    lock.unlink()

    def _sweep_keeps(self) -> None:
        """Removes the protection that a killed process left on its pack; the lock says that none is at work."""
        assert self.common is not None
        for keep in (self.common / "objects" / "pack").glob("*.keep"):
            with contextlib.suppress(FileNotFoundError):  # gone meanwhile
                if keep.read_text().strip() == _KEEP:
                    keep.unlink()


def _wait_for(handle: Any) -> None:
    deadline_s = time.monotonic() + _LOCK_WAIT_S
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError as error:
            if time.monotonic() > deadline_s:
                raise Unsupported("another spt command is at work in this repository", "wait for it") from error
            time.sleep(0.05)


def _not_moved(error: GitFailed) -> Unsupported:
    text = error.stderr.lower()
    if "file exists" in text or ".lock" in text:
        return Unsupported(
            f"a reference is locked: {error.message}",
            "another git process is at work; if there is none, the .lock file is left over from one that was killed",
        )
    return Unsupported(f"a reference was moved meanwhile: {error.message}", "run the command again")


def _refuse_broken(path: Path) -> None:
    """Unsupported where a folder or one above it has a `.git` that cannot be opened: that is no lack of one."""
    for folder in (path.absolute(), *path.absolute().parents):
        git_dir = folder / ".git"
        if git_dir.is_file() or (git_dir / "HEAD").is_file():
            hint = "`git status` there says what is wrong with it"
            raise Unsupported(f"'{git_dir}' is no repository that can be opened", hint)


def _head_branch(git_dir: Path) -> str | None:
    """The full name of the branch that HEAD is on, or None when it is detached."""
    text = os.fsdecode((git_dir / "HEAD").read_bytes()).strip()
    return text.removeprefix("ref: ").strip() if text.startswith("ref: ") else None


def _work_tree_of(git_dir: Path) -> Path | None:
    """The folder of a git directory's own working tree; None for a bare repository."""
    place = git_dir / "gitdir"
    if place.is_file():
        return (git_dir / os.fsdecode(place.read_bytes().removesuffix(b"\n"))).parent
    return _work_tree(git_dir)


def _common_dir(git_dir: Path) -> Path:
    pointer = git_dir / "commondir"
    if not pointer.is_file():
        return git_dir
    return (git_dir / os.fsdecode(pointer.read_bytes().removesuffix(b"\n"))).resolve()


def _work_tree(git_dir: Path) -> Path | None:
    repository = _open_for_references(git_dir)
    return None if repository.is_bare else Path(repository.workdir).resolve()


def _open_for_references(git_dir: Path) -> Any:
    """A handle that is used for names alone.

    It is opened with the user's own configuration, which may declare a foreign folder safe; after that this
    process reads none but the repository's.
    """
    with user_configuration():
        try:
            return pygit2.Repository(str(git_dir))
        except (pygit2.GitError, ValueError, KeyError) as error:
            if "not owned" in str(error):
                hint = "git's `safe.directory` setting says which foreign folders you trust"
                raise Unsupported(f"'{git_dir}' belongs to another user", hint) from error
            raise Unsupported(f"'{git_dir}' cannot be opened: {str(error).splitlines()[0]}") from error


def _refuse_unsupported(git_dir: Path) -> None:
    """Formats that libgit2 cannot read, named; everything else is for `_open_for_references` to say."""
    path = _common_dir(git_dir) / "config"
    config = pygit2.Config(str(path)) if path.is_file() else {}
    for key, word in _UNREADABLE.items():
        value = str(config[key]) if key in config else None
        if value is not None and (key, value.lower()) not in _READABLE:
            raise Unsupported(
                f"repository '{git_dir.parent}' keeps its {word} as '{value}' ({key})",
                "make a whole clone in git's default format and work there",
            )

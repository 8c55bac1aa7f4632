"""What comes from elsewhere: fetched into a scratch repository, checked there, and copied only when accepted.

The scratch repository lies on tmpfs where there is one, has no configuration but ours, and is gone afterwards;
git itself checks every object (`fetch.fsckObjects`), and no blob may be larger than an entry's file may be.
"""

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from spt.errors import Missing, Usage
from spt.git.objects import MAX_BLOB_BYTES
from spt.git.program import GitFailed, git
from spt.git.store import Store

__all__ = ["fetched", "scratch_folder", "write_bundle"]

_TMPFS = Path("/dev/shm")
_SCRATCH = "spt-scratch-"
_YOUNG_S = 60.0
_MAX_PACK_BYTES = 256 * 2**20
_TRANSPORTS = tuple((f"protocol.{name}.allow", "always") for name in ("file", "https", "ssh"))


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """A fresh folder of one's own, on tmpfs where that can be written, removed at the end.

    One that a killed process left is removed by the next that needs one.
    """
    home = _TMPFS if os.access(_TMPFS, os.W_OK | os.X_OK) else Path(tempfile.gettempdir())
    _sweep(home)
    with tempfile.TemporaryDirectory(prefix=_SCRATCH, dir=home) as folder:
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield Path(folder)
        finally:
            os.close(lock)


def _sweep(home: Path) -> None:
    """Removes the scratch folders that nobody holds; a young one may not be locked yet."""
    for folder in home.glob(f"{_SCRATCH}*"):
        with contextlib.suppress(OSError):  # another user's, or another has just removed it
            if time.time() - folder.stat().st_mtime < _YOUNG_S:
                continue
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder)
            finally:
                os.close(lock)


@contextlib.contextmanager
def fetched(source: str, patterns: Sequence[str]) -> Iterator[Store]:
    """The references of another repository or bundle that match (`refs/heads/entry/*`), in a scratch store.

    Raises Missing where there is no such repository, and Usage where git refuses an object in it.
    """
    path = Path(source)
    where = str(path.absolute()) if path.exists() else source
    with scratch_folder() as folder:
        git("init", "-q", "--bare", "--template=", str(folder))
        refspecs = [f"+{pattern}:{pattern}" for pattern in patterns]
        command = [
            "fetch",
            "-q",
            "--no-tags",
            "--update-shallow",
            "--no-write-fetch-head",
            "--end-of-options",
            where,
            *refspecs,
        ]
        try:
            git(*command, git_dir=folder, switches=_TRANSPORTS, file_limit_bytes=_MAX_PACK_BYTES)
        except GitFailed as error:
            raise _refused(source, error) from error
        _refuse_large(source, folder)
        yield Store(folder)


def _refused(source: str, error: GitFailed) -> Usage | Missing:
    text = error.stderr.lower()
    if "object" in text and ("fsck" in text or "error in" in text or "bad" in text):
        culprit = next((line for line in error.stderr.splitlines() if "error" in line), error.message)
        return Usage(f"'{source}' holds an object that git refuses: {culprit.strip()}", "nothing was taken from it")
    if "does not appear to be a git repository" in text or "not a bundle" in text or "not found" in text:
        return Missing(f"'{source}' is neither a repository nor a bundle")
    return Usage(f"'{source}' cannot be fetched: {error.message}")


def _refuse_large(source: str, folder: Path) -> None:
    said = git("cat-file", "--batch-all-objects", "--batch-check=%(objectsize) %(objectname)", git_dir=folder)
    for line in said.decode().splitlines():
        size, oid = line.split()
        if int(size) > MAX_BLOB_BYTES:
            raise Usage(
                f"'{source}' holds object '{oid[:12]}' of {size} bytes, more than the {MAX_BLOB_BYTES} allowed",
                "nothing was taken from it",
            )


def write_bundle(store: Store, references: Sequence[str], path: Path) -> None:
    """Writes references with all that they need into a bundle.

    One that is there already and has them is left as it is; one that lacks some is written anew with both.
    """
    assert store.common is not None
    held = _bundled(path) if path.exists() else set()
    if held >= set(references):
        return
    wanted = sorted({*references, *(name for name in held if store.reference(name) is not None)})
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".spt-", dir=path.parent) as folder:
        part = Path(folder) / path.name
        switches = [("pack.threads", "1")]
        git("bundle", "create", "-q", str(part.absolute()), *wanted, git_dir=store.common, switches=switches)
        part.replace(path)


def _bundled(path: Path) -> set[str]:
    said = git("bundle", "list-heads", str(path.absolute()), cwd=path.parent).decode()
    return {line.split(" ", 1)[1] for line in said.splitlines()}

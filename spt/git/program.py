"""Runs the git program so that neither the caller's environment nor anyone's configuration changes what it does.

A hook's GIT_DIR would point at another repository, a signing key would make ids differ between machines, and
a hook of the user's repository must not fire for what this tool writes.  So a child gets a short environment,
no system or global configuration, and switches that outrank the repository's own.
"""

import errno
import functools
import os
import resource
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from spt.errors import Missing, SptError

__all__ = ["Confines", "GitFailed", "child_environment", "git"]

_KEPT = ("PATH", "HOME", "TMPDIR", "SSH_AUTH_SOCK", "http_proxy", "https_proxy", "no_proxy")
_SET = {
    "LC_ALL": "C",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_GRAFT_FILE": os.devnull,
}
_SWITCHES = (
    ("core.hooksPath", os.devnull),
    ("core.fsmonitor", "false"),
    ("commit.gpgSign", "false"),
    ("tag.gpgSign", "false"),
    ("rerere.enabled", "false"),
    ("gc.auto", "0"),
    ("maintenance.auto", "false"),
    ("protocol.allow", "never"),
    ("submodule.recurse", "false"),
    ("fetch.fsckObjects", "true"),
    ("transfer.fsckObjects", "true"),
)


@dataclass(frozen=True)
class Confines:
    """What a git child may use up that reads what nobody trusts: its largest file, its memory, time of one processor
    and time on the wall."""

    file_bytes: int
    memory_bytes: int
    cpu_s: int
    wall_s: float


class GitFailed(SptError):
    """The git program answered with an error; its first line is the message."""

    exit_code = 5

    def __init__(self, arguments: Sequence[str], status: int, stderr: bytes) -> None:
        self.status = status
        self.stderr = stderr.decode(errors="replace")
        lines = [line.strip() for line in self.stderr.splitlines() if line.strip()]
        said = next((line for line in lines if line.startswith(("fatal:", "error:"))), lines[0] if lines else "")
        super().__init__(f"git {arguments[0]} failed: {said or f'status {status}'}")


def child_environment() -> dict[str, str]:
    """The environment of a git child: no GIT_* of the caller's, a fixed locale, no global configuration."""
    return {name: os.environ[name] for name in _KEPT if name in os.environ} | _SET


def _limit_files(limit_bytes: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, limit_bytes))


def _confine(confines: Confines) -> None:
    _limit_files(confines.file_bytes)
    resource.setrlimit(resource.RLIMIT_AS, (confines.memory_bytes, confines.memory_bytes))
    resource.setrlimit(resource.RLIMIT_CPU, (confines.cpu_s, confines.cpu_s + 1))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def git(
    *arguments: str,
    git_dir: Path | None = None,
    work_tree: Path | None = None,
    cwd: Path | None = None,
    stdin: bytes = b"",
    extra: Mapping[str, str] | None = None,
    switches: Sequence[tuple[str, str]] = (),
    file_limit_bytes: int | None = None,
    confines: Confines | None = None,
    inherited: Sequence[int] = (),
) -> bytes:
    """Standard output of `git ARGUMENTS`; raises GitFailed with git's own first word on any other status than 0,
    and OSError where the disk is full.

    `file_limit_bytes` is the largest file that the child may write; `confines` says that and more, and a child that
    leaves them fails as any other.  `inherited` are descriptors that it holds open as well: with a lock among them that
    is held, should we be killed, until what we started has ended.
    """
    command = ["git"]
    for key, value in (*_SWITCHES, *switches):
        command += ["-c", f"{key}={value}"]
    if git_dir is not None:
        command.append(f"--git-dir={git_dir}")
    if work_tree is not None:
        command.append(f"--work-tree={work_tree}")
    environment = child_environment() | dict(extra or {})
    prepare = None
    if confines is not None:
        prepare = functools.partial(_confine, confines)
    elif file_limit_bytes is not None:
        prepare = functools.partial(_limit_files, file_limit_bytes)
    try:
        done = subprocess.run(
            [*command, *arguments],
            cwd=cwd or git_dir,
            env=environment,
            input=stdin,
            capture_output=True,
            check=False,
            preexec_fn=prepare,
            pass_fds=inherited,
            timeout=None if confines is None else confines.wall_s,
        )
    except subprocess.TimeoutExpired as error:
        raise GitFailed(arguments, -9, f"fatal: it took more than {error.timeout:g} s".encode()) from error
    except FileNotFoundError as error:
        if error.filename != "git":
            raise
        raise Missing("the program 'git' is not there", "install git 2.34 or newer") from error
    if done.returncode and b"No space left on device" in done.stderr:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(cwd or git_dir or ""))
    if done.returncode:
        raise GitFailed(arguments, done.returncode, done.stderr)
    return done.stdout

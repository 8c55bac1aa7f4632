"""Running an entry's contract commands: the author's own checks, in a clean export, with nothing else in reach.

They are code that came with the entry.  They run only when asked for, they gate nothing alone, and what keeps
them in is said with the answer: bubblewrap without a network where it works, else resource limits only.
"""

import contextlib
import os
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from spt.git.objects import Objects, Oid
from spt.memory import Memory
from spt.system import export

__all__ = ["CheckResult", "run_checks", "run_commands", "sandbox_words"]

TIME_LIMIT_S = 120.0
OUTPUT_LIMIT_BYTES = 64 * 1024
FILE_LIMIT_BYTES = 64 * 2**20
_GRACE_S = 2.0
_PROBE_S = 10.0
# Programs and libraries; of /etc only what the loader reads.
_SYSTEM = ("/usr", "/bin", "/lib", "/lib32", "/lib64", "/etc/ld.so.cache", "/etc/alternatives")


@dataclass(frozen=True)
class CheckResult:
    """One command: its exit status (None: it ran out of time), seconds, and the end of what it printed."""

    command: str
    status: int | None
    seconds_s: float
    output: str

    @property
    def passed(self) -> bool:
        return self.status == 0


@cache
def _bubblewrap() -> str | None:
    """The sandbox program, where it is installed and allowed to make namespaces."""
    program = shutil.which("bwrap")
    if program is None:
        return None
    probe = [program, "--ro-bind", "/", "/", "--unshare-all", "--die-with-parent", "true"]
    try:
        works = subprocess.run(probe, capture_output=True, check=False, timeout=_PROBE_S).returncode == 0
    except (subprocess.TimeoutExpired, OSError):
        works = False
    return program if works else None


def sandbox_words() -> str:
    """What keeps the commands in, in words for the output."""
    if _bubblewrap():
        return "bubblewrap: no network, nothing writable but the export, nothing else readable but programs"
    return "no sandbox here: resource limits and a cleared environment only, the network is reachable"


def run_checks(memory: Memory, name: str, time_limit_s: float = TIME_LIMIT_S) -> list[CheckResult]:
    """Runs the commands of an entry's contract, each in a fresh export of its requirements and itself on stock.

    A command is split like a shell would and started without one; `python` is the interpreter that runs spt.
    """
    composition = memory.composition(memory.entry(name).stock)
    tree = composition.tree(composition.closures[name])
    return run_commands(memory.objects, tree, memory.card(name).contract.get("checks", []), time_limit_s)


def run_commands(
    objects: Objects, tree: Oid, commands: Iterable[str], time_limit_s: float = TIME_LIMIT_S
) -> list[CheckResult]:
    """Runs commands, each in a fresh export of a tree, as `run_checks` does."""
    results = []
    for command in commands:
        with tempfile.TemporaryDirectory(prefix="spt-check-") as scratch:
            folder = Path(scratch) / "system"
            export(objects, tree, folder)
            results.append(_run(command, folder, time_limit_s))
    return results


def _run(command: str, folder: Path, time_limit_s: float) -> CheckResult:
    try:
        parts = shlex.split(command)
    except ValueError as error:
        return CheckResult(command, 127, 0.0, f"not a command: {str(error).lower()}")
    if not parts:
        return CheckResult(command, 127, 0.0, "not a command: it is empty")
    words = [sys.executable if word in ("python", "python3") else word for word in parts]
    environment = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C.UTF-8"}
    environment |= {"HOME": str(folder.parent), "TMPDIR": str(folder.parent)}
    environment |= {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1", "PYTHONNOUSERSITE": "1"}
    with tempfile.TemporaryFile() as output:
        started_s = time.monotonic()
        try:
            child = subprocess.Popen(
                [*_wrapped(folder), *words],
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_limits,  # noqa: PLW1509 - it takes no lock that a thread could hold
            )
        except OSError as error:
            return CheckResult(command, 127, 0.0, f"{words[0]}: {error.strerror}")
        status = _wait(child, time_limit_s)
        seconds_s = time.monotonic() - started_s
        end = output.seek(0, os.SEEK_END)
        output.seek(max(0, end - OUTPUT_LIMIT_BYTES))
        return CheckResult(command, status, seconds_s, output.read().decode(errors="replace"))


def _wait(child: "subprocess.Popen[bytes]", time_limit_s: float) -> int | None:
    try:
        return child.wait(time_limit_s)
    except subprocess.TimeoutExpired:
        return None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)  # whatever it started goes with it
        with contextlib.suppress(subprocess.TimeoutExpired):  # the kernel has it, and lets go when it can
            child.wait(_GRACE_S)


def _limits() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_LIMIT_BYTES, FILE_LIMIT_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _wrapped(folder: Path) -> Sequence[str]:
    program = _bubblewrap()
    if program is None:
        return []
    return [program, "--unshare-all", "--die-with-parent", "--new-session", *_binds(folder), "--chdir", str(folder)]


def _binds(folder: Path) -> list[str]:
    """What a command may read: system programs, the interpreter and its packages; and its room, to write."""
    own = [sys.prefix, sys.base_prefix, str(Path(sys.executable).resolve().parent)]
    read = [word for path in dict.fromkeys([*_SYSTEM, *own]) for word in ("--ro-bind-try", path, path)]
    room = str(folder.parent)
    return [*read, "--dev", "/dev", "--proc", "/proc", "--bind", room, room]

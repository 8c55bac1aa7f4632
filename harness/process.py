"""A worker process and its two pipes: lines go in and come out, each with the time it was written or read.

The worker runs alone: a session of its own, an environment made here, an empty working directory, and fresh
folders for HOME and TMPDIR that vanish with it.  What it prints is drained all the time and the last of it kept.
With an enclosure it also has a control group and, where bubblewrap is, namespaces of its own (harness/sandbox.py).
"""

import contextlib
import fcntl
import os
import resource
import select
import shutil
import signal
import subprocess
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from harness.cgroup import Group
from harness.errors import Crashed, Hung, Missing, Unsupported, Violation
from harness.freeze import FREEZE_S, Whole
from harness.sandbox import ROOM, SYSTEM, Enclosure
from harness.wire import MAX_LINE

__all__ = ["IN_FD", "OUT_FD", "Process", "environment"]

IN_FD, OUT_FD = 3, 4  # where the worker finds its pipes
TAIL_BYTES = 64 << 10
READ_BYTES = 1 << 16
SLICE_S = 1.0  # how often a silent worker is checked for being alive
POLL_S = 0.02  # how often an ending worker is checked for having ended
SHUTDOWN_S = 2.0
_SIGNALLED = 128  # what bubblewrap adds to the number of a signal, as a shell does

# What a worker may know of the outside: where programs, libraries and its GPU are, and how many threads to use.
PASSED_ON = ("PATH", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS")


def environment(system: Path, home: Path, cache: Path, outside: Mapping[str, str]) -> dict[str, str]:
    """The whole environment of a worker for the system tree `system`."""
    fixed = {
        "PYTHONPATH": str(system),
        "PYTHONDONTWRITEBYTECODE": "1",  # the system tree stays as it was exported
        "PYTHONHASHSEED": "0",
        "PYTHONUNBUFFERED": "1",
        "LC_ALL": "C.UTF-8",
        "HOME": str(home / "home"),
        "TMPDIR": str(home / "tmp"),
        "TRITON_CACHE_DIR": str(cache),
    }
    return {name: outside[name] for name in PASSED_ON if name in outside} | fixed


class Process:
    """A running worker; `close` ends it, whatever it is doing."""

    def __init__(
        self,
        command: Sequence[str],
        system: Path,
        cache: Path | None,
        outside: Mapping[str, str],
        enclosure: Enclosure | None = None,
        passed: Sequence[str] = (),
    ) -> None:
        self.watch: Callable[[], None] = lambda: None  # called every SLICE_S of waiting; what it raises ends the wait
        self._tail: deque[bytes] = deque()
        self._tail_bytes = 0
        self._chunks: list[bytes] = []  # of a line that has not ended yet
        self._chunks_bytes = 0
        self._lines: deque[tuple[bytes, int]] = deque()
        self._closed = False  # by the worker
        self._wrapped = enclosure is not None and enclosure.bubblewrap is not None
        # A worker that was killed may still be writing; what is left then is the system's to clean.
        self._home = tempfile.TemporaryDirectory(prefix="spt-worker-", ignore_cleanup_errors=True)
        group = None if enclosure is None else Group.make(enclosure.memory_bytes, enclosure.pids)
        try:
            full = [*command, "--in-fd", str(IN_FD), "--out-fd", str(OUT_FD)]
            full, variables = _placed(full, Path(self._home.name), system, cache, outside, enclosure)
            variables |= {name: outside[name] for name in passed if name in outside}
            prepare = _preparation(enclosure, group)
            self._child, self._to, self._from, self._prints = _spawn(
                full, variables, Path(self._home.name) / "work", prepare
            )
        except BaseException as error:
            if group is not None:
                group.close()
            self._home.cleanup()
            if isinstance(error, OSError):
                raise Missing(f"the engine '{command[0]}' cannot be started: {error.strerror}") from None
            if isinstance(error, subprocess.SubprocessError):
                raise Unsupported("the engine cannot enter its control group, or take its limits") from None
            raise
        self._whole = Whole(self._child, group)
        self._poll = select.poll()
        for source in (self._from, self._prints):
            self._poll.register(source, select.POLLIN)

    @property
    def pid(self) -> int:
        """Process id, and id of the process group."""
        return self._child.pid

    @property
    def room(self) -> Path:
        """The folder that the worker writes files into; it vanishes with the worker."""
        if self._wrapped:
            raise ValueError("nobody outside sees the folder of an enclosed worker")
        return Path(self._home.name) / "tmp"

    def tail(self) -> str:
        """The last of what the worker printed."""
        return b"".join(self._tail).decode("utf-8", "replace")

    def send(self, line: bytes, patience_s: float) -> int:
        """Writes `line` and a newline; returns the clock (ns) just before the first byte."""
        if len(line) >= MAX_LINE:
            raise ValueError(f"a line of {len(line)} bytes is too long to send")
        rest = memoryview(line + b"\n")
        deadline = time.monotonic() + patience_s
        written_ns = time.perf_counter_ns()
        while rest:
            try:
                rest = rest[os.write(self._to, rest) :]
            except BlockingIOError:
                self._wait_until_writable(deadline)
            except BrokenPipeError:
                raise self.crashed() from None
        return written_ns

    def receive(self, patience_s: float) -> tuple[bytes, int]:
        """The next line, without its newline, and the clock (ns) when its last byte was read."""
        deadline = time.monotonic() + patience_s
        while not self._lines:
            left = deadline - time.monotonic()
            if left <= 0:
                raise Hung(f"the engine said nothing for {patience_s:g} s")
            self.watch()
            if not self._turn(min(left, SLICE_S)) and (self._closed or self.status() is not None):
                raise self.crashed()
        return self._lines.popleft()

    def unread(self) -> bool:
        """Whether the worker has written something that `receive` has not given out yet."""
        self._turn(0)
        return bool(self._lines) or self._chunks_bytes > 0

    def status(self) -> int | None:
        """Exit status, negative for a signal, or None while it runs.  The process is not reaped before `close`:
        till then nobody else can get its id, and so the id of its group.
        """
        ended = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended is None:
            return None
        status = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
        signalled = self._wrapped and _SIGNALLED < status < _SIGNALLED + signal.NSIG
        return _SIGNALLED - status if signalled else status

    def wait(self, patience_s: float) -> int | None:
        """The exit status once the worker has ended by itself, or None when it does not within `patience_s`."""
        deadline = time.monotonic() + patience_s
        while (status := self.status()) is None and time.monotonic() < deadline:
            self._turn(POLL_S)
        return status

    def crashed(self) -> Crashed:
        """The error that says how the worker ended, with the last line that it printed."""
        status = self.wait(SHUTDOWN_S)
        for _ in range(TAIL_BYTES // READ_BYTES + 1):
            self._turn(0)
        if status is None:
            how = "closed its pipe"
        elif status < 0:
            how = f"was ended by signal {_signal_name(-status)}"
            if self._whole.memory_reached():
                how += ", its memory cap reached"
        else:
            how = f"ended with status {status}"
        printed = [line.strip() for line in self.tail().splitlines() if line.strip()]
        return Crashed(f"the engine {how}" + (f"; it last said: {printed[-1]}" if printed else ""), self.tail())

    def close(self, patience_s: float = SHUTDOWN_S) -> None:
        """Closes the pipe, gives the worker `patience_s` to end by itself, and kills all that it ever started."""
        os.close(self._to)
        if patience_s and not self.frozen:
            self.wait(patience_s)
        self._whole.kill()
        for source in (self._from, self._prints):
            os.close(source)
        self._home.cleanup()

    @property
    def frozen(self) -> bool:
        return self._whole.frozen

    @property
    def freezes_by(self) -> str:
        """`cgroup v2`, `cgroup v1` or `signals`."""
        return self._whole.way

    def freeze(self, patience_s: float = FREEZE_S) -> None:
        """Stops the worker and all that it started, and sees them stopped; else `Hung`."""
        self._whole.freeze(patience_s)

    def thaw(self) -> None:
        """Lets them go on; raises `Violation` when they ran while they were frozen."""
        self._whole.thaw()

    def _wait_until_writable(self, deadline: float) -> None:
        self._poll.register(self._to, select.POLLOUT)
        try:
            if time.monotonic() > deadline:
                raise Hung("the engine does not read its input")
            self._turn(SLICE_S)
        finally:
            self._poll.unregister(self._to)

    def _turn(self, timeout_s: float) -> bool:
        """Takes in what is there, waiting up to `timeout_s` for it; false when nothing came."""
        came = False
        for source, _ in self._poll.poll(timeout_s * 1e3):
            if source == self._to:
                came = True
                continue
            chunk = os.read(source, READ_BYTES)
            read_ns = time.perf_counter_ns()
            if not chunk:
                self._poll.unregister(source)
                self._closed = self._closed or source == self._from
            elif source == self._prints:
                self._keep(chunk)
            else:
                self._cut(chunk, read_ns)
            came = came or bool(chunk)
        return came

    def _keep(self, chunk: bytes) -> None:
        self._tail.append(chunk)
        self._tail_bytes += len(chunk)
        while self._tail_bytes - len(self._tail[0]) >= TAIL_BYTES:
            self._tail_bytes -= len(self._tail.popleft())

    def _cut(self, chunk: bytes, read_ns: int) -> None:
        head, *more = chunk.split(b"\n")
        for piece in more:
            self._lines.append((b"".join([*self._chunks, head]), read_ns))
            self._chunks, self._chunks_bytes, head = [], 0, piece
        self._chunks.append(head)
        self._chunks_bytes += len(head)
        if self._chunks_bytes >= MAX_LINE:
            raise Violation(f"the engine sent a line of more than {MAX_LINE >> 20} MiB")


def _placed(
    command: list[str],
    home: Path,
    system: Path,
    cache: Path | None,
    outside: Mapping[str, str],
    enclosure: Enclosure | None,
) -> tuple[list[str], dict[str, str]]:
    """The command to start, and its environment, with their folders below `home` or inside the enclosure."""
    (home / "work").mkdir()
    if enclosure is not None and enclosure.bubblewrap is not None:
        alone = {name: value for name, value in outside.items() if name != "CUDA_VISIBLE_DEVICES"}
        variables = environment(SYSTEM, ROOM, ROOM / "cache", alone)
        # Bubblewrap's own environment can be read by what runs inside, so that it has none.
        return enclosure.command(command, variables, system), {}
    for name in ("home", "tmp", "cache"):
        (home / name).mkdir()
    if enclosure is not None and enclosure.kernels is not None:
        if enclosure.filling:
            cache = enclosure.kernels
        else:
            shutil.copytree(enclosure.kernels, home / "cache", symlinks=True, dirs_exist_ok=True)
    return command, environment(system, home, cache or home / "cache", outside)


def _preparation(enclosure: Enclosure | None, group: Group | None) -> Callable[[], None]:
    """What the child does to itself before it becomes the engine: enters its group, and takes what limits are left."""
    if enclosure is None:
        return lambda: None
    limits = [(resource.RLIMIT_CORE, 0)]
    if enclosure.file_bytes is not None:
        limits.append((resource.RLIMIT_FSIZE, enclosure.file_bytes))
    if group is None or not group.memory:
        limits.append((resource.RLIMIT_DATA, enclosure.memory_bytes))  # of each process; address space CUDA has plenty
    if group is None or not group.pids:
        limits.append((resource.RLIMIT_NPROC, _threads_of_ours() + enclosure.pids))  # root's are not counted

    def prepare() -> None:
        for entrance in [] if group is None else group.entrances:
            with open(entrance, "w") as file:  # noqa: PTH123 - between fork and exec: as little as can be
                file.write("0")
        for limit, value in limits:
            hard = resource.getrlimit(limit)[1]
            value = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(limit, (value, value))

    return prepare


def _threads_of_ours() -> int:
    """How many threads our user has: RLIMIT_NPROC counts them all."""
    count = 0
    for status in Path("/proc").glob("[0-9]*/status"):
        with contextlib.suppress(OSError):
            fields = dict(line.split(":\t", 1) for line in status.read_text().splitlines() if ":\t" in line)
            if int(fields["Uid"].split()[0]) == os.getuid():
                count += int(fields["Threads"])
    return count


def _signal_name(number: int) -> str:
    """Its name where it has one; those between the first and last real-time signal have none."""
    return signal.Signals(number).name if number in list(signal.Signals) else str(number)


def _spawn(
    command: Sequence[str], variables: Mapping[str, str], folder: Path, prepare: Callable[[], None]
) -> tuple["subprocess.Popen[bytes]", int, int, int]:
    """Starts `command` with its pipes on 3 and 4; returns it, our two ends, and the pipe of what it prints."""
    their_in, to = _pipe()
    source, their_out = _pipe()
    prints, their_prints = _pipe()

    def place_pipes() -> None:
        os.dup2(their_in, IN_FD)
        os.dup2(their_out, OUT_FD)
        prepare()

    try:
        with _taken(IN_FD), _taken(OUT_FD):
            child = subprocess.Popen(
                command,
                cwd=folder,
                env=dict(variables),
                stdin=subprocess.DEVNULL,
                stdout=their_prints,
                stderr=their_prints,
                pass_fds=(IN_FD, OUT_FD),
                preexec_fn=place_pipes,  # noqa: PLW1509 - the harness has one thread
                start_new_session=True,
            )
    except BaseException:
        for end in (to, source, prints):
            os.close(end)
        raise
    finally:
        for end in (their_in, their_out, their_prints):
            os.close(end)
    os.set_blocking(to, False)
    return child, to, source, prints


def _pipe() -> tuple[int, int]:
    """A pipe whose ends lie above the numbers that the worker's pipes will have."""
    low = os.pipe()
    high = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, OUT_FD + 1) for end in low]
    for end in low:
        os.close(end)
    return high[0], high[1]


@contextlib.contextmanager
def _taken(number: int) -> Iterator[None]:
    """Holds descriptor `number` open, so that nothing else lands on it before the child's pipe does."""
    try:
        os.fstat(number)
    except OSError:
        null = os.open(os.devnull, os.O_RDONLY)
        if null != number:
            os.dup2(null, number, inheritable=False)
            os.close(null)
        try:
            yield
        finally:
            os.close(number)
    else:
        yield

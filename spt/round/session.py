"""One run of an agent's program in its sandbox, as the controller sees it: calls that come in, work that comes out.

Nothing that is said in a sandbox is believed.  A session ends when the program does, when its time is over, or when it
says more than it may; then everything in the sandbox is killed, and `Outcome` says which it was.
"""

import contextlib
import json
import os
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from spt.errors import Unsupported
from spt.printable import printable
from spt.round.bundle import BUNDLE_BYTES
from spt.round.clone import Clone
from spt.round.enclosure import Enclosure
from spt.round.group import Group

__all__ = ["PORT", "Handler", "Outcome", "Session", "listen", "stop_all"]

Handler = Callable[[str, Mapping[str, Any]], Mapping[str, Any]]
_OPEN: set["Session"] = set()  # of this process

PERIOD_S = 5.0  # how often what an agent has done so far is taken out
GRACE_S = 15.0  # after its time, for taking out the last
START_S = 30.0
FETCH_S = 60.0
LEAVE_S = 2.0
LINE_BYTES = 64 * 1024
ANSWER_BYTES = 8 * 1024
MAX_CALLS = 2000
MAX_SAID_BYTES = 64 * BUNDLE_BYTES  # by one session
TAIL_BYTES = 16 * 1024
PORT = 8711  # on the sandbox's own loopback
_FOLDER = Path(__file__).resolve().parent
_PEER = struct.Struct("3i")
_SOCKET = "control"


@dataclass(frozen=True)
class Outcome:
    """How a session ended.

    status: of the agent's program; None where it was stopped.  reason: why it was stopped or failed, in one line; None
    where it ended by itself with status 0.  unsaved: why the last of its work could not be taken out, None where it
    was.  tail: the end of what it printed.  held: what kept it in.  stopped: whether it was stopped for what it used up
    or said.
    """

    status: int | None
    reason: str | None
    unsaved: str | None
    seconds_s: float
    tail: str
    held: str
    stopped: bool = False

    @property
    def last(self) -> str:
        """The last line that it printed; empty where it printed nothing."""
        return _last(self.tail)


class Session:
    """A sandbox over a clone, to be started once; `with` it, so that nothing is left of it afterwards.

    `handler` answers calls: a tool's name and its arguments to an answer; it is called in the thread that serves.
    Before it is asked for one of `with_work`, the clone has the work as it was when the agent asked.
    """

    def __init__(
        self,
        clone: Clone,
        command: Sequence[str],
        task: str,
        handler: Handler,
        enclosure: Enclosure,
        *,
        with_work: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        period_s: float = PERIOD_S,
    ) -> None:
        self.clone = clone
        self.handler = handler
        self.caps = enclosure.caps
        self._folder = Path(tempfile.mkdtemp(prefix="session-", dir=clone.folder))  # goes with the clone
        self._group = Group.make(self.caps.memory_bytes, self.caps.processes)
        self._processes: list[int] = []  # pidfds: bubblewrap outside, and the first process inside
        self._stopped: str | None = None
        self._lock = threading.Lock()
        self._sending = threading.Lock()
        self._calls = self._said = 0
        self._connection: socket.socket | None = None
        self._fetching = threading.Lock()
        self._fetched = threading.Event()
        self._unsaved: str | None = None
        try:
            self._write(command, task, enclosure, with_work, environment or {}, period_s)
            self._listener = listen(self._folder / _SOCKET)
        except BaseException:
            self._clean()
            raise

    def __enter__(self) -> "Session":
        _OPEN.add(self)
        return self

    def __exit__(self, *_: object) -> None:
        _OPEN.discard(self)
        self.stop("it is over")
        self._listener.close()
        self._clean()

    @property
    def held(self) -> str:
        """What keeps the agent in, in words."""
        return self.caps.words(memory=self._group.memory, processes=self._group.pids)

    @property
    def argv(self) -> list[str]:
        """The command that starts the sandbox; what is appended to it is appended to the agent's command."""
        return [sys.executable, "-I", "-S", str(_FOLDER / "launch.py"), str(self._folder / "spec.json")]

    @property
    def launcher(self) -> Path:
        """The same as one executable file."""
        return self._folder / "launch"

    def stop(self, reason: str) -> None:
        """Kills all that is in the sandbox; may be called from any thread, and more than once."""
        with self._lock:
            self._stopped = self._stopped or reason
            for process in reversed(self._processes):
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(process, signal.SIGKILL)

    def fetch(self) -> str | None:
        """Has the work taken out as it is now, while another thread serves; why it cannot be, None where it was."""
        with self._fetching:
            self._fetched.clear()
            if self._connection is None or not self._send(self._connection, {"save": True}):
                return "the sandbox is gone"
            return self._unsaved if self._fetched.wait(FETCH_S) else "it was not taken out in time"

    def run(self) -> Outcome:
        """Starts the sandbox and serves it to its end."""
        tail = _Tail()
        began_s = time.monotonic()
        child = subprocess.Popen(
            self.argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={"PATH": os.defpath},
            start_new_session=True,
        )
        assert child.stdout is not None
        reader = threading.Thread(target=tail.drain, args=[child.stdout], daemon=True)
        reader.start()
        try:
            return self.serve(tail, began_s)
        finally:
            self.stop("it is over")
            child.kill()
            child.wait()
            reader.join(START_S)
            child.stdout.close()

    def serve(self, tail: "_Tail | None" = None, began_s: float | None = None) -> Outcome:
        """Serves a sandbox that someone starts with `argv` or `launcher`, to its end.

        Unsupported where it does not start.
        """
        began_s = time.monotonic() if began_s is None else began_s
        self._listener.settimeout(START_S)
        try:
            connection, _ = self._listener.accept()
        except TimeoutError:
            raise Unsupported(f"the sandbox did not start: {_said(tail)}") from None
        connection.settimeout(None)
        timer = threading.Timer(self.caps.wall_s + GRACE_S, self.stop, ["it did not stop when its time was over"])
        timer.daemon = True
        timer.start()
        watch = threading.Thread(target=self._watch, daemon=True)
        watch.start()
        try:
            with connection, connection.makefile("rb") as lines:
                ended = self._serve(connection, lines, tail)
                if ended.get("event") == "ended":
                    self._leave()
        finally:
            timer.cancel()
            self.stop("it is over")
            self._fetched.set()
            self._wait()
        return self._outcome(ended, time.monotonic() - began_s, tail)

    # What is said on the socket.

    def _serve(self, connection: socket.socket, lines: IO[bytes], tail: "_Tail | None") -> dict[str, Any]:
        self._know(connection)
        self._connection = connection
        ended: dict[str, Any] = {}
        started = False
        for record, data in self._records(lines):
            event = record.get("event")
            if event == "hello" and not started:
                started = True
                self._know(connection)
            elif event == "unsaved":
                self._unsaved = _line(record.get("reason")) or "it does not say why"
                self._fetched.set()
            elif event in ("work", "saved", "call"):
                self._unsaved = None
                self._take(record.get("work"), data)
                if event == "call":
                    self._answer(connection, record.get("call"))
                elif event == "saved":
                    self._fetched.set()
            elif event == "ended":
                ended = record
                break
        if not started and self._stopped is None:
            raise Unsupported(f"the sandbox did not start: {_said(tail)}")
        return {**ended, "unsaved": self._unsaved}

    def _records(self, lines: IO[bytes]) -> Iterator[tuple[dict[str, Any], bytes]]:
        """Lines with what follows them, until the sandbox is gone or breaks the rules."""
        while line := self._read(lines.readline, LINE_BYTES):
            try:
                record = json.loads(line)
                size = record.get("bytes", 0)
            except (ValueError, AttributeError, RecursionError):
                return self.stop("what it says to the controller is none of the protocol")
            if not line.endswith(b"\n") or not isinstance(size, int) or not 0 <= size <= BUNDLE_BYTES:
                return self.stop(f"it says more than the {BUNDLE_BYTES} bytes that its work may have")
            data = self._read(lines.read, size) if size else b""
            self._said += len(line) + len(data)
            if self._said > MAX_SAID_BYTES:
                return self.stop(f"it said more than {MAX_SAID_BYTES} bytes to the controller")
            if len(data) < size:
                return None
            yield record, data
        return None

    def _read(self, read: Callable[[int], bytes], size: int) -> bytes:
        try:
            return read(size)
        except OSError:
            return b""

    def _take(self, work: object, data: bytes) -> None:
        if work == "new" and data:
            self.clone.save(data)
        elif work == "none":
            self.clone.forget()

    def _answer(self, connection: socket.socket, call: object) -> None:
        self._calls += 1
        if self._calls > MAX_CALLS:
            return self.stop(f"it called tools more than {MAX_CALLS} times")
        answer: Mapping[str, Any] = {"refused": "a call is {tool, arguments}"}
        if isinstance(call, dict):
            tool, arguments = call.get("tool"), call.get("arguments", {})
            if isinstance(tool, str) and isinstance(arguments, dict):
                answer = self.handler(tool, arguments)
        if (size := len(json.dumps(answer))) > ANSWER_BYTES:
            answer = {"refused": f"the answer has {size} bytes, more than {ANSWER_BYTES}"}
        self._send(connection, {"answer": answer})
        return None

    def _send(self, connection: socket.socket, record: Mapping[str, Any]) -> bool:
        """Says something to the sandbox; whether it is there to hear it."""
        with self._sending, contextlib.suppress(OSError):
            connection.sendall(json.dumps(record).encode() + b"\n")
            return True
        return False

    # The processes.

    def _know(self, connection: socket.socket) -> None:
        """Takes hold of bubblewrap, and once it started of the first process inside: with that all others end."""
        pid = _PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))[0]
        found = [pid, *_children(pid)][len(self._processes) :]
        with self._lock:
            for each in found[:2]:
                with contextlib.suppress(ProcessLookupError):
                    self._processes.append(os.pidfd_open(each))
        if self._stopped is not None:
            self.stop(self._stopped)

    def _watch(self) -> None:
        """Where the kernel does not cap the number of processes, counts them."""
        while not self._group.pids and self._stopped is None:
            first = self._first()
            if first is not None and _count_below(first) > self.caps.processes:
                self.stop(f"it started more than {self.caps.processes} processes")
            time.sleep(0.1)

    def _first(self) -> int | None:
        with self._lock:
            return _pid_of(self._processes[1]) if len(self._processes) > 1 else None

    def _leave(self) -> None:
        """Lets a sandbox that has ended go by itself, so that its starter sees the status."""
        poll = select.poll()
        for process in self._processes[:1]:
            poll.register(process, select.POLLIN)
            poll.poll(int(1000 * LEAVE_S))

    def _wait(self) -> None:
        """Returns when the sandbox is gone with all that was in it."""
        poll = select.poll()
        for process in self._processes[1:]:  # bubblewrap itself is its starter's to reap
            poll.register(process, select.POLLIN)
            if not poll.poll(int(1000 * START_S)):
                raise Unsupported("the processes of a sandbox were killed, and do not end")
        self._group.kill()

    def _outcome(self, ended: Mapping[str, Any], seconds_s: float, tail: "_Tail | None") -> Outcome:
        status = ended.get("status") if isinstance(ended.get("status"), int) else None
        reason = self._stopped if self._stopped != "it is over" else None
        stopped = reason is not None or ended.get("reason") == "time"
        if reason is None and ended.get("reason") == "time":
            reason, status = f"it did not end within {self.caps.wall_s:g} s, and was stopped", None
        elif reason is None and ended.get("event") != "ended":
            reason = "its sandbox ended before it did"
        elif reason is None and status:
            reason = _line(ended.get("reason")) or f"it ended with status {status}"
        if reason is not None and self._group.oom_kills():
            reason += f" (its memory cap of {self.caps.memory_bytes >> 20} MiB was reached)"
        text = "" if tail is None else tail.text()
        return Outcome(status, reason, ended.get("unsaved"), seconds_s, text, self.held, stopped)

    # Files.

    def _write(
        self,
        command: Sequence[str],
        task: str,
        enclosure: Enclosure,
        with_work: Sequence[str],
        environment: Mapping[str, str],
        period_s: float,
    ) -> None:
        limits = {"RLIMIT_FSIZE": self.caps.file_bytes, "RLIMIT_CORE": 0, "RLIMIT_NOFILE": 4096}
        limits |= {} if self._group.memory else {"RLIMIT_DATA": self.caps.memory_bytes}
        limits |= {} if self._group.pids else {"RLIMIT_NPROC": self.caps.processes}
        texts = self._folder / "texts"
        texts.mkdir()
        job = {
            "base": self.clone.base,
            "start": self.clone.start,
            "command": list(command),
            "environment": dict(environment),
            "wall_s": self.caps.wall_s,
            "period_s": period_s,
            "limits": limits,
            "port": None if enclosure.model is None else PORT,
            "with_work": list(with_work),
            "bundle_bytes": BUNDLE_BYTES,
        }
        (texts / "job.json").write_text(json.dumps(job))
        (texts / "task.md").write_text(task)
        (texts / "passwd").write_text("agent:x:1000:1000::/spt/room/home:/bin/sh\n")
        words = enclosure.command(self.clone.origin, texts, _FOLDER / "inside.py")
        spec = {"socket": str(self._folder / _SOCKET), "entrances": self._group.entrances, "command": words}
        (self._folder / "spec.json").write_text(json.dumps(spec))
        quoted = " ".join("'" + word.replace("'", "'\\''") + "'" for word in self.argv)
        self.launcher.write_text(f'#!/bin/sh\nexec {quoted} "$@"\n')
        self.launcher.chmod(0o700)

    def _clean(self) -> None:
        self._group.close()
        with self._lock:
            for process in self._processes:
                os.close(process)
            self._processes = []
        shutil.rmtree(self._folder, ignore_errors=True)


def stop_all(reason: str) -> None:
    """Stops every session of this process, from any thread."""
    for session in tuple(_OPEN):
        session.stop(reason)


def listen(path: Path) -> socket.socket:
    """A unix socket that listens at a path of any length, where the system takes 107 bytes."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(f"/proc/self/fd/{folder}/{path.name}")
        listener.listen()
    except BaseException:
        listener.close()
        raise
    finally:
        os.close(folder)
    return listener


class _Tail:
    """The end of what a program prints; all of it is drained."""

    def __init__(self) -> None:
        self._chunks: deque[bytes] = deque()
        self._bytes = 0
        self._lock = threading.Lock()

    def drain(self, source: IO[bytes]) -> None:
        while chunk := os.read(source.fileno(), 1 << 16):
            with self._lock:
                self._chunks.append(chunk)
                self._bytes += len(chunk)
                while self._bytes - len(self._chunks[0]) >= TAIL_BYTES:
                    self._bytes -= len(self._chunks.popleft())

    def text(self) -> str:
        with self._lock:
            return b"".join(self._chunks)[-TAIL_BYTES:].decode("utf-8", "replace")


def _said(tail: _Tail | None) -> str:
    return _last("" if tail is None else tail.text()) or "it says nothing"


def _last(text: str) -> str:
    lines = text.strip().splitlines()
    return printable(lines[-1])[:200] if lines else ""


def _line(value: object) -> str | None:
    return printable(value)[:300] if isinstance(value, str) and value else None


def _children(pid: int) -> list[int]:
    """Of all threads of a process."""
    found: list[int] = []
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += map(int, file.read_text().split())
    return found


def _pid_of(pidfd: int) -> int | None:
    for line in Path(f"/proc/self/fdinfo/{pidfd}").read_text().splitlines():
        if line.startswith("Pid:"):
            pid = int(line.split()[1])
            return pid if pid > 0 else None
    return None


def _count_below(first: int) -> int:
    """Processes of the namespace whose first process this is."""
    waiting, count = [first], 0
    while waiting:
        pid = waiting.pop()
        count += 1
        waiting += _children(pid)
    return count

"""Runs in an agent's sandbox: clones the base, starts the agent, carries its calls out, and takes its work out.

Alone in the sandbox, with the standard library: spt is not there.  `job.json` says what to run.  On descriptor 3 is the
controller's socket; lines of JSON go both ways, and a line {"event": "work", "bytes": n} is followed by n bytes of a
bundle.  Whoever runs here can say anything on that socket: the controller believes none of it.

`inside.py call NAME [KEY=VALUE...]` is the agent's `tool`: it asks the runner, who asks the controller.
"""

import contextlib
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

BASE, JOB, MODEL = Path("/spt/base.git"), Path("/spt/job.json"), Path("/spt/model")
KEEP = Path("/spt/keep")
ROOM = Path("/spt/room")
TREE = ROOM / "tree"
TOOLS = ROOM / "run" / "tools"
OPTIONS = ROOM / "options"
BRANCH = "work"
LEFT = "what the agent left uncommitted"
MAX_LINE = 16 * 1024
EXCLUDED = "__pycache__/\n*.py[co]\n"
GIT_SWITCHES = (
    *("-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "-c", "commit.gpgSign=false"),
    *("-c", "gc.auto=0", "-c", "core.autocrlf=false", "-c", "core.excludesFile=/spt/keep/exclude"),
)
POLL_S = 0.05
SAVING_S = 10.0
_FAILED = (OSError, subprocess.SubprocessError, ValueError)


class Runner:
    """One agent: its clone, its program, its calls, its work."""

    def __init__(self, job: Mapping[str, Any]) -> None:
        self.job = job
        self.control = socket.socket(fileno=3)
        self.control.set_inheritable(False)
        self.lines = self.control.makefile("rb")
        self.sending = threading.Lock()
        self.calling = threading.Lock()
        self.saving = threading.Lock()
        self.answers: list[bytes] = []
        self.answered = threading.Condition()
        self.sent = job["start"]

    def run(self, extra: Sequence[str]) -> None:
        self._tell({"event": "hello"})
        self._clone()
        self._confine()
        threading.Thread(target=self._listen, daemon=True).start()
        threading.Thread(target=self._serve_tools, daemon=True).start()
        if self.job["port"] is not None:
            threading.Thread(target=self._serve_model, daemon=True).start()
        command = [*self.job["command"], *extra]
        try:
            child = subprocess.Popen(command, cwd=TREE, env=self._environment(), close_fds=True)
        except OSError as error:
            self._tell({"event": "ended", "status": 127, "reason": f"{command[0]}: {error.strerror}"})
            return
        status = self._watch(child)
        self.saving.acquire(timeout=SAVING_S)  # not in the midst of taking work out
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)  # whatever it left running; not ourselves
        with contextlib.suppress(RuntimeError):
            self.saving.release()
        self._save("work")
        self._tell({"event": "ended", "status": status, "reason": None if status is not None else "time"})

    def _environment(self) -> dict[str, str]:
        return {**os.environ, **self.job["environment"]}

    def _watch(self, child: "subprocess.Popen[bytes]") -> int | None:
        """Its exit status, None where its time ran out; saves what it does every while."""
        began_s = saved_s = time.monotonic()
        while (status := child.poll()) is None:
            now_s = time.monotonic()
            if now_s - began_s > self.job["wall_s"]:
                return None
            if now_s - saved_s > self.job["period_s"]:
                self._save("work")
                saved_s = time.monotonic()
            time.sleep(POLL_S)
        return status

    # The clone, and what is taken out of it.

    def _clone(self) -> None:
        for name in ("home", "run", "bin"):
            (ROOM / name).mkdir()
        (KEEP / "exclude").write_text(EXCLUDED)
        tool = ROOM / "bin" / "tool"
        tool.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S /spt/inside.py call "$@"\n')
        tool.chmod(0o755)
        for key, value in (("user.name", "agent"), ("user.email", "agent@invalid"), ("init.defaultBranch", "main")):
            _git("config", "--global", key, value)
        where = f"file://{BASE}"
        _git("clone", "-q", "--bare", "--no-hardlinks", "--no-tags", where, str(KEEP / "own.git"))
        _git("clone", "-q", "--no-hardlinks", "--no-tags", where, str(TREE))
        _git("remote", "remove", "origin", cwd=TREE)
        (TREE / ".git" / "info").mkdir(exist_ok=True)
        (TREE / ".git" / "info" / "exclude").write_text(EXCLUDED)

    def _save(self, event: str, **more: Any) -> str | None:
        """Tells an event, and with it the work where that is not as it was told before; why not, where it cannot be.

        Where the files cannot be taken out, the commits are.
        """
        with self.saving:
            reason = None
            try:
                tip, bundle = self._bundle(self._left)
            except _FAILED as error:
                reason, more = _words(error), {}
                event = "work"
                try:
                    tip, bundle = self._bundle(lambda tip: tip)
                except _FAILED:
                    tip, bundle = self.sent, b""
            work = "same" if tip == self.sent else "new" if bundle else "none"
            if (work, event) != ("same", "work"):
                data = bundle if work == "new" else b""
                self._tell({"event": event, "work": work, "bytes": len(data), **more}, data)
            if reason is not None:
                self._tell({"event": "unsaved", "reason": reason})
            self.sent = tip
        return reason

    def _bundle(self, whole: Callable[[str], str]) -> tuple[str, bytes]:
        """(the commit that is the work, the bundle of it over the base: empty where nothing is new).

        `whole` makes that commit of the one that the agent's HEAD is at.
        """
        base = self.job["base"]
        tip = whole(self._tip(base))
        if tip in (base, self.sent):
            return tip, b""
        _own("update-ref", f"refs/heads/{BRANCH}", tip)
        file = KEEP / "work.bundle"
        _own("bundle", "create", "-q", str(file), f"{base}..refs/heads/{BRANCH}")
        if (size := file.stat().st_size) > self.job["bundle_bytes"]:
            raise ValueError(f"its work takes {size} bytes, more than the {self.job['bundle_bytes']} allowed")
        return tip, file.read_bytes()

    def _left(self, tip: str) -> str:
        """The commit, or one on it of what is not committed."""
        tree, options = self._working_tree(tip), self._options()
        if tree == _own("rev-parse", f"{tip}^{{tree}}").strip() and not options:
            return tip
        message = "\n\n".join([LEFT, *(["\n".join(options)] if options else [])])
        date = _own("show", "-s", "--format=%cI", tip).strip()  # the same work is the same commit
        return _own("commit-tree", tree, "-p", tip, "-m", message, date=date).strip()

    def _tip(self, base: str) -> str:
        """The commit that the agent's HEAD is at, if it stands on the base; else the base."""
        try:
            tip = _git("rev-parse", "--verify", "-q", "HEAD^{commit}", cwd=TREE).strip()
            _own("merge-base", "--is-ancestor", base, tip)
        except (subprocess.SubprocessError, OSError):
            return base
        return tip

    def _working_tree(self, tip: str) -> str:
        index = {"GIT_INDEX_FILE": str(KEEP / "index")}
        _own("read-tree", tip, extra=index)
        _own("add", "-A", extra=index, work_tree=True)
        return _own("write-tree", extra=index).strip()

    def _options(self) -> list[str]:
        """What the agent wrote into the file of option values, as trailers."""
        try:
            text = OPTIONS.read_text()[:MAX_LINE]
        except (OSError, UnicodeDecodeError):
            return []
        return [f"Spt-Option: {line.strip()}" for line in text.splitlines() if "=" in line]

    # Calls.

    def _tell(self, record: Mapping[str, Any], data: bytes = b"") -> None:
        with self.sending:
            try:
                self.control.sendall(json.dumps(record).encode() + b"\n" + data)
            except OSError:
                os._exit(1)  # the controller is gone, and this sandbox with it

    def _listen(self) -> None:
        """Hands on what the controller answers, saves when it asks, and ends the sandbox when it is gone."""
        for line in self.lines:
            said = json.loads(line)
            if "answer" not in said:
                threading.Thread(target=self._save, args=["saved"], daemon=True).start()
                continue
            with self.answered:
                self.answers.append(json.dumps(said["answer"]).encode() + b"\n")
                self.answered.notify()
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)
        os._exit(1)

    def _ask(self, request: Any) -> bytes:
        """What the controller says to one call; where the call is about the work, that is sent along."""
        with self.calling:
            if request.get("tool") in self.job["with_work"]:
                if (reason := self._save("call", call=request)) is not None:
                    return json.dumps({"refused": reason}).encode() + b"\n"
            else:
                self._tell({"event": "call", "work": "same", "bytes": 0, "call": request})
            with self.answered:
                while not self.answers:
                    self.answered.wait()
                return self.answers.pop(0)

    def _serve_tools(self) -> None:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(TOOLS))
            server.listen()
            while True:
                connection, _ = server.accept()
                threading.Thread(target=self._serve_tool, args=[connection], daemon=True).start()

    def _serve_tool(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as lines, contextlib.suppress(OSError):
            while line := lines.readline(MAX_LINE):
                try:
                    request = json.loads(line)
                except (ValueError, RecursionError):
                    request = None
                if isinstance(request, dict):
                    connection.sendall(self._ask(request))
                else:
                    connection.sendall(b'{"refused": "a call is one line of JSON, an object"}\n')

    # The way to the model, where there is one.

    def _serve_model(self) -> None:
        with socket.create_server(("127.0.0.1", self.job["port"])) as server:
            while True:
                here, _ = server.accept()
                there = socket.socket(socket.AF_UNIX)
                try:
                    there.connect(str(MODEL))
                except OSError:
                    here.close()
                    continue
                for source, sink in ((here, there), (there, here)):
                    threading.Thread(target=_pump, args=[source, sink], daemon=True).start()

    def _confine(self) -> None:
        """Limits that no child of ours can lift again."""
        os.nice(10)
        for name, value in self.job["limits"].items():
            number = getattr(resource, name)
            hard = resource.getrlimit(number)[1]
            value = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(number, (value, value))


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            sink.sendall(data)
    for end in (source, sink):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


def _git(*arguments: str, cwd: Path = ROOM, extra: Mapping[str, str] | None = None) -> str:
    environment = dict(os.environ) | {"GIT_CONFIG_NOSYSTEM": "1", "GIT_TERMINAL_PROMPT": "0"} | dict(extra or {})
    command = ["git", *GIT_SWITCHES, *arguments]
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, check=True, timeout=60)
    return done.stdout.decode(errors="replace")


def _own(
    *arguments: str, extra: Mapping[str, str] | None = None, work_tree: bool = False, date: str | None = None
) -> str:
    """Git on the repository that takes the work out: with the agent's objects, without its configuration."""
    environment = {
        "GIT_DIR": str(KEEP / "own.git"),
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_ALTERNATE_OBJECT_DIRECTORIES": str(TREE / ".git" / "objects"),
    }
    for who in ("AUTHOR", "COMMITTER"):
        environment |= {f"GIT_{who}_NAME": "agent", f"GIT_{who}_EMAIL": "agent@invalid"}
        environment |= {f"GIT_{who}_DATE": date} if date else {}
    if work_tree:
        environment |= {"GIT_WORK_TREE": str(TREE)}
    return _git(*arguments, cwd=TREE if work_tree else KEEP, extra={**environment, **(extra or {})})


def _words(error: Exception) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        if error.returncode == -signal.SIGXFSZ:
            return "a file of its work is larger than any may be"
        said = str(error.stderr, errors="replace").strip() or f"git ended with status {error.returncode}"
        return said.splitlines()[0][:500]
    return str(error)[:500]


def call(words: Sequence[str]) -> None:
    """Asks the controller for one thing and prints its answer."""
    arguments = dict(_parsed(words[1:]))
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(str(TOOLS))
        server.sendall(json.dumps({"tool": words[0], "arguments": arguments}).encode() + b"\n")
        with server.makefile("rb") as lines:
            sys.stdout.buffer.write(lines.readline())


def _parsed(words: Sequence[str]) -> Iterator[tuple[str, Any]]:
    for word in words:
        name, _, value = word.partition("=")
        try:
            yield name, json.loads(value)
        except ValueError:
            yield name, value


if __name__ == "__main__":
    if sys.argv[1:2] == ["call"]:
        call(sys.argv[2:])
    else:
        Runner(json.loads(JOB.read_text())).run(sys.argv[1:])
        os._exit(0)  # threads may wait for what does not come any more

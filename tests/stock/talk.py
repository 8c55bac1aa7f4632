"""A client of the worker for tests: real processes, every line held to the schema."""

import json
import os
import select
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import jsonschema
import referencing

__all__ = ["GREEDY", "ROOT", "Worker", "generate", "load", "validator"]

ROOT = Path(__file__).parents[2]
GREEDY = {"temperature": 0, "top_p": 1, "top_k": 0, "seed": 0}
_SCHEMAS = ROOT / "spt" / "schemas"
_REGISTRY = referencing.Registry().with_resources(
    (path.name, referencing.Resource.from_contents(json.loads(path.read_text()))) for path in _SCHEMAS.glob("*.json")
)
_PATIENCE_S = 120.0
_PASSED_ON = ("PATH", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES")  # what kernels need to be compiled and run


def validator(reference: str) -> jsonschema.Draft202012Validator:
    """Holds a value to a schema of the project."""
    return jsonschema.Draft202012Validator({"$ref": reference}, registry=_REGISTRY)


_REQUEST, _REPLY = (validator(f"protocol.json#/$defs/{kind}") for kind in ("request", "reply"))


def load(model: Path, drafting: Path | None = None, **changes: Any) -> dict[str, Any]:
    """A `load` line; options are given by their own names."""
    line: dict[str, Any] = {
        "op": "load",
        "target": {"path": str(model), "widen": 1, "jitter": 0},
        "drafter": None if drafting is None else {"path": str(drafting)},
        "dtype": "float32",
        "device": "cpu",
        "mode": "exact",
        "head": "model",
        "options": {},
        "prepared": None,
        "limits": {"context": 96, "requests": 2},
    }
    line["options"] = {name: value for name, value in changes.items() if name not in line}
    return line | {name: value for name, value in changes.items() if name in line}


def generate(**changes: Any) -> dict[str, Any]:
    """A `generate` line."""
    line: dict[str, Any] = {"op": "generate", "id": "a", "prompt": [5, 6, 7], "max_tokens": 8, "stop_ids": []}
    line |= {"ignore_eos": True, "sampling": GREEDY, "logprobs": False, "digest": True}
    return line | changes


class Worker:
    """A worker process with its two descriptors.

    prelude: Python that runs in the process before the worker.  system: the folder that holds `stock/`.  room: its
    writable folder.  Replies are validated as they are read.
    """

    def __init__(self, prelude: str = "", *, hello: bool = True, system: Path = ROOT, room: Path | None = None) -> None:
        ours, theirs = os.pipe(), os.pipe()
        arguments = ["--in-fd", str(ours[0]), "--out-fd", str(theirs[1])]
        start = f"{prelude}\nimport runpy; runpy.run_module('stock.worker', run_name='__main__', alter_sys=True)"
        how = ["-c", start] if prelude else ["-m", "stock.worker"]
        environment = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        environment |= {"PYTHONPATH": str(system), "OMP_NUM_THREADS": "1"}
        environment |= {"TMPDIR": str(room)} if room else {}
        self.child = subprocess.Popen(
            [sys.executable, "-P", "-s", *how, *arguments],
            pass_fds=(ours[0], theirs[1]),
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        os.close(ours[0])
        os.close(theirs[1])
        self.out, self.source = ours[1], theirs[0]
        self.rest = b""
        self.hello = self.read() if hello else {}

    def write(self, data: bytes) -> None:
        """Sends bytes as they are."""
        view = memoryview(data)
        while view:
            view = view[os.write(self.out, view) :]

    def send(self, line: dict[str, Any], *, check: bool = True) -> None:
        """Sends a request, which is a valid one unless `check` is false."""
        line = {"v": 1, **line}
        if check:
            _REQUEST.validate(line)
        self.write(json.dumps(line).encode() + b"\n")

    def read(self) -> dict[str, Any]:
        """The next reply; EOFError where there is none any more."""
        deadline = time.monotonic() + _PATIENCE_S
        while b"\n" not in self.rest:
            if not select.select([self.source], [], [], max(deadline - time.monotonic(), 0))[0]:
                raise TimeoutError(f"no reply within {_PATIENCE_S} s")
            data = os.read(self.source, 1 << 16)
            if not data:
                raise EOFError(self.rest)
            self.rest += data
        text, _, self.rest = self.rest.partition(b"\n")
        reply: dict[str, Any] = json.loads(text)
        _REPLY.validate(reply)
        return reply

    def ask(self, line: dict[str, Any], *, check: bool = True) -> dict[str, Any]:
        """Sends a request and gives its last reply: what is no `tokens`."""
        self.send(line, check=check)
        return self.read_through()[-1]

    def read_through(self) -> list[dict[str, Any]]:
        """Replies up to the first that is no `tokens`."""
        replies = [self.read()]
        while replies[-1]["op"] == "tokens":
            replies.append(self.read())
        return replies

    def close_input(self) -> None:
        """Ends the worker's input."""
        os.close(self.out)
        self.out = -1

    def wait(self) -> tuple[int, bytes, bytes]:
        """Exit status, standard output and standard error."""
        output, errors = self.child.communicate(timeout=_PATIENCE_S)
        return self.child.returncode, output, errors

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.child.poll() is None:
            self.child.kill()
        self.child.communicate()
        os.close(self.source)
        if self.out >= 0:
            os.close(self.out)

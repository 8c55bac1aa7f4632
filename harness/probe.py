"""What this machine allows the judge: whether the sandbox really holds here, and what the device tells."""

import datetime
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harness.cgroup import Group
from harness.device import open_device
from harness.errors import EngineError, HarnessError, Unsupported
from harness.freeze import way
from harness.machine import card
from harness.process import Process
from harness.sandbox import SYSTEM, UNSANDBOXED, Enclosure, find_bubblewrap

__all__ = ["Held", "check_sandbox", "probe"]

_PATIENCE_S = 20.0
_HINT = "pass --no-sandbox to judge trusted systems only"

# Runs inside, tries what it must not be able to do, and says what it could; and whether the GPU is there.
_TRIES = """
import ctypes, json, os, socket, sys
could = []
def attempt(what, act):
    try:
        act()
    except OSError:
        return
    could.append(what)
def make_namespace():
    if ctypes.CDLL(None).unshare(0x10000000):
        raise OSError
canary, port, system = "/" + sys.argv[1], int(sys.argv[2]), sys.argv[3]
attempt("write into its system tree", lambda: open(system + "/written", "w"))
attempt("read a file that is not its own", lambda: open(canary))
attempt("reach the network", lambda: socket.create_connection(("127.0.0.1", port), 1))
attempt("write below /proc", lambda: open("/proc/sys/kernel/domainname", "w"))
attempt("make a user namespace", make_namespace)
if sum(name.isdecimal() for name in os.listdir("/proc")) > 3:
    could.append("see other processes")
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
if int(status["CapEff"], 16) or int(status["CapPrm"], 16):
    could.append("use capabilities")
def find_variable(pid):
    if b"SPT_CANARY" not in open(f"/proc/{pid}/environ", "rb").read():
        raise OSError
for pid in ("1", "self"):
    attempt("read the judge's variables", lambda: find_variable(pid))
def open_gpu():
    driver, count, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(), ctypes.c_void_p()
    code = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
    code = code or driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
    return f"CUDA error {code}" if code else None if count.value == 1 else f"{count.value} GPUs instead of one"
try:
    gpu = open_gpu() if sys.argv[4] == "gpu" else None
except OSError as error:
    gpu = str(error)
os.write(4, json.dumps({"could": could, "gpu": gpu}).encode() + b"\\n")
os.read(3, 1)
"""

_MAKE_NAMESPACE = "import ctypes, sys; sys.exit(ctypes.CDLL(None).unshare(0x10000000) != 0)"


@dataclass(frozen=True)
class Held:
    """How a sandbox that held behaved."""

    start_s: float  # from nothing to the first word of a bare interpreter
    freeze_s: float
    freezes_by: str


def check_sandbox(enclosure: Enclosure) -> Held:
    """Starts an engine enclosed like this that tries to get out; raises `Unsupported` with what it could do."""
    assert enclosure.bubblewrap is not None
    with tempfile.TemporaryDirectory(prefix="spt-probe-") as folder, socket.create_server(("127.0.0.1", 0)) as server:
        system, canary = Path(folder) / "system", Path(folder) / "canary"
        system.mkdir()
        canary.write_text("no engine may read this\n")
        # The leading / is left out, since files that a command names are shown to it.
        words = [str(canary)[1:], str(server.getsockname()[1]), str(SYSTEM), "gpu" if enclosure.nodes else "cpu"]
        command = [sys.executable, "-I", "-S", "-c", _TRIES, *words]
        started_s = time.perf_counter()
        process = Process(command, system, None, {**os.environ, "SPT_CANARY": "1"}, enclosure)
        try:
            line, _ = process.receive(_PATIENCE_S)
            start_s = time.perf_counter() - started_s
            process.freeze()
            freeze_s = time.perf_counter() - started_s - start_s
            process.thaw()
        except EngineError as error:
            raise Unsupported(f"nothing runs in the sandbox here: {error.message}", _HINT) from None
        finally:
            process.close(0)
    told = json.loads(line)
    if told["could"]:
        raise Unsupported(f"the sandbox does not hold here: an engine could {', '.join(told['could'])}", _HINT)
    if told["gpu"] is not None:
        raise Unsupported(f"the GPU does not work in the sandbox here: {told['gpu']}", _HINT)
    return Held(start_s, freeze_s, process.freezes_by)


def probe(device: str, now: datetime.datetime) -> dict[str, Any]:
    """The machine card, and what the machine allows, as `python -m harness probe` prints it."""
    with open_device(device) as opened:
        reading = opened.reading()
        sandbox = _sandbox(opened.nodes)
        return {
            "v": 1,
            "kind": "probe",
            "card": card(device, now, sandbox["word"]),
            "sandbox": sandbox,
            "user_namespaces": _user_namespaces(),
            "cgroup": _cgroup(),
            "device": None if reading is None else {**asdict(reading), "idle": reading.idle},
        }


def _sandbox(nodes: tuple[Path, ...]) -> dict[str, Any]:
    try:
        enclosure = Enclosure(find_bubblewrap(), nodes=nodes)
        held = check_sandbox(enclosure)
    except HarnessError as error:
        return {"word": UNSANDBOXED, "holds": False, "error": error.message, "hint": error.hint}
    return {"word": enclosure.word, "holds": True, **asdict(held)}


def _user_namespaces() -> bool:
    return subprocess.run([sys.executable, "-I", "-S", "-c", _MAKE_NAMESPACE], check=False).returncode == 0


def _cgroup() -> dict[str, Any]:
    enclosure = Enclosure(None)
    group = Group.make(enclosure.memory_bytes, enclosure.pids)
    try:
        caps = {"memory": False, "pids": False} if group is None else {"memory": group.memory, "pids": group.pids}
        return {"writable": group is not None, "freezes_by": way(group), **caps}
    finally:
        if group is not None:
            group.close()

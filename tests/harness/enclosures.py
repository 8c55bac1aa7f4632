"""Shared by the tests of the sandbox: small hostile engines, and what this machine lets us do."""

import contextlib
import dataclasses
import json
import os
import pwd
import shutil
import sys
from pathlib import Path

from harness.cgroup import Group, Hierarchies, hierarchies
from harness.errors import HarnessError
from harness.process import Process
from harness.sandbox import Enclosure, find_bubblewrap

ROOT = Path(__file__).parents[2]
MIB = 1 << 20
# What every hostile engine begins with: it tells what it found in one line, and then waits to be ended.
HEAD = """
import ctypes, json, os, signal, socket, sys, threading, time
def attempt(act):
    try:
        return act() or True
    except (OSError, MemoryError):
        return None
def tell(value):
    os.write(4, json.dumps(value).encode() + b"\\n")
"""
REST = "\nos.read(3, 1)\n"


def works():
    """Whether this machine encloses engines at all."""
    try:
        return bool(find_bubblewrap())
    except HarnessError:
        return False


def enclosure(**changes):
    return dataclasses.replace(Enclosure(find_bubblewrap(), memory_bytes=512 * MIB, pids=64), **changes)


@contextlib.contextmanager
def enclosed(folder, code, *words, outside=os.environ, **changes):
    """A process that runs `code` on the system tree `folder`, enclosed; nothing of it is left after the block."""
    folder.mkdir(exist_ok=True)
    command = [sys.executable, "-I", "-S", "-c", HEAD + code + REST, *words]
    process = Process(command, folder, None, dict(outside), enclosure(**changes))
    try:
        yield process
    finally:
        process.close(0)


def told(process, patience_s=20.0):
    return json.loads(process.receive(patience_s)[0])


def ways():
    """{way of freezing: the hierarchies that give it} on this machine."""
    found = hierarchies()
    possible = {
        "cgroup v2": Hierarchies(found.v2, {name: path for name, path in found.v1.items() if name != "freezer"}),
        "cgroup v1": Hierarchies(None, found.v1 if "freezer" in found.v1 else {}),
    }
    usable = {"signals": Hierarchies(None, {})}
    for way, part in possible.items():
        group = Group.make(64 * MIB, 64, part)
        if group is not None:
            if group.v2 is not None or "freezer" in group.v1:
                usable[way] = part
            group.close()
    return usable


def as_nobody(command):
    """The command as it is run by `nobody`; by whoever we are, when that is not root.

    Folders above what it needs that are closed to others are opened in a mount namespace.
    """
    if os.getuid():
        return command
    nobody = pwd.getpwnam("nobody")
    needed = [ROOT, Path(sys.prefix), Path(sys.base_prefix)]
    closed = {next(filter(is_closed, [*reversed(path.parents), path]), None) for path in needed} - {None}
    words = [find_bubblewrap().program, "--bind", "/", "/", "--dev-bind", "/dev", "/dev"]
    for folder in closed:
        words += ["--tmpfs", str(folder)]
    for path in needed:
        for above in reversed(path.parents):
            if any(above.is_relative_to(folder) for folder in closed):
                words += ["--perms", "0755", "--dir", str(above)]
        if any(path.is_relative_to(folder) for folder in closed):
            words += ["--ro-bind", str(path), str(path)]
    who = [shutil.which("setpriv"), f"--reuid={nobody.pw_uid}", f"--regid={nobody.pw_gid}", "--clear-groups"]
    return [*words, "--chdir", str(ROOT), "--setenv", "TMPDIR", "/tmp", *who, "--no-new-privs", *command]


def is_closed(folder):
    return not folder.stat().st_mode & 0o001

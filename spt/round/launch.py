"""Starts a sandbox for a controller: enters its control groups, hands it the controller's socket, becomes bubblewrap.

A program of its own, `python -I -S launch.py SPEC [WORD...]`, so that a library that starts a command line can start
this one; the standard library only.  The spec is JSON: {"socket": path, "entrances": [path], "command": [word]};
further words are handed on as the agent's own.
"""

import json
import os
import socket
import sys

FD = 3  # where the runner finds its socket

with open(sys.argv[1], encoding="utf-8") as file:  # noqa: PTH123 - as little as can be
    spec = json.load(file)
for entrance in spec["entrances"]:
    with open(entrance, "w", encoding="utf-8") as file:  # noqa: PTH123
        file.write("0")
control = socket.socket(socket.AF_UNIX)
folder = os.open(os.path.dirname(spec["socket"]), os.O_PATH)  # noqa: PTH120 - a path may be too long for a socket
control.connect(f"/proc/self/fd/{folder}/{os.path.basename(spec['socket'])}")  # noqa: PTH119
os.dup2(control.fileno(), FD + 1, inheritable=True)
os.dup2(FD + 1, FD, inheritable=True)
os.closerange(FD + 1, 1 << 16)
os.execve(spec["command"][0], [*spec["command"], *sys.argv[2:]], {"PATH": os.defpath})

"""Processes of this machine that a test has marked with a word of its own."""

import contextlib
import os
import time
from pathlib import Path


def marked(mark):
    """Processes that have `mark` as a word of their command line, zombies not counted."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if mark.encode() in path.read_bytes().split(b"\0") and path.parent.name != str(os.getpid()):
                found.append(int(path.parent.name))
    return found


def vanish(mark, patience_s=5.0):
    """Whether no process with the mark is left, before patience is."""
    deadline_s = time.monotonic() + patience_s
    while marked(mark) and time.monotonic() < deadline_s:
        time.sleep(0.01)
    return not marked(mark)

"""Runs a script of this folder in a process that sees a composed system and nothing else of ours."""

import os
import subprocess
import sys
from pathlib import Path


def run_script(name, composed, *arguments, **environment):
    """What the script says on standard output."""
    command = [sys.executable, "-P", str(Path(__file__).with_name(name)), *arguments]
    outside = {"PATH": os.environ["PATH"], "HOME": str(composed.parent), "PYTHONPATH": str(composed)}
    return subprocess.check_output(command, env={**outside, **environment}, cwd=composed.parent)

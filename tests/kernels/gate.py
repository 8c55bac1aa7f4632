"""What the compile gates share: scripts in a process of their own, without TRITON_INTERPRET, one JSON line a kernel."""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from benchmarks.hopper import compiled


def lines_of(script, cache, *cases):
    """The lines that a gate beside this file prints of some cases, or of all, with an empty kernel cache."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TRITON_")}
    environment["TRITON_CACHE_DIR"] = str(cache)
    command = [sys.executable, Path(__file__).with_name(script), *cases]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def print_lines(cases, told):
    """Compiles all that the cases launch, {name: call}, or those that the command names, and prints a line a kernel.

    told(kernel, compiled, options): what a line says beside the case, the kernel, its shared memory and its registers.
    """
    for case, call in ((name, cases[name]) for name in sys.argv[1:] or cases):
        for kernel, made, options in compiled(call, lambda *launched: launched):
            line = {"case": case, "kernel": kernel.__name__, "shared": made.metadata.shared}
            line |= usage(made.asm["cubin"]) | told(kernel, made, options)
            print(json.dumps(line), flush=True)


def shown(cubin, tool, *flags):
    """What a program that comes with Triton says of a kernel."""
    import triton

    program = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / tool
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        return subprocess.run([program, *flags, file.name], capture_output=True, text=True, check=True).stdout


def usage(cubin):
    """Registers, stack and local bytes of a kernel; a spill shows as stack or local."""
    report = shown(cubin, "cuobjdump", "-res-usage")
    return {key.lower(): int(value) for key, value in re.findall(r"(REG|STACK|LOCAL):(\d+)", report)}


def t(*shape, dtype=torch.bfloat16):
    """A tensor without bytes."""
    return torch.empty(*shape, dtype=dtype, device="meta")

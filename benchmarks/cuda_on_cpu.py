"""A machine that runs CUDA C++ kernels on a CPU: compiled by its C++ compiler, no GPU needed.

Threads of a block take turns, and numbers are those of a GPU but for the order of sums within a product of matrices.
"""

import ctypes
import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from benchmarks.overlay import overlay

overlay("w12-linear", "kernels")

from kernels.w12_cuda import KERNELS, Arguments  # type: ignore[import-not-found] # noqa: E402

HEADER = Path(__file__).with_name("cuda_on_cpu.h")
LAUNCHERS = "".join(
    f'extern "C" void launch_{name}(const Arguments& p, int gx, int gy, int threads, long shared_bytes) {{'
    f" for (int y = 0; y < gy; y++) for (int x = 0; x < gx; x++)"
    f" run_block(x, y, threads, shared_bytes, [&] {{ {name}(p); }}); }}\n"
    for name in ("w12_multiply", "w12_finish", "w12_unpack")
)


class Cpu:
    """Runs a launch to its end before it returns."""

    def launch(
        self,
        kernel: str,
        constants: Mapping[str, int],
        grid: tuple[int, int],
        threads: int,
        shared_bytes: int,
        arguments: Arguments,
    ) -> None:
        """As `kernels.w12_cuda.Machine` says."""
        function = getattr(library(tuple(sorted(constants.items()))), f"launch_{kernel}")
        function(ctypes.byref(arguments), *grid, threads, ctypes.c_long(shared_bytes))


@lru_cache
def library(constants: tuple[tuple[str, int], ...]) -> ctypes.CDLL:
    """The kernels for some constants, as a shared library."""
    compiler = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    assert compiler, "a C++ compiler is needed to run CUDA kernels on a CPU: install g++"
    source = f'#include "{HEADER}"\n' + KERNELS.replace("extern __shared__", "// shared:") + LAUNCHERS
    words = [f"-D{name}={value}" for name, value in constants]
    name = hashlib.sha256((HEADER.read_text() + source + " ".join(words)).encode()).hexdigest()[:16]
    folder = Path(tempfile.mkdtemp(prefix="cuda-on-cpu-"))
    try:
        (folder / f"{name}.cpp").write_text(source)
        out = folder / f"{name}.so"
        flags = ["-std=c++17", "-O1", "-ffp-contract=off", "-shared", "-fPIC", "-w"]
        subprocess.run([compiler, *flags, *words, folder / f"{name}.cpp", "-o", out], check=True)
        return ctypes.CDLL(str(out))
    finally:
        shutil.rmtree(folder)

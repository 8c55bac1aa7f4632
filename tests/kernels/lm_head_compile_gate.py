"""Compiles lm_head for sm_90 as it is launched at real heads, on a machine without a GPU, with the product beside it.

Run as gate.py says; of the pass over the plane, and of what multiplies again, a line has the instructions a weight, and
of the latter and of the product itself the operands' layouts, which fix the order of sums within an instruction.
"""

import re
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.overlay import overlay
from tests.kernels.gate import print_lines, t
from tests.kernels.w12_compile_gate import counted, only, without_bytes

overlay("certified-lm-head", "kernels")

from kernels.lm_head import Config, lm_head  # noqa: E402
from kernels.lm_head_bounds import COUNTED, Bounds  # noqa: E402
from kernels.w12_gemm import config_for, w12_gemm  # noqa: E402

N, K = 151936, 4096
LOOPS = ("lm_head_bounds_kernel", "lm_head_rescore_kernel", "w12_gemm_kernel")


def told(kernel, made, options):
    """What a weight costs, and how operands lie."""
    if kernel.__name__ not in LOOPS:
        return {}
    plan = options["P"]
    line = counted(made.asm["cubin"], plan.block_n * plan.unit * 128 // (32 * options["num_warps"]))
    text = made.asm["ttgir"]
    aliases = dict(re.findall(r"^(#\w+) = (.*)$", text, re.MULTILINE))
    layouts = set()
    for dot in re.findall(r"(?:tt\.dot|ttng\.warp_group_dot) .*", text):
        layouts.update(re.findall(r"(?:version|versionMajor) = \d+|instrShape = \[[\d, ]+\]|kWidth = \d+", dot))
        for alias in re.findall(r"#\w+", dot):
            found = aliases.get(alias, "")
            layouts.update(re.findall(r"versionMajor = \d+|instrShape = \[[\d, ]+\]|kWidth = \d+", found))
    return line | {"layouts": sorted(layouts)}


def made(n, k, rows, head=None, config=None, hot=False):
    weight = without_bytes(n, k, head or config_for(n, k), False)
    some, where = t(n, dtype=torch.float32), t(n + 1, dtype=torch.int32)
    bounds = Bounds(some, some, where, t(8, dtype=torch.int32), t(8))
    position, counts = t(rows, dtype=torch.int64), t(len(COUNTED), dtype=torch.int64)
    noise = position, position, t(rows, dtype=torch.float32)

    def call():
        lm_head(t(rows, k), weight, bounds, *noise, hot=hot, counts=counts, config=config)
        w12_gemm(t(rows, k), weight)

    return call


CASES = {
    **{f"{rows}": made(N, K, rows) for rows in (1, 32, 64, 128)},
    **{f"sampled {rows}": made(N, K, rows, hot=True) for rows in (16, 64)},
    "mma stream": made(N, K, 16, only("mma", 64, 396), Config("mma", 64, unit=2, num_stages=3)),
    "mma 64": made(N, K, 64, only("mma", 128, 1187, num_warps=8, num_stages=3, chunk=32), Config("wgmma")),
    "wgmma stream": made(49152, 4608, 16, only("wgmma", 64, 264), Config("wgmma", 64)),
    "wgmma 64": made(N, K, 64, only("wgmma", 128, 1187, num_stages=3), Config("wgmma", 256, num_warps=8, num_stages=3)),
    "two groups": made(N, K, 16, only("wgmma", 64, 2374, unit=2, num_stages=3), Config("mma", 32, num_warps=2)),
}

if __name__ == "__main__":
    print_lines(CASES, told)

"""Compiles w12_gemm for sm_90 as it is launched at real shapes, on a machine without a GPU.

Run as gate.py says; of the loop over units a line has the instructions a weight by kind.
"""

import re
import sys
from collections import Counter
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.overlay import overlay
from tests.kernels.gate import print_lines, shown, t

overlay("w12-linear", "kernels")

from kernels.w12_gemm import BUCKETS, Config, Schedule, Tile, Weight, config_for, w12_gemm  # noqa: E402

SHAPES = {
    "qkv": (7680, 4608),
    "gate_up": (24576, 4608),
    "down": (4608, 12288),
    "head": (49152, 4608),
    "wide": (17408, 5120),
    "narrow": (576, 576),
}
# What runs on the pipe of logic, shifts, permutes and integer sums; a moved register may run on either.
ALU = {"LOP3", "SHF", "PRMT", "IADD3", "VIADD", "LEA", "ISETP", "SEL", "VIMNMX", "PLOP3", "MOV"}


def sass(cubin):
    """The instructions of a kernel, and the loops in them as (first, last)."""
    labels, found = {}, []
    for line in shown(cubin, "nvdisasm", "-c").splitlines():
        if label := re.match(r"\s*(\.L_x_\d+):", line):
            labels[label[1]] = len(found)
        elif instruction := re.match(r"\s*/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+\s+)?(.*?)\s*;", line):
            found.append(instruction[1])
    jumps = [(index, re.search(r"BRA.*(\.L_x_\d+)", one)) for index, one in enumerate(found)]
    loops = [(labels[jump[1]], index) for index, jump in jumps if jump and labels.get(jump[1], index + 1) <= index]
    return found, loops


def counted(cubin, weights):
    """Instructions a weight of the tightest loop that multiplies all that a unit has, and counts of its kinds."""
    found, loops = sass(cubin)

    def products(loop):
        return sum(one.startswith(("HMMA", "HGMMA")) for one in found[loop[0] : loop[1] + 1])

    first, last = max(loops, key=lambda loop: (products(loop), loop[0] - loop[1]))
    kinds = Counter(one.split()[0].split(".")[0] for one in found[first : last + 1])
    alu = sum(count for kind, count in kinds.items() if kind in ALU)
    moved = {kind: kinds[kind] for kind in ("HMMA", "HGMMA", "LDS", "LDSM", "LDGSTS", "UTMALDG", "HMUL2", "HFMA2")}
    return {
        "issued": round(sum(kinds.values()) / weights, 2),
        "alu": round(alu / weights, 2),
        "spilled": sum(one.startswith(("STL", "LDL")) for one in found[first : last + 1]),
        **{kind: count for kind, count in moved.items() if count},
    }


def told(kernel, made, options):
    """What a weight costs in the product itself."""
    if kernel.__name__ != "w12_gemm_kernel":
        return {}
    plan = options["P"]
    return counted(made.asm["cubin"], plan.block_n * plan.unit * 128 // (32 * options["num_warps"]))


def without_bytes(n, k, config, paired):
    """A weight on the device "meta", with which a product compiles and does not run."""
    block_n, groups = config.schedule.block_n, -(-k // 128)
    tiles = -(-(n // 2) // (block_n // 2)) if paired else -(-n // block_n)
    planes = t(tiles, groups, 2, block_n, 64, dtype=torch.uint8), t(tiles, groups, block_n, 64, dtype=torch.uint8)
    starts, columns = t(n + 1, dtype=torch.int32), t(64, dtype=torch.int32)
    turns = t(tiles, dtype=torch.int32)
    return Weight(n, k, config, paired, *planes, t(n, dtype=torch.int16), starts, columns, t(64), turns)


def made(name, rows, config=None, paired=False, **options):
    n, k = SHAPES[name]
    weight = without_bytes(n, k, config or config_for(n, k, paired), paired)
    return lambda: w12_gemm(t(rows, k), weight, **options)


def only(path, block_n, programs, unit=1, **tile):
    return Config(Schedule(path, block_n, unit, programs), dict.fromkeys(BUCKETS, Tile(**tile)))


CASES = {
    **{
        f"{name} {rows}": made(name, rows, paired=name == "gate_up") for name in ("gate_up", "down") for rows in BUCKETS
    },
    **{f"{name} {rows}": made(name, rows) for name in ("qkv", "head", "narrow") for rows in (1, 33)},
    **{f"{name} view {rows}": made(name, rows, view=True) for name in ("down", "head") for rows in (16, 64)},
    "residual": made("down", 16, residual=t(16, 4608)),
    "bias": made("qkv", 16, bias=t(7680)),
    "float32": made("head", 16, dtype=torch.float32),
    "mma": made("wide", 16, only("mma", 64, 272, num_stages=5)),
    "mma view": made("wide", 16, only("mma", 64, 272, num_stages=5), view=True),
    "mma 32": made("wide", 32, only("mma", 128, 272, chunk=32)),
    "mma stream": made("wide", 16, only("mma", 64, 396, num_stages=5)),
    "wgmma": made("wide", 16, only("wgmma", 128, 272)),
    "wgmma 64": made("wide", 64, only("wgmma", 128, 272)),
    "wgmma stream": made("wide", 16, only("wgmma", 128, 264)),
    "wgmma descriptors": made("wide", 64, only("wgmma", 128, 272, descriptors=True)),
    "mma descriptors": made("wide", 16, only("mma", 128, 272, descriptors=True)),
    "two groups": made("wide", 16, only("wgmma", 64, 544, unit=2, num_stages=3)),
}

if __name__ == "__main__":
    print_lines(CASES, told)

"""Compiles every kernel for sm_90 as its launcher would launch it, on a machine without a GPU.

Run as gate.py says: launchers get tensors of the device "meta", and each launch compiles instead of running.
"""

import re
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[2]))

from kernels.accept import accept
from kernels.ancestors import ancestors
from kernels.compact import compact
from kernels.gemv import Config, gemv
from kernels.rms_norm import rms_norm
from kernels.rope_append import rope_append, rope_append_kv
from kernels.sample import sample
from kernels.silu_mul import silu_mul
from kernels.top_ranks import top_ranks
from kernels.tree_attention import tree_attention
from tests.kernels.gate import print_lines, t

BF16, F32, I32, I64 = torch.bfloat16, torch.float32, torch.int32, torch.int64


def told(kernel, made, options):
    """The instructions that matter."""
    ptx = made.asm["ptx"]
    return {
        "evict_first": re.findall(r"ld\.global\.L1::evict_first\S*", ptx),
        **{word: len(re.findall(word, ptx)) for word in ("mma.sync", "wgmma.mma", "cp.async.c", "griddepcontrol")},
    }


def attend(n, hq, hkv, d, dtype=BF16, window=None):
    return tree_attention(
        t(n, hq, d, dtype=dtype),
        t(4096, hkv, d, dtype=dtype),
        t(4096, hkv, d, dtype=dtype),
        t(1, dtype=I32),
        t(n, -(-n // 64), dtype=I64),
        scale=0.125,
        window=window,
        position=t(n, dtype=I64),
    )


def rope(hq, hkv, d, dtype=BF16, norm=False):
    tables = [t(4096, d // 2, dtype=F32) for _ in range(2)]
    caches = [t(4096, hkv, d, dtype=dtype) for _ in range(2)]
    q_norm = k_norm = t(d, dtype=dtype) if norm else None
    qkv, position = t(64, (hq + 2 * hkv) * d, dtype=dtype), t(64, dtype=I64)
    rope_append(qkv, position, *tables, *caches, t(1, dtype=I32), q_norm=q_norm, k_norm=k_norm)
    rope_append_kv(t(64, 2 * hkv * d, dtype=dtype), position, *tables, *caches, t(64, dtype=I32), k_norm=k_norm)


CASES = {
    "rms_norm": lambda: rms_norm(t(64, 4608), t(4608), 1e-5),
    "rms_norm float32": lambda: rms_norm(t(1, 5120, dtype=F32), t(5120, dtype=F32), 1e-5),
    "silu_mul float32": lambda: silu_mul(t(64, 24576, dtype=F32)),
    "silu_mul": lambda: silu_mul(t(64, 24576)),
    "gemv out": lambda: gemv(t(1, 4608), t(4608, 4608), residual=t(1, 4608)),
    "gemv qkv": lambda: gemv(t(1, 4608), t(7680, 4608), norm=t(4608), bias=t(7680)),
    "gemv gate_up": lambda: gemv(t(1, 4608), t(24576, 4608), norm=t(4608), silu_mul=True),
    "gemv wide rows": lambda: gemv(t(1, 4608), t(49152, 4608), norm=t(4608), config=Config(8, 1024, 4)),
    "gemv small": lambda: gemv(t(1, 1536), t(576, 1536), residual=t(1, 576)),
    "gemv float32": lambda: gemv(t(1, 896, dtype=F32), t(896, 896, dtype=F32)),
    "gemv down": lambda: gemv(t(1, 12288), t(4608, 12288), residual=t(1, 4608)),
    "rope": lambda: rope(72, 24, 64),
    "rope norm": lambda: rope(32, 8, 128, norm=True),
    "rope float32": lambda: rope(9, 3, 80, dtype=F32, norm=True),
    "attention one row": lambda: attend(1, 72, 24, 64),
    "attention 64 rows": lambda: attend(64, 72, 24, 64),
    "attention 128 rows": lambda: attend(128, 32, 8, 128),
    "attention wide heads": lambda: attend(64, 16, 1, 256),
    "attention window": lambda: attend(16, 32, 2, 80, window=512),
    "attention float32": lambda: attend(64, 16, 8, 64, dtype=F32),
    "ancestors": lambda: [ancestors(t(n, dtype=I32)) for n in (1, 64, 1024)],
    "accept": lambda: [accept(t(n, dtype=I64), t(n, dtype=I32), t(n, dtype=I64)) for n in (1, 64, 1024)],
    "compact": lambda: compact(t(30, 2, 4096, 24, 64), t(1, dtype=I32), t(16, dtype=I32), t(1, dtype=I32)),
    "compact long": lambda: compact(t(30, 2, 4096, 24, 64), t(1, dtype=I32), t(1024, dtype=I32), t(1, dtype=I32)),
    "compact float32": lambda: compact(
        t(2, 2, 512, 3, 80, dtype=F32), t(1, dtype=I32), t(16, dtype=I32), t(1, dtype=I32)
    ),
    "top_ranks 1": lambda: top_ranks(t(16, 49152), 1),
    "top_ranks 64": lambda: top_ranks(t(16, 262144, dtype=F32), 64),
    "sample float32": lambda: sample(t(1, 151936, dtype=F32), t(1, dtype=I64), t(1, dtype=I64), t(1, dtype=F32)),
    "sample": lambda: sample(t(16, 49152), t(16, dtype=I64), t(16, dtype=I64), t(16, dtype=F32)),
}

if __name__ == "__main__":
    print_lines(CASES, told)

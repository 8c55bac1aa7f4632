"""Runs the kernel of best-first-tree against its twin and against the heap, in a process of its own.

    python best_first_kernel.py compare|compile DEVICE

The system's folder is on PYTHONPATH; on a CPU TRITON_INTERPRET is set, and for `compile` it is not.
"""

import json
import sys

import torch

CASES = [  # depths, ranks, rows, depth limit, ties
    (1, 1, 2, 1, False),
    (3, 2, 6, 3, False),
    (2, 3, 13, 2, True),
    (15, 8, 33, 15, False),
    (15, 16, 64, 8, True),
    (15, 4, 128, 15, True),
    (4, 64, 256, 4, False),
]


def compare(device: str) -> None:
    """Every case three times over: kernel, twin and the engine's heap give one tree."""
    from kernels.best_first import best_first, best_first_reference
    from stock.ops.best_first import grow

    for seed, (depths, ranks, rows, limit, ties) in enumerate(CASES):
        generator = torch.Generator().manual_seed(seed)
        logprobs, ids = (3 * torch.randn(depths, 80, generator=generator)).log_softmax(1).topk(ranks)
        logprobs = (4 * logprobs).round() / 4 if ties else logprobs.half().float()
        lattice = [part.contiguous() for part in (torch.tensor([7]), ids, logprobs)]
        there = [part.to(device) for part in lattice]
        ours = [part.cpu() for part in best_first(*there, rows, limit)]
        for theirs in (best_first_reference(*lattice, rows, limit), grow(*lattice, rows, limit)):
            assert all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True)), CASES[seed]
    print(len(CASES))


def compiled() -> None:
    """The kernel compiles for sm_90 without shared memory: one warp, all in registers."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from kernels import best_first

    names = best_first.best_first_kernel.arg_names
    kinds = {"token_ptr": "*i64", "score_ptr": "*fp64", "logprobs_ptr": "*fp32"}
    constants = {"SLOTS": 256, "DEPTH": best_first._DEPTH, "PARENT": best_first._PARENT, "NOBODY": best_first._NOBODY}
    kind = {name: kinds.get(name, "*i64" if name.endswith("_ptr") else "i32") for name in names}
    source = ASTSource(
        best_first.best_first_kernel, signature=kind | dict.fromkeys(constants, "constexpr"), constexprs=constants
    )
    made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 1})
    print(json.dumps({"shared": made.metadata.shared, "cubin": len(made.asm["cubin"])}))


if __name__ == "__main__":
    compare(sys.argv[2]) if sys.argv[1] == "compare" else compiled()

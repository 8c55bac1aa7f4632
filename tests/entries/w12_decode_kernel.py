"""Runs the decoding kernel of w12-linear against its twin, in a process of its own.

    python w12_decode_kernel.py compare|compile DEVICE

The system's folder is on PYTHONPATH; on a CPU TRITON_INTERPRET is set, and for `compile` it is not.
"""

import json
import sys

import torch

CASES = [  # n, k, paired: tiles and groups that are not full, and full ones
    (1, 1, False),
    (65, 130, False),
    (128, 128, False),
    (130, 300, True),
    (256, 640, True),
    (70, 65, True),
]


def bits_of(n: int, k: int, seed: int) -> torch.Tensor:
    """Half a matrix as trained, half any bits at all."""
    generator = torch.Generator().manual_seed(seed)
    trained = (torch.randn(n, k, generator=generator) / 9).bfloat16().view(torch.int16)
    anything = torch.randint(-(1 << 15), 1 << 15, (n, k), generator=generator).to(torch.int16)
    return torch.where(torch.rand(n, k, generator=generator) < 0.9, trained, anything)


def compare(device: str) -> None:
    """Every case: the kernel and its twin give the bits that were packed, and write nothing beside them."""
    from kernels.w12 import encode
    from kernels.w12_decode import w12_decode, w12_decode_reference
    from kernels.w12_gemm import arrange

    for seed, (n, k, paired) in enumerate(CASES):
        bits = bits_of(n, k, seed).to(device)
        weight = arrange(encode(bits.view(torch.bfloat16)), paired=paired)
        room = torch.full((n + 2, k), torch.nan, dtype=torch.bfloat16, device=device)
        out = w12_decode(weight, room[1:-1])
        assert torch.equal(out.view(torch.int16), bits), CASES[seed]
        assert torch.equal(w12_decode_reference(weight).view(torch.int16), bits), CASES[seed]
        assert bool(room[0].isnan().all()) and bool(room[-1].isnan().all()), CASES[seed]
    print(len(CASES))


def compiled() -> None:
    """The kernel compiles for sm_90 at a layer's shape."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from kernels.w12_decode import w12_decode_kernel as kernel

    constants = {"GROUPS": 36, "BLOCK_N": 64, "HALF": 64, "PAIRED": True}
    kinds = {"high_ptr": "*u8", "low_ptr": "*u8", "base_ptr": "*i16", "bits_ptr": "*i16", "n": "i32", "k": "i32"}
    attributes = {(kernel.arg_names.index(name),): [["tt.divisibility", 16]] for name in kinds}
    source = ASTSource(kernel, kinds | dict.fromkeys(constants, "constexpr"), constants, attributes)
    made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 8})
    wide = {f"{kind}.v4" for kind in ("ld.global", "st.global") if f"{kind}.v4" in made.asm["ptx"]}
    print(json.dumps({"shared": made.metadata.shared, "cubin": len(made.asm["cubin"]), "wide": sorted(wide)}))


if __name__ == "__main__":
    compare(sys.argv[2]) if sys.argv[1] == "compare" else compiled()

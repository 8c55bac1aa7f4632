"""w12_cuda compiles for an H200 as it is launched: nothing spills, it fits, and decoding leaves time for memory."""

import re

import pytest

from benchmarks.hopper import SHARED_LIMIT
from benchmarks.overlay import overlay
from tests.kernels.gate import shown

overlay("w12-linear", "kernels")

from kernels.w12_cuda import compiled  # noqa: E402
from kernels.w12_mma import BOTH, CONFIGS, PLAIN, TOKENS, VIEW, _shared_bytes, constants_for  # noqa: E402

WARPS = sorted({config.warps for config in CONFIGS.values()})
ALU = ("LOP3", "SHF", "PRMT", "IADD3", "VIADD", "LEA", "ISETP", "SEL", "MOV")


def code_of(tokens, warps, kind):
    return compiled(tuple(sorted(constants_for(tokens, warps, kind).items())), "sm_90a")


def usage(cubin):
    """Registers and bytes of stack of each kernel."""
    told = shown(cubin, "cuobjdump", "-res-usage")
    return {
        name: (int(used), int(stack)) for name, used, stack in re.findall(r"(w12_\w+):\s+REG:(\d+) STACK:(\d+)", told)
    }


@pytest.mark.parametrize("kind", [BOTH, VIEW, PLAIN], ids=["both planes", "view", "plain"])
@pytest.mark.parametrize("tokens", [16, 48])
@pytest.mark.parametrize("warps", [4, *WARPS])
def test_nothing_spills_and_everything_fits(tokens, warps, kind):
    """Up to 48 rows no kernel of a config that is chosen keeps registers in memory, and a processor holds it."""
    found = usage(code_of(tokens, warps, kind))
    assert found.keys() == {"w12_multiply", "w12_finish", "w12_unpack"}
    assert [name for name, (_, stack) in found.items() if stack] == []
    assert found["w12_multiply"][0] * 32 * warps <= 65536
    assert all(_shared_bytes(each) <= SHARED_LIMIT for each in TOKENS)


def test_decoding_leaves_time_for_memory():
    """A weight takes at most six tenths of the instructions that 90 % of an H200's bandwidth leaves for it.

    At 4.8 TB/s each of 132 processors at 1.98 GHz gets 11.0 weights of 12 bits a clock at 90 %, and issues 128
    instructions a clock, 64 of them to the pipe of integers: 11.6 and 5.8 a weight.
    """
    lines = shown(code_of(16, WARPS[0], BOTH), "cuobjdump", "-sass", "-fun", "w12_multiply").splitlines()
    found = [one[1] for line in lines if (one := re.search(r"/\*[0-9a-f]{4}\*/\s+(?:@!?U?P\w+\s+)?(\S+?)[ ;.]", line))]
    products = [index for index, name in enumerate(found) if name == "HGMMA"]
    assert len(products) == 16  # four steps of two halves of rows by two of columns
    loop = found[products[0] - 200 : products[-1]]  # with the decoding of the first step, which stands before it
    weights = 4 * 1024 // 32  # that a lane decodes in a unit

    assert len(loop) / weights <= 0.6 * 11.6
    assert sum(name in ALU for name in loop) / weights <= 0.6 * 5.8


def test_what_does_not_compile_is_an_error_with_the_compilers_words():
    """A compiler's complaint reaches who asked, and is no crash."""
    constants = constants_for(16, 4, BOTH) | {"TOKENS": 17}
    with pytest.raises(RuntimeError, match=r"(?i)wgmma|error"):
        compiled(tuple(sorted(constants.items())), "sm_90a")

"""What a compiled kernel's tightest loop costs, by its machine code."""

import re
from collections import Counter

from tests.kernels.gate import shown

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

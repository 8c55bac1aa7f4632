"""How fast this processor copies, reads and multiplies: a program that is run as a child and imports numpy alone.

python rates.py [--threads N]      one JSON object: copy_bytes_s, read_bytes_s, gemm_flops_s
"""

import json
import sys
import time
from collections.abc import Callable
from typing import Any

MEGABYTES = 256  # beyond any cache of today
SIDE = 1024
REPEATS = 5


def main() -> None:
    """Prints the best of a few tries of each."""
    import numpy

    rng = numpy.random.default_rng(0)
    source = numpy.resize(rng.random(1 << 20, dtype=numpy.float32), MEGABYTES << 18)
    to = numpy.empty_like(source)
    left, right = (rng.random((SIDE, SIDE), dtype=numpy.float32) for _ in range(2))
    vector = rng.random(SIDE, dtype=numpy.float32)
    matrix = source.reshape(-1, SIDE)

    def copy() -> Any:
        numpy.copyto(to, source)

    copy_bytes_s = 2 * source.nbytes / best_s(copy)
    weights_bytes_s = matrix.nbytes / best_s(lambda: matrix @ vector)  # what decoding does: weights times a row
    found = {
        "copy_bytes_s": copy_bytes_s,
        "read_bytes_s": max(weights_bytes_s, copy_bytes_s),  # memory can be read as fast as it is read and written
        "gemm_flops_s": 2 * SIDE**3 / best_s(lambda: left @ right),
    }
    json.dump(found, sys.stdout)


def best_s(action: Callable[[], Any]) -> float:
    """Seconds of the fastest of a few calls, the first of which is not counted."""
    times_s = []
    for _ in range(REPEATS + 1):
        begin_s = time.perf_counter()
        action()
        times_s.append(time.perf_counter() - begin_s)
    return min(times_s[1:])


if __name__ == "__main__":
    main()

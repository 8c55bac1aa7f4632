"""Decodes with packed weights inside one process, to see what a worker does not tell.

    python w12_engine.py TARGET DTYPE DEVICE

The composed system's folder is on PYTHONPATH.  Prints one JSON object.
"""

import json
import sys
from pathlib import Path

from stock.engine import Engine, Request
from stock.sampling import Sampling
from stock.system import Settings, load_system

PROMPT, ANSWER = 300, 6


def engine(target: Path, dtype: str, device: str, linear: str) -> Engine:
    """A fast engine without a drafter; on a GPU its passes are captured."""
    loaded = Engine(
        load_system(
            Settings(
                target=target,
                widen=1,
                jitter=0,
                drafter=None,
                dtype=dtype,
                device=device,
                mode="fast",
                head="model",
                options={"linear": linear},
                prepared=None,
                context=PROMPT + ANSWER,
                requests=1,
            )
        )
    )
    loaded.warm_up()
    return loaded


def main(target: Path, dtype: str, device: str) -> None:
    """Counts decoded matrices after each step of an answer, and the bytes that stay."""
    made = engine(target, dtype, device, "w12")
    (linear,) = made.system.linears
    dense = engine(target, dtype, device, "dense").system
    before, counts = int(linear.decoded), []
    ids = [token % 12 for token in range(PROMPT)]
    made.open(Request("a", ids, ANSWER, frozenset(), True, Sampling()))
    while made.requests:
        made.step()
        counts.append(int(linear.decoded) - before)
    told = {
        "packed": sorted(linear.packed),
        "stays": sorted(linear.stays),
        "left": sorted(made.system.target.weights),
        "counts": counts,
        "escaped": sum(len(weight.columns) for weight in linear.packed.values()),
        "head_bytes": made.system.target.draft_head.numel(),
        "bytes": made.system.resident_bytes(),
        "dense_bytes": dense.resident_bytes(),
        "scratch_bytes": linear.scratch.numel() * 2,
    }
    print(json.dumps(told))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])

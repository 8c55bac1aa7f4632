"""Times products with W12 weights against cuBLAS and their like, in CUDA-graph replay over rotating weights.

    python -m benchmarks.w12_gemm --out rows.jsonl                              every shape, peers in the same run
    python -m benchmarks.w12_gemm --out tune.jsonl --tune --max-minutes 5       searches a config for each shape
    python -m benchmarks.w12_gemm --out rows.jsonl --configs tune.jsonl         with what the search found
    python -m benchmarks.w12_gemm --out smoke.jsonl --smoke [--tune]            tiny shapes on a CPU

Each product is held against its twin before its time is taken; a row whose result is wrong is written as failed, has
no time, and makes the exit code 1.  A W12 product must also have, row by row, the bits that it has in a batch of 128.
One JSON line a measurement goes to --out; what it already holds for the same kernels, card, torch and Triton is not
measured again, so a run that --max-minutes ended goes on where it stopped.

cublas: the library's product with the BF16 matrix.  w12: 12 bits a weight.  view: the high plane alone.  bf16: the same
kernel on the BF16 matrix, nothing decoded.  triton: `w12_gemm`, 12 bits a weight.  unpacked: the whole matrix decoded
to BF16, then cuBLAS, which is how formats that do not multiply packed weights work.  A gated weight is followed by SiLU
and product everywhere.
Bytes are those that a call must read of the weight, packed where it is packed; share is over the rate at which an
elementwise kernel copies in the same run.
"""

import argparse
import functools
import itertools
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

if "--smoke" in sys.argv:  # Triton reads it at import
    os.environ["TRITON_INTERPRET"] = "1"

import torch
import torch.nn.functional as F
import triton
from torch import Tensor

from benchmarks.kernels import SMOKE, Bench, Case, Measure, Pair, Sizes
from benchmarks.overlay import ENTRIES, overlay
from benchmarks.rows import read_lines
from kernels.silu_mul import silu_mul, silu_mul_reference

TREE = ENTRIES / "w12-linear" / "tree" / "kernels"
overlay("w12-linear", "kernels")

from kernels import w12_gemm as on_triton  # type: ignore[attr-defined] # noqa: E402
from kernels.w12 import Packed, encode  # type: ignore[import-not-found] # noqa: E402
from kernels.w12_cuda import Machine  # type: ignore[import-not-found] # noqa: E402
from kernels.w12_mma import (  # type: ignore[import-not-found] # noqa: E402
    MOST_ROWS,
    Config,
    Strips,
    config_for,
    plain_strips,
    strips,
    w12_mma,
    w12_mma_decode,
    w12_mma_reference,
)

BF16 = torch.bfloat16
PEERS = ("cublas", "w12", "view", "bf16", "triton", "unpacked")
TUNED_ROWS = (1, 16, 48, 64)  # of which each config is timed
PROCESSORS = 132  # of an H200


@dataclass(frozen=True)
class Shape:
    """A weight [n, k] of a target; gated: its first half are gates of the second."""

    name: str
    n: int
    k: int
    gated: bool = False

    def words(self, rows: int) -> dict[str, int | str]:
        """What tells a row of --out from others, beside op and config."""
        return {"name": self.name, "n": self.n, "k": self.k, "rows": rows}


SHAPES = (
    Shape("17408x5120", 17408, 5120),
    Shape("gate_up", 24576, 4608, gated=True),
    Shape("down", 4608, 12288),
    Shape("5120x5120", 5120, 5120),
    Shape("qkv", 7680, 4608),
    Shape("out", 4608, 4608),
    Shape("24576x4096", 24576, 4096),
    Shape("4096x12288", 4096, 12288),
    Shape("12288x4096", 12288, 4096),
    Shape("head", 49152, 4608),
    Shape("151936x4096", 151936, 4096),
)
ROWS = (1, 8, 16, 32, 48, 64)
SMOKE_SHAPES, SMOKE_ROWS = (Shape("tiny", 70, 260), Shape("gate_up", 66, 130, gated=True)), (1, 17)


class Matrices:
    """One shape's matrix in every form that a product wants, in as many copies as rotate.

    Copies are made when they are asked for; all are dropped with `drop`.
    """

    def __init__(self, shape: Shape, device: torch.device) -> None:
        self.shape = shape
        generator = torch.Generator(device).manual_seed(shape.n * 131 + shape.k)
        size = (shape.n, shape.k)
        self.matrix = torch.empty(size, dtype=BF16, device=device).normal_(std=shape.k**-0.5, generator=generator)
        self.x = torch.empty(MOST_ROWS, shape.k, dtype=BF16, device=device).normal_(generator=generator)
        self.copies: dict[Any, list[Any]] = {}

    @functools.cached_property
    def packed(self) -> Packed:
        return encode(self.matrix)

    def drop(self) -> None:
        """Lets all copies go."""
        self.copies.clear()

    def taken(self, form: Any, first: Callable[[], Any], copy: Callable[[Any], Any], index: int) -> Any:
        """Copy `index` of a form of the matrix, made by `first` or from it by `copy`."""
        held = self.copies.setdefault(form, [])
        while len(held) <= index:
            held.append(copy(held[0]) if held else first())
        return held[index]

    def strips(self, config: Config, index: int, *, plain: bool = False) -> Strips:
        """The matrix for a config, packed or plain: configs of one tile height share their copies."""

        def first() -> Strips:
            if plain:
                return plain_strips(self.matrix, config, self.shape.gated)
            return strips(self.packed, config, self.shape.gated)

        def copy(weight: Strips) -> Strips:
            return replace(weight, high=weight.high.clone(), low=weight.low.clone())

        return replace(self.taken(("strips", plain, config.warps), first, copy, index), config=config)

    def tiles(self, index: int) -> Any:
        """The packed matrix as `w12_gemm` on Triton reads it."""

        def copy(weight: Any) -> Any:
            return replace(weight, high=weight.high.clone(), low=weight.low.clone(), turns=weight.turns.clone())

        return self.taken("triton", lambda: on_triton.arrange(self.packed, None, self.shape.gated), copy, index)

    def dense(self, index: int) -> Tensor:
        return self.taken("bf16", lambda: self.matrix, Tensor.clone, index)  # type: ignore[no-any-return]


class Products:
    """Builds the cases of one shape; machine: what runs our kernels where no GPU does."""

    def __init__(self, matrices: Matrices, machine: Machine | None) -> None:
        self.shape, self.m, self.machine = matrices.shape, matrices, machine
        self.bf16_bytes = 2 * self.shape.n * self.shape.k
        self.high_bytes = self.shape.n * -(-self.shape.k // 128) * 128
        self.twins: dict[tuple[int, bool], Tensor] = {}

    def _gated(self, y: Tensor) -> Tensor:
        return silu_mul(y) if self.shape.gated else y

    def _plain(self, x: Tensor) -> Tensor:
        """The twin of products that round before they gate."""
        y = F.linear(x.float(), self.m.matrix.float()).to(BF16)
        return silu_mul_reference(y) if self.shape.gated else y

    def _case(self, op: str, rows: int, moved: int, make: Callable[[int], Pair], config: dict[str, Any]) -> Case:
        index = itertools.count()
        return Case(op, self.shape.words(rows), moved, lambda: make(next(index)), config)

    def cublas(self, rows: int) -> Case:
        x = self.m.x[:rows]

        def make(index: int) -> Pair:
            weight = self.m.dense(index)
            return lambda: self._gated(F.linear(x, weight)), lambda: self._plain(x)

        return self._case("cublas", rows, self.bf16_bytes, make, {})

    def w12(self, rows: int, config: Config, view: bool = False) -> Case:
        """The product itself, which must also have the bits that it has in the largest batch."""
        x, product = self.m.x[:rows], functools.partial(w12_mma, view=view, machine=self.machine)

        def make(index: int) -> Pair:
            weight = self.m.strips(config, index)

            def twin() -> Tensor:
                if not torch.equal(product(self.m.x, weight)[:rows], product(x, weight)):
                    raise AssertionError("a row's bits depend on the batch")
                return self._wanted(rows, view)

            return lambda: product(x, weight), twin

        moved = self.high_bytes if view else self.high_bytes * 3 // 2
        return self._case("view" if view else "w12", rows, moved, make, asdict(config))

    def tried(self, rows: int, config: Config) -> Case:
        """The product for a search."""
        case = self.w12(rows, config)
        return replace(case, op="try", make=lambda: (case.make()[0], lambda: self._wanted(rows)))

    def _wanted(self, rows: int, view: bool = False) -> Tensor:
        """The twin's answer, one for all configs, which differ in rounding alone."""
        if (rows, view) not in self.twins:
            weight = self.m.strips(config_for(self.shape.n, self.shape.k, self.shape.gated), 0)
            self.twins[rows, view] = w12_mma_reference(self.m.x[:rows], weight, view=view)
        return self.twins[rows, view]

    def unpacked(self, rows: int, config: Config) -> Case:
        x = self.m.x[:rows]

        def make(index: int) -> Pair:
            weight = self.m.strips(config, index)
            room = self.m.taken("room", lambda: torch.empty_like(self.m.matrix), Tensor.clone, 0)
            return lambda: self._gated(F.linear(x, w12_mma_decode(weight, room, self.machine))), lambda: self._plain(x)

        return self._case("unpacked", rows, self.high_bytes * 3 // 2, make, asdict(config))

    def bf16(self, rows: int, config: Config) -> Case:
        """Our kernel without decoding."""
        x = self.m.x[:rows]

        def make(index: int) -> Pair:
            weight = self.m.strips(config, index, plain=True)
            return lambda: w12_mma(x, weight, machine=self.machine), lambda: self._wanted(rows)

        return self._case("bf16", rows, self.bf16_bytes, make, asdict(config))

    def triton(self, rows: int) -> Case:
        """The product on Triton, with the config that nobody tuned."""
        x = self.m.x[:rows]

        def make(index: int) -> Pair:
            weight = self.m.tiles(index)
            return lambda: on_triton.w12_gemm(x, weight), lambda: self._wanted(rows)

        words = asdict(on_triton.config_for(self.shape.n, self.shape.k, self.shape.gated).schedule)
        return self._case("triton", rows, self.high_bytes * 3 // 2, make, words)


def configs(shape: Shape) -> list[Config]:
    """Tile heights, and numbers of programs that fill a device one to four times, each tile whole or in even pieces."""
    groups = -(-shape.k // 128)
    found: dict[Config, None] = {config_for(shape.n, shape.k, shape.gated): None}
    for warps in (4, 8, 12):
        tiles = -(-(shape.n // 2) // (16 * warps)) if shape.gated else -(-shape.n // (32 * warps))
        even = [
            tiles * pieces for pieces in range(1, groups + 1) if PROCESSORS // 2 <= tiles * pieces <= 4 * PROCESSORS
        ]
        for programs in (*(PROCESSORS * times for times in (1, 2, 3, 4)), *even):
            if programs <= tiles * groups:
                found[Config(warps, programs)] = None
    return list(found)


class Timing(Measure):
    """Measures cases once, and remembers what earlier runs wrote."""

    def __init__(self, out: Path, device: torch.device, rotated_bytes: int, end_s: float) -> None:
        super().__init__(out, device, rotated_bytes, end_s - time.monotonic(), (TREE,))
        held = read_lines(out) if out.exists() else []
        self.held = {row["key"]: row.get("us") for row in held if row["status"] in ("timed", "refused")}
        self.left_out = 0

    def timed(self, cases: Sequence[Case], end_s: float | None = None) -> list[float | None]:
        """Microseconds of each case; None where it is wrong, cannot run, or time was over."""
        return [self._time_of(case, self.end_s if end_s is None else end_s) for case in cases]

    def _time_of(self, case: Case, end_s: float) -> float | None:
        key = case.key(self.where)
        if key not in self.held:
            if time.monotonic() > end_s:
                self.left_out += 1
                return None
            self.held[key] = self._measured(case)
        return self.held[key]

    def _measured(self, case: Case) -> float | None:
        try:
            return self.measure(case)
        except (triton.TritonError, RuntimeError) as error:
            status, why = "refused", f"{type(error).__name__}: {error}"
        except AssertionError as error:
            status, why = "failed", str(error)
            self.failed += 1
        self.write(case, {"status": status, "error": why[:500]})
        print(f"{case.op:15} {status}: {case.shape} {case.config} {why[:200]}", file=sys.stderr, flush=True)
        return None


def tune(measure: Timing, shapes: Sequence[Shape], machine: Machine | None) -> None:
    """Times all configs of each shape, prints what belongs into CONFIGS and writes it as a row.

    The best one has the least geometric mean over TUNED_ROWS.
    """
    for index, shape in enumerate(shapes):
        now_s = time.monotonic()
        end_s = now_s + (measure.end_s - now_s) / (len(shapes) - index)
        matrices = Matrices(shape, measure.device)
        products = Products(matrices, machine)
        best: tuple[float, Config, dict[int, float]] | None = None
        for warps, group in itertools.groupby(configs(shape), lambda config: config.warps):
            for config in group:
                found = measure.timed([products.tried(rows, config) for rows in TUNED_ROWS], end_s)
                us = {rows: each for rows, each in zip(TUNED_ROWS, found, strict=True) if each is not None}
                if len(us) == len(TUNED_ROWS):
                    mean = statistics.geometric_mean(us.values())
                    best = min(best or (mean, config, us), (mean, config, us), key=lambda one: one[0])
            matrices.copies.pop(("strips", False, warps), None)
        if best is None:
            print(f"{shape.name}: time is over before a config was timed", file=sys.stderr)
            continue
        _, config, us = best
        case = Case("best", {"name": shape.name, "n": shape.n, "k": shape.k}, 0, lambda: (print, print), asdict(config))
        measure.write(case, {"status": "best", "gated": shape.gated, "us": {b: round(t, 3) for b, t in us.items()}})
        print(f"    ({shape.n}, {shape.k}, {shape.gated}): {config!r},  # {us}", flush=True)


def table(
    measure: Timing,
    shapes: Sequence[Shape],
    rows: tuple[int, ...],
    known: Mapping[Any, Config],
    machine: Machine | None,
) -> None:
    """Measures every shape with its peers, and prints a line for each number of rows."""
    for shape in shapes:
        key = (shape.n, shape.k, shape.gated)
        config = known.get(key) or config_for(*key)
        matrices = Matrices(shape, measure.device)
        products = Products(matrices, machine)
        times: dict[tuple[str, int], float] = {}
        for cases in (
            [products.cublas(count) for count in rows],
            [products.w12(count, config) for count in rows],
            [products.w12(count, config, view=True) for count in rows],
            [products.bf16(count, config) for count in rows],
            [products.triton(count) for count in rows],
            [products.unpacked(count, config) for count in rows],
        ):
            for case, us in zip(cases, measure.timed(cases), strict=True):
                if us is not None:
                    times[case.op, int(case.shape["rows"])] = us
            matrices.drop()
        for count in rows:
            print(line(shape, count, times), flush=True)


def line(shape: Shape, rows: int, times: dict[tuple[str, int], float]) -> str:
    """One line of times and of how many times as fast as cuBLAS each is."""
    base = times.get(("cublas", rows))
    parts = [f"{shape.name:12} {rows:3} rows"]
    for op in PEERS:
        if us := times.get((op, rows)):
            ratio = "" if base is None or op == "cublas" else f" {base / us:5.2f}x"
            parts.append(f"{op} {us:8.2f} us{ratio}")
    return "  ".join(parts)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="file of JSON lines, appended to")
    parser.add_argument("--max-minutes", type=float, default=8, help="start no measurement after so long (8)")
    parser.add_argument("--shape", metavar="NAME", action="append", help="only this shape; may be given again")
    parser.add_argument("--rows", type=int, nargs="+", help="rows of x, in place of 1 8 16 32 48 64")
    parser.add_argument("--configs", type=Path, help="take the best configs of a file that --tune wrote")
    parser.add_argument("--tune", action="store_true", help="search a config for each shape")
    parser.add_argument("--smoke", action="store_true", help="tiny shapes on a CPU")
    args = parser.parse_args()
    if not args.smoke and not torch.cuda.is_available():
        parser.error("no CUDA device; --smoke runs tiny shapes on a CPU")
    known = SMOKE_SHAPES if args.smoke else SHAPES
    if unknown := set(args.shape or ()) - {shape.name for shape in known}:
        parser.error(f"no shape '{min(unknown)}'; there are {', '.join(shape.name for shape in known)}")
    shapes = [shape for shape in known if not args.shape or shape.name in args.shape]
    sizes = replace(SMOKE, rotated_bytes=0) if args.smoke else Sizes()
    device, machine = torch.device("cuda"), None
    if args.smoke:
        from benchmarks.cuda_on_cpu import Cpu

        device, machine = torch.device("cpu"), Cpu()
    measure = Timing(args.out, device, sizes.rotated_bytes, time.monotonic() + 60 * args.max_minutes)
    measure.measure_copy(Bench(sizes, device).copy())
    if args.tune:
        tune(measure, shapes, machine)
    else:
        rows = tuple(args.rows or (SMOKE_ROWS if args.smoke else ROWS))
        table(measure, shapes, rows, best_of(args.configs), machine)
        if measure.left_out:
            print(f"time is over: {measure.left_out} measurements left; the same command goes on", file=sys.stderr)
    if measure.failed:
        print(f"{measure.failed} products said something else than their twins", file=sys.stderr)
    return 1 if measure.failed else 0


def best_of(path: Path | None) -> dict[Any, Config]:
    """The configs of a file that `--tune` wrote, the last one of each weight."""
    rows = [row for row in read_lines(path) if row["status"] == "best"] if path else []
    return {(row["shape"]["n"], row["shape"]["k"], row["gated"]): Config(**row["config"]) for row in rows}


if __name__ == "__main__":
    sys.exit(main())

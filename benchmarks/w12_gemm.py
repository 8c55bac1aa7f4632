"""Times products with W12 weights against cuBLAS and their like, in CUDA-graph replay over rotating weights.

    python -m benchmarks.w12_gemm --out rows.jsonl                              every shape, peers in the same run
    python -m benchmarks.w12_gemm --out tune.jsonl --tune --max-minutes 10      searches a config for each shape
    python -m benchmarks.w12_gemm --out rows.jsonl --configs tune.jsonl         with what the search found
    python -m benchmarks.w12_gemm --out smoke.jsonl --smoke [--tune]            tiny shapes on a CPU

Each product is held against its twin before its time is taken; a row whose result is wrong is written as failed, has
no time, and makes the exit code 1.  A W12 product must also have, row by row, the bits that it has in a batch of 128.
One JSON line a measurement goes to --out; what it already holds for the same kernels, card, torch and Triton is not
measured again, so a run that --max-minutes ended goes on where it stopped.

cublas: the library's product with the BF16 matrix.  bf16: our kernel without decoding, the best of a few configs.
w12: 12 bits a weight.  view: the high plane alone.  unpacked: the whole matrix decoded to BF16, then cuBLAS, which is
how formats that do not multiply packed weights work.  A gated weight is followed by SiLU and product everywhere.
Bytes are those that a call must read of the weight, packed where it is packed; share is over the rate at which an
elementwise kernel copies in the same run.
"""

import argparse
import contextlib
import functools
import itertools
import math
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor
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

from benchmarks.w12_peer import bf16_arranged, bf16_gemm  # noqa: E402
from kernels.w12 import Packed, encode  # type: ignore[import-not-found] # noqa: E402
from kernels.w12_decode import w12_decode  # type: ignore[import-not-found] # noqa: E402
from kernels.w12_gemm import (  # type: ignore[import-not-found] # noqa: E402
    BUCKETS,
    MOST_ROWS,
    Config,
    Plan,
    Schedule,
    Tile,
    Weight,
    arrange,
    config_for,
    w12_gemm,
    w12_gemm_reference,
)

BF16 = torch.bfloat16
PEERS = ("cublas", "w12", "view", "unpacked", "bf16")
TUNED_ROWS = (16, 32, 64)  # of which each schedule is timed; 128 follows the best one
BF16_PEERS = (("wgmma", 264), ("wgmma", 132), ("mma", 264))  # path, and about how many programs
FINALISTS = 4  # schedules whose tiles are searched


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


def config_words(config: Config, rows: int) -> dict[str, Any]:
    """A schedule and the tile that rows take, as JSON."""
    bucket = next(bucket for bucket in BUCKETS if rows <= bucket)
    return {**asdict(config.schedule), **asdict(config.tiles[bucket])}


def config_of(words: dict[str, Any]) -> Config:
    """The config of a row that `--tune` wrote as best."""
    tiles = {int(bucket): Tile(**tile) for bucket, tile in words["tiles"].items()}
    return Config(Schedule(**words["schedule"]), tiles)


class Matrices:
    """One shape's matrix in every form that a product wants, in as many copies as rotate.

    Copies of packed planes, or of the BF16 matrix, are made when they are asked for; a form that is not asked for any
    more is dropped with `drop`.
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

    def weight(self, config: Config, index: int) -> Weight:
        """The packed matrix for a config: schedules of one tile height share their copies."""

        def copy(weight: Weight) -> Weight:
            return replace(weight, high=weight.high.clone(), low=weight.low.clone(), turns=weight.turns.clone())

        first = functools.partial(arrange, self.packed, config, self.shape.gated)
        held = self.taken(("w12", config.schedule.block_n), first, copy, index)
        return replace(held, config=config)

    def dense(self, index: int) -> Tensor:
        return self.taken("bf16", lambda: self.matrix, Tensor.clone, index)  # type: ignore[no-any-return]

    def arranged(self, block_n: int, index: int) -> Tensor:
        first = functools.partial(bf16_arranged, self.matrix, block_n)
        return self.taken(("bf16", block_n), first, Tensor.clone, index)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Product(Case):
    """A case that a process without a device can compile: `job` are the arguments of `compile_only`, or None."""

    job: tuple[Any, ...] | None = None


class Products:
    """Builds the cases of one shape."""

    def __init__(self, matrices: Matrices) -> None:
        self.shape, self.m = matrices.shape, matrices
        self.bf16_bytes = 2 * self.shape.n * self.shape.k
        self.high_bytes = self.shape.n * -(-self.shape.k // 128) * 128
        self.twins: dict[int, Tensor] = {}

    def _gated(self, y: Tensor) -> Tensor:
        return silu_mul(y) if self.shape.gated else y

    def _plain(self, x: Tensor) -> Tensor:
        """The twin of products that round before they gate."""
        y = F.linear(x.float(), self.m.matrix.float()).to(BF16)
        return silu_mul_reference(y) if self.shape.gated else y

    def _case(
        self, op: str, rows: int, moved: int, make: Callable[[int], Pair], config: dict[str, Any], job: Any = None
    ) -> Product:
        index = itertools.count()
        return Product(op, self.shape.words(rows), moved, lambda: make(next(index)), config, job)

    def cublas(self, rows: int) -> Product:
        x = self.m.x[:rows]

        def make(index: int) -> Pair:
            weight = self.m.dense(index)
            return lambda: self._gated(F.linear(x, weight)), lambda: self._plain(x)

        return self._case("cublas", rows, self.bf16_bytes, make, {})

    def w12(self, rows: int, config: Config, view: bool = False) -> Product:
        """The product itself, which must also have the bits that it has in the largest batch."""
        x = self.m.x[:rows]

        def make(index: int) -> Pair:
            weight = self.m.weight(config, index)

            def twin() -> Tensor:
                if not torch.equal(w12_gemm(self.m.x, weight, view=view)[:rows], w12_gemm(x, weight, view=view)):
                    raise AssertionError("a row's bits depend on the batch")
                wanted: Tensor = w12_gemm_reference(x, weight, view=view)
                return wanted

            return lambda: w12_gemm(x, weight, view=view), twin

        moved = self.high_bytes if view else self.high_bytes * 3 // 2
        words = config_words(config, rows)
        job = ("w12", self.shape, config, (rows, MOST_ROWS), view)
        return self._case("view" if view else "w12", rows, moved, make, words, job)

    def tried(self, rows: int, config: Config) -> Product:
        """The product for a search: held against one twin for all configs, which differ in rounding alone."""
        case = self.w12(rows, config)
        job = ("w12", self.shape, config, (rows,), False)
        return replace(case, op="try", make=lambda: (case.make()[0], lambda: self._wanted(rows)), job=job)

    def _wanted(self, rows: int) -> Tensor:
        if rows not in self.twins:
            plain = self.m.weight(config_for(self.shape.n, self.shape.k, self.shape.gated), 0)
            self.twins[rows] = w12_gemm_reference(self.m.x[:rows], plain)
        return self.twins[rows]

    def unpacked(self, rows: int, config: Config) -> Product:
        x = self.m.x[:rows]

        def make(index: int) -> Pair:
            weight, room = self.m.weight(config, index), self.m.taken("room", self._room, Tensor.clone, 0)
            return lambda: self._gated(F.linear(x, w12_decode(weight, room))), lambda: self._plain(x)

        return self._case("unpacked", rows, self.high_bytes * 3 // 2, make, config_words(config, rows))

    def _room(self) -> Tensor:
        return torch.empty_like(self.m.matrix)

    def bf16(self, rows: int) -> Iterator[Product]:
        """Our BF16 kernel in a few configs."""
        x = self.m.x[:rows]
        for path, slots in BF16_PEERS:
            plan = bf16_plan(self.shape, rows, path, slots)

            def make(index: int, plan: Plan = plan) -> Pair:
                weight = self.m.arranged(plan.block_n, index)
                return lambda: self._gated(bf16_gemm(x, weight, plan)), lambda: self._plain(x)

            words = {"path": path, "block_n": plan.block_n, "programs": plan.programs, "num_stages": plan.stages}
            yield self._case("bf16", rows, self.bf16_bytes, make, words, ("bf16", self.shape, plan, rows))


def bf16_plan(shape: Shape, rows: int, path: str, slots: int) -> Plan:
    """Tiles in so many equal pieces that about `slots` programs run."""
    bucket = next(bucket for bucket in BUCKETS if rows <= bucket)
    block_n, groups = 64 if bucket == 16 else 128, -(-shape.k // 128)
    tiles = -(-shape.n // block_n)
    slices = max(1, min(round(slots / tiles), groups // 2))
    return Plan(
        n=shape.n,
        k=shape.k,
        groups=groups,
        tiles=tiles,
        block_n=block_n,
        unit=1,
        programs=tiles * slices,
        slices=slices,
        wgmma=path == "wgmma",
        block_t=bucket,
        chunk=bucket if path == "wgmma" else min(bucket, 32),
        stages=4,
        descriptors=False,
        fused=False,
        paired=False,
        view=False,
        asm=False,
        bias=False,
        residual=False,
    )


def schedules(shape: Shape) -> list[Schedule]:
    """Where a search starts: both paths, tile heights, and numbers of programs that fill a device one to four times."""
    groups = -(-shape.k // 128)
    found: dict[Schedule, None] = {config_for(shape.n, shape.k, shape.gated).schedule: None}
    for path, block_n in (("wgmma", 128), ("mma", 64), ("wgmma", 64), ("mma", 128), ("wgmma", 256), ("mma", 32)):
        tiles = -(-(shape.n // 2) // (block_n // 2)) if shape.gated else -(-shape.n // block_n)
        slices = {max(1, min(way(slots / tiles), groups // 2)) for slots in (132, 264, 396, 528) for way in ROUNDED}
        whole = [tiles * each for each in sorted(slices)]
        streams = [slots for slots in (132, 264, 396) if slots < tiles * groups]
        for programs, unit in itertools.product([*whole, *streams], (1, 2)):
            if groups % unit == 0 and programs <= tiles * groups // unit and (unit == 1 or block_n <= 64):
                found[Schedule(path, block_n, unit, programs)] = None
    return list(found)


ROUNDED: tuple[Callable[[float], int], ...] = (math.floor, math.ceil)


def first_tile(schedule: Schedule, bucket: int) -> Tile:
    """The tile that a schedule is first timed with."""
    warps = 8 if schedule.block_n >= 256 or (schedule.path == "mma" and bucket > 32) else 4
    unit_bytes = schedule.unit * 128 * (2 * bucket + schedule.block_n * 3 // 2)
    return Tile(warps, max(2, min(5, 200_000 // unit_bytes)), 16, fused=bucket == 16)


def neighbours(tile: Tile, schedule: Schedule, bucket: int) -> Iterator[Tile]:
    """Tiles that differ from one in one thing."""
    for stages in (tile.num_stages - 1, tile.num_stages + 1):
        if 2 <= stages <= 8:
            yield replace(tile, num_stages=stages)
    for warps in (tile.num_warps // 2, tile.num_warps * 2):
        if (4 if schedule.path == "wgmma" else 1) <= warps <= 8:
            yield replace(tile, num_warps=warps)
    yield replace(tile, descriptors=not tile.descriptors)
    yield replace(tile, fused=not tile.fused)
    if schedule.path == "mma" and bucket > 16:
        yield replace(tile, chunk=48 - tile.chunk)


class Search:
    """Searches a config for a shape: schedules first, then the tiles of the best few, one change at a time."""

    def __init__(self, measure: "Timing", products: Products) -> None:
        self.measure, self.products, self.shape = measure, products, products.shape

    def best(self, end_s: float) -> tuple[Config, dict[int, float]] | None:
        """The config with the least time over all buckets, and microseconds by bucket; None where time was too short.

        Half of the time goes to schedules; a config has a time for each bucket or is none.
        """
        start = [Config(each, {rows: first_tile(each, rows) for rows in BUCKETS}) for each in schedules(self.shape)]
        times = self._times([(config, rows) for config in start for rows in TUNED_ROWS], _middle_s(end_s))
        each = [times[index : index + len(TUNED_ROWS)] for index in range(0, len(times), len(TUNED_ROWS))]
        ranked = sorted(range(len(start)), key=lambda index: statistics.geometric_mean(each[index]))[:FINALISTS]
        finished: list[tuple[float, Config, dict[int, float]]] = []
        for place, index in enumerate(ranked):
            if max(each[index]) < math.inf:
                until_s = time.monotonic() + (end_s - time.monotonic()) / (FINALISTS + 1 - place)
                config, us = self.climbed(start[index], dict(zip(TUNED_ROWS, each[index], strict=True)), until_s)
                finished.append((statistics.geometric_mean(us.values()), config, us))
        if not finished:
            return None
        _, config, us = min(finished, key=lambda one: one[0])
        config, last = self.climbed(config, {128: self._times([(config, 128)], math.inf)[0]}, end_s)
        return config, us | last

    def climbed(self, config: Config, us: dict[int, float], end_s: float) -> tuple[Config, dict[int, float]]:
        """The config with each bucket's tile changed for as long as a change made it faster; us: what it takes now."""
        us = dict(us)
        for rows in us:
            better = True
            while better and time.monotonic() < end_s:
                tiles = neighbours(config.tiles[rows], config.schedule, rows)
                near = [replace(config, tiles={**config.tiles, rows: tile}) for tile in tiles]
                least, index = min(
                    (us, index) for index, us in enumerate(self._times([(c, rows) for c in near], end_s))
                )
                if better := least < 0.99 * us[rows]:
                    config, us[rows] = near[index], least
        return config, us

    def _times(self, wanted: list[tuple[Config, int]], end_s: float) -> list[float]:
        """Microseconds of configs at numbers of rows; infinite for what cannot run, and where time is over."""
        found = self.measure.timed([self.products.tried(rows, config) for config, rows in wanted], end_s)
        return [math.inf if us is None else us for us in found]


def _middle_s(end_s: float) -> float:
    return (time.monotonic() + end_s) / 2


def compile_only(kind: str, shape: Shape, *arguments: Any) -> str | None:
    """Compiles a product into Triton's cache in a process without a device; why it cannot run, or None.

    kind and arguments: "w12", config, numbers of rows, view; or "bf16", plan, rows.
    """
    from benchmarks.hopper import SHARED_LIMIT, compiled

    if kind == "w12":
        config, rows, view = arguments
        weight = weight_without_bytes(shape, config)
        calls = [functools.partial(w12_gemm, _meta(count, shape.k, dtype=BF16), weight, view=view) for count in rows]
    else:
        plan, rows = arguments
        plane = _meta(plan.tiles, plan.groups, 2, plan.block_n, 64, dtype=BF16)
        calls = [functools.partial(bf16_gemm, _meta(rows, shape.k, dtype=BF16), plane, plan)]
    try:
        made = [kernel for call in calls for kernel in compiled(call)]
    except Exception as error:  # noqa: BLE001 (whatever a compiler says, the config is out)
        return f"{type(error).__name__}: {error}"
    shared = max(kernel.metadata.shared for kernel in made)
    return f"it asks for {shared} bytes of shared memory" if shared > SHARED_LIMIT else None


def _meta(*size: int, dtype: torch.dtype = torch.uint8) -> Tensor:
    return torch.empty(*size, dtype=dtype, device="meta")


def weight_without_bytes(shape: Shape, config: Config) -> Weight:
    """A weight of the shape on the device "meta", with which a product compiles and does not run."""
    block_n, groups = config.schedule.block_n, -(-shape.k // 128)
    tiles = -(-(shape.n // 2) // (block_n // 2)) if shape.gated else -(-shape.n // block_n)
    return Weight(
        shape.n,
        shape.k,
        config,
        shape.gated,
        high=_meta(tiles, groups, 2, block_n, 64),
        low=_meta(tiles, groups, block_n, 64),
        base=_meta(shape.n, dtype=torch.int16),
        starts=_meta(shape.n + 1, dtype=torch.int32),
        columns=_meta(64, dtype=torch.int32),
        values=_meta(64, dtype=BF16),
        turns=_meta(tiles, dtype=torch.int32),
    )


class Timing(Measure):
    """Measures cases once, compiles ahead on all cores, and remembers what earlier runs wrote."""

    def __init__(
        self, out: Path, device: torch.device, rotated_bytes: int, end_s: float, pool: Executor | None
    ) -> None:
        super().__init__(out, device, rotated_bytes, end_s - time.monotonic(), (TREE,))
        held = read_lines(out) if out.exists() else []
        self.held = {row["key"]: row.get("us") for row in held if row["status"] in ("timed", "refused")}
        self.pool, self.left_out = pool, 0

    def timed(self, cases: Sequence[Product], end_s: float | None = None) -> list[float | None]:
        """Microseconds of each case; None where it is wrong, cannot run, or time was over."""
        jobs = [self._ahead(case) for case in cases]
        found: list[float | None] = []
        for case, job in zip(cases, jobs, strict=True):
            key = case.key(self.where)
            if key not in self.held and time.monotonic() > (self.end_s if end_s is None else end_s):
                self.left_out += 1
                if job is not None:
                    job.cancel()
                found.append(None)
                continue
            if key not in self.held:
                self.held[key] = self._measured(case, None if job is None else job.result())
            found.append(self.held[key])
        return found

    def _ahead(self, case: Product) -> Future[str | None] | None:
        if self.pool is None or case.job is None or case.key(self.where) in self.held:
            return None
        return self.pool.submit(compile_only, *case.job)

    def _measured(self, case: Product, refused: str | None) -> float | None:
        status, why = "refused", refused
        if refused is None:
            try:
                return self.measure(case)
            except triton.TritonError as error:
                why = f"{type(error).__name__}: {error}"
            except AssertionError as error:
                status, why = "failed", str(error)
                self.failed += 1
        self.write(case, {"status": status, "error": str(why)[:500]})
        print(f"{case.op:15} {status}: {case.shape} {case.config} {str(why)[:200]}", file=sys.stderr, flush=True)
        return None


def tune(measure: Timing, shapes: Sequence[Shape]) -> None:
    """Searches each shape for its share of the time, prints what belongs into CONFIGS and writes it as a row."""
    for index, shape in enumerate(shapes):
        now_s = time.monotonic()
        matrices = Matrices(shape, measure.device)
        found = Search(measure, Products(matrices)).best(now_s + (measure.end_s - now_s) / (len(shapes) - index))
        matrices.drop()
        if found is None:
            print(f"{shape.name}: time is over before a config was timed", file=sys.stderr)
            continue
        config, us = found
        words = {"schedule": asdict(config.schedule), "tiles": {b: asdict(t) for b, t in config.tiles.items()}}
        case = Case("best", {"name": shape.name, "n": shape.n, "k": shape.k}, 0, lambda: (print, print), words)
        measure.write(case, {"status": "best", "gated": shape.gated, "us": {b: round(t, 3) for b, t in us.items()}})
        print(f"    ({shape.n}, {shape.k}, {shape.gated}): {config!r},  # {us}", flush=True)


def table(measure: Timing, shapes: Sequence[Shape], rows: tuple[int, ...], configs: Mapping[Any, Config]) -> None:
    """Measures every shape with its peers, and prints a line for each number of rows."""
    for shape in shapes:
        key = (shape.n, shape.k, shape.gated)
        config = configs.get(key) or config_for(*key)
        matrices = Matrices(shape, measure.device)
        products = Products(matrices)
        times: dict[tuple[str, int], float] = {}
        for cases in (
            [products.cublas(count) for count in rows],
            [products.w12(count, config) for count in rows],
            [products.w12(count, config, view=True) for count in rows],
            [products.unpacked(count, config) for count in rows],
            [case for count in rows for case in products.bf16(count)],
        ):
            for case, us in zip(cases, measure.timed(cases), strict=True):
                if us is not None:
                    at = case.op, int(case.shape["rows"])
                    times[at] = min(us, times.get(at, math.inf))
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
    parser.add_argument("--smoke", action="store_true", help="tiny shapes under Triton's interpreter")
    args = parser.parse_args()
    if not args.smoke and not torch.cuda.is_available():
        parser.error("no CUDA device; --smoke runs tiny shapes on a CPU")
    known = SMOKE_SHAPES if args.smoke else SHAPES
    if unknown := set(args.shape or ()) - {shape.name for shape in known}:
        parser.error(f"no shape '{min(unknown)}'; there are {', '.join(shape.name for shape in known)}")
    shapes = [shape for shape in known if not args.shape or shape.name in args.shape]
    device = torch.device("cpu" if args.smoke else "cuda")
    end_s = time.monotonic() + 60 * args.max_minutes
    sizes = replace(SMOKE, rotated_bytes=0) if args.smoke else Sizes()
    with contextlib.ExitStack() as stack:
        # Compiling takes longer than timing, so all other cores compile what is timed next.
        pool = None if args.smoke else stack.enter_context(compilers())
        measure = Timing(args.out, device, sizes.rotated_bytes, end_s, pool)
        measure.measure_copy(Bench(sizes, device).copy())
        if args.tune:
            tune(measure, shapes)
        else:
            table(measure, shapes, tuple(args.rows or (SMOKE_ROWS if args.smoke else ROWS)), best_of(args.configs))
            if measure.left_out:
                print(f"time is over: {measure.left_out} measurements left; the same command goes on", file=sys.stderr)
    if measure.failed:
        print(f"{measure.failed} products said something else than their twins", file=sys.stderr)
    return 1 if measure.failed else 0


@contextlib.contextmanager
def compilers() -> Iterator[Executor]:
    """Processes that compile; what is still waiting at the end is not compiled any more."""
    pool = ProcessPoolExecutor(max(1, len(os.sched_getaffinity(0)) - 2), multiprocessing.get_context("spawn"))
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def best_of(path: Path | None) -> dict[Any, Config]:
    """The configs of a file that `--tune` wrote, the last one of each weight."""
    rows = [row for row in read_lines(path) if row["status"] == "best"] if path else []
    return {(row["shape"]["n"], row["shape"]["k"], row["gated"]): config_of(row["config"]) for row in rows}


if __name__ == "__main__":
    sys.exit(main())

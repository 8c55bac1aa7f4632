"""Times the certified LM head against cuBLAS and against the head that it stands for, in CUDA-graph replay.

    python -m benchmarks.lm_head --out rows.jsonl                          both heads, peers in the same run
    python -m benchmarks.lm_head --out tune.jsonl --tune --max-minutes 6   searches a config for the pass over a head
    python -m benchmarks.lm_head --out smoke.jsonl --smoke                 a tiny head on a CPU

Tokens of the certified head must be those of the full product with the same packed weights, before its time is taken:
a row that is wrong is written as failed, has no time, and makes the exit code 1.  One JSON line a measurement goes to
--out; what it already holds for the same kernels, card, torch and Triton is not measured again.

cublas: the library's product with the BF16 head, logits only.  cublas_token: and the best id of each row.  w12_token:
the product with 12 bits a weight, and the best id.  triton_token: the same through `w12_gemm`, of whose logits a
certified head has the best.  view: the product with the high plane, logits only, not exact.  certified: the id, exact;
`sampled` at a temperature of 1 with noise.
Weights rotate through twice what the L2 holds, or two copies.  Bytes are those of the weight that a call must read: for
`certified` its high plane, and the rows that were rescored are told beside.  Share is over the rate at which an
elementwise kernel copies in the same run.

Hidden states.  A head here is Gaussian, of rows of norm 1.  `text`: logits have a standard deviation of 1.65, and some
rows of the head stand out as ids do in SmolLM2's own answers: the second best is 1.5 behind the best, and an id of rank
r 1.78 ln r behind the second (medians over 360 positions; the bound there is 4.1, here 4.1 to 4.4).  `near`: half those
distances, as if the bound were twice as wide; SmolLM2 would then have ten times as many candidates.  `flat`: noise
alone, so that the best of all logits is one of many that are near.  `equal`: hidden states are zero, so that all rows
of the head are rescored: the fallback.
"""

import argparse
import contextlib
import functools
import itertools
import math
import multiprocessing
import os
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
from benchmarks.w12_gemm import Matrices, Shape
from kernels.sample import sample, sample_reference
from kernels.top_ranks import top_ranks, top_ranks_reference

TREES = [ENTRIES / name / "tree" / "kernels" for name in ("w12-linear", "certified-lm-head")]
overlay("certified-lm-head", "kernels")

from kernels import w12_gemm as on_triton  # type: ignore[attr-defined] # noqa: E402
from kernels.lm_head import Config, config_for, lm_head  # type: ignore[import-not-found] # noqa: E402
from kernels.lm_head_bounds import COUNTED, Bounds, made_bounds  # type: ignore[import-not-found] # noqa: E402
from kernels.w12_cuda import Machine  # type: ignore[import-not-found] # noqa: E402
from kernels.w12_mma import Strips, w12_mma, w12_mma_reference  # type: ignore[import-not-found] # noqa: E402
from kernels.w12_mma import config_for as strips_config_for  # noqa: E402

SHAPES = (Shape("151936x4096", 151936, 4096), Shape("head", 49152, 4608))
ROWS = (1, 8, 16, 32, 64)
TUNED_ROWS = (16, 32, 64)
SMOKE_SHAPES, SMOKE_ROWS = (Shape("tiny", 150, 260),), (1, 17)
SIGMA = 1.65  # of logits
# By how much the best logit is above what the best of so much noise would be; the distances behind it; how many rows.
STATES = {"text": (13.0, 1.5, 1.78, 50), "near": (5.0, 0.75, 0.89, 200), "flat": None, "equal": None}


class Head:
    """A head in every form, with hidden states for it; machine: what runs CUDA C++ where no GPU does."""

    def __init__(self, shape: Shape, device: torch.device, machine: Machine | None) -> None:
        self.shape, self.device, self.machine = shape, device, machine
        self.matrices = Matrices(shape, device)
        self.generator = torch.Generator(device).manual_seed(shape.n)

    @functools.cached_property
    def bounds(self) -> Bounds:
        return made_bounds(self.matrices.packed)

    def weight(self, index: int) -> Any:
        """As the certified head reads it."""
        return self.matrices.tiles(index)

    def strips(self, index: int) -> Strips:
        """As the product with packed weights that is fastest reads it."""
        return self.matrices.strips(strips_config_for(self.shape.n, self.shape.k), index)

    @functools.lru_cache  # noqa: B019 (a head lives as long as its states)
    def states(self, kind: str) -> Tensor:
        """Hidden states [128, k] of a kind."""
        n, k = self.shape.n, self.shape.k
        x = torch.zeros(128, k, device=self.device)
        if kind != "equal":
            x.normal_(std=SIGMA, generator=self.generator)
        if (profile := STATES[kind]) is not None:
            above, lead, drop, best = profile
            rank = torch.arange(1, min(best, n), device=self.device)
            behind = torch.cat((rank.new_zeros(1).float(), lead + drop * rank.log()))
            wanted = SIGMA * (2 * math.log(n)) ** 0.5 + above - behind
            for row in x:
                chosen = torch.randperm(n, generator=self.generator, device=self.device)[: len(wanted)]
                directions = self.matrices.matrix[chosen].float()
                row += (wanted - directions @ row) @ directions
        return x.to(torch.bfloat16)


@dataclass(frozen=True)
class HeadCase(Case):
    """A case that has something to tell of what it did, and may be compiled ahead.

    job: the arguments of `compile_only`, or None.
    """

    told: Callable[[], dict[str, Any]] = dict
    job: tuple[Any, ...] | None = None


def meta(*size: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(*size, dtype=dtype, device="meta")


def weight_without_bytes(shape: Shape, config: Any) -> Any:
    """A head of the shape on the device "meta", with which a call compiles and does not run."""
    block_n, groups = config.schedule.block_n, -(-shape.k // 128)
    tiles = -(-shape.n // block_n)
    return on_triton.Weight(
        shape.n,
        shape.k,
        config,
        False,
        high=meta(tiles, groups, 2, block_n, 64, dtype=torch.uint8),
        low=meta(tiles, groups, block_n, 64, dtype=torch.uint8),
        base=meta(shape.n, dtype=torch.int16),
        starts=meta(shape.n + 1, dtype=torch.int32),
        columns=meta(64, dtype=torch.int32),
        values=meta(64, dtype=torch.bfloat16),
        turns=meta(tiles, dtype=torch.int32),
    )


def compile_only(shape: Shape, rows: int, config: Config, hot: bool) -> str | None:
    """Compiles the certified head into Triton's cache in a process without a device; why it cannot run, or None."""
    from benchmarks.hopper import SHARED_LIMIT, compiled

    weight = weight_without_bytes(shape, on_triton.config_for(shape.n, shape.k))
    where, columns = meta(shape.n + 1, dtype=torch.int32), meta(64, dtype=torch.int32)
    bounds = Bounds(meta(shape.n), meta(shape.n), where, columns, meta(64, dtype=torch.bfloat16))
    x, position = meta(rows, shape.k, dtype=torch.bfloat16), meta(rows, dtype=torch.int64)
    counts = meta(len(COUNTED), dtype=torch.int64)
    noise = position, position, meta(rows)
    try:
        made = compiled(lambda: lm_head(x, weight, bounds, *noise, hot=hot, counts=counts, config=config))
    except triton.TritonError as error:
        return f"{type(error).__name__}: {error}"
    shared = max(kernel.metadata.shared for kernel in made)
    return f"it asks for {shared} bytes of shared memory" if shared > SHARED_LIMIT else None


class Cases:
    """Builds the cases of one head."""

    def __init__(self, head: Head) -> None:
        self.head, self.shape = head, head.shape
        self.bf16_bytes = 2 * self.shape.n * self.shape.k
        self.high_bytes = self.shape.n * -(-self.shape.k // 128) * 128

    def _case(
        self,
        op: str,
        rows: int,
        moved: int,
        make: Callable[[int], Pair],
        config: dict[str, Any] | None = None,
        told: Callable[[], dict[str, Any]] = dict,
        states: str = "text",
        job: tuple[Any, ...] | None = None,
    ) -> HeadCase:
        index = itertools.count()
        words = {**self.shape.words(rows), "states": states}
        return HeadCase(op, words, moved, lambda: make(next(index)), config or {}, told, job)

    def cublas(self, rows: int) -> HeadCase:
        x = self.head.states("text")[:rows]

        def make(index: int) -> Pair:
            weight = self.head.matrices.dense(index)
            return lambda: F.linear(x, weight), lambda: F.linear(x.float(), weight.float()).to(x.dtype)

        return self._case("cublas", rows, self.bf16_bytes, make)

    def cublas_token(self, rows: int) -> HeadCase:
        x = self.head.states("text")[:rows]

        def make(index: int) -> Pair:
            weight = self.head.matrices.dense(index)
            return lambda: _best(F.linear(x, weight)), lambda: top_ranks_reference(F.linear(x, weight), 1)[0][:, 0]

        return self._case("cublas_token", rows, self.bf16_bytes, make)

    def w12_token(self, rows: int) -> HeadCase:
        x = self.head.states("text")[:rows]

        def make(index: int) -> Pair:
            product = functools.partial(w12_mma, x, self.head.strips(index), machine=self.head.machine)
            return lambda: _best(product()), lambda: top_ranks_reference(product(), 1)[0][:, 0]

        return self._case("w12_token", rows, self.high_bytes * 3 // 2, make)

    def triton_token(self, rows: int) -> HeadCase:
        x = self.head.states("text")[:rows]

        def make(index: int) -> Pair:
            product = functools.partial(on_triton.w12_gemm, x, self.head.weight(index))
            return lambda: _best(product()), lambda: top_ranks_reference(product(), 1)[0][:, 0]

        return self._case("triton_token", rows, self.high_bytes * 3 // 2, make)

    def view(self, rows: int) -> HeadCase:
        x = self.head.states("text")[:rows]

        def make(index: int) -> Pair:
            weight = self.head.strips(index)
            product = functools.partial(w12_mma, x, weight, view=True, machine=self.head.machine)
            return product, lambda: w12_mma_reference(x, weight, view=True)

        return self._case("view", rows, self.high_bytes, make)

    def certified(
        self,
        rows: int,
        states: str = "text",
        hot: bool = False,
        config: Config | None = None,
        op: str = "certified",
    ) -> HeadCase:
        """The token, which must be that of the full product with the same weights."""
        x = self.head.states(states)[:rows]
        bucket = next(bucket for bucket in on_triton.BUCKETS if rows <= bucket)
        config = config or config_for(self.shape.n, self.shape.k, bucket, hot)
        counts = torch.zeros(len(COUNTED), dtype=torch.int64, device=x.device)
        position = torch.arange(rows, device=x.device)
        seed, heat = torch.full_like(position, 7), torch.full((rows,), float(hot), device=x.device)

        def make(index: int) -> Pair:
            weight = self.head.weight(index)

            def call() -> Tensor:
                bounds, noise = self.head.bounds, (position, seed, heat)
                token: Tensor = lm_head(x, weight, bounds, *noise, hot=hot, counts=counts, config=config)
                return token

            def twin() -> Tensor:
                logits = on_triton.w12_gemm(x, weight)
                chosen: Tensor = (sample if x.is_cuda else sample_reference)(logits, position, seed, heat)
                return chosen

            return call, twin

        def told() -> dict[str, Any]:
            calls, _, candidates, full = counts.tolist()
            return {"candidates": candidates / calls, "full": full / calls}

        words = {"sampled": hot, **asdict(config)}
        job = (self.shape, rows, config, hot)
        return self._case(op, rows, self.high_bytes, make, words, told, states, job)


def _best(logits: Tensor) -> Tensor:
    ids: Tensor = top_ranks(logits, 1)[0]
    return ids[:, 0]


class Timing(Measure):
    """Measures cases once, compiles ahead on all cores, and keeps what rows of this run and of earlier ones say."""

    def __init__(
        self, out: Path, device: torch.device, rotated_bytes: int, max_seconds: float, pool: Executor | None
    ) -> None:
        super().__init__(out, device, rotated_bytes, max_seconds, TREES)
        held = read_lines(out) if out.exists() else []
        self.rows = {row["key"]: row for row in held if row["status"] in ("timed", "refused")}
        self.done |= self.rows.keys()
        self.pool = pool

    def measured(self, cases: Sequence[HeadCase]) -> int:
        """Measures what can run and is not in the file yet; returns how many were left out for time."""
        jobs = [self._ahead(case) for case in cases]
        left_out = 0
        for case, job in zip(cases, jobs, strict=True):
            late = time.monotonic() > self.end_s
            if job is not None and not late and (why := job.result()) is not None:
                self.write(case, {"status": "refused", "error": why[:500]})
                print(f"{case.op:15} refused: {case.shape} {case.config} {why[:200]}", file=sys.stderr, flush=True)
                continue
            if job is not None and late:
                job.cancel()
            left_out += self.run(iter([case]))
        return left_out

    def _ahead(self, case: HeadCase) -> Future[str | None] | None:
        if self.pool is None or case.job is None or case.key(self.where) in self.done:
            return None
        return self.pool.submit(compile_only, *case.job)

    def write(self, case: Case, row: dict[str, Any]) -> None:
        told = case.told() if isinstance(case, HeadCase) and row["status"] == "timed" else {}
        super().write(case, row | told)
        self.rows[case.key(self.where)] = row | told

    def row(self, case: Case) -> dict[str, Any] | None:
        """What is known of a case that was timed."""
        row = self.rows.get(case.key(self.where))
        return row if row is not None and row["status"] == "timed" else None


def cases_of(cases: Cases, rows: Sequence[int]) -> dict[str, list[HeadCase]]:
    """All cases of a head by what the table calls them, one for each number of rows."""
    return {
        "cublas": [cases.cublas(count) for count in rows],
        "cublas_token": [cases.cublas_token(count) for count in rows],
        "w12_token": [cases.w12_token(count) for count in rows],
        "triton_token": [cases.triton_token(count) for count in rows],
        "view": [cases.view(count) for count in rows],
        "certified": [cases.certified(count) for count in rows],
        "sampled": [cases.certified(count, hot=True) for count in rows],
        **{state: [cases.certified(count, state) for count in rows] for state in list(STATES)[1:]},
    }


def table(measure: Timing, shapes: Sequence[Shape], rows: Sequence[int], machine: Machine | None) -> int:
    """Measures every head with its peers, and prints a line for each number of rows; how many were left out."""
    left_out = 0
    for shape in shapes:
        head = Head(shape, measure.device, machine)
        named = cases_of(Cases(head), rows)
        for cases in named.values():
            left_out += measure.measured(cases)
            head.matrices.drop()
        for index, count in enumerate(rows):
            print(line(measure, shape, count, {name: measure.row(cases[index]) for name, cases in named.items()}))
        sys.stdout.flush()
    return left_out


def line(measure: Timing, shape: Shape, rows: int, found: Mapping[str, dict[str, Any] | None]) -> str:
    """One line of times, of how many times as fast as cuBLAS' logits each is, and of what the bytes allow."""
    base = found["cublas"]
    parts = [f"{shape.name:12} {rows:3} rows"]
    for name, row in found.items():
        if row is None:
            continue
        part = f"{name} {row['us']:.1f} us"
        if base is not None and name != "cublas":
            part += f" {base['us'] / row['us']:.2f}x"
        if "candidates" in row:
            part += f" ({row['candidates']:.0f} rows again)"
        parts.append(part)
    if (row := found["certified"]) is not None:
        parts.append(f"limit {row['bytes'] / measure.copy_tb_s / 1e6:.1f} us")
    return "  ".join(parts)


def configs(shape: Shape, rows: int) -> Iterator[Config]:
    """What a search tries: both paths, tile heights, and stages that shared memory has room for."""
    bucket = next(bucket for bucket in on_triton.BUCKETS if rows <= bucket)
    chunks = [16] if bucket == 16 else [16, 32]
    ways = [("mma", *way, chunk) for way in ((64, 4), (64, 2), (128, 4), (128, 8), (256, 8)) for chunk in chunks]
    ways += [("wgmma", *way, bucket) for way in ((64, 4), (128, 4), (128, 8), (256, 8))]
    for (path, block_n, num_warps, chunk), unit, num_stages in itertools.product(ways, (1, 2), (3, 4, 5)):
        fits = num_stages * unit * 128 * (block_n + 2 * bucket) <= 220_000
        if fits and -(-shape.k // 128) % unit == 0:
            yield Config(path, block_n, unit, num_warps, num_stages, chunk)


def tune(measure: Timing, shapes: Sequence[Shape], counts: Sequence[int], machine: Machine | None) -> int:
    """Searches the config of the pass for each head and bucket, and prints what belongs into CONFIGS."""
    left_out = 0
    for shape in shapes:
        cases = Cases(Head(shape, measure.device, machine))
        best = {}
        for rows in counts:
            tried = [cases.certified(rows, config=config, op="try") for config in configs(shape, rows)]
            left_out += measure.measured(tried)
            times = [(row["us"], case.config) for case in tried if (row := measure.row(case)) is not None]
            if times:
                us, words = min(times, key=lambda each: each[0])
                bucket = next(bucket for bucket in on_triton.BUCKETS if rows <= bucket)
                best[bucket] = Config(**{name: words[name] for name in asdict(Config())})
                print(f"{shape.name:12} {rows:3} rows {us:.1f} us {best[bucket]}", flush=True)
        cases.head.matrices.drop()
        if best:
            print(f"    ({shape.n}, {shape.k}): {best!r},", flush=True)
    return left_out


@contextlib.contextmanager
def compilers() -> Iterator[Executor]:
    """Processes that compile; what is still waiting at the end is not compiled any more."""
    pool = ProcessPoolExecutor(max(1, len(os.sched_getaffinity(0)) - 2), multiprocessing.get_context("spawn"))
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="file of JSON lines, appended to")
    parser.add_argument("--max-minutes", type=float, default=6, help="start no measurement after so long (6)")
    parser.add_argument("--shape", metavar="NAME", action="append", help="only this head; may be given again")
    parser.add_argument("--rows", type=int, nargs="+", help="rows of x, in place of 1 8 16 32 64")
    parser.add_argument("--tune", action="store_true", help="search a config of the pass for each head")
    parser.add_argument("--smoke", action="store_true", help="a tiny head under Triton's interpreter")
    args = parser.parse_args()
    if not args.smoke and not torch.cuda.is_available():
        parser.error("no CUDA device; --smoke runs a tiny head on a CPU")
    known = SMOKE_SHAPES if args.smoke else SHAPES
    if unknown := set(args.shape or ()) - {shape.name for shape in known}:
        parser.error(f"no head '{min(unknown)}'; there are {', '.join(shape.name for shape in known)}")
    shapes = [shape for shape in known if not args.shape or shape.name in args.shape]
    device, machine = torch.device("cuda"), None
    if args.smoke:
        from benchmarks.cuda_on_cpu import Cpu

        device, machine = torch.device("cpu"), Cpu()
    sizes = replace(SMOKE, rotated_bytes=0) if args.smoke else Sizes()
    with contextlib.ExitStack() as stack:
        pool = None if args.smoke else stack.enter_context(compilers())
        measure = Timing(args.out, device, sizes.rotated_bytes, 60 * args.max_minutes, pool)
        measure.measure_copy(Bench(sizes, device).copy())
        if args.tune:
            rows = args.rows or (SMOKE_ROWS if args.smoke else TUNED_ROWS)
            left_out = tune(measure, shapes, rows, machine)
        else:
            rows = args.rows or (SMOKE_ROWS if args.smoke else ROWS)
            left_out = table(measure, shapes, rows, machine)
    if left_out:
        print(f"time is over: {left_out} measurements left; the same command goes on", file=sys.stderr)
    if measure.failed:
        print(f"{measure.failed} heads said something else than their twins", file=sys.stderr)
    return 1 if measure.failed else 0


if __name__ == "__main__":
    sys.exit(main())

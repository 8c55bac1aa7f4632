"""Times every kernel at the shapes of the widened SmolLM2 target, in CUDA-graph replay over rotating tensors.

    python -m benchmarks.kernels --out kernels.jsonl                 every op (about four minutes on one GPU)
    python -m benchmarks.kernels --out tune.jsonl --tune gemv        a list of configs for each shape of gemv
    python -m benchmarks.kernels --out smoke.jsonl --smoke           tiny shapes on a CPU: shows that the script runs

Each op is first held against its twin on random tensors; a row whose result is wrong is written as failed, has no
time, and makes the exit code 1.
One JSON line a measurement goes to --out, and a line that a person can read to stdout.  What --out already holds for
the same kernels, card, torch and Triton is not measured again, so a run that --max-seconds ended goes on where it
stopped; what failed is tried again.  Share is bytes over time, over the rate at which an elementwise kernel copies in
the same run.
"""

import argparse
import datetime
import hashlib
import itertools
import json
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

if "--smoke" in sys.argv:  # Triton reads it at import
    os.environ["TRITON_INTERPRET"] = "1"

import torch
import torch.nn.functional as F
import triton
from torch import Tensor

from benchmarks.clocks import read_clocks
from benchmarks.rows import read_lines
from harness.machine import COMPARED, card, shareable
from kernels.accept import accept, accept_reference
from kernels.ancestors import ancestors, ancestors_reference
from kernels.compact import compact, compact_reference
from kernels.gemv import Config, config_for, gemv, gemv_reference
from kernels.rms_norm import rms_norm, rms_norm_reference
from kernels.rope_append import rope_append, rope_append_reference
from kernels.sample import sample, sample_reference
from kernels.silu_mul import silu_mul, silu_mul_reference
from kernels.top_ranks import top_ranks, top_ranks_reference
from kernels.tree_attention import tree_attention, tree_attention_reference

BF16, F32, I32, I64 = torch.bfloat16, torch.float32, torch.int32, torch.int64
CUBLAS_ROWS = (1, 16, 64)
MOST_COPIES = 128
KERNELS = Path(__file__).resolve().parents[1] / "kernels"

# (the op, its twin) on the same tensors; both return everything that the op says or writes.
Pair = tuple[Callable[[], Any], Callable[[], Any]]


@dataclass(frozen=True)
class Sizes:
    """The target whose shapes are timed."""

    hidden: int = 4608
    heads: int = 72
    kv_heads: int = 24
    head_dim: int = 64
    middle: int = 12288
    vocabulary: int = 49152
    layers: int = 30
    rows: tuple[int, ...] = (1, 16, 33, 64, 128)
    contexts: tuple[int, ...] = (256, 512, 1024, 2048, 4096)
    ranks: tuple[int, ...] = (1, 8, 32)
    rotated_bytes: int = 400_000_000  # eight times the L2 of an H200

    @property
    def qkv(self) -> int:
        return (self.heads + 2 * self.kv_heads) * self.head_dim

    def weights(self) -> dict[str, tuple[int, int]]:
        """(n, k) of every matrix that a decoding step reads."""
        return {
            "qkv": (self.qkv, self.hidden),
            "out": (self.hidden, self.heads * self.head_dim),
            "gate_up": (2 * self.middle, self.hidden),
            "down": (self.hidden, self.middle),
            "head": (self.vocabulary, self.hidden),
        }


SMOKE = Sizes(16, 1, 1, 16, 16, 24, 2, (1, 3), (20,), (1, 3), 0)


@dataclass(frozen=True)
class Case:
    """One line to measure.  `make` builds one copy of the tensors and returns the op and its twin on them."""

    op: str
    shape: dict[str, int | str]
    bytes: int  # what a call must move
    make: Callable[[], Pair]
    config: dict[str, Any] = field(default_factory=dict)

    def key(self, where: dict[str, Any]) -> str:
        return json.dumps([self.op, self.shape, self.config, where], sort_keys=True)

    def check(self) -> None:
        """Raises AssertionError where the op says something else than its twin; integers must be equal."""
        call, twin = self.make()
        wanted = twin()  # first: an op may write into what it is given
        compare(call(), wanted)


def compare(found: Any, wanted: Any) -> None:
    """Holds tensors against tensors: floats within 2 % of their own size, or of the size that they have at large."""
    if isinstance(wanted, tuple):
        for one, other in zip(found, wanted, strict=True):
            compare(one, other)
        return
    if not wanted.is_floating_point():
        torch.testing.assert_close(found, wanted, rtol=0, atol=0)
        return
    size = float(wanted.float().square().mean().sqrt())
    torch.testing.assert_close(found.float(), wanted.float(), rtol=0.02, atol=0.02 * size)


class Bench:
    """Builds the cases of one target on one device."""

    def __init__(self, sizes: Sizes, device: torch.device) -> None:
        self.sizes, self.device = sizes, device

    def randn(self, *shape: int, dtype: torch.dtype = BF16, scale: float = 1.0) -> Tensor:
        return torch.empty(*shape, dtype=dtype, device=self.device).normal_(std=scale)

    def full(self, count: int, value: int | float, dtype: torch.dtype = I32) -> Tensor:
        return torch.full((count,), value, dtype=dtype, device=self.device)

    def copy(self) -> Case:
        elements = max(self.sizes.rotated_bytes, 4096) // 4

        def make() -> Pair:
            x = self.randn(elements)
            y = torch.empty_like(x)
            # An elementwise kernel; y.copy_(x) would be a slow memcpy node.
            return lambda: torch.neg(x, out=y), lambda: -x

        return Case("copy", {"elements": elements}, 4 * elements, make)

    def gemv(self, name: str, config: Config | None = None) -> Case:
        n, k = self.sizes.weights()[name]

        def make() -> Pair:
            x, weight, fused = self._linear(name)
            return lambda: gemv(x, weight, config=config, **fused), lambda: gemv_reference(x, weight, **fused)

        chosen = config or config_for(n, k)
        return Case("gemv", {"name": name, "n": n, "k": k, "rows": 1}, 2 * n * k, make, asdict(chosen))

    def _linear(self, name: str) -> tuple[Tensor, Tensor, dict[str, Any]]:
        n, k = self.sizes.weights()[name]
        fused: dict[str, Any] = {"eps": 1e-5}
        if name in ("qkv", "gate_up", "head"):
            fused["norm"] = self.randn(k)
        if name in ("out", "down"):
            fused["residual"] = self.randn(1, n)
        fused["silu_mul"] = name == "gate_up"
        return self.randn(1, k), self.randn(n, k, scale=k**-0.5), fused

    def cublas(self, name: str, rows: int) -> Case:
        n, k = self.sizes.weights()[name]

        def make() -> Pair:
            x, weight = self.randn(rows, k), self.randn(n, k)
            return lambda: F.linear(x, weight), lambda: gemv_reference(x, weight)

        return Case("cublas", {"name": name, "n": n, "k": k, "rows": rows}, 2 * n * k, make)

    def rms_norm(self, rows: int) -> Case:
        d = self.sizes.hidden

        def make() -> Pair:
            x, weight = self.randn(rows, d), self.randn(d)
            return lambda: rms_norm(x, weight, 1e-5), lambda: rms_norm_reference(x, weight, 1e-5)

        return Case("rms_norm", {"rows": rows, "d": d}, 4 * rows * d, make)

    def silu_mul(self, rows: int) -> Case:
        width = self.sizes.middle

        def make() -> Pair:
            gate_up = self.randn(rows, 2 * width)
            return lambda: silu_mul(gate_up), lambda: silu_mul_reference(gate_up)

        return Case("silu_mul", {"rows": rows, "width": width}, 6 * rows * width, make)

    def _cache(self, slots: int) -> list[Tensor]:
        return [self.randn(slots, self.sizes.kv_heads, self.sizes.head_dim) for _ in range(2)]

    def _angles(self, positions: int) -> list[Tensor]:
        return [self.randn(positions, self.sizes.head_dim // 2, dtype=F32) for _ in range(2)]

    def rope_append(self, rows: int) -> Case:
        s, context = self.sizes, self.sizes.contexts[-1]

        def make() -> Pair:
            qkv = self.randn(rows, s.qkv)
            (k, v), (cos, sin) = self._cache(context + rows), self._angles(context + rows)
            start = self.full(1, context)
            position = context + torch.arange(rows, device=self.device)

            def twin() -> tuple[Tensor, ...]:
                keys, values = k.clone(), v.clone()
                return rope_append_reference(qkv, position, cos, sin, keys, values, start), keys, values

            return lambda: (rope_append(qkv, position, cos, sin, k, v, start), k, v), twin

        return Case("rope_append", {"rows": rows}, 4 * rows * s.qkv, make)

    def tree_attention(self, rows: int, context: int) -> Case:
        s = self.sizes
        words = ancestors(torch.tensor([-1, *(row // 2 for row in range(rows - 1))], device=self.device))

        def make() -> Pair:
            q, (k, v) = self.randn(rows, s.heads, s.head_dim), self._cache(context + rows)
            start = self.full(1, context)
            scale, seen = s.head_dim**-0.5, words.cpu()  # the twin reads single words
            return (
                lambda: tree_attention(q, k, v, start, words, scale=scale),
                lambda: tree_attention_reference(q, k, v, start, seen, scale=scale),
            )

        moved = 4 * s.head_dim * ((context + rows) * s.kv_heads + rows * s.heads)
        return Case("tree_attention", {"rows": rows, "context": context}, moved, make)

    def ancestors(self, rows: int) -> Case:
        def make() -> Pair:
            parent = torch.tensor([-1, *(row // 2 for row in range(rows - 1))], device=self.device)
            return lambda: ancestors(parent), lambda: ancestors_reference(parent)

        return Case("ancestors", {"rows": rows}, rows * (8 + 8 * -(-rows // 64)), make)

    def accept(self, rows: int) -> Case:
        def make() -> Pair:
            parent, token = torch.arange(-1, rows - 1, device=self.device), torch.arange(rows, device=self.device)
            choice, most = token + 1, min(rows, 16)
            return (
                lambda: accept(token, parent, choice, most),
                lambda: accept_reference(token, parent, choice, most),
            )

        return Case("accept", {"rows": rows}, 24 * rows, make)

    def compact(self, rows: int) -> Case:
        s, context = self.sizes, self.sizes.contexts[0]
        kept = min(8, (rows + 1) // 2)

        def make() -> Pair:
            kv = self.randn(s.layers, 2, context + rows, s.kv_heads, s.head_dim)
            path, start = torch.arange(0, 2 * kept, 2, dtype=I32, device=self.device), self.full(1, context)
            count = self.full(1, kept)

            def call() -> Tensor:
                compact(kv, start, path, count)
                return kv

            def twin() -> Tensor:
                moved = kv.clone()
                compact_reference(moved, start, path, count)
                return moved

            return call, twin

        moved = 2 * 2 * (kept - 1) * s.layers * 2 * s.kv_heads * s.head_dim
        return Case("compact", {"rows": rows, "kept": kept}, max(1, moved), make)

    def top_ranks(self, rows: int, ranks: int) -> Case:
        v = self.sizes.vocabulary

        def make() -> Pair:
            logits = self.randn(rows, v, scale=4)
            return lambda: top_ranks(logits, ranks), lambda: top_ranks_reference(logits, ranks)

        return Case("top_ranks", {"rows": rows, "ranks": ranks, "v": v}, 2 * rows * v, make)

    def sample(self, rows: int) -> Case:
        v = self.sizes.vocabulary

        def make() -> Pair:
            logits = self.randn(rows, v, scale=4)
            position, seed = torch.arange(rows, device=self.device), self.full(rows, 7, I64)
            heat = self.full(rows, 1.0, F32)
            return (
                lambda: sample(logits, position, seed, heat),
                lambda: sample_reference(logits, position, seed, heat),
            )

        return Case("sample", {"rows": rows, "v": v}, 2 * rows * v, make)

    def layer(self, context: int) -> Case:
        """One layer of autoregressive decoding: what the kernels make of a step, launches between them included."""
        s, names = self.sizes, ("qkv", "out", "gate_up", "down")
        words = ancestors(self.full(1, -1))

        def make() -> Pair:
            weights = {name: self._linear(name)[1] for name in names}
            (k, v), (cos, sin) = self._cache(context + 1), self._angles(context + 1)
            start, position = self.full(1, context), self.full(1, context, I64)
            hidden, norms = self.randn(1, s.hidden), [self.randn(s.hidden) for _ in range(2)]

            def call() -> Tensor:
                qkv = gemv(hidden, weights["qkv"], norm=norms[0], eps=1e-5)
                q = rope_append(qkv, position, cos, sin, k, v, start)
                mixed = tree_attention(q, k, v, start, words, scale=s.head_dim**-0.5)
                x = gemv(mixed, weights["out"], residual=hidden)
                y = gemv(x, weights["gate_up"], norm=norms[1], eps=1e-5, silu_mul=True)
                return gemv(y, weights["down"], residual=x)

            def twin() -> Tensor:
                qkv = gemv_reference(hidden, weights["qkv"], norm=norms[0], eps=1e-5)
                q = rope_append_reference(qkv, position, cos, sin, k, v, start)
                mixed = tree_attention_reference(q, k, v, start, words, scale=s.head_dim**-0.5)
                x = gemv_reference(mixed, weights["out"], residual=hidden)
                y = gemv_reference(x, weights["gate_up"], norm=norms[1], eps=1e-5, silu_mul=True)
                return gemv_reference(y, weights["down"], residual=x)

            return call, twin

        moved = sum(2 * math.prod(s.weights()[name]) for name in names) + 4 * context * s.kv_heads * s.head_dim
        return Case("layer", {"rows": 1, "context": context}, moved, make)

    def cases(self) -> Iterator[Case]:
        """Everything, what decides the speed of a decoding step first."""
        s = self.sizes
        yield from (self.gemv(name) for name in s.weights())
        yield from (self.layer(context) for context in s.contexts)
        yield from (self.tree_attention(rows, context) for rows in s.rows for context in s.contexts)
        yield from (self.cublas(name, rows) for name in s.weights() for rows in CUBLAS_ROWS)
        for make in (self.rms_norm, self.silu_mul, self.rope_append, self.ancestors, self.accept, self.sample):
            yield from (make(rows) for rows in s.rows)
        yield from (self.compact(rows) for rows in s.rows[1:])
        yield from (self.top_ranks(rows, ranks) for rows in s.rows[:2] for ranks in s.ranks)

    def tuned(self) -> Iterator[Case]:
        """gemv with each config of the list, shape by shape, the default first."""
        for name in self.sizes.weights():
            yield self.gemv(name)
            default = config_for(*self.sizes.weights()[name])
            yield from (self.gemv(name, config) for config in gemv_configs() if config != default)


def gemv_configs() -> Iterator[Config]:
    """Configs that neither spill nor leave lanes without a 16-byte load; tiles in registers, then in shared memory."""
    for block_n, num_warps, loads in itertools.product((4, 2, 8), (2, 1, 4, 8), (1, 2)):
        if block_n * loads <= 8:
            yield Config(block_n, 256 * num_warps * loads, num_warps)
    for block_n, num_warps, num_stages in itertools.product((4, 8, 16), (2, 4), (3, 4)):
        yield Config(block_n, 256 * num_warps, num_warps, num_stages)


def host_us(calls: list[Callable[[], Any]]) -> float:
    """Microseconds a call, by the host's clock: for --smoke only."""
    start = time.perf_counter()
    for call in calls:
        call()
    return (time.perf_counter() - start) / len(calls) * 1e6


def device_us(calls: list[Callable[[], Any]], replays: int = 9) -> float:
    """Microseconds a call: median over replays of one graph that holds every call, at least 24 of them."""
    calls = calls * max(1, -(-24 // len(calls)))
    cuda: Any = torch.cuda  # whose streams and events have no types
    stream = cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        calls[0]()
        calls[0]()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for call in calls:
            call()
    times_us = []
    for replay in range(2 + replays):
        before, after = (cuda.Event(enable_timing=True) for _ in range(2))
        before.record()
        graph.replay()
        after.record()
        torch.cuda.synchronize()
        if replay >= 2:
            times_us.append(before.elapsed_time(after) * 1e3)
    return float(statistics.median(times_us)) / len(calls)


def kernels_digest(folders: Sequence[Path] = (KERNELS,)) -> str:
    """sha256 of the names and digests of the kernels' own files."""
    files = [file for folder in folders for file in sorted(folder.glob("*.py"))]
    listed = "".join(f"{file.name} {hashlib.sha256(file.read_bytes()).hexdigest()}\n" for file in files)
    return hashlib.sha256(listed.encode()).hexdigest()


class Measure:
    """Measures cases into a file of JSON lines, until the time is over.

    folders: of kernels beside the trunk's that are measured.
    """

    def __init__(
        self, out: Path, device: torch.device, rotated_bytes: int, max_seconds: float, folders: Sequence[Path] = ()
    ) -> None:
        self.out, self.device, self.rotated_bytes = out, device, rotated_bytes
        self.end_s = time.monotonic() + max_seconds
        self.card = card(str(device), datetime.datetime.now(datetime.UTC))
        compared = {name: self.card[name] for name in COMPARED if name != "harness"}
        self.where = {"kernels": kernels_digest((KERNELS, *folders)), **compared}
        held = read_lines(out) if out.exists() else []
        self.done = {row["key"] for row in held if row["status"] == "timed"}
        self.failed = 0
        self.copy_tb_s = 0.0

    def time_us(self, case: Case) -> float:
        copies = min(MOST_COPIES, -(-self.rotated_bytes // case.bytes) + 1)
        calls = [case.make()[0] for _ in range(copies)]
        return device_us(calls) if self.device.type == "cuda" else host_us(calls)

    def measure_copy(self, case: Case) -> None:
        self.copy_tb_s = case.bytes / self.time_us(case) / 1e6
        print(f"copy {self.copy_tb_s:.3f} TB/s", flush=True)

    def measure(self, case: Case) -> float:
        """Microseconds of a case, which are written; AssertionError where it is wrong."""
        case.check()
        us = self.time_us(case)
        tb_s = case.bytes / us / 1e6
        row: dict[str, Any] = {
            "status": "timed",
            "us": round(us, 3),
            "bytes": case.bytes,
            "tb_s": round(tb_s, 4),
            "share": round(tb_s / self.copy_tb_s, 4),
            "copy_tb_s": round(self.copy_tb_s, 4),
        }
        row |= read_clocks(self.card)
        self.write(case, row)
        words = " ".join(f"{name}={value}" for name, value in {**case.shape, **case.config}.items())
        print(
            f"{case.op:15} {us:9.2f} us {case.bytes / 1e6:9.3f} MB {tb_s:7.3f} TB/s {row['share']:6.3f}  {words}",
            flush=True,
        )
        return us

    def write(self, case: Case, row: dict[str, Any]) -> None:
        head = {"v": 1, "key": case.key(self.where), "op": case.op, "shape": case.shape, "config": case.config}
        with self.out.open("a") as file:
            file.write(json.dumps({**head, **row, "card": shareable(self.card)}) + "\n")

    def run(self, cases: Iterator[Case]) -> int:
        """Measures what is not in the file yet; returns how many were left out for time."""
        left_out = 0
        for case in cases:
            if case.key(self.where) in self.done:
                continue
            if time.monotonic() > self.end_s:
                left_out += 1
                continue
            try:
                self.measure(case)
            except (AssertionError, triton.TritonError) as error:
                self.failed += 1
                self.write(case, {"status": "failed", "error": str(error)})
                print(f"{case.op:15} failed: {case.shape} {case.config}", file=sys.stderr, flush=True)
        return left_out


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="file of JSON lines, appended to")
    parser.add_argument("--max-seconds", type=float, default=220, help="start no measurement after so long (220)")
    parser.add_argument("--only", metavar="OP", action="append", help="only this op; may be given again")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--tune", choices=["gemv"], help="try a list of configs for each shape")
    mode.add_argument("--smoke", action="store_true", help="tiny shapes under Triton's interpreter")
    args = parser.parse_args()
    if not args.smoke and not torch.cuda.is_available():
        parser.error("no CUDA device; --smoke runs tiny shapes on a CPU")
    device = torch.device("cpu" if args.smoke else "cuda")
    sizes = SMOKE if args.smoke else Sizes()
    bench, measure = Bench(sizes, device), Measure(args.out, device, sizes.rotated_bytes, args.max_seconds)
    measure.measure_copy(bench.copy())
    cases = bench.tuned() if args.tune else bench.cases()
    left_out = measure.run(case for case in cases if not args.only or case.op in args.only)
    if left_out:
        print(f"time is over: {left_out} measurements left; the same command goes on", file=sys.stderr)
    if measure.failed:
        print(f"{measure.failed} ops said something else than their twins", file=sys.stderr)
    return 1 if measure.failed else 0


if __name__ == "__main__":
    sys.exit(main())

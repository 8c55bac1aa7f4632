"""What step records cost a live run: the same requests with and without, taking turns in one engine.

    python -m benchmarks.record [--device D] [--widen K] [--system SYSTEM] [--option NAME=VALUE]... [--count 8]
        [--tokens 64] [--rounds 4] [--limit 0.02]

A round asks each request four times, in the order without, with, with, without, so that drift reaches both alike.
What is compared is the whole time of an answer, from `generate` written to `done` read, by the harness's clock.
Exit code 1 where even the lower end of the interval is above --limit; an interval that reaches over it is `undecided`.
"""

import argparse
import json
import math
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.answers import SMOLLM2, deployment_words
from benchmarks.rows import read_lines

REQUESTS = Path(__file__).parent / "prompts.jsonl"
ORDER = (False, True, True, False)


@dataclass(frozen=True)
class Cost:
    """The share of time that recording adds, with the ends of its 95 % interval, over pairs of answers."""

    share: float
    lower: float
    upper: float
    pairs: int
    steps: int
    bytes: int


def main() -> int:
    """Prints the cost beside its limit."""
    arguments = parse()
    requests = read_lines(arguments.requests)[: arguments.count]
    times, steps, size = run(arguments, requests)
    found = cost(times, steps, size)
    print(json.dumps({**found.__dict__, "limit": arguments.limit, "bytes_a_step": round(found.bytes / found.steps)}))
    verdict = "below" if found.upper < arguments.limit else "above" if found.lower > arguments.limit else "undecided"
    ends = f"{found.lower:+.2%} to {found.upper:+.2%}"
    print(f"recording costs {found.share:+.2%} ({ends}, {found.pairs} pairs), {verdict} {arguments.limit:.0%}")
    return 1 if verdict == "above" else 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--requests", type=Path, default=REQUESTS, help="JSON lines with turns, of which the first is asked"
    )
    parser.add_argument("--target", default=SMOLLM2, help="a folder, a GGUF file, or package:NAME/FILE")
    parser.add_argument(
        "--system", default="stock", help="stock, ENTRY+ENTRY..., a revision, or the folder of an exported one"
    )
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--count", type=int, default=8, help="requests from the start of the file")
    parser.add_argument("--tokens", type=int, default=64, help="of each answer; stop ids are ignored")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--context", type=int, default=2048)
    parser.add_argument("--widen", type=int, default=1)
    parser.add_argument("--jitter", type=int, default=0)
    parser.add_argument("--limit", type=float, default=0.02, help="the share that recording may cost")
    return parser.parse_args()


def run(arguments: argparse.Namespace, requests: Sequence[dict[str, Any]]) -> tuple[list[dict[bool, float]], int, int]:
    """For each pair of answers the seconds without (False) and with (True) records; steps and bytes recorded."""
    from harness.client import Engine, stock_command
    from harness.options import convert
    from harness.text import load_text
    from harness.wire import Generate, Settings, Target
    from spt.deployment import parse as read
    from spt.job import export_system

    words = deployment_words(context=str(arguments.context))
    words["target"] = {"path": arguments.target}
    models = read(words, "record", Path.cwd()).models
    text = load_text(models.target)
    target = Target(str(models.target), arguments.widen, arguments.jitter)
    options = dict(option.split("=", 1) for option in arguments.option)
    pairs: list[dict[bool, float]] = []
    with tempfile.TemporaryDirectory(prefix="spt-record-") as name:
        exported, brought = Path(arguments.system), dict[str, Any]()
        if not exported.is_dir():
            exported = Path(name) / "system"
            _, brought = export_system(arguments.system, exported)
        with Engine.start(stock_command(), exported.resolve()) as engine:
            values = convert({**brought, **options}, engine.hello.options)
            engine.load(
                Settings(
                    target=target,
                    drafter=None if models.drafter is None else str(models.drafter),
                    dtype=arguments.dtype,
                    device=arguments.device,
                    options=values,
                    context=arguments.context,
                )
            )

            def seconds(request: dict[str, Any], recorded: bool) -> float:
                engine.record("steps.jsonl" if recorded else None)
                prompt = text.chat(request["turns"][:1], [])
                answer = engine.generate(Generate("it", prompt, arguments.tokens, [], ignore_eos=True))
                if recorded:
                    data = (engine.room / "steps.jsonl").read_bytes()
                    sizes.append((data.count(b"\n"), len(data)))
                return (answer.done_ns - answer.written_ns) / 1e9

            sizes: list[tuple[int, int]] = []
            for recorded in ORDER:  # warm
                seconds(requests[0], recorded)
            sizes.clear()
            for _ in range(arguments.rounds):
                for request in requests:
                    took = [seconds(request, recorded) for recorded in ORDER]
                    pairs += [{False: took[0], True: took[1]}, {True: took[2], False: took[3]}]
    return pairs, sum(lines for lines, _ in sizes), sum(size for _, size in sizes)


def cost(pairs: Sequence[dict[bool, float]], steps: int, size: int) -> Cost:
    """From the pairs' log-ratios, by Student's t."""
    from scipy.stats import t

    logs = [math.log(pair[True] / pair[False]) for pair in pairs]
    mean = statistics.fmean(logs)
    half = float(t.ppf(0.975, len(logs) - 1)) * statistics.stdev(logs) / math.sqrt(len(logs))
    share, lower, upper = (math.expm1(value) for value in (mean, mean - half, mean + half))
    return Cost(share, lower, upper, len(logs), steps, size)


if __name__ == "__main__":
    sys.exit(main())

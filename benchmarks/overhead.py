"""What the client adds to a request: from `generate` written to `done` read, less the engine's own time.

    python -m benchmarks.overhead [--requests 500] [--tokens 128] [--step-tok 4] [--request-ms 150] [--no-sandbox]

An engine without a model takes its time over each step and says of every request how long that took, by its own clock,
which on one machine is the harness's too: from the line read to `done` about to be written.  What is left is pipes,
JSON, checks and whatever else delays the client while a request is open; starting, freezing and thawing are no part.
The limit is 0.2 % of a request, since an H200 answers 128 tokens in about 150 ms.  The exit code is 1 where a median
misses it.
"""

import argparse
import dataclasses
import statistics
import sys
import tempfile
from pathlib import Path

from harness.client import Engine
from harness.sandbox import Enclosure, find_bubblewrap
from harness.wire import Generate, Settings, Target

SHARE = 0.002
PROMPT_TOK = 200
WARM_UP = 5
ECHO = '''
"""Says what it is asked to, in steps of a known time."""

import json
import os
import sys
import time

source, out = os.fdopen(3, "rb"), os.fdopen(4, "wb", buffering=0)
step_tok, step_ns = int(sys.argv[1]), int(sys.argv[2])


def send(operation, **fields):
    out.write(json.dumps({"v": 1, "op": operation, **fields}).encode() + b"\\n")


def wait(until_ns):
    time.sleep(max(0, until_ns - time.perf_counter_ns() - 200_000) / 1e9)
    while time.perf_counter_ns() < until_ns:
        pass  # as an engine does that waits for its GPU


send("hello", engine="echo", version="1", options={})
own_ns = 0
for line in source:
    begin_ns = time.perf_counter_ns()
    ask = json.loads(line)
    if ask["op"] == "load":
        send("ready", load_s=0.0, bytes=0, vocabulary=1000, stop_ids=[2], context=8192)
    elif ask["op"] == "stats":
        send("stats", counters={"own_ns": own_ns})
    elif ask["op"] == "generate":
        due_ns, sizes = begin_ns, [1, *[step_tok] * (ask["max_tokens"] // step_tok)]
        sizes[-1] -= sum(sizes) - ask["max_tokens"]
        for size in filter(None, sizes):
            due_ns += step_ns
            wait(due_ns)
            send("tokens", id=ask["id"], ids=[7] * size)
        usage = {"prompt_tok": len(ask["prompt"]), "completion_tok": ask["max_tokens"], "steps": len(sizes) - 1}
        own_ns = time.perf_counter_ns() - begin_ns
        send("done", id=ask["id"], reason="length", usage=usage)
    else:
        send("ok", to="shutdown")
        break
'''


def main() -> int:
    """Prints a line for each kind of engine; 1 where one misses the limit."""
    arguments = parse()
    limit_us = SHARE * arguments.request_ms * 1e3
    kinds = {"plain": None} if arguments.no_sandbox else {"plain": None, "sandboxed": Enclosure(find_bubblewrap())}
    missed = 0
    for name, enclosure in kinds.items():
        added_us = measure(arguments, enclosure)
        median, most = statistics.median(added_us), statistics.quantiles(added_us, n=20)[-1]
        missed += median > limit_us
        share = median / arguments.request_ms / 1e3
        print(
            f"{name:10} {len(added_us)} requests: median {median:.0f} us, 95th percentile {most:.0f} us;"
            f" {share:.3%} of {arguments.request_ms:g} ms (limit {SHARE:.1%}, {limit_us:.0f} us)"
        )
    return int(missed > 0)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--step-tok", type=int, default=4)
    parser.add_argument("--request-ms", type=float, default=150.0)
    parser.add_argument("--no-sandbox", action="store_true", help="where there is none")
    arguments = parser.parse_args()
    if min(arguments.requests, arguments.tokens, arguments.step_tok) < 2:
        parser.error("requests, tokens and tokens a step are at least 2")
    return arguments


def measure(arguments: argparse.Namespace, enclosure: Enclosure | None) -> list[float]:
    """Microseconds added to each request."""
    steps = 1 + -(-arguments.tokens // arguments.step_tok)
    command = [sys.executable, "-P", "-s", "-m", "echo", str(arguments.step_tok)]
    command.append(str(round(arguments.request_ms * 1e6 / steps)))
    found = []
    with tempfile.TemporaryDirectory(prefix="spt-echo-") as name:
        (Path(name) / "echo.py").write_text(ECHO)
        with Engine.start(command, Path(name), enclosure=enclosure) as engine:
            engine.load(Settings(Target("/nowhere")))
            ask = Generate("", [7] * PROMPT_TOK, arguments.tokens, [2], ignore_eos=True)
            for number in range(WARM_UP + arguments.requests):
                answer = engine.generate(dataclasses.replace(ask, id=f"r{number}"))
                own_ns = engine.stats()["own_ns"]
                found.append((answer.done_ns - answer.written_ns - own_ns) / 1e3)
    return found[WARM_UP:]


if __name__ == "__main__":
    sys.exit(main())

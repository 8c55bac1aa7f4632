"""Tokens a step of a system on real requests, loops apart.

    python -m benchmarks.tau --requests FILE [--drafter DIR] [--count 6] [--cap 200] [--option NAME=VALUE]... \\
        [--at-least TAU]

Greedy, through the chat template, one request after the other; stop ids end an answer.
A step whose first token lies in a run of 24 tokens that its answer said before is looped and left out of tau, and the
looped tokens are counted.  With --at-least a lower micro tau, or none, makes the exit code 1: a tap, a position or the
mask that is misaligned costs most of it.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.answers import SMOLLM2, answer, deployment_words
from benchmarks.rows import read_lines


def main() -> int:
    """Prints a row a request and the averages."""
    arguments = parse()
    requests = [request_of(row, arguments.cap) for row in read_lines(arguments.requests)[: arguments.count]]
    words = deployment_words(dtype=arguments.dtype, device=arguments.device, context=str(arguments.context))
    words["target"] = {"path": arguments.target, "widen": str(arguments.widen), "jitter": str(arguments.jitter)}
    if arguments.drafter is not None:
        words["drafter"] = {"path": str(arguments.drafter.absolute())}
    options = dict(option.split("=", 1) for option in arguments.option)
    with tempfile.TemporaryDirectory(prefix="spt-tau-") as folder:
        answers = answer(Path(folder) / "run", arguments.system, options, requests, words, "tau")
    if arguments.out:
        arguments.out.write_text("".join(json.dumps(each) + "\n" for each in answers))
    Console().print(table(answers, arguments))
    return check_limit(answers, arguments.at_least)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=Path, required=True, help="JSON lines with id and turns, or ids")
    parser.add_argument("--target", default=SMOLLM2, help="a folder, a GGUF file, or package:NAME/FILE")
    parser.add_argument("--drafter", type=Path, help="a drafter's folder; the shipped one when left out")
    parser.add_argument("--system", default="stock", help="SYSTEM: stock, ENTRY+ENTRY..., or a revision")
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--count", type=int, default=6, help="requests from the start of the file")
    parser.add_argument("--cap", type=int, default=200, help="the longest answer, in tokens")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--context", type=int, default=2048)
    parser.add_argument("--widen", type=int, default=1)
    parser.add_argument("--jitter", type=int, default=0)
    parser.add_argument("--at-least", type=float, metavar="TAU", help="the least micro tau without loops")
    parser.add_argument("--out", type=Path, help="keep the answers as JSON lines")
    return parser.parse_args()


def request_of(row: dict[str, Any], cap: int) -> dict[str, Any]:
    """A request of one answer: the first turn, or the ids."""
    what = {"ids": row["ids"]} if "ids" in row else {"turns": row["turns"][:1]}
    return {"v": 1, "kind": "request", "id": row["id"], "max_tokens": cap, **what}


def table(answers: list[dict[str, Any]], arguments: argparse.Namespace) -> Table:
    """One row a request, then micro and macro averages."""
    made = Table("request", "tokens", "looped", "steps", "tau", "tau with loops")
    made.title = f"{arguments.system}, {arguments.dtype}, first {len(answers)} requests, cap {arguments.cap}"
    for each in answers:
        counts = each["counts"]
        columns = (each["request"], counts["tokens"], counts["looped_tokens"], counts["steps"])
        made.add_row(*map(str, columns), number(counts["tau"]), number(counts["tau_all"]))
    made.add_section()
    keys = ("tokens", "looped_tokens", "steps", "kept_tokens", "kept_steps", "step_tokens")
    total = {key: sum(each["counts"][key] for each in answers) for key in keys}
    taus = (ratio(total["kept_tokens"], total["kept_steps"]), ratio(total["step_tokens"], total["steps"]))
    made.add_row("micro", *(str(total[key]) for key in ("tokens", "looped_tokens", "steps")), *map(number, taus))
    macro = [mean([each["counts"][key] for each in answers]) for key in ("tau", "tau_all")]
    made.add_row("macro", "", "", "", *map(number, macro))
    return made


def check_limit(answers: list[dict[str, Any]], at_least: float | None) -> int:
    """1 if the micro average without loops is below the limit, or there is none."""
    if at_least is None:
        return 0
    found = ratio(*(sum(each["counts"][key] for each in answers) for key in ("kept_tokens", "kept_steps")))
    if found is None or found < at_least:
        print(f"tau is {number(found)}, and at least {at_least:.2f} was asked for", file=sys.stderr)
        return 1
    return 0


def ratio(over: int, under: int) -> float | None:
    return over / under if under else None


def mean(values: list[float | None]) -> float | None:
    """The mean of what there is."""
    there = [value for value in values if value is not None]
    return sum(there) / len(there) if there else None


def number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


if __name__ == "__main__":
    sys.exit(main())

"""How much a model repeats itself on generated requests: the looped share a family, turn and position.

    python -m benchmarks.looped --out DIR [--sessions 12] [--context 2048] [--singles 0 --tokens 512]

A token is looped when it lies in a run of 24 tokens that its own answer said before, and echoed when an earlier answer
of its session said that run.  Looped tokens are left out of tau and of mismatch rates, so they are wasted time:
above 20 % of the tokens of the sessions the exit code is 1, and the templates want work.
Singles have fixed counts of `--tokens`, their stop ids ignored, as those of a final.
"""

import argparse
import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.answers import SMOLLM2, deployment_words
from harness.generator import Set
from harness.tau import RUN_TOK, looped
from spt.deployment import parse as parse_deployment
from spt.job import export_system, write_job

LIMIT = 0.20
POSITIONS = (0, 512, 2048, 4096, 1 << 30)  # the buckets of forcing
TURNS = (1, 2, 5, 10, 20, 40, 1 << 30)


def main() -> int:
    """Asks the model and prints the shares of the answers that are there; the same command goes on where it was."""
    arguments = parse()
    requests = list(requests_of(arguments))
    if not arguments.tables_only:
        ask(arguments, requests)
    answers = [json.loads(line) for line in (arguments.out / "out/answers.jsonl").read_text().splitlines()]
    console = Console(width=110)
    shares = [share(console, sort, group) for sort, group in groups(requests, answers) if group]
    return int(shares[0] > LIMIT)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", default="development")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--sessions", type=int, default=12)
    parser.add_argument("--context", type=int, default=2048, help="where a session ends, in tokens")
    parser.add_argument("--cap", type=int, default=128, help="the longest answer of a session, in tokens")
    parser.add_argument("--singles", type=int, default=0)
    parser.add_argument("--tokens", type=int, default=512, help="new tokens of a single")
    parser.add_argument("--temperature", type=float, default=1.0, help="of the singles; the sessions are greedy")
    parser.add_argument("--families", nargs="+", default=[])
    parser.add_argument("--target", default=SMOLLM2, help="a folder, a GGUF file, or package:NAME/FILE")
    parser.add_argument("--system", default="stock", help="SYSTEM: stock, ENTRY+ENTRY..., or a revision")
    parser.add_argument("--no-drafter", action="store_true")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, required=True, help="a folder for the job and its answers")
    parser.add_argument("--max-minutes", type=float, default=10)
    parser.add_argument("--tables-only", action="store_true", help="of the answers that --out holds")
    return parser.parse_args()


def requests_of(arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The sessions, then the singles."""
    source = Set(arguments.set, arguments.seed, families=arguments.families)
    for index in range(arguments.sessions):
        yield source.session(index, arguments.context, arguments.cap)
    sampling = {"temperature": arguments.temperature, "top_p": 1, "top_k": 0, "seed": arguments.seed}
    for index in range(arguments.singles):
        yield source.single(index, max_tokens=arguments.tokens, ignore_eos=True, sampling=sampling)


def ask(arguments: argparse.Namespace, requests: list[dict[str, Any]]) -> None:
    """Lets the harness answer the requests below `--out`, or go on with it."""
    job = arguments.out / "job.json"
    words = deployment_words(dtype=arguments.dtype, device=arguments.device, context=str(arguments.context))
    words["target"] = {"path": arguments.target}
    if arguments.no_drafter:
        words["drafter"] = None
    deployment = parse_deployment(words, "looped", Path.cwd())
    if not job.exists():
        arguments.out.mkdir(parents=True, exist_ok=True)
        tree, options = export_system(arguments.system, arguments.out / "system")
        write_job(arguments.out, deployment, {"dir": "system", "tree": tree, "options": options}, requests)
    command = [sys.executable, "-m", "harness", "run", "--job", job, "--out", arguments.out / "out"]
    subprocess.run([*command, "--max-minutes", str(arguments.max_minutes)], check=False)  # it says itself what is left


def groups(requests: list[dict[str, Any]], answers: list[dict[str, Any]]) -> list[tuple[str, list[dict[str, Any]]]]:
    """Sessions and singles, an item an answer: `family`, `turn` from 1, `reason`, and a mark a token."""
    by_id = {request["id"]: request for request in requests}
    found: dict[str, list[dict[str, Any]]] = {"session": [], "request": []}
    said: dict[str, set[tuple[int, ...]]] = defaultdict(set)
    for each in answers:
        request, ids = by_id[each["request"]], each["ids"]
        runs = [tuple(ids[start : start + RUN_TOK]) for start in range(len(ids) - RUN_TOK + 1)]
        echoed = [False] * len(ids)
        for start, run in enumerate(runs):
            if run in said[each["request"]]:
                echoed[start : start + RUN_TOK] = [True] * RUN_TOK
        said[each["request"]].update(runs)
        single = request["kind"] == "request"
        found[request["kind"]].append(
            {
                "family": request["category" if single else "family"],
                "turn": each["turn"] + 1,
                "first": 0 if single else each["prompt_tok"],  # a single's tokens are counted from its answer's start
                "capped": each["reason"] == "length",
                "looped": looped(ids),
                "echoed": echoed,
            }
        )
    return list(found.items())


def share(console: Console, sort: str, items: list[dict[str, Any]]) -> float:
    """Prints the tables of sessions or of singles; returns their looped share."""
    families = sorted({item["family"] for item in items})
    row = [whole("all", items)]
    row += [whole(family, [item for item in items if item["family"] == family]) for family in families]
    show(console, f"{sort}s by family", row)
    if sort == "session":
        spans = pairwise(TURNS)
        show(console, "by turn", [whole(span(a, b), [i for i in items if a <= i["turn"] < b]) for a, b in spans])
    parts = {span(a, b): [part(i, a, b) for i in items if reaches(i, a, b)] for a, b in pairwise(POSITIONS)}
    show(console, "by position", [whole(label, found) for label, found in parts.items()])
    marks = [mark for item in items for mark in item["looped"]]
    share: float = sum(marks) / len(marks)
    return share


def span(low: int, high: int) -> str:
    return f"{low} and on" if high == POSITIONS[-1] else f"{low}..{high - 1}"


def reaches(item: dict[str, Any], low: int, high: int) -> bool:
    inside: bool = item["first"] < high and item["first"] + len(item["looped"]) > low
    return inside


def part(item: dict[str, Any], low: int, high: int) -> dict[str, Any]:
    """The tokens of an answer that stand from `low` to `high`."""
    cut = slice(max(0, low - item["first"]), max(0, high - item["first"]))
    return {**item, "looped": item["looped"][cut], "echoed": item["echoed"][cut]}


def whole(label: str, items: list[dict[str, Any]]) -> tuple[str, ...]:
    """A row: answers, tokens, and shares of them."""
    tokens = sum(len(item["looped"]) for item in items)
    if not tokens:
        return label, "0", "0", "-", "-", "-"
    looped_, echoed = (sum(sum(item[key]) for item in items) / tokens for key in ("looped", "echoed"))
    capped = sum(item["capped"] for item in items) / len(items)
    return label, str(len(items)), str(tokens), f"{looped_:.1%}", f"{echoed:.1%}", f"{capped:.1%}"


def show(console: Console, title: str, rows: list[tuple[str, ...]]) -> None:
    made = Table("", "answers", "tokens", "looped", "echoed", "at the cap", title=title)
    for row in rows:
        made.add_row(*row)
    console.print(made)


if __name__ == "__main__":
    sys.exit(main())

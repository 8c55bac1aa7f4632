"""Turns results of `benchmarks.speed` into a line of an entry's evidence: a raw ratio with its samples.

    python -m benchmarks.evidence --results RESULTS.jsonl --setting tree:63:15:16 --baseline chain \\
        --entry best-first-tree --deployment deployment.yaml

The ratio is the baseline's decode time over the setting's, for the same requests and the same number of tokens each;
the interval is Student's t over the log ratios of the requests, 95 %.
It is the author's figure: no verdict stands behind it, so it never becomes a speedup.
"""

import argparse
import gzip
import hashlib
import json
import math
import statistics
import sys
from pathlib import Path
from typing import Any

from scipy.stats import t as student

from benchmarks.speed import read_results
from harness.tau import Tally, tally
from spt.deployment import read
from spt.formats import read_jsonl

ROOT = Path(__file__).resolve().parents[1]


def main() -> int:
    """Appends the line and keeps the samples beside it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--setting", required=True)
    parser.add_argument("--baseline", required=True)
    parser.add_argument("--entry", required=True)
    parser.add_argument("--deployment", type=Path, required=True)
    parser.add_argument("--note", default="")
    arguments = parser.parse_args()
    results = read_results(arguments.results)
    line = evidence(arguments, results[arguments.baseline], results[arguments.setting])
    name = f"{line['card']['date'][:10]}-{read(arguments.deployment).name}.jsonl"
    file = ROOT / "entries" / arguments.entry / "evidence" / name
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a") as out:
        out.write(json.dumps(line, sort_keys=True, separators=(",", ":")) + "\n")
    before, after = line["tau"]["before"], line["tau"]["after"]
    print(f"{file.relative_to(ROOT)}: raw ratio {1 + line['gain']:.3f}, tau {before:.2f} -> {after:.2f}")
    return 0


def evidence(arguments: argparse.Namespace, before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """One line of docs/records.md's evidence."""
    ratios = log_ratios(before, after)
    mean = statistics.fmean(ratios)
    half = student.ppf(0.975, len(ratios) - 1) * statistics.stdev(ratios) / math.sqrt(len(ratios))
    lock = {row["name"]: row for row in read_jsonl((ROOT / "entries/lock.jsonl").read_bytes(), "lock.jsonl", "lock")}
    stock_tree = next(row["base_tree"] for row in lock.values() if row["name"] == "best-first-tree")
    line = {
        "v": 1,
        "evidence": "raw",
        "rule": None,
        "deployment": read(arguments.deployment).digest(),
        "stock_tree": stock_tree,
        "delta_id": lock[arguments.entry]["delta_id"],
        "system_tree": after["tree"],
        "options": after["options"],
        "baseline": {"tree": before["tree"], "options": before["options"]},
        "card": after["card"],
        "harness": after["card"]["harness"],
        "units": len(ratios),
        "requests": f"{len(ratios)} requests, {after['tokens']} tokens each, stop ids ignored",
        "gain": math.exp(mean) - 1,
        "interval": [math.exp(mean - half) - 1, math.exp(mean + half) - 1],
        "noise": None,
        "tau": {"before": tau(before), "after": tau(after)},
        "forcing": None,
        "samples": keep_samples(arguments.entry, before, after),
    }
    return line | ({"note": arguments.note} if arguments.note else {})


def log_ratios(before: dict[str, Any], after: dict[str, Any]) -> list[float]:
    """ln(baseline's time / setting's time) of each request."""
    pairs = list(zip(before["answers"], after["answers"], strict=True))
    if any(one["id"] != other["id"] or len(one["ids"]) != len(other["ids"]) for one, other in pairs):
        raise SystemExit("the two settings did not answer the same requests with the same number of tokens")
    return [math.log(one["decode_s"] / other["decode_s"]) for one, other in pairs]


def tau(line: dict[str, Any]) -> float | None:
    """Tokens a step without loops, micro average."""
    return sum((tally(answer["ids"], answer["lines"]) for answer in line["answers"]), Tally()).tau


def keep_samples(entry: str, before: dict[str, Any], after: dict[str, Any]) -> dict[str, str]:
    """Writes both settings' answers, compressed, named by their digest."""
    text = "".join(json.dumps(line, sort_keys=True) + "\n" for line in (before, after)).encode()
    packed = gzip.compress(text, mtime=0)
    digest = hashlib.sha256(packed).hexdigest()
    path = Path("evidence/samples") / f"{digest[:16]}.jsonl.gz"
    target = ROOT / "entries" / entry / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(packed)
    return {"path": path.as_posix(), "sha256": digest}


if __name__ == "__main__":
    sys.exit(main())

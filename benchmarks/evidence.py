"""Turns rows of `benchmarks.speed` into a line of an entry's evidence: a raw ratio with its samples.

    python -m benchmarks.evidence --results ROWS.jsonl --setting tree:63:0:16 --baseline chain \\
        --entry best-first-tree --deployment deployment.yaml [--system best-first-tree+confident-budget]

The ratio is the baseline's seconds a token over the setting's, within rounds that one run measured; its mean is
geometric, and the interval is Student's t over the logarithms of the requests, 95 %.
Rows are refused unless their tree is one that the entries of this checkout make on the stock of this checkout, and the
entry is one of them; and unless the deployment is the one that they were measured on.
It is the author's figure: no verdict stands behind it, so it never becomes a speedup, and it has no units, which are
pairs of fresh processes.
"""

import argparse
import gzip
import hashlib
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.figures import Row, complete_rounds, ratio, summary
from benchmarks.rows import read_lines
from benchmarks.speed import digest
from spt.deployment import Deployment, read
from spt.errors import SptError
from spt.evidence import measured_system
from spt.formats import check
from spt.home import Checkout
from spt.memory import Memory

ROOT = Path(__file__).resolve().parents[1]


def main() -> int:
    """Appends the line and keeps the samples beside it; 1, and nothing written, where the rows are of another thing."""
    arguments = parse()
    root: Path = arguments.root
    try:
        deployment = read(arguments.deployment)
        memory = Checkout(root).memory
        rows = read_lines(arguments.results)
        entries = measured_entries(arguments, memory, deployment, rows)
        line, samples = evidence(arguments, memory, deployment, rows, entries)
        check(line, "evidence", "evidence")
    except SptError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    entry = root / "entries" / arguments.entry
    file = entry / "evidence" / f"{line['card']['date'][:10]}-{deployment.name}.jsonl"
    kept = entry / line["samples"]["path"]
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_bytes(samples)
    with file.open("a") as out:
        out.write(json.dumps(line, sort_keys=True, separators=(",", ":")) + "\n")
    before, after = line["tau"]["before"], line["tau"]["after"]
    print(f"{file.relative_to(root)}: raw ratio {1 + line['gain']:.3f}, tau {before:.2f} -> {after:.2f}")
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--setting", required=True)
    parser.add_argument("--baseline", required=True)
    parser.add_argument("--entry", required=True)
    parser.add_argument("--system", help="ENTRY+ENTRY; else the entry, those that require it and all are tried")
    parser.add_argument("--deployment", type=Path, required=True)
    parser.add_argument("--note", default="")
    parser.add_argument("--root", type=Path, default=ROOT, help="the checkout whose entry gets the line")
    return parser.parse_args()


def measured_entries(
    arguments: argparse.Namespace,
    memory: Memory,
    deployment: Deployment,
    rows: Iterable[Row],
) -> list[str]:
    """The entries of the measured system; SptError unless that is today's entry's, on this deployment.

    An entry whose delta is not the lock's never gets this far: the checkout's memory refuses it.
    """
    key = about(rows)["key"]
    entries = measured_system(memory, arguments.entry, key["tree"], arguments.system, what="the rows are")
    models = deployment.models
    said = {"widen": deployment.widen, "jitter": deployment.jitter, "dtype": deployment.dtype}
    said |= {"target": digest(models.target), "drafter": None if models.drafter is None else digest(models.drafter)}
    for name, value in said.items():
        if key[name] != value:
            raise SptError(f"the rows' {name} is {key[name]!r}, and the deployment's {value!r}")
    return entries


def about(rows: Iterable[Row]) -> Row:
    """The last run's statement of what was measured."""
    found = [row for row in rows if row["kind"] == "about"]
    if not found:
        raise SptError("the rows do not say what was measured")
    return found[-1]


def evidence(
    arguments: argparse.Namespace, memory: Memory, deployment: Deployment, rows: list[Row], entries: list[str]
) -> tuple[dict[str, Any], bytes]:
    """One line of docs/records.md's evidence, and its samples."""
    answers = [row for row in rows if row["kind"] == "answer"]
    rounds = list(complete_rounds(answers, {arguments.setting, arguments.baseline}).values())
    before, after = ([each[name] for each in rounds] for name in (arguments.baseline, arguments.setting))
    found = ratio(list(zip(before, after, strict=True)))
    if found is None:
        raise SptError(f"no request has both '{arguments.setting}' and '{arguments.baseline}' in one run")
    entry, said = memory.entry(arguments.entry), about(rows)
    key, interval = said["key"], found.interval
    cap = f"to {key['tokens']} tokens" + (", stop ids ignored" if key["ignore_eos"] else " or a stop id")
    samples = packed([said, *before, *after])
    name = hashlib.sha256(samples).hexdigest()
    line = {
        "v": 1,
        "evidence": "raw",
        "rule": None,
        "deployment": deployment.digest(),
        "stock_tree": memory.stock,
        "delta_id": entry.delta.id,
        "system_tree": key["tree"],
        "entries": entries,
        "options": after[0]["options"],
        "baseline": {"tree": key["tree"], "options": before[0]["options"]},
        "card": said["card"],
        "harness": None,
        "units": None,
        "repeats": len({row["repeat"] for row in after}),
        "order": "each request by every setting in one run, the order rotated and turned from request to request",
        "requests": f"{found.requests} requests, {cap}; seconds a decoded token, prefill left out",
        "gain": found.mean - 1,
        "interval": None if interval is None else [bound - 1 for bound in interval],
        "noise": None,
        "tau": {"before": summary(before).counts.tau, "after": summary(after).counts.tau},
        "forcing": None,
        "samples": {"path": f"evidence/samples/{name[:16]}.jsonl.gz", "sha256": name},
    }
    return line | ({"note": arguments.note} if arguments.note else {}), samples


def packed(rows: Iterable[Row]) -> bytes:
    """Rows as compressed JSON lines, the same bytes each time."""
    text = "".join(json.dumps(row, sort_keys=True) + "\n" for row in rows)
    return gzip.compress(text.encode(), mtime=0)


if __name__ == "__main__":
    sys.exit(main())

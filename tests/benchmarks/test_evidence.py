"""benchmarks/evidence.py: rows become evidence of today's entry, or nothing is written."""

import gzip
import json
import shutil
from types import SimpleNamespace

import pytest

from benchmarks.rows import read_lines
from spt.evidence import STALE, evidence_of
from spt.home import Checkout
from tests.benchmarks.conftest import ROOT, run

DEPLOYMENT = """spt: 1
name: tiny
target: {{path: {target}}}
drafter: {{path: {drafter}}}
dtype: float32
context: 128
"""


@pytest.fixture
def place(tiny, whole, tmp_path):
    """A checkout of its own, a deployment of the tiny models, and measured rows."""
    root = tmp_path / "checkout"
    for name in ("stock", "kernels", "entries", "harness", "drafters"):
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__", "evidence"))
    deployment = tmp_path / "deployment.yaml"
    deployment.write_text(DEPLOYMENT.format(target=tiny / "target", drafter=tiny / "drafter"))
    return SimpleNamespace(root=root, deployment=deployment, rows=whole[1])


def evidence(place, *arguments, entry="best-first-tree"):
    return run(
        "evidence",
        *("--results", place.rows, "--setting", "tree:6:0:3", "--baseline", "chain", "--entry", entry),
        *("--deployment", place.deployment, "--root", place.root, *arguments),
    )


def test_a_line_of_today(place):
    """The line is current, states what was timed and how, and its samples are the rows of both settings."""
    done = evidence(place)
    assert done.returncode == 0, done.stderr
    memory = Checkout(place.root).memory
    (file,) = (place.root / "entries" / "best-first-tree" / "evidence").glob("*.jsonl")
    (line,) = read_lines(file)
    packed = (place.root / "entries" / "best-first-tree" / line["samples"]["path"]).read_bytes()
    samples = [json.loads(row) for row in gzip.decompress(packed).splitlines()]

    assert line["stock_tree"] == memory.stock
    assert line["delta_id"] == memory.entry("best-first-tree").delta.id
    assert (line["units"], line["harness"], line["repeats"]) == (None, None, 1)
    assert line["requests"].startswith("3 requests") and "rotated" in line["order"]
    assert [row["setting"] for row in samples[1:]] == ["chain"] * 3 + ["tree:6:0:3"] * 3
    (found,) = evidence_of(memory, "best-first-tree")
    assert found.state != STALE and str(found.ratio).startswith("raw ratio")


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("stock", "the rows are of tree"),
        ("system", "the rows are of tree"),
        ("entry", "does not hold 'confident-budget'"),
        ("lock", "its lock says 000000000000"),
        ("deployment", "the rows' jitter is 0, and the deployment's 7"),
        ("setting", "no request has both"),
    ],
)
def test_rows_of_something_else_are_refused(what, said, place):
    """Another stock, system, entry, delta or deployment than was measured: one line, and nothing is written."""
    arguments, entry = [], "best-first-tree"
    if what == "stock":
        (place.root / "stock" / "note.md").write_text("moved\n")
    elif what == "system":
        arguments = ["--system", "best-first-tree"]
    elif what == "entry":
        arguments, entry = ["--system", "best-first-tree"], "confident-budget"
    elif what == "lock":
        lock = place.root / "entries" / "lock.jsonl"
        rows = [{**row, "delta_id": "0" * 64} for row in read_lines(lock)]
        lock.write_text("".join(json.dumps(row, sort_keys=True, separators=(",", ":")) + "\n" for row in rows))
    elif what == "deployment":
        place.deployment.write_text(place.deployment.read_text().replace("}\ndrafter", ", jitter: 7}\ndrafter"))
    else:
        arguments = ["--baseline", "tree:5"]
    done = evidence(place, *arguments, entry=entry)

    assert done.returncode == 1
    assert said in done.stderr and len(done.stderr.splitlines()) == 1
    assert not (place.root / "entries" / "best-first-tree" / "evidence").exists()

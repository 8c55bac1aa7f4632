"""The demo: a whole round on the CPU, offline, from a fresh repository to a system that the judge let out.

    python -m benchmarks.demo

Makes a deployment repository in a temporary folder, verifies all entries against the systems they came from, and runs a
round on SmolLM2-135M, which starts from plain decoding, with the agents `memory` and `sweep`: measurement and ceiling,
the gates, a sealed final, the branch of the system and a deployment.yaml that runs it.  A CPU's timing noise is too
large for the judge's own rule, so that it promotes by the rule `demo`: raw ratios with the noise beside them, and a
final that says `smoke`.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from spt.deployment import EXAMPLE_TARGET

DEPLOYMENT = f"""\
spt: 1
name: smol
target: {{path: {EXAMPLE_TARGET}}}
dtype: float32
context: 1024
"""
PLAIN = "draft: none\n"  # what is served before anybody thought of a drafter
ROUND = "smol-1"
START = ["round", "start", "stock@plain.yaml", "--name", ROUND, "--rule", "demo"]
# What is most sure to pay comes first; after the minutes of exploring nothing more is begun.
AGENTS = ["--agent", "memory:best-first-tree", "--agent", "sweep:chain_positions", "--tries", "1"]
BOUND = ["--explore-minutes", "6.5"]


def main() -> int:
    """Runs the demo; 0 iff the round ended with a system that its final did not reject."""
    console, begun_s = Console(), time.monotonic()
    root = Path(tempfile.mkdtemp(prefix="spt-demo-"))
    repository = root / "repository"
    run(console, ["init", str(repository)], root)
    run(console, ["entry", "verify", "--all"], repository)
    (repository / "deployment.yaml").write_text(DEPLOYMENT)
    (repository / "plain.yaml").write_text(PLAIN)
    with (repository / ".git" / "info" / "exclude").open("a") as file:
        file.write("/deployment.yaml\n/plain.yaml\n")
    ended = run(console, [*START, *AGENTS, *BOUND], repository, check=False)
    status = subprocess.run(
        [sys.executable, "-m", "spt", "round", "status", ROUND, "--json"],
        cwd=repository,
        check=True,
        capture_output=True,
    )
    state = json.loads(status.stdout)
    if state["deployment"] is not None:
        run(console, ["round", "review", ROUND], repository)
        branch = state["deployment"]["branch"]
        subprocess.run(["git", "--no-pager", "log", "--oneline", branch], cwd=repository, check=True)
    else:
        words = "no system was let out, for the reasons above: other work on this machine makes noise, so try it idle"
        console.print(words, highlight=False)
    run(console, ["report", ROUND, "--out", str(root / "report.html")], repository)
    minutes = (time.monotonic() - begun_s) / 60
    console.print(f"{minutes:.1f} minutes; the repository is in {repository}: `spt round status` works there")
    return ended


def run(console: Console, arguments: Sequence[str], folder: Path, *, check: bool = True) -> int:
    """One `spt` command, shown with what it prints; its exit code."""
    console.print(f"$ spt {' '.join(arguments)}", style="bold", highlight=False)
    return subprocess.run([sys.executable, "-m", "spt", *arguments], cwd=folder, check=check).returncode


if __name__ == "__main__":
    sys.exit(main())

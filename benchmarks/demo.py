"""The demo: stock, a verified entry, the entry applied; the same text in fewer steps.

    python -m benchmarks.demo

Makes a deployment repository in a temporary folder, verifies all entries against the systems they came from, applies
best-first-tree, and decodes eight prompts with SmolLM2-135M on the CPU in float32.
A prompt whose float32 texts differ (near ties may round apart) is decoded again in exact mode, which must agree.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.answers import answer, deployment_words
from benchmarks.rows import read_lines

PROMPTS = Path(__file__).with_name("prompts.jsonl")
TOKENS = 48
SYSTEMS = {  # label: SYSTEM, options; None is the tree that is checked out
    "stock, autoregressive": ("stock", {"draft": "none"}),
    "stock, chain": ("stock", {}),
    "best-first-tree": (None, {"select": "best_first", "best_first_nodes": "15", "best_first_width": "4"}),
}


def main() -> int:
    """Runs the demo; 1 if a text differs in exact mode."""
    console = Console()
    root = Path(tempfile.mkdtemp(prefix="spt-demo-"))
    repository = root / "repository"
    run(console, ["init", str(repository)], root)
    run(console, ["entry", "verify", "--all"], repository)
    run(console, ["entry", "apply", "best-first-tree"], repository)
    os.chdir(repository)
    subprocess.run(["git", "--no-pager", "log", "--oneline", "-3"], check=True)
    prompts = read_lines(PROMPTS)
    answers = decode(root / "float32", prompts, "fast")
    same = {label: compare(answers, label) for label in SYSTEMS}
    differing = [prompt for index, prompt in enumerate(prompts) if not all(marks[index] for marks in same.values())]
    if differing:
        console.print(
            f"{len(differing)} of {len(prompts)} texts round apart in float32; they are decoded in exact mode"
        )
        exact = decode(root / "exact", differing, "exact")
        again = {label: iter(compare(exact, label)) for label in SYSTEMS}
        for index in (prompts.index(prompt) for prompt in differing):
            for label in SYSTEMS:
                same[label][index] = next(again[label])
    console.print(table(answers, same))
    console.print(f"the repository is in {repository}; `git log` and `spt entry list` work there", style="dim")
    return 0 if all(all(marks) for marks in same.values()) else 1


def run(console: Console, arguments: Sequence[str], folder: Path) -> None:
    """One `spt` command, shown with what it prints."""
    console.print(f"$ spt {' '.join(arguments)}", style="bold", highlight=False)
    subprocess.run([sys.executable, "-m", "spt", *arguments], cwd=folder, check=True)


def decode(folder: Path, prompts: Sequence[dict[str, Any]], mode: str) -> dict[str, list[dict[str, Any]]]:
    """Answers of every system to the prompts."""
    requests = [{**prompt, "v": 1, "kind": "request", "max_tokens": TOKENS} for prompt in prompts]
    words = deployment_words(dtype="float32", mode=mode)
    return {
        label: answer(folder / str(index), system, options, requests, words, f"{label} ({mode})")
        for index, (label, (system, options)) in enumerate(SYSTEMS.items())
    }


def compare(answers: dict[str, list[dict[str, Any]]], label: str) -> list[bool]:
    """For each prompt whether the text is the autoregressive one, id by id."""
    first = next(iter(answers.values()))
    return [ours["ids"] == theirs["ids"] for ours, theirs in zip(answers[label], first, strict=True)]


def table(answers: dict[str, list[dict[str, Any]]], same: dict[str, list[bool]]) -> Table:
    """Identity, tokens a step, tokens a second, and the ratio of seconds to the autoregressive baseline."""
    made = Table(
        "system", "identical text", "tokens a step", "tokens a second", "raw ratio", title=f"{TOKENS} tokens a prompt"
    )
    baseline = None
    for label, found in answers.items():
        tokens, steps = (sum(each["counts"][key] for each in found) for key in ("step_tokens", "steps"))
        seconds = sum(each["decode_s"] for each in found)
        baseline = baseline or tokens / seconds
        identical = f"{sum(same[label])} of {len(found)}"
        speed = tokens / seconds
        made.add_row(label, identical, f"{tokens / steps:.2f}", f"{speed:.1f}", f"{speed / baseline:.2f}")
    return made


if __name__ == "__main__":
    sys.exit(main())

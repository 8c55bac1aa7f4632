"""`python -m harness rehearse|draw|final`: all that can fail fails before the seal is spent, and long answers count."""

import dataclasses
import datetime
import json
import random
from pathlib import Path

import pytest

from harness.errors import HarnessError, Missing, Unsupported, Usage
from harness.final import SIZES, Sizes, draw, final, rehearse
from harness.requests import make_seal
from harness.samples import read
from harness.seal import used_path
from harness.tree import tree_id
from harness.verdict import verdict
from tests.fakes.speaker import Speakers
from tests.harness import toys
from tests.harness.schemas import validator

NOW = datetime.datetime(2026, 11, 30, 12, 0, tzinfo=datetime.UTC)
GREEDY = {"temperature": 0.0, "top_p": 1.0, "top_k": 0, "seed": 0}
STOCK = {"mismatch": 0.006, "seed": 1}  # what a head in half precision does to stock itself
TINY = Sizes(stock_units=2, ar_units=2, sessions=0, sampled=3, greedy=2, answer_tok=60, session_tok=64, prompt_tok=32)
# Enough for every bucket of the index in the answer up to 2,600: 55 answers of which 1,000 tokens and more count.
LONG = dataclasses.replace(TINY, sampled=52, greedy=3, answer_tok=2600)


def rows(sizes, prefix, devices=1):
    """Requests of bare ids, of the sorts that a final draws, both shares."""
    rng = random.Random(prefix)
    fresh = ({"id": f"{prefix}{number}", "ids": [rng.randrange(3, 900) for _ in range(20)]} for number in range(10**6))
    long = {"max_tokens": sizes.answer_tok, "ignore_eos": True}
    for _ in range(2 * sizes.supply(devices)):
        yield {**next(fresh), "max_tokens": 6}
    for seed in range(2 * sizes.sampled):
        yield {**next(fresh), **long, "sampling": {**GREEDY, "temperature": 1.0, "seed": seed}}
    for _ in range(2 * sizes.greedy):
        yield {**next(fresh), **long, "sampling": GREEDY}


@pytest.fixture
def make_job(tmp_path, monkeypatch):
    """Writes the job of a final of `sizes` whose requests are drawn; returns its file."""

    def make(a, sizes=TINY, requests=None, model=None, **fields):
        monkeypatch.setitem(SIZES, "full", sizes)
        folder = tmp_path / f"job-{len(list(tmp_path.glob('job-*')))}"
        (folder / "system").mkdir(parents=True)
        (folder / "system" / "a.py").write_text("x = 1\n")
        (folder / "model").write_bytes(b"x" * 100)
        lines = rows(sizes, "r") if requests is None else requests
        (folder / "requests.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lines))
        tree = tree_id(folder / "system")
        arms = {"a": {**STOCK, "seed": 2, **a}, "b": STOCK, "stock": STOCK}
        deployment = {
            "name": "toy",
            "target": {"path": str(model or folder / "model"), "widen": 1, "jitter": 0},
            "drafter": {"path": str(folder / "model")},
            "sampling": GREEDY,
            "dtype": "float32",
            "mode": "fast",
            "device": "cpu",
            "engine": {"kind": "command", "command": ["speaker"]},
            "context": fields.pop("context", 8192),
            "load": {"concurrency": 1, "arrival": "closed"},
        }
        job = {
            "v": 1,
            "kind": "job",
            "arms": {name: {"dir": "system", "tree": tree, "options": options} for name, options in arms.items()},
            "deployment": deployment | fields.pop("deployment", {}),
            "requests": "requests.jsonl",
            "seed": 3,
            "rule": "paired-1",
            "phase": "final",
            "units": 0,
            "commitment": "f" * 64,
            **fields,
        }
        validator("job").validate(job)
        (folder / "job.json").write_text(json.dumps({key: value for key, value in job.items() if value is not None}))
        return folder / "job.json"

    return make


@pytest.fixture
def run(make_job, tmp_path):
    """The verdict of a final of a system with these options, and where its samples lie."""

    def measure(a=None, sizes=TINY, minutes=None, events=None, speakers=None, job=None, **fields):
        job = job or make_job(a or {}, sizes, **fields)
        emit = (events if events is not None else []).append
        start = (speakers or Speakers()).start
        return final(job, job.parent / "out", minutes, emit, sandbox=False, start=start), job

    return measure

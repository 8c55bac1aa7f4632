"""Measurements to explain: the shipped rows, folders of a toy target, profiles."""

import contextlib
import hashlib
import json
import tracemalloc
from pathlib import Path

from spt.deployment import content_digest
from spt.shapes import Decoder, read_drafter
from spt.study import Subject
from tests.fakes.lattice import write_measurement
from tests.smollm2 import gguf

ROOT = Path(__file__).parents[2]
DRAFTER = ROOT / "drafters" / "smollm2-135m-dflash-b16"
MEASUREMENTS = ROOT / "docs" / "measurements"
H200 = MEASUREMENTS / "2026-11-30-h200-speed.jsonl.gz"
SMOLLM2 = Decoder(layers=30, hidden=576, heads=9, kv_heads=3, head_dim=64, mlp=1536, vocabulary=49152)
DFLASH = read_drafter(DRAFTER)
TOY = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 512,
}
PHASES = {"draft": 300.0, "verify": 4000.0, "accept": 150.0, "host": 50.0}
CLASSES = {
    "draft": {"drafter": 200.0, "glue": 60.0, "gaps": 20.0},
    "verify": {"gemm": 3500.0, "attention": 250.0, "glue": 150.0, "gaps": 60.0},
    "accept": {"head": 110.0, "glue": 30.0, "memcpy": 5.0},
    "host": {"gaps": 50.0},
}


def subject():
    """What the shipped H200 rows are about."""
    return Subject(gguf(), DRAFTER, 8)


def write_toy(folder):
    """A target's folder without weights, and its drafter's; nothing here reads weights."""
    target, drafter = folder / "target", folder / "drafter"
    for path, config in (
        (target, TOY),
        (drafter, {**TOY, "block_size": 4, "dflash_config": {"target_layer_ids": [0]}}),
    ):
        path.mkdir(parents=True)
        (path / "config.json").write_text(json.dumps(config))
    return Subject(target, drafter, 1)


def measure_toy(folder, toy, lines=(1, 3, 2, 1, 4, 2), answers=2, times=None, options=None, gpu="NVIDIA H200"):
    """A measurement's folder of the toy: answers of lines of so many tokens, no two tokens alike."""
    said, token = {}, 0
    for index in range(answers):
        ids = []
        for count in lines:
            ids.append([7 + (token + at) % 500 for at in range(count)])
            token += count
        said[f"r{index}"] = ([3, 4, 5], ids)
    digests = {"target": content_digest(toy.target), "drafter": content_digest(toy.drafter)}
    write_measurement(folder, said, **digests)
    steps = [json.loads(line) for line in (folder / "steps.jsonl").read_text().splitlines()]
    rows = [{**row, **(times or {f"{phase}_us": us for phase, us in PHASES.items()})} for row in steps]
    (folder / "steps.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    answered = [json.loads(line) for line in (folder / "answers.jsonl").read_text().splitlines()]
    decode_s = sum(PHASES.values()) * 1e-6 * (len(lines) - 1)
    (folder / "answers.jsonl").write_text("".join(json.dumps({**row, "decode_s": decode_s}) + "\n" for row in answered))
    change_summary(
        folder,
        system={"tree": "c" * 40, "options": options or {}},
        gpu=gpu,
    )
    return folder


def change_summary(folder, gpu=None, **changes):
    """Puts fields over those of a measurement's summary, and the digests of its files as they are now."""
    summary = json.loads((folder / "measurement.json").read_text())
    files = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in summary["files"]}
    summary |= {"files": files, "card": {**summary["card"], "gpu": gpu}, **changes}
    (folder / "measurement.json").write_text(json.dumps(summary))


def profile_rows(slower=1.0, without=None):
    """Lines of a profile, two windows; `slower` scales the kernels."""
    rows = []
    for window in (1.0, 1.1):
        for phase, wall_us in PHASES.items():
            classes = {name: {"us": us * slower * window, "calls": 2.0} for name, us in CLASSES[phase].items()}
            explained_us = sum(each["us"] for each in classes.values())
            row = {"v": 1, "kind": "profile", "phase": phase, "steps": 8, "rows": 4.0, "context": 20.0, "batch": 1.0}
            row |= {"wall_us": wall_us * window, "profiled_us": wall_us * window * 1.05}
            rows.append({**row, "residual_us": wall_us * window - explained_us, "classes": classes})
    return "".join(json.dumps(row) + "\n" for row in rows if row["phase"] != without)


@contextlib.contextmanager
def held_within(most_bytes):
    """Fails where what Python and numpy held at once is more than that."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < most_bytes
    finally:
        tracemalloc.stop()

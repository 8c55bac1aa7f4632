"""Tiny models to run a system on, requests for them, and how a judge encloses it."""

import json
import random
from pathlib import Path

from harness.job import Deployment
from harness.sandbox import Enclosure, find_bubblewrap
from harness.tree import tree_id
from harness.wire import Generate, Sampling, Settings, Target
from tests.stock.tiny import drafter_config, target_config, target_weights, write_drafter, write_target

ROOT = Path(__file__).parents[2]
EOS = 2
VOCABULARY = 64
CONTEXT_TOK = 2304
MEMORY_BYTES = 2 << 30


# --- models, requests, enclosures ---


def write_models(folder: Path, common: float = 0.0) -> tuple[Path, Path]:
    """A random Llama-like target and its drafter.

    common: size of a part that all rows of the head share; it moves all logits alike, and makes BF16 round them more.
    """
    config = target_config("llama", num_hidden_layers=2, max_position_embeddings=4096, vocab_size=VOCABULARY)
    weights = target_weights(config)
    weights["lm_head.weight"] += common * weights["lm_head.weight"][:1].clone()
    return write_target(folder / "target", config, weights), write_drafter(folder / "drafter", drafter_config(config))


def prompts(seed: int, count: int, tokens: int = 12) -> list[list[int]]:
    """Random prompts, another set for each seed."""
    dice = random.Random(seed)
    return [[dice.randrange(3, VOCABULARY) for _ in range(tokens)] for _ in range(count)]


DEVELOPMENT = prompts(0, 4)  # what an author has seen


def generate(prompt: list[int], name: str, tokens: int = 24, *, seed: int = 0) -> Generate:
    """A request at temperature 1, since greedy text of a random model is one loop."""
    return Generate(name, prompt, tokens, [EOS], ignore_eos=True, sampling=Sampling(1.0, seed=seed))


def settings(models: tuple[Path, Path | None], **changes: object) -> Settings:
    """FP32 on the CPU."""
    target, drafter = models
    told = None if drafter is None else str(drafter)
    return Settings(Target(str(target)), told, **{"dtype": "float32", "context": CONTEXT_TOK, **changes})


def enclosure(models: tuple[Path, Path | None], **changes: object) -> Enclosure:
    """The judge's, for engines with these models."""
    reads = tuple(path for path in models if path is not None)
    return Enclosure(find_bubblewrap(), MEMORY_BYTES, **{"pids": 256, "reads": reads, **changes})


def deployment_of(models: tuple[Path, Path | None]) -> Deployment:
    """As the judge reads it from a job."""
    target, drafter = models
    told = None if drafter is None else str(drafter)
    return Deployment(
        Target(str(target)), told, Sampling(1.0), "float32", "fast", "cpu", {"kind": "stock"}, CONTEXT_TOK, 1
    )


def write_job(
    folder: Path, arms: dict[str, Path], models: tuple[Path, Path | None], rows: list[dict], **changes
) -> Path:
    """A job whose arms lie in these folders; returns its file."""
    folder.mkdir(exist_ok=True)
    (folder / "requests.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    target, drafter = models
    deployment = {
        "name": "tiny",
        "target": {"path": str(target), "widen": 1, "jitter": 0},
        "drafter": None if drafter is None else {"path": str(drafter)},
        "sampling": {"temperature": changes.pop("temperature", 1.0), "top_p": 1.0, "top_k": 0, "seed": 5},
        "dtype": changes.pop("dtype", "float32"),
        "mode": changes.pop("mode", "fast"),
        "device": "cpu",
        "engine": {"kind": "stock"},
        "context": CONTEXT_TOK,
        "load": {"concurrency": 1, "arrival": "closed"},
    }
    told = {name: {"dir": str(path), "tree": tree_id(path), "options": {}} for name, path in arms.items()}
    job = {"v": 1, "kind": "job", "arms": told, "deployment": deployment, "requests": "requests.jsonl", "seed": 0}
    (folder / "job.json").write_text(json.dumps({**job, "rule": "paired-1", "phase": "force", "units": 0, **changes}))
    return folder / "job.json"

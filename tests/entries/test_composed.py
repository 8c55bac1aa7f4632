"""All entries together on today's stock: lint, types, the contracts' own checks, and stock's text bit for bit."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from spt.formats import read_yaml
from tests.smollm2 import gguf
from tests.stock.talk import GREEDY, Worker, generate, load

ROOT = Path(__file__).parents[2]
CARDS = sorted((ROOT / "entries").glob("*/entry.yaml"))
SAMPLED = {"temperature": 0.8, "top_p": 0.95, "top_k": 9, "seed": 2**63 + 5}


def run(command, folder):
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("tool", [["ruff", "check"], ["ruff", "format", "--check"], ["mypy"]], ids=" ".join)
def test_lint(tool, composed):
    """The composed export is as clean as the checkout."""
    config = ["--config-file" if tool[0] == "mypy" else "--config", str(ROOT / "pyproject.toml")]
    what = ["stock", "kernels"] if tool[0] == "mypy" else ["--no-cache", "."]
    done = run([sys.executable, "-m", *tool, *config, *what], composed)

    assert done.returncode == 0, done.stdout + done.stderr


CHECKS = [
    (card.parent.name, check) for card in CARDS for check in read_yaml(card.read_bytes(), "")["contract"]["checks"]
]


@pytest.mark.parametrize(("entry", "check"), CHECKS)
def test_checks_of_the_contracts(entry, check, composed):
    """Every contract's own commands pass where all entries are composed."""
    words = [sys.executable if word == "python" else word for word in shlex.split(check)]
    done = run(words, composed)

    assert done.returncode == 0, done.stdout + done.stderr


def decoded(system, models, *samplings, mode="exact", drafting=True, **options):
    """Tokens, lines and digest of an answer for each sampling, from one worker of a system."""
    target, drafter = models
    found = []
    with Worker(system=system) as worker:
        assert worker.ask(load(target, drafter if drafting else None, mode=mode, **options))["op"] == "ready"
        for sampling in samplings or (GREEDY,):
            worker.send(generate(prompt=[3, 4, 5, 6], max_tokens=60, sampling=sampling, digest=True))
            *lines, done = worker.read_through()
            found.append(([line["ids"] for line in lines], done["logits_sha256"]))
    return found


@pytest.fixture(scope="module")
def stock(models):
    """Stock's autoregressive answers, greedy and sampled."""
    return decoded(ROOT, models, GREEDY, SAMPLED, drafting=False)


SETTINGS = {
    "default": {},
    "tree": {"select": "best_first", "best_first_nodes": 20, "best_first_width": 4},
    "wide tree": {"select": "best_first", "best_first_nodes": 255, "best_first_width": 64},
    "shallow tree": {"select": "best_first", "best_first_nodes": 9, "best_first_positions": 2},
    "confident": {"select": "confident", "best_first_nodes": 40, "confident_floor": 0.02},
    "nothing is confident": {"select": "confident", "confident_floor": 1.0},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_exact_mode_differs_in_no_bit(name, composed, models, stock):
    """Every setting says stock's tokens with stock's logits, in fewer steps where it verifies drafts."""
    for (lines, digest), (single, wanted) in zip(
        decoded(composed, models, GREEDY, SAMPLED, **SETTINGS[name]), stock, strict=True
    ):
        assert [token for line in lines for token in line] == [token for line in single for token in line]
        assert digest == wanted
        assert (len(lines) == len(single)) if name == "nothing is confident" else (len(lines) < len(single))


def test_corners(composed, models, stock):
    """A spine is stock's chain step by step, a budget of 0 is autoregressive decoding, and a floor of 0 the tree."""
    chain = decoded(ROOT, models)
    tree = decoded(composed, models, **SETTINGS["tree"])
    corner = {"select": "best_first", "best_first_nodes": 255, "best_first_width": 1}

    assert decoded(composed, models, **corner) == chain
    assert decoded(composed, models, **{**corner, "best_first_nodes": 0}) == stock[:1]
    assert decoded(composed, models, **{**SETTINGS["tree"], "select": "confident"}) == tree
    assert len(tree[0][0]) < len(chain[0][0])


@pytest.mark.full
@pytest.mark.parametrize("name", ["tree", "confident"])
def test_real_model(name, composed):
    """SmolLM2 with the shipped drafter: exact mode differs in no bit, and the tree takes fewer steps than the chain."""
    models = gguf(), ROOT / "drafters" / "smollm2-135m-dflash-b16"
    ((chain, wanted),) = decoded(ROOT, models)
    ((lines, digest),) = decoded(composed, models, **SETTINGS[name])

    assert [token for line in lines for token in line] == [token for line in chain for token in line]
    assert digest == wanted
    assert len(lines) <= len(chain)


@pytest.mark.device
@pytest.mark.parametrize("name", ["tree", "confident", "nothing is confident"])
def test_trees_on_a_gpu(name, composed, models):
    """Trees grown, cut and padded by kernels: graphs change no bit, and the tokens are the CPU's, FP32 on both.

    Which drafts are verified may differ: the drafter's probabilities are rounded otherwise there.
    """
    how = {"mode": "fast", **SETTINGS[name]}
    here = decoded(composed, models, GREEDY, SAMPLED, **how)
    eager, captured = (
        decoded(composed, models, GREEDY, SAMPLED, device="cuda", graphs=graphs, **how) for graphs in (False, True)
    )

    assert captured == eager
    for (lines, _), (single, _) in zip(captured, here, strict=True):
        assert [token for line in lines for token in line] == [token for line in single for token in line]
        if name == "nothing is confident":  # every drafted row is padding, which nobody accepts
            assert {len(line) for line in lines} == {1}
        else:
            assert len(lines) < 60

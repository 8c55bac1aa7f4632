"""w12-linear in the engine: stock's bits on a CPU, packed bytes at load, and clear words where something is off."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.entries.test_composed import ROOT, SAMPLED, decoded
from tests.stock.talk import GREEDY, Worker, generate, load
from tests.stock.tiny import drafter_config, target_config, target_weights, write_drafter, write_target

SCRIPT = Path(__file__).with_name("w12_engine.py")
LAYERS = 2
NAMES = [f"layers.{layer}.{part}" for layer in range(LAYERS) for part in ("down", "gate_up", "out", "qkv")] + ["head"]
CONFIG = target_config(
    "qwen2",
    vocab_size=12,
    hidden_size=256,
    intermediate_size=384,
    head_dim=64,
    num_hidden_layers=LAYERS,
    max_position_embeddings=512,
)
SHAPES = {"qkv": (512, 256), "out": (256, 256), "gate_up": (768, 256), "down": (256, 384), "head": (12, 256)}


def rounded(config):
    """Random weights that BF16 holds, zeros and outliers among them."""
    weights = {name: weight.bfloat16() for name, weight in target_weights(config).items()}
    for weight in weights.values():
        if weight.dim() == 2:
            weight[3, :40] = 0
            weight[::2, 5] *= 2.0**-30
    return weights


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    """A target with biases, wide enough to be worth packing, and a drafter for it."""
    folder = tmp_path_factory.mktemp("wide")
    drafter = write_drafter(folder / "drafter", drafter_config(CONFIG))
    return write_target(folder / "target", CONFIG, rounded(CONFIG)), drafter


@pytest.fixture(scope="module")
def stock(wide):
    """Stock's autoregressive answers, greedy and sampled."""
    return decoded(ROOT, wide, GREEDY, SAMPLED, drafting=False)


@pytest.fixture(scope="module")
def prepared(composed, wide, tmp_path_factory):
    """The folder that `prepare` fills."""
    folder = tmp_path_factory.mktemp("prepared")
    with Worker(system=composed) as worker:
        done = worker.ask({**load(*wide, linear="w12"), "op": "prepare", "dir": str(folder)})
        assert worker.wait()[0] == 0
    assert done["files"] == len(NAMES) + 1
    return folder


SETTINGS = {
    "chain": {},
    "float64": {"dtype": "float64"},
    "tree": {"select": "best_first", "best_first_nodes": 30, "best_first_width": 8},
    "confident": {"select": "confident", "best_first_nodes": 20, "confident_floor": 0.02},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_exact_mode_differs_in_no_bit(name, composed, wide, stock, prepared):
    """With any selection packed weights say stock's tokens with stock's logits, packed before or at load."""
    how = {"linear": "w12", **SETTINGS[name]}
    wanted = decoded(ROOT, wide, GREEDY, SAMPLED, drafting=False, dtype="float64") if "dtype" in how else stock
    ours = decoded(composed, wide, GREEDY, SAMPLED, prepared=None if name == "chain" else str(prepared), **how)
    for (lines, digest), (single, sure) in zip(ours, wanted, strict=True):
        assert [token for line in lines for token in line] == [token for line in single for token in line]
        assert digest == sure


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_fast_mode_on_a_cpu_is_stock(dtype, composed, wide):
    """Where no kernel runs, fast mode has stock's bits too, whatever the type."""
    how = {"mode": "fast", "dtype": dtype}

    assert decoded(composed, wide, GREEDY, linear="w12", **how) == decoded(ROOT, wide, GREEDY, **how)


def told(composed, target, *how):
    command = [sys.executable, "-P", str(SCRIPT), str(target), *how]
    outside = {"PATH": os.environ["PATH"], "HOME": str(composed.parent), "PYTHONPATH": str(composed)}
    return json.loads(subprocess.check_output(command, env=outside, cwd=composed.parent).splitlines()[-1])


def check_told(found):
    """All matrices are packed and gone; each is decoded once a pass of over 128 rows, and never in a step."""
    assert found["packed"] == sorted(NAMES)
    assert found["stays"] == []
    assert not set(found["left"]) & set(NAMES)
    assert found["head_bytes"] == 0
    passes = found["counts"][0]
    assert passes > 0 and passes % (len(NAMES) - 1) == 0  # the head reads one row
    assert set(found["counts"]) == {passes}
    assert found["bytes"] < found["dense_bytes"]


def test_what_stays_in_memory(composed, wide):
    """No copy of a packed matrix stays, prefill alone decodes, and the bytes that are reported are what is there."""
    found = told(composed, wide[0], "bfloat16", "cpu")
    shapes = [SHAPES[name.rpartition(".")[2]] for name in NAMES]
    weights, rows = sum(n * k for n, k in shapes), sum(n for n, _ in shapes)
    packed = weights * 3 // 2 + 2 * rows + 4 * (rows + len(NAMES)) + 6 * found["escaped"]

    check_told(found)
    assert found["counts"][0] == len(NAMES) - 1
    assert found["scratch_bytes"] == 2 * 768 * 256
    assert found["bytes"] == found["dense_bytes"] - 2 * weights + packed + found["scratch_bytes"]


@pytest.mark.device
def test_what_stays_in_memory_on_a_gpu(composed, wide):
    """The same with kernels in captured graphs: replays count too."""
    check_told(told(composed, wide[0], "bfloat16", "cuda"))


def test_ready_tells_packed_bytes(composed, wide, prepared):
    """`ready` reports fewer bytes than stock's, and the same from a prepared folder as from packing at load."""
    told = {}
    with Worker(system=composed) as worker:
        for name, how in {"dense": {}, "w12": {"linear": "w12"}}.items():
            told[name] = worker.ask(load(wide[0], dtype="bfloat16", **how))["bytes"]
        told["prepared"] = worker.ask(load(wide[0], dtype="bfloat16", linear="w12", prepared=str(prepared)))["bytes"]

    assert told["prepared"] == told["w12"] < told["dense"]


def test_what_stays_bf16_works(composed, wide, tmp_path):
    """Weights that BF16 does not hold, that are too narrow or too small stay as they are, and say stock's tokens."""
    narrow = target_config("llama", vocab_size=12)
    finer = {name: weight.float() for name, weight in rounded(CONFIG).items()}
    finer["model.layers.0.mlp.down_proj.weight"][0, 0] += 1e-6
    for target, stays, options in (
        (write_target(tmp_path / "narrow", narrow), 3 * 4 + 1, {}),
        (write_target(tmp_path / "finer", CONFIG, finer), 1, {}),
        (wide[0], len(NAMES), {"w12_least_mb": 1}),
    ):
        folder = tmp_path / f"prepared-{target.name}-{stays}"
        folder.mkdir()
        with Worker(system=composed) as worker:
            line = load(target, linear="w12", **options)
            assert worker.ask({**line, "op": "prepare", "dir": str(folder)})["op"] == "prepared"
        assert len(json.loads((folder / "w12" / "index.json").read_text())["left"]) == stays
        wanted = decoded(ROOT, (target, None), GREEDY, drafting=False)
        for where in (None, str(folder)):
            ours = decoded(composed, (target, None), GREEDY, drafting=False, linear="w12", prepared=where, **options)
            assert ours == wanted


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        ("flip", "'layers.0.out.safetensors' is damaged: its content has not the digest that it states"),
        ("lose", "'layers.0.out.safetensors' cannot be read: no such file"),
        ("empty", "holds no packed tensors"),
        ("other", "the packed 'head' is not the target's, bit for bit"),
        ("shape", "was packed from another target"),
    ],
)
def test_bad_prepared_folders(spoil, problem, composed, wide, prepared, tmp_path):
    """A record that is damaged, lost or another target's is one line and an error; dense weights still work."""
    folder, target = tmp_path / "prepared", wide[0]
    shutil.copytree(prepared, folder)
    file = folder / "w12" / "layers.0.out.safetensors"
    if spoil == "flip":
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 16
        file.write_bytes(data)
    elif spoil == "lose":
        file.unlink()
    elif spoil == "empty":
        shutil.rmtree(folder / "w12")
    elif spoil == "other":
        weights = rounded(CONFIG)
        weights["lm_head.weight"].view(torch.int16)[5, 7] ^= 1
        target = write_target(tmp_path / "target", CONFIG, weights)
    else:
        config = {**CONFIG, "num_hidden_layers": LAYERS + 1}
        target = write_target(tmp_path / "target", config, rounded(config))
    with Worker(system=composed) as worker:
        error = worker.ask(load(target, linear="w12", prepared=str(folder)))
        assert error["op"] == "error" and error["code"] == "bad_model"
        assert problem in error["message"] and "\n" not in error["message"]
        assert worker.ask(load(target, linear="dense"))["op"] == "ready"
        assert worker.ask(generate())["op"] == "done"


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_checkpoint_that_is_not_finite(number, composed, wide, tmp_path):
    """NaN or infinity in a checkpoint is stock's own error, from `prepare` and from `load`."""
    weights = load_file(wide[0] / "model.safetensors")
    weights["model.layers.1.mlp.down_proj.weight"][2, 3] = number
    target = write_target(tmp_path / "target", CONFIG, weights)
    (tmp_path / "prepared").mkdir()
    with Worker(system=composed) as worker:
        for line in (load(target, linear="w12"), {**load(target, linear="w12"), "op": "prepare", "dir": str(tmp_path)}):
            error = worker.ask(line)
            assert error["code"] == "bad_model" and "down_proj" in error["message"]

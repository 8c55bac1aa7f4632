"""python -m benchmarks.w12 FILE... --out ROWS.jsonl: bits a weight of trained checkpoints in W12.

FILE is a safetensors file, a `pytorch_model.bin` (read as weights alone) or an ONNX graph, whose constant factors of
products are matrices stored by input (the package `onnx` is needed for those).  One JSON line a checkpoint: what
`spt w12 inspect --json` says of its matrices, and, over those that pay, the errors of the 8-bit view and of a byte with
13 binades, whose three highest have four mantissa bits.
"""

import argparse
import importlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

__all__ = ["main", "matrices", "remapped_error", "view_error"]

_TOP_BINADES, _BINADES = 3, 13


def main(arguments: list[str] | None = None) -> None:
    """Appends a line for each checkpoint, and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", metavar="FILE", nargs="+", type=Path)
    parser.add_argument("--out", metavar="ROWS.jsonl", type=Path, required=True)
    given = parser.parse_args(arguments)
    with given.out.open("a") as out:
        for file in given.files:
            row = measured(file)
            out.write(json.dumps(row) + "\n")
            print(_shown(row))


def measured(file: Path) -> dict[str, Any]:
    """What a checkpoint costs; its tensors are matrices of floating-point numbers alone."""
    found = {name: weight.contiguous() for name, weight in matrices(file)}
    weights = {name: weight for name, weight in found.items() if bool(weight.isfinite().all())}  # some are masks
    with tempfile.TemporaryDirectory() as folder:
        save_file(weights, Path(folder) / "model.safetensors")
        (Path(folder) / "config.json").write_text("{}")
        command = [sys.executable, "-m", "spt", "w12", "inspect", folder, "--json"]
        told = json.loads(subprocess.check_output(command))
    packs = [weights[row["name"]] for row in told["tensors"] if row["packs"]]
    errors = {"view8": _mean(view_error, packs), "remapped13": _mean(remapped_error, packs)}
    return {
        "file": "/".join(file.parts[-3:]),
        "left_out": sorted(found.keys() - weights.keys()),
        "dtypes": sorted({str(each.dtype) for each in weights.values()}),
        **told,
        "error": errors,
    }


def matrices(file: Path) -> Iterator[tuple[str, Tensor]]:
    """Every matrix of a file by name, [out, in]."""
    if file.suffix == ".onnx":
        yield from _factors(file)
        return
    weights = load_file(file) if file.suffix == ".safetensors" else torch.load(file, "cpu", weights_only=True)
    for name, weight in weights.items():
        if isinstance(weight, Tensor) and weight.dim() == 2 and weight.is_floating_point():
            yield name, weight.clone()


def view_error(weight: Tensor) -> tuple[float, float]:
    """Squared error of the 8-bit view of a BF16 matrix, and its square: each weight is the middle of 16 mantissas."""
    return _error(weight, torch.full_like(weight, 16.0, dtype=torch.float64))


def remapped_error(weight: Tensor) -> tuple[float, float]:
    """The same for a byte whose top binades, below the row's largest weight, are cut to eight mantissas."""
    top = torch.floor(torch.log2(weight.double().abs().amax(1, keepdim=True)))
    fine = torch.floor(torch.log2(weight.double().abs())) > top - _TOP_BINADES
    return _error(weight, torch.where(fine, 8.0, 16.0).double())


def _error(weight: Tensor, step: Tensor) -> tuple[float, float]:
    """Squared error where `step` neighbouring mantissas are one number, their middle."""
    exact = weight.double()
    unit = 2.0 ** (torch.floor(torch.log2(exact.abs())) - 7)  # of the last mantissa bit
    middle = (torch.floor(exact.abs() / unit / step) * step + step / 2) * unit * exact.sign()
    off = torch.where(exact == 0, 0.0, middle - exact)
    return float(off.square().sum()), float(exact.square().sum())


def _mean(error: Any, weights: list[Tensor]) -> float:
    """The norm of all errors over the norm of all weights."""
    pairs = [error(weight.bfloat16()) for weight in weights]
    return float((sum(off for off, _ in pairs) / sum(whole for _, whole in pairs)) ** 0.5)


def _factors(file: Path) -> Iterator[tuple[str, Tensor]]:
    onnx = importlib.import_module("onnx")
    graph = onnx.load(str(file)).graph
    factors = {node.input[1] for node in graph.node if node.op_type == "MatMul"}
    for tensor in graph.initializer:
        if len(tensor.dims) == 2 and tensor.data_type == onnx.TensorProto.FLOAT:
            weight = torch.from_numpy(onnx.numpy_helper.to_array(tensor).copy())
            yield tensor.name, weight.t() if tensor.name in factors else weight


def _shown(row: dict[str, Any]) -> str:
    total, error = row["total"], row["error"]
    figures = " | ".join(f"{total[part]:.4f}" for part in ("bits", "code", "rows", "escapes"))
    shares = " | ".join(f"{total['escaped'][name]:.1e}" for name in ("binades15", "binades16", "remapped13"))
    counts = f"{total['packed']} of {total['matrices']} | {total['weights']:,}"
    return f"| {row['file']} | {counts} | {figures} | {shares} | {error['view8']:.4f} | {error['remapped13']:.4f} |"


if __name__ == "__main__":
    main()

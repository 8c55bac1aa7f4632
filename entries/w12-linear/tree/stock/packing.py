"""python -m kernels.w12: what a checkpoint costs in W12, and a packed copy of it and back.

    inspect MODEL [--json]        bits a weight of every matrix, by code, rows and escapes
    pack MODEL FOLDER [--json]    a folder with every tensor, packed where that pays
    unpack FOLDER MODEL [--json]  the tensors again, as a folder of safetensors

MODEL is a Hugging Face folder or a GGUF file.  A tensor of another type than BF16 is rounded to it first, which is
said.  Standard output has the answer, standard error the talk; exit codes are those of docs/records.md.
"""

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch
from safetensors.torch import save_file
from torch import Tensor

from stock.checkpoint import Checkpoint, open_checkpoint
from stock.errors import EngineError
from stock.ops.w12 import Cost, Damaged, Folder, Packed, Writer, census, cost, decode, encode, matches

__all__ = ["main"]

_SHARD_BYTES = 1 << 30
_DIFFERS, _USAGE, _MISSING, _UNSUPPORTED = 1, 2, 4, 5


class Refused(Exception):
    """What the user must hear: exit code, problem, hint."""


def main(arguments: list[str] | None = None) -> NoReturn:
    """Runs a command and exits."""
    try:
        given = _parser().parse_args(arguments)
        given.run(given)
    except Refused as error:
        _exit(*error.args)
    except EngineError as error:
        _exit(_USAGE, error.message)
    except Damaged as error:
        _exit(_DIFFERS, str(error), "pack the model again")
    except KeyboardInterrupt:
        _exit(130, "interrupted")
    except OSError as error:
        _exit(_UNSUPPORTED, f"'{error.filename}': {(error.strerror or str(error)).lower()}")
    sys.exit(0)


@dataclass(frozen=True)
class Row:
    """A matrix of a checkpoint: what it costs here, and how many escapes other records would have."""

    name: str
    cost: Cost
    escaped16: int
    escaped13: int
    rounded: bool
    refusal: str | None

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "shape": [self.cost.n, self.cost.k],
            "bits": self.cost.bits,
            "code": self.cost.code,
            "rows": self.cost.rows,
            "escapes": self.cost.escapes,
            "escaped": {"binades15": self.cost.escaped, "binades16": self.escaped16, "remapped13": self.escaped13},
            "worst_row": self.cost.worst_row,
            "rounded": self.rounded,
            "packs": self.refusal is None,
            "why_not": self.refusal,
        }


def _inspect(given: argparse.Namespace) -> None:
    checkpoint = _checkpoint(given.model)
    rows = [row for name in checkpoint.names if (row := _row(checkpoint, name, given.device)) is not None]
    if not rows:
        raise Refused(_USAGE, f"'{given.model}' has no matrix")
    _show(rows, given.json)


def _row(checkpoint: Checkpoint, name: str, device: str) -> Row | None:
    tensor = checkpoint.read(name, floating=None)
    if not _is_matrix(tensor):
        return None
    counted = census(tensor.to(device).to(torch.bfloat16))
    return Row(
        name,
        counted.binades15,
        counted.binades16.escaped,
        counted.remapped13.escaped,
        rounded=tensor.dtype != torch.bfloat16,
        refusal=counted.binades15.refusal(),
    )


def _show(rows: list[Row], as_json: bool) -> None:
    total = _total(rows)
    if as_json:
        print(json.dumps({"tensors": [row.as_json() for row in rows], "total": total}, indent=1))
        return
    width = max(len(row.name) for row in rows)
    print(f"{'tensor':{width}}  {'shape':>14}  {'bits':>7}  {'code':>6}  {'rows':>6}  {'escapes':>7}  packs")
    for row in rows:
        each = row.cost
        figures = f"{each.bits:7.4f}  {each.code:6.2f}  {each.rows:6.4f}  {each.escapes:7.4f}"
        print(f"{row.name:{width}}  {f'{each.n} x {each.k}':>14}  {figures}  {row.refusal or 'yes'}")
    print(f"{total['packed']} of {len(rows)} matrices pay, {total['weights']:,} weights of them")
    if total["packed"]:
        parts = ", ".join(f"{part} {total[part]:.4f}" for part in ("code", "rows", "escapes"))
        print(f"bits a weight {total['bits']:.4f}: {parts}")
        shares = ", ".join(f"{share:.2e} with {name}" for name, share in total["escaped"].items())
        print(f"escapes a weight: {shares}")
    if any(row.rounded for row in rows):
        print(f"{sum(row.rounded for row in rows)} matrices were rounded to BF16 first", file=sys.stderr)


def _total(rows: list[Row]) -> dict[str, Any]:
    """Sums over the matrices that pay, by weight."""
    packs = [row for row in rows if row.refusal is None]
    weights = sum(row.cost.n * row.cost.k for row in packs)
    total: dict[str, Any] = {"matrices": len(rows), "packed": len(packs), "weights": weights}
    if not packs:
        return total
    for part in ("bits", "code", "rows", "escapes"):
        total[part] = sum(getattr(row.cost, part) * row.cost.n * row.cost.k for row in packs) / weights
    counts = {"binades15": 0, "binades16": 0, "remapped13": 0}
    for row in packs:
        counts["binades15"] += row.cost.escaped
        counts["binades16"] += row.escaped16
        counts["remapped13"] += row.escaped13
    return total | {"escaped": {name: count / weights for name, count in counts.items()}}


def _pack(given: argparse.Namespace) -> None:
    checkpoint = _checkpoint(given.model)
    rounded, stored, before = 0, {"packed": 0, "plain": 0}, 0
    with _whole(given.folder) as part:
        writer = Writer(part)
        for name in checkpoint.names:
            tensor = checkpoint.read(name, floating=None)
            kept, is_rounded = _kept(name, tensor, given.device)
            rounded += is_rounded
            before += tensor.numel() * (2 if tensor.is_floating_point() else tensor.element_size())
            stored["packed" if isinstance(kept, Packed) else "plain"] += 1
            writer.add(name, kept)
        for path in sorted(given.model.glob("*.json")) if given.model.is_dir() else ():
            if not path.name.endswith(".index.json"):
                shutil.copyfile(path, part / f"model.{path.name}")
        writer.close()
    after = sum(path.stat().st_size for path in given.folder.glob("*.safetensors"))
    if given.json:
        print(json.dumps({**stored, "rounded": rounded, "bytes": after, "bytes_bf16": before}))
    else:
        counts = f"{stored['packed']} tensors packed, {stored['plain']} as they are"
        print(f"{counts}: {after:,} bytes for {before:,} in BF16")
        if rounded:
            print(f"{rounded} tensors were rounded to BF16", file=sys.stderr)


def _kept(name: str, tensor: Tensor, device: str) -> tuple[Packed | Tensor, bool]:
    """What stands for a tensor, and whether it was rounded."""
    if not tensor.is_floating_point():
        return tensor, False
    source = tensor.to(device).to(torch.bfloat16)
    is_rounded = tensor.dtype != torch.bfloat16 and not torch.equal(source.to(tensor.dtype).cpu(), tensor)
    if not _is_matrix(tensor):
        return source, is_rounded
    packed = encode(source)
    if cost(packed).refusal() is not None:
        return source, is_rounded
    if not matches(packed, source):
        raise Damaged(f"'{name}' did not come back bit for bit: this machine cannot be trusted")
    return packed, is_rounded


def _unpack(given: argparse.Namespace) -> None:
    if not given.folder.is_dir():
        raise Refused(_MISSING, f"'{given.folder}' is no folder", "`pack` makes one")
    source = Folder(given.folder)
    with _whole(given.model) as part:
        shards: dict[str, str] = {}
        shard: dict[str, Tensor] = {}
        total = 0
        for name in sorted(source):
            loaded = source.load(name)
            shard[name] = decode(loaded) if isinstance(loaded, Packed) else loaded
            total += shard[name].nbytes
            if sum(each.nbytes for each in shard.values()) >= _SHARD_BYTES:
                _save(part, shard, shards)
        _save(part, shard, shards)
        index = {"metadata": {"total_size": total}, "weight_map": shards}
        (part / "model.safetensors.index.json").write_text(json.dumps(index))
        for path in given.folder.glob("model.*.json"):
            shutil.copyfile(path, part / path.name.removeprefix("model."))
    if given.json:
        print(json.dumps({"tensors": len(shards), "bytes": total}))
    else:
        print(f"{len(shards)} tensors, {total:,} bytes, each with the digest that it was packed with")


def _save(folder: Path, shard: dict[str, Tensor], shards: dict[str, str]) -> None:
    """Writes a shard and empties it; notes which tensors are in it."""
    if shard:
        name = f"model-{len(set(shards.values())) + 1:05d}.safetensors"
        save_file(shard, folder / name, metadata={"format": "pt"})
        shards |= dict.fromkeys(shard, name)
        shard.clear()


def _is_matrix(tensor: Tensor) -> bool:
    return tensor.dim() == 2 and tensor.is_floating_point() and tensor.numel() > 0


def _checkpoint(path: Path) -> Checkpoint:
    if not path.exists():
        raise Refused(_MISSING, f"'{path}' does not exist", "MODEL is a Hugging Face folder or a GGUF file")
    return open_checkpoint(path, torch.bfloat16)


@contextmanager
def _whole(folder: Path) -> Iterator[Path]:
    """A folder beside `folder` that takes its name at the end, so that no half of it is ever there."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise Refused(_USAGE, f"'{folder}' exists", "name a folder that does not exist yet")
    if not folder.absolute().parent.is_dir():
        raise Refused(_USAGE, f"folder '{folder.absolute().parent}' does not exist")
    part = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.absolute().parent))
    try:
        yield part
        part.chmod(0o755)
        part.replace(folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise Refused(_USAGE, message, f"`{self.prog} --help` shows how it goes")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="python -m kernels.w12", description=__doc__, allow_abbrev=False)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, run, words in (
        ("inspect", _inspect, ("model",)),
        ("pack", _pack, ("model", "folder")),
        ("unpack", _unpack, ("folder", "model")),
    ):
        command = commands.add_parser(name)
        for word in words:
            command.add_argument(word, metavar=word.upper(), type=Path)
        command.add_argument("--json", action="store_true", help="print figures as JSON")
        if name != "unpack":
            command.add_argument("--device", default="cpu", type=_device, help="where it is counted and encoded")
        command.set_defaults(run=run)
    return parser


def _device(word: str) -> str:
    try:
        torch.empty(0, device=word)
    except (RuntimeError, AssertionError) as error:
        raise Refused(_UNSUPPORTED, f"device '{word}' does not exist") from error
    return word


def _exit(status: int, problem: str, hint: str | None = None) -> NoReturn:
    print(f"error: {problem}", file=sys.stderr)
    if hint:
        print(f"hint: {hint}", file=sys.stderr)
    sys.exit(status)

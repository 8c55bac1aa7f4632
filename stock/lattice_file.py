"""Lattice files (docs/records.md, lattice): written position by position, in parts below 16 MiB."""

import hashlib
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

__all__ = ["MAX_PART_BYTES", "part_path", "write_lattice"]

MAX_PART_BYTES = 16 << 20
_MAGIC = b"spt-lattice 1\n"
_ALIGNED = 64
_HEADER_BYTES = 8 << 10  # room for the longest header
_WIDE = 1 << 16  # ids of a larger vocabulary take four bytes
_DIGEST_BYTES = 32


def part_path(path: Path, part: int) -> Path:
    """Where a part lies: NAME.lattice, NAME.1.lattice, ..."""
    return path if part == 0 else path.with_name(f"{path.stem}.{part}{path.suffix}")


def write_lattice(
    path: Path,
    about: Mapping[str, Any],
    tokens: Sequence[int],
    start: int,
    shape: tuple[int, int],
    blocks: Iterable[tuple[Tensor, Tensor]],
    part_bytes: int = MAX_PART_BYTES,
) -> dict[str, Any]:
    """Writes the positions of `blocks`, ids int64 and log-probabilities float32 [n, depth, rank], as they come.

    about: the header's fields of request and models, `vocabulary` among them.  shape: (depths, ranks).
    Returns `parts`, how many files there are, and `digest`, the sha256 over their bytes in order.
    """
    id_bytes = 2 if about["vocabulary"] <= _WIDE else 4
    positions, record_bytes = len(tokens) - start, shape[0] * shape[1] * (id_bytes + 2)
    room = part_bytes - _HEADER_BYTES - len(tokens) * id_bytes - _DIGEST_BYTES
    most = max(1, (room - 1) // record_bytes)
    parts = -(-positions // most)
    header = {**about, "tokens": len(tokens), "start": start, "depths": shape[0], "ranks": shape[1]}
    header |= {"id_bytes": id_bytes, "parts": parts}
    records = _records(blocks, id_bytes)
    whole = hashlib.sha256()
    for part in range(parts):
        first, count = start + part * most, min(most, positions - part * most)
        pieces = (
            (_header({**header, "part": part, "first": first, "positions": count}),),
            itertools.islice(records, count),
            (_packed(torch.tensor(tokens), id_bytes),),
        )
        own = hashlib.sha256()
        with part_path(path, part).open("wb") as file:
            for piece in itertools.chain(*pieces):
                own.update(piece)
                whole.update(piece)
                file.write(piece)
            file.write(own.digest())
            whole.update(own.digest())
    return {"parts": parts, "digest": whole.hexdigest()}


def _header(fields: Mapping[str, Any]) -> bytes:
    line = _MAGIC + json.dumps(fields).encode()
    return line + b" " * (-(len(line) + 1) % _ALIGNED) + b"\n"


def _records(blocks: Iterable[tuple[Tensor, Tensor]], id_bytes: int) -> Iterator[bytes]:
    for ids, logprobs in blocks:
        halves = logprobs.half().cpu()
        for each, half in zip(ids.cpu(), halves, strict=True):
            yield _packed(each, id_bytes) + half.numpy().astype("<f2").tobytes()


def _packed(ids: Tensor, id_bytes: int) -> bytes:
    return bytes(ids.numpy().astype(f"<u{id_bytes}").tobytes())

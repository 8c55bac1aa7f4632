"""Lattice files as an engine writes them (docs/records.md, lattice), held against what was asked."""

import hashlib
import struct
from array import array
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from harness import shape
from harness.file import read_plain
from harness.shape import Mismatch, hexadecimal, integer, number, one_of, record, text
from harness.wire import Generate, Ready, Settings

__all__ = [
    "MOST_PART_BYTES",
    "Asked",
    "asked_of",
    "check_part",
    "check_values",
    "part_path",
    "read_ranked",
    "same_shape",
]

MOST_PART_BYTES = 16 << 20
_SAME = ("target", "drafter", "mode", "dtype", "block", "vocabulary", "depths", "ranks")  # in all files of a folder
_MAGIC = b"spt-lattice 1\n"
_ALIGNED, _DIGEST_BYTES, _MOST_HEADER_BYTES = 64, 32, 64 << 10
_MOST_DEPTHS, _MOST_RANKS = 4096, 32
_WIDE = 1 << 16  # a larger vocabulary takes four bytes

_HEADER = record(
    {
        "target": record({"digest": hexadecimal(64), "widen": integer(1), "jitter": integer()}),
        "drafter": hexadecimal(64),
        "mode": one_of("exact", "fast"),
        "dtype": one_of("float32", "bfloat16", "float64"),
        "request": text,
        "sampling": record(
            {"temperature": number(0), "top_p": number(0, 1), "top_k": integer(), "seed": integer(0, 2**64 - 1)}
        ),
        "block": integer(1, _MOST_DEPTHS),
        "vocabulary": integer(1, 2**32),
        "tokens": integer(2),
        "start": integer(1),
        "depths": integer(1, _MOST_DEPTHS),
        "ranks": integer(1, _MOST_RANKS),
        "id_bytes": one_of(2, 4),
        "part": integer(),
        "parts": integer(1),
        "first": integer(1),
        "positions": integer(1),
    }
)


@dataclass(frozen=True)
class Asked:
    """What a lattice is to be of.

    tokens: the answer's, behind `start` of its prompt.  prompt: where it is known.  fields: of the header.
    """

    start: int
    tokens: list[int]
    fields: Mapping[str, Any]
    prompt: list[int] | None = None


def asked_of(request: Generate, ids: list[int], settings: Settings, ready: Ready) -> Asked:
    """What an engine that was loaded so is asked for."""
    fields = {
        "request": request.id,
        "sampling": asdict(request.sampling),
        "mode": settings.mode,
        "dtype": settings.dtype,
        "vocabulary": ready.vocabulary,
    }
    return Asked(len(request.prompt), ids, fields, request.prompt)


def check_part(data: bytes, asked: Asked, before: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The header of a file, which is the first part of what was asked or follows the part `before`; else `Mismatch`."""
    header, body = _header(data)
    id_bytes, length = header["id_bytes"], asked.start + len(asked.tokens)
    wanted = {
        **asked.fields,
        "tokens": length,
        "start": asked.start,
        "part": 0 if before is None else before["part"] + 1,
        "first": asked.start if before is None else before["first"] + before["positions"],
    }
    if before is not None:
        wanted = {name: value for name, value in before.items() if name != "positions"} | wanted
    for name, value in wanted.items():
        if header[name] != value:
            raise Mismatch(f"its header's '{name}' is not the one that was asked")
    if id_bytes < 4 and header["vocabulary"] > _WIDE:
        raise Mismatch("its ids are too narrow for its vocabulary")
    last = header["part"] == header["parts"] - 1
    end = header["first"] + header["positions"]
    if header["part"] >= header["parts"] or end > length or (end == length) != last:
        raise Mismatch("its parts do not hold one record for each token of the answer")
    records = header["positions"] * _record_bytes(header)
    if len(data) != body + records + length * id_bytes + _DIGEST_BYTES:
        raise Mismatch("its length is not what its header says")
    if hashlib.sha256(data[:-_DIGEST_BYTES]).digest() != data[-_DIGEST_BYTES:]:
        raise Mismatch("its digest is not that of its bytes")
    told = _ids(data[body + records : -_DIGEST_BYTES], id_bytes)
    if told[asked.start :].tolist() != asked.tokens or asked.prompt not in (None, told[: asked.start].tolist()):
        raise Mismatch("its tokens are not those that were asked")
    return header


def check_values(data: bytes, header: Mapping[str, Any]) -> None:
    """`Mismatch` for an id outside the vocabulary and for log-probabilities that are not in order, NaN among them."""
    _, at = _header(data)
    count, ranks = header["depths"] * header["ranks"], header["ranks"]
    form = struct.Struct(f"<{count}e")
    for _ in range(header["positions"]):
        middle, end = at + count * header["id_bytes"], at + _record_bytes(header)
        if max(_ids(data[at:middle], header["id_bytes"])) >= header["vocabulary"]:
            raise Mismatch("it holds ids outside the vocabulary")
        halves = form.unpack(data[middle:end])
        for depth in range(0, count, ranks):
            row = halves[depth : depth + ranks]
            if not (row[0] <= 0 and all(low <= high for high, low in pairwise(row))):
                raise Mismatch("its log-probabilities are not in order")
        at = end


def same_shape(header: Mapping[str, Any], like: Mapping[str, Any]) -> None:
    """`Mismatch` unless a lattice is of the models and the shape of its neighbours, as far as `like` tells them."""
    for name in _SAME:
        if name in like and header[name] != like[name]:
            raise Mismatch(f"its '{name}' is not that of the other lattices")


def read_ranked(first: Path, asked: Asked) -> tuple[list[Path], dict[str, Any]] | None:
    """The files of a whole lattice and its first header; None where one is not there, cut, changed, or of another."""
    files: list[Path] = []
    header: dict[str, Any] | None = None
    whole: dict[str, Any] = {}
    while header is None or len(files) < header["parts"]:
        path = part_path(first, len(files))
        try:
            data = read_plain(path, MOST_PART_BYTES - 1)
            if data is None:
                return None
            header = check_part(data, asked, header)
        except Mismatch:
            return None
        whole = whole or header
        files.append(path)
    return files, whole


def part_path(first: Path, part: int) -> Path:
    """Where a part lies: NAME.lattice, NAME.1.lattice, ..."""
    return first if part == 0 else first.with_name(f"{first.stem}.{part}{first.suffix}")


def _header(data: bytes) -> tuple[dict[str, Any], int]:
    """The header, and where what follows it begins."""
    end = data.find(b"\n", len(_MAGIC), len(_MAGIC) + _MOST_HEADER_BYTES) + 1
    if not data.startswith(_MAGIC) or end == 0 or end % _ALIGNED:
        raise Mismatch("it has no header of a lattice")
    header: dict[str, Any] = shape.loads(data[len(_MAGIC) : end])
    _HEADER(header, "its header")
    return header, end


def _record_bytes(header: Mapping[str, Any]) -> int:
    return int(header["depths"] * header["ranks"] * (header["id_bytes"] + 2))


def _ids(data: bytes, id_bytes: int) -> "array[int]":
    return array("H" if id_bytes == 2 else "I", data)

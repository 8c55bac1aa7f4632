"""Records of W12 on disk: a folder of safetensors files, one a tensor, and an index that makes it whole.

Every byte of a file is under its digest, the header included, so that no flipped bit goes unseen; and the index,
written last, names the digest of each file, so that none can be exchanged, lost or left half written.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, cast
from urllib.parse import quote

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from kernels.w12 import VERSION, Packed, check

__all__ = ["Damaged", "Folder", "Writer", "load", "save_packed", "save_plain"]

FORMAT, INDEX = "spt-w12", "index.json"
_BLANK = b"0" * 64
_CHUNK_BYTES = 1 << 24
_MAX_HEADER_BYTES = 1 << 20


class Damaged(ValueError):
    """A file is not what was written, or nothing that this version wrote."""


def save_packed(path: Path, name: str, packed: Packed) -> str:
    """Writes one record; returns its digest, 64 hexadecimal digits.

    Stored are `high`, `low` and `values` as they are, `base` in bytes, and for each escape `columns` and the rows from
    the escape before (`gaps`), in the narrowest unsigned type that holds them all.
    """
    gaps = packed.escape_rows().diff(prepend=packed.starts.new_zeros(1, dtype=torch.int64))
    tensors = {
        "high": packed.high,
        "low": packed.low,
        "base": packed.base.to(torch.uint8),
        "gaps": _narrowed(gaps, int(gaps.max()) if len(gaps) else 0),
        "columns": _narrowed(packed.columns, packed.shape[1] - 1),
        "values": packed.values,
    }
    return _write(path, tensors, {"kind": "packed", "name": name, "shape": "x".join(map(str, packed.shape))})


def save_plain(path: Path, name: str, tensor: Tensor) -> str:
    """Writes one tensor as it is, under the same care; returns its digest."""
    return _write(path, {"plain": tensor}, {"kind": "plain", "name": name})


def load(path: Path, name: str, digest: str, device: torch.device | str = "cpu") -> Packed | Tensor:
    """The record or plain tensor of a file; Damaged unless it holds what was written under that name and digest."""
    found, metadata = _verified(path)
    if found != digest:
        raise Damaged(f"'{path.name}' is another file than the index names")
    if metadata.get("name") != name:
        raise Damaged(f"'{path.name}' holds '{metadata.get('name')}', not '{name}'")
    with safe_open(path, framework="pt", device=str(device)) as file:
        stored = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - it is no mapping
    return stored["plain"] if metadata["kind"] == "plain" else _packed(path, stored, metadata["shape"])


def _packed(path: Path, stored: Mapping[str, Tensor], shape: str) -> Packed:
    n, k = map(int, shape.split("x"))
    rows = stored["gaps"].to(torch.int64).cumsum(0)
    starts = torch.searchsorted(rows, torch.arange(n + 1, device=rows.device)).to(torch.int32)
    packed = Packed(
        (n, k),
        stored["high"],
        stored["low"],
        stored["base"].to(torch.int16),
        starts,
        stored["columns"].to(torch.int32),
        stored["values"],
    )
    try:
        check(packed)
    except ValueError as error:
        raise Damaged(f"'{path.name}' holds no record: {error}") from error
    return packed


@dataclass
class Writer:
    """Fills a folder; it is one only once `close` has written the index.

    A tensor may be `left` out with the reason, where its source stays at hand.
    """

    folder: Path
    packed: dict[str, str] = field(default_factory=dict)
    plain: dict[str, str] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)

    def add(self, name: str, tensor: Packed | Tensor) -> None:
        """Writes a record or a plain tensor."""
        path = self.folder / _file_of(name)
        if isinstance(tensor, Packed):
            self.packed[name] = save_packed(path, name, tensor)
        else:
            self.plain[name] = save_plain(path, name, tensor)

    def leave(self, name: str, reason: str) -> None:
        """Notes that a tensor is not here, and why."""
        self.left[name] = reason

    def close(self) -> None:
        """Makes the folder whole."""
        index = {"v": VERSION, "format": FORMAT, "packed": self.packed, "plain": self.plain, "left": self.left}
        index["digest"] = _digest(index)
        _write_whole(self.folder / INDEX, [json.dumps(index, separators=(",", ":")).encode()])


class Folder:
    """What a Writer wrote: digests by name of `packed` and `plain` tensors, and reasons by name of those `left` out."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        index = _read_index(folder / INDEX)
        self.packed: dict[str, str] = index["packed"]
        self.plain: dict[str, str] = index["plain"]
        self.left: dict[str, str] = index["left"]

    def __iter__(self) -> Iterator[str]:
        """Names of all tensors that are here."""
        return iter([*self.packed, *self.plain])

    def load(self, name: str, device: torch.device | str = "cpu") -> Packed | Tensor:
        """The tensor of that name; Damaged unless it is what was written."""
        is_packed = name in self.packed
        tensor = load(self.folder / _file_of(name), name, (self.packed if is_packed else self.plain)[name], device)
        if isinstance(tensor, Packed) != is_packed:
            raise Damaged(f"'{_file_of(name)}' holds another kind than the index names")
        return tensor


def _file_of(name: str) -> str:
    return f"{quote(name, safe='')}.safetensors"


def _narrowed(numbers: Tensor, most: int) -> Tensor:
    kind = torch.uint8 if most < 1 << 8 else torch.uint16 if most < 1 << 16 else torch.int32
    return numbers.to(kind)


def _write(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> str:
    blank = {"format": FORMAT, "version": str(VERSION), **metadata, "digest": _BLANK.decode()}
    data = save({name: tensor.contiguous().cpu() for name, tensor in tensors.items()}, blank)
    at = _digest_at(data[: 8 + int.from_bytes(data[:8], "little")])
    digest = hashlib.sha256(data).hexdigest()
    _write_whole(path, [data[:at], digest.encode(), memoryview(data)[at + len(_BLANK) :]])
    return digest


def _write_whole(path: Path, parts: list[bytes | memoryview]) -> None:
    """Writes a file so that its name never stands for a part of it."""
    half = path.with_name(f".{path.name}.part")
    with half.open("wb") as file:
        file.writelines(parts)
        file.flush()
        os.fsync(file.fileno())
    half.replace(path)


def _verified(path: Path) -> tuple[str, dict[str, str]]:
    """Digest and metadata of a file whose content has that digest; else Damaged."""
    try:
        with path.open("rb") as file:
            head = _head(file)
            metadata, at = _metadata(head), _digest_at(head)
            if at < 0 or metadata.get("format") != FORMAT:
                raise Damaged(f"'{path.name}' is no record of W12")
            if metadata.get("version") != str(VERSION):
                raise Damaged(f"'{path.name}' has version '{metadata.get('version')}', and this reads {VERSION}")
            computed = hashlib.sha256(head[:at] + _BLANK + head[at + len(_BLANK) :])
            while chunk := file.read(_CHUNK_BYTES):
                computed.update(chunk)
    except OSError as error:
        raise Damaged(f"'{path.name}' cannot be read: {(error.strerror or str(error)).lower()}") from error
    if computed.hexdigest().encode() != head[at : at + len(_BLANK)]:
        raise Damaged(f"'{path.name}' is damaged: its content has not the digest that it states")
    return computed.hexdigest(), metadata


def _head(file: BinaryIO) -> bytes:
    """Length and header of a safetensors file, as they stand there."""
    length = file.read(8)
    return length + file.read(min(int.from_bytes(length, "little"), _MAX_HEADER_BYTES))


def _metadata(head: bytes) -> dict[str, str]:
    """What the header says beside its tensors; nothing where it is no header."""
    try:
        metadata = json.loads(head[8:])["__metadata__"]
    except (ValueError, RecursionError, LookupError, TypeError):
        return {}
    return metadata if isinstance(metadata, dict) else {}


def _digest_at(head: bytes) -> int:
    """Where the digest stands; -1 for nowhere.  In a JSON string the quotes would be escaped."""
    key = b'"digest":"'
    return at + len(key) if (at := head.find(key)) >= 0 else -1


def _read_index(path: Path) -> dict[str, Any]:
    try:
        index = json.loads(path.read_bytes())
        told = index.pop("digest")
    except OSError as error:
        problem = (error.strerror or str(error)).lower()
        raise Damaged(f"'{path.parent}' holds no packed tensors: '{path.name}': {problem}") from error
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError) as error:
        raise Damaged(f"'{path}' is damaged: it is no index of packed tensors") from error
    if index.get("format") == FORMAT and index.get("v") != VERSION:
        raise Damaged(f"'{path}' has version '{index.get('v')}', and this reads {VERSION}")
    if told != _digest(index):
        raise Damaged(f"'{path}' is damaged: its content has not the digest that it states")
    return cast(dict[str, Any], index)


def _digest(index: Mapping[str, Any]) -> str:
    text = json.dumps(index, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()

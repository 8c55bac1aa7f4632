"""Facts of a model, read from its header or config in a millisecond: no weights, no tokenizer.

The gguf package builds a view of every vocabulary entry (2.5 s for 49,152 of them) where nine numbers are wanted,
so the header is walked here; tests hold the two together.
"""

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, BinaryIO

from spt.errors import Missing, Unsupported

__all__ = ["Facts", "drafter_fits", "read_config", "read_facts"]


@dataclass(frozen=True)
class Facts:
    """The shape of a dense decoder; None where the model does not say."""

    architecture: str | None
    layers: int | None
    hidden: int | None
    mlp: int | None
    heads: int | None
    kv_heads: int | None
    head_dim: int | None
    vocabulary: int | None
    context: int | None
    rope_theta: float | None


def read_facts(path: Path) -> Facts:
    """The facts of the Hugging Face folder or GGUF file at `path`."""
    if path.is_dir():
        return _from_config(read_config(path))
    with path.open("rb") as file:
        try:
            return _from_header(dict(_gguf_header(file)))
        except (ValueError, OverflowError, RecursionError, struct.error) as error:
            raise Unsupported(f"'{path}' is not a GGUF file that can be read: {error}") from None


def drafter_fits(drafter: Path, target: Facts) -> bool:
    """Whether the drafter in the folder `drafter` was made for a target of this shape."""
    config = read_config(drafter)
    made_for = _from_config({**config, "num_hidden_layers": config.get("num_target_layers"), "model_type": None})
    return all(
        getattr(made_for, field.name) == getattr(target, field.name)
        for field in fields(Facts)
        if field.name not in ("architecture", "head_dim")  # a drafter's heads are its own
    )


def read_config(folder: Path) -> dict[str, Any]:
    """The `config.json` of a folder; Missing where there is none, Unsupported where it is no JSON object."""
    path = folder / "config.json"
    try:
        config = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise Missing(f"no 'config.json' in '{folder}'", "a model is a Hugging Face folder or a GGUF file") from None
    except (ValueError, RecursionError) as error:
        raise Unsupported(f"'{path}' is not JSON: {error}") from None
    if not isinstance(config, dict):
        raise Unsupported(f"'{path}' is not a JSON object")
    return config


def _from_config(config: dict[str, Any]) -> Facts:
    rope = config.get("rope_parameters")  # newer configs keep theta there
    return Facts(
        architecture=config.get("model_type"),
        layers=config.get("num_hidden_layers"),
        hidden=config.get("hidden_size"),
        mlp=config.get("intermediate_size"),
        heads=config.get("num_attention_heads"),
        kv_heads=config.get("num_key_value_heads", config.get("num_attention_heads")),
        head_dim=config.get("head_dim"),
        vocabulary=config.get("vocab_size"),
        context=config.get("max_position_embeddings"),
        rope_theta=config.get("rope_theta", rope.get("rope_theta") if isinstance(rope, dict) else None),
    )


def _from_header(header: dict[str, Any]) -> Facts:
    architecture = header.get("general.architecture")
    own = {key.removeprefix(f"{architecture}."): value for key, value in header.items()}
    return Facts(
        architecture=architecture,
        layers=own.get("block_count"),
        hidden=own.get("embedding_length"),
        mlp=own.get("feed_forward_length"),
        heads=own.get("attention.head_count"),
        kv_heads=own.get("attention.head_count_kv", own.get("attention.head_count")),
        head_dim=own.get("attention.key_length"),
        vocabulary=own.get("vocab_size", header.get("tokenizer.ggml.tokens")),
        context=own.get("context_length"),
        rope_theta=own.get("rope.freq_base"),
    )


_STRING, _ARRAY = 8, 9
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


def _gguf_header(file: BinaryIO) -> Iterator[tuple[str, Any]]:
    """Keys and values of a GGUF file's header, little-endian; of an array its length."""
    if file.read(4) != b"GGUF":
        raise ValueError("it does not begin with 'GGUF'")
    version, _, count = _unpack(file, "IQQ")
    if version not in (2, 3):
        raise ValueError(f"its version is {version}, not 2 or 3")
    for _ in range(count):
        key = _string(file)
        (kind,) = _unpack(file, "I")
        yield key, _value(file, kind)


def _value(file: BinaryIO, kind: int) -> Any:
    if kind == _STRING:
        return _string(file)
    if kind != _ARRAY:
        if kind not in _NUMBERS:
            raise ValueError(f"its header has a value of kind {kind}")
        return _unpack(file, _NUMBERS[kind])[0]
    item_kind, length = _unpack(file, "IQ")
    if item_kind in _NUMBERS:
        file.seek(length * struct.calcsize(f"<{_NUMBERS[item_kind]}"), 1)
    else:
        for _ in range(length):
            _value(file, item_kind)
    return length


def _string(file: BinaryIO) -> str:
    (length,) = _unpack(file, "Q")
    data = file.read(min(length, 1 << 24))
    if len(data) != length:
        raise ValueError("it ends in the middle of its header")
    return data.decode()


def _unpack(file: BinaryIO, form: str) -> tuple[Any, ...]:
    form = f"<{form}"
    return struct.unpack(form, file.read(struct.calcsize(form)))

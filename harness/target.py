"""What a target's files say of the model, for an engine that does not read them itself."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.errors import Missing, Unsupported
from harness.gguf_file import open_gguf

__all__ = ["Facts", "read_facts"]


@dataclass(frozen=True)
class Facts:
    """Ids from 0 to below `vocabulary`, and those that end an answer, as stock reads them."""

    vocabulary: int
    stop_ids: tuple[int, ...]


def read_facts(path: Path) -> Facts:
    """The facts of a Hugging Face folder or a GGUF file; raises `Missing` or `Unsupported`."""
    if not path.exists():
        raise Missing(f"no model at '{path}'", "the target is a Hugging Face folder or a GGUF file")
    vocabulary, stop_ids = _of_folder(path) if path.is_dir() else _of_gguf(path)
    if type(vocabulary) is not int or vocabulary < 1:
        raise Unsupported(f"'{path}' does not say how many ids the model has")
    if any(type(token) is not int for token in stop_ids):
        raise Unsupported(f"'{path}' names a stop id that is none")
    return Facts(vocabulary, tuple(token for token in dict.fromkeys(stop_ids) if 0 <= token < vocabulary))


def _of_folder(folder: Path) -> tuple[Any, list[Any]]:
    config, generation = _json(folder / "config.json"), _json(folder / "generation_config.json")
    said = [found for each in (generation, config) if (found := each.get("eos_token_id")) is not None]
    stop = said[0] if said else []
    return config.get("vocab_size"), stop if isinstance(stop, list) else [stop]


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise Unsupported(f"'{path}' cannot be read: {error}") from None
    if not isinstance(value, dict):
        raise Unsupported(f"'{path}' is not a JSON object")
    return value


def _of_gguf(path: Path) -> tuple[Any, list[Any]]:
    try:
        reader = open_gguf(path)
        rows = [int(tensor.shape[-1]) for tensor in reader.tensors if tensor.name == "token_embd.weight"]
        names = [f"tokenizer.ggml.{end}_token_id" for end in ("eos", "eot")]
        stop = [int(reader.fields[name].contents()) for name in names if name in reader.fields]
    except Missing:
        raise
    except Exception as error:  # the reader indexes into a memory map and raises whatever numpy raises
        raise Unsupported(f"'{path}' is not a GGUF file that can be read: {error}") from error
    return rows[0] if rows else None, stop

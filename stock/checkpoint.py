"""Checkpoints on disk: a folder of safetensors, perhaps sharded, or one GGUF file.

A checkpoint gives tensors by Hugging Face name, whatever the file calls them, with linear weights as [out, in]
and query and key rows in rotate-half order.
"""

import json
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stock.config import ModelConfig, from_gguf, from_hugging_face
from stock.errors import EngineError
from stock.fields import Fields

__all__ = ["Checkpoint", "GgufCheckpoint", "SafetensorsCheckpoint", "open_checkpoint"]

_GGUF_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_GGUF_LAYER_NAMES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}


_LONGEST_LIST = 4096  # of what the engine reads: numbers of each layer
_FLOATS = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
_INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)


class Checkpoint(ABC):
    """Tensors by name, read when asked for."""

    dtype = torch.float64  # in which the engine will hold the tensors: what it cannot hold is refused

    def __init__(self, path: Path, names: Mapping[str, Any]) -> None:
        self.path = path
        self._names = names

    def __contains__(self, name: str) -> bool:
        return name in self._names

    @property
    def names(self) -> list[str]:
        """The names of all tensors, sorted."""
        return sorted(self._names)

    def read(self, name: str, shape: tuple[int, ...] | None = None, *, floating: bool | None = True) -> Tensor:
        """The tensor `name` on the CPU; EngineError `bad_model` if it is missing, unreadable, not of that shape,
        or holds NaN, infinity or a number beyond the engine's type.

        floating: whether it holds floating-point numbers, or integers; None: either.
        """
        if name not in self._names:
            raise EngineError("bad_model", f"'{self.path}' has no tensor '{name}'")
        try:
            tensor = self._read(name)
        except EngineError:
            raise
        except Exception as error:  # safetensors and gguf raise their own and numpy's errors on damaged files
            raise EngineError("bad_model", f"tensor '{name}' of '{self.path}' cannot be read: {error}") from error
        if floating is None:
            floating = tensor.dtype in _FLOATS
        if tensor.dtype not in (_FLOATS if floating else _INTEGERS):
            raise EngineError("bad_model", f"tensor '{name}' of '{self.path}' holds {tensor.dtype}")
        if shape is not None and tuple(tensor.shape) != shape:
            raise EngineError("bad_model", f"tensor '{name}' of '{self.path}' is {tuple(tensor.shape)}, not {shape}")
        if floating and tensor.numel() and not _is_finite(tensor, self.dtype):
            kind = str(self.dtype).removeprefix("torch.")
            raise EngineError("bad_model", f"tensor '{name}' of '{self.path}' holds what is no finite number in {kind}")
        return tensor

    @abstractmethod
    def _read(self, name: str) -> Tensor:
        """The tensor, which exists."""


class SafetensorsCheckpoint(Checkpoint):
    """A Hugging Face folder: config.json and one or many safetensors files."""

    def __init__(self, path: Path) -> None:
        from safetensors import SafetensorError, safe_open

        self.config: dict[str, Any] = read_json(path / "config.json")
        self._files: dict[Path, Any] = {}
        names: dict[str, Path] = {}
        for file in self._shards(path):
            try:
                handle = safe_open(file, framework="pt")
            except (SafetensorError, OSError) as error:
                raise EngineError("bad_model", f"'{file}' cannot be read: {error}") from error
            self._files[file] = handle
            for name in handle.keys():  # noqa: SIM118 - it is no mapping
                if name in names:
                    raise EngineError("bad_model", f"tensor '{name}' stands in '{names[name]}' and in '{file}'")
                names[name] = file
        super().__init__(path, names)

    def model_config(self) -> ModelConfig:
        """The target's configuration."""
        generation = self.path / "generation_config.json"
        return from_hugging_face(self.config, read_json(generation) if generation.exists() else None)

    def _read(self, name: str) -> Tensor:
        tensor: Tensor = self._files[self._names[name]].get_tensor(name)
        return tensor

    @staticmethod
    def _shards(path: Path) -> list[Path]:
        index = path / "model.safetensors.index.json"
        if index.exists():
            names = Fields(read_json(index), f"'{index}'").table("weight_map").values.values()
            if not names or not all(isinstance(name, str) for name in names):
                raise EngineError("bad_model", f"'{index}' names no files")
            for name in names:
                if Path(name).name != name or not name.endswith(".safetensors"):
                    raise EngineError("bad_model", f"'{index}' names '{name}', which is no file of the folder")
            return [path / name for name in sorted(set(names))]
        files = sorted(path.glob("*.safetensors"))
        if not files:
            raise EngineError("bad_model", f"'{path}' has no safetensors file")
        return files


class GgufCheckpoint(Checkpoint):
    """A GGUF file.  Quantised blocks are dequantised to float32; the engine's dtype rounds them once."""

    def __init__(self, path: Path) -> None:
        try:
            reader = _reader(path)
            self.fields = {name: _contents(field) for name, field in reader.fields.items() if _is_plain(name)}
            self._tensors = {tensor.name: tensor for tensor in reader.tensors}
            names = {name: source for source in self._tensors if (name := _hugging_face_name(source))}
        except Exception as error:  # the reader indexes into a memory map and raises whatever numpy raises
            raise EngineError("bad_model", f"'{path}' is not a readable GGUF file: {error}") from error
        super().__init__(path, names)

    def model_config(self) -> ModelConfig:
        """The target's configuration."""
        shapes = {name: tuple(int(size) for size in reversed(t.shape)) for name, t in self._tensors.items()}
        config = from_gguf(self.fields, shapes)
        if "rope_freqs.weight" in self._tensors:
            try:
                factors = self._dequantised("rope_freqs.weight").flatten().tolist()
            except Exception as error:  # as in `read`
                raise EngineError("bad_model", f"'rope_freqs.weight' cannot be read: {error}") from error
            config = replace(config, rope=config.rope.with_factors(factors))
        return config

    def _read(self, name: str) -> Tensor:
        tensor = self._dequantised(self._names[name])
        if self.fields["general.architecture"] == "llama":
            fields = self.fields
            heads = fields["llama.attention.head_count"]
            if ".q_proj." in name:
                tensor = _rotate_half_rows(tensor, heads)
            elif ".k_proj." in name:
                tensor = _rotate_half_rows(tensor, fields.get("llama.attention.head_count_kv", heads))
        return tensor

    def _dequantised(self, name: str) -> Tensor:
        import gguf

        source = self._tensors[name]
        numbers = gguf.dequantize(source.data, source.tensor_type)
        return torch.from_numpy(numbers if numbers.flags.writeable else numbers.copy())  # else it is the file itself


def open_checkpoint(path: Path, dtype: torch.dtype = torch.float64) -> SafetensorsCheckpoint | GgufCheckpoint:
    """Opens a folder or a GGUF file for weights in dtype; EngineError `bad_model` if it is neither."""
    if not path.exists():
        raise EngineError("bad_model", f"'{path}' does not exist")
    checkpoint = SafetensorsCheckpoint(path) if path.is_dir() else GgufCheckpoint(path)
    checkpoint.dtype = dtype
    return checkpoint


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object; EngineError `bad_model` if it is missing or no object."""
    try:
        value = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise EngineError("bad_model", f"'{path}' cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise EngineError("bad_model", f"'{path}' holds no JSON object")
    return value


def _is_finite(tensor: Tensor, dtype: torch.dtype) -> bool:
    """Whether no entry is NaN, or infinite in dtype: both show in the extremes, which need no second tensor."""
    return bool(torch.stack(tensor.aminmax()).to(dtype).isfinite().all())


def _reader(path: Path) -> Any:
    """A reader of a GGUF file that stops at the file's end and steps over long lists.

    The library's own gives empty arrays behind the end, and so counts through any length that a damaged file states;
    and it makes arrays of each item of a list, which takes seconds for a vocabulary that nobody reads here.
    """
    import gguf

    class Reader(gguf.GGUFReader):
        def _get(self, offset: int, *arguments: Any, **words: Any) -> Any:
            if offset >= len(self.data):
                raise ValueError("it ends within its metadata")
            return super()._get(offset, *arguments, **words)

        def _get_field_parts(self, orig_offs: int, raw_type: int) -> Any:
            if raw_type == gguf.GGUFValueType.ARRAY:
                kind, count = self._get(orig_offs, np.uint32)[0], int(self._get(orig_offs + 4, np.uint64)[0])
                number = self.gguf_scalar_to_np.get(kind)
                if count > _LONGEST_LIST and (number is not None or kind == gguf.GGUFValueType.STRING):
                    first = orig_offs + 12
                    end = self._behind_strings(first, count) if number is None else first + count * number().nbytes
                    return end - orig_offs, [], [], [gguf.GGUFValueType.ARRAY]
            return super()._get_field_parts(orig_offs, raw_type)

        def _behind_strings(self, offset: int, count: int) -> int:
            """Where the strings end that begin at `offset`, each behind its length."""
            data, length = memoryview(self.data), struct.Struct(">Q" if self.byte_order == "S" else "<Q")
            for _ in range(count):
                if offset + 8 > len(data):
                    raise ValueError("it ends within its metadata")
                offset += 8 + length.unpack_from(data, offset)[0]
            return offset

    return Reader(path)


def _is_plain(name: str) -> bool:
    """Metadata that the engine reads: the token lists are long and belong to the client."""
    return not name.startswith("tokenizer.") or name.endswith("_token_id")


def _contents(field: Any) -> Any:
    contents: Callable[[], Any] = field.contents
    return contents()


def _hugging_face_name(name: str) -> str | None:
    stem, _, kind = name.rpartition(".")
    if stem.startswith("blk."):
        layer, _, part = stem.removeprefix("blk.").partition(".")
        return f"model.layers.{layer}.{_GGUF_LAYER_NAMES[part]}.{kind}" if part in _GGUF_LAYER_NAMES else None
    return f"{_GGUF_NAMES[stem]}.{kind}" if stem in _GGUF_NAMES else None


def _rotate_half_rows(rows: Tensor, heads: int) -> Tensor:
    """Undoes GGUF's row order of Llama's q and k: pairs lie side by side there, half a head apart here."""
    pairs = rows.reshape(heads, rows.shape[0] // heads // 2, 2, *rows.shape[1:])
    return pairs.swapaxes(1, 2).reshape(rows.shape)

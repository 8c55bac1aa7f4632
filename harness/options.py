"""Option values by their declared types: people write words, the wire wants numbers."""

import math
import re
from collections.abc import Mapping

from harness.errors import Usage
from harness.wire import Option

__all__ = ["convert"]

_BOOLEANS = {"true": True, "false": False}


def convert(values: Mapping[str, str | float | bool], declared: Mapping[str, Option]) -> dict[str, str | float | bool]:
    """`values` in the types that the engine declares; whether they are in range is the engine's to say.

    Raises `Usage` for a name that is not declared and a word that does not read as its type.
    """
    for name in values:
        if name not in declared:
            known = ", ".join(sorted(declared)) or "none at all"
            raise Usage(f"the system has no option '{name}'", f"it has {known}")
    return {name: _value(name, value, declared[name].type) for name, value in values.items()}


def _value(name: str, value: str | float | bool, kind: str) -> str | float | bool:
    word = str(value).lower() if isinstance(value, bool) else str(value)
    if kind == "string":
        return word
    if kind == "bool" and word in _BOOLEANS:
        return _BOOLEANS[word]
    if kind == "int" and re.fullmatch("-?[0-9]+", word):
        return int(word)
    if kind == "float" and re.fullmatch(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?", word):
        number = float(word)
        if math.isfinite(number):
            return number
    raise Usage(f"option '{name}' is '{word}', which is no {kind}")

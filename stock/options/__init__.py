"""Options: declared in `stock/options/<owner>.toml`, one file an owner, read in name order.

A declaration has type, default, meaning, and either values (a list, or "modules": the names of the modules in
the seam's folder) or range.  Everything defaults to stock's behaviour.
"""

import importlib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from stock.errors import EngineError

__all__ = ["SEAMS", "Option", "declared", "resolve", "seam_module"]

SEAMS = ("draft", "select", "verify", "linear", "head", "cache", "schedule")
_TYPES: dict[str, Any] = {"int": int, "float": float, "bool": bool, "string": str}
_ROOT = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Option:
    """One declared option."""

    name: str
    owner: str
    type: str
    default: Any
    meaning: str
    values: tuple[Any, ...] | None = None
    range: tuple[float, float] | None = None

    def check(self, value: Any) -> Any:
        """The value in the declared type; EngineError `bad_option` if it is not one the option takes."""
        if self.type == "float" and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        kind = _TYPES[self.type]
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise EngineError("bad_option", f"option '{self.name}' takes {self.type}, got {value!r}")
        if self.values is not None and value not in self.values:
            allowed = ", ".join(map(str, self.values))
            raise EngineError("bad_option", f"option '{self.name}' takes one of {allowed}, got '{value}'")
        if self.range is not None:
            low, high = self.range
            if not low <= value <= high:
                raise EngineError("bad_option", f"option '{self.name}' takes {low}..{high}, got {value}")
        return value

    def describe(self) -> dict[str, Any]:
        """The declaration as the protocol's `hello` carries it."""
        entry = {"type": self.type, "default": self.default, "owner": self.owner, "meaning": self.meaning}
        if self.values is not None:
            entry["values"] = list(self.values)
        if self.range is not None:
            entry["range"] = list(self.range)
        return entry


def declared(folder: Path = _ROOT) -> dict[str, Option]:
    """All options below `folder` by name; EngineError `bad_option` for a name that is declared twice."""
    options: dict[str, Option] = {}
    for path in sorted(folder.glob("*.toml")):
        for name, entry in tomllib.loads(path.read_text()).items():
            if name in options:
                raise EngineError("bad_option", f"option '{name}' is declared in {options[name].owner} and {path.stem}")
            options[name] = _option(name, path.stem, entry, folder)
    return options


def resolve(values: Mapping[str, Any]) -> dict[str, Any]:
    """Every option's value: what is given, checked, and the default of the rest."""
    options = declared()
    for name in values:
        if name not in options:
            raise EngineError("bad_option", f"unknown option '{name}'")
    return {name: option.check(values.get(name, option.default)) for name, option in options.items()}


def seam_module(seam: str, value: str) -> ModuleType:
    """The module behind a seam option's value."""
    return importlib.import_module(f"stock.{seam}.{value}")


def _option(name: str, owner: str, entry: dict[str, Any], folder: Path) -> Option:
    values = entry.get("values")
    if values == "modules":
        values = sorted(path.stem for path in (folder.parent / name).glob("*.py") if path.stem != "__init__")
    bounds = entry.get("range")
    option = Option(
        name=name,
        owner=owner,
        type=entry["type"],
        default=entry["default"],
        meaning=entry["meaning"],
        values=None if values is None else tuple(values),
        range=None if bounds is None else (bounds[0], bounds[1]),
    )
    option.check(option.default)
    return option

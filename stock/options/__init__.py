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
_TYPES: dict[str, Any] = {"int": int, "float": (float, int), "bool": bool, "string": str}
_MAX_NUMBER = 2**63
_NEEDED = {"type", "default", "meaning"}
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
        if not _has_type(value, self.type):
            raise EngineError("bad_option", f"option '{self.name}' takes {self.type}, got {_shown(value)}")
        if self.values is not None and value not in self.values:
            allowed = ", ".join(map(str, self.values))
            raise EngineError("bad_option", f"option '{self.name}' takes one of {allowed}, got '{value}'")
        if self.range is not None:
            low, high = self.range
            if not low <= value <= high:
                raise EngineError("bad_option", f"option '{self.name}' takes {low}..{high}, got {value}")
        return float(value) if self.type == "float" else value

    def describe(self) -> dict[str, Any]:
        """The declaration as the protocol's `hello` carries it."""
        entry = {"type": self.type, "default": self.default, "owner": self.owner, "meaning": self.meaning}
        if self.values is not None:
            entry["values"] = list(self.values)
        if self.range is not None:
            entry["range"] = list(self.range)
        return entry


def declared(folder: Path = _ROOT) -> dict[str, Option]:
    """All options below `folder` by name.

    EngineError `bad_option` for a name that is declared twice, and for a declaration that cannot be understood.
    """
    options: dict[str, Option] = {}
    for path in sorted(folder.glob("*.toml")):
        for name, entry in _entries(path).items():
            if name in options:
                raise EngineError("bad_option", f"option '{name}' is declared in {options[name].owner} and {path.stem}")
            options[name] = _option(name, path, entry)
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


def _entries(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError) as error:  # of TOML or of UTF-8
        raise EngineError("bad_option", f"'{path.name}' cannot be read: {error}") from error


def _option(name: str, path: Path, entry: Any) -> Option:
    """The option that an entry of a file declares."""
    if not isinstance(entry, dict) or not _NEEDED <= entry.keys() <= _NEEDED | {"values", "range"}:
        raise _wrong(name, path, "takes type, default, meaning, and perhaps values or range")
    values, bounds = entry.get("values"), entry.get("range", [0, 0])
    if values == "modules":
        values = sorted(each.stem for each in (path.parents[1] / name).glob("*.py") if each.stem != "__init__")
    if not isinstance(entry["meaning"], str):
        raise _wrong(name, path, f"has the meaning {_shown(entry['meaning'])}, not a line of text")
    if not isinstance(entry["type"], str) or entry["type"] not in _TYPES:
        raise _wrong(name, path, f"has the type {_shown(entry['type'])}, not one of {', '.join(_TYPES)}")
    if not isinstance(values, list | None):
        raise _wrong(name, path, f"has the values {_shown(values)}, not a list or 'modules'")
    if not all(_has_type(value, entry["type"]) for value in values or ()):
        raise _wrong(name, path, f"has values that are not all of type {entry['type']}")
    if not _is_range(bounds) or ("range" in entry and entry["type"] not in ("int", "float")):
        raise _wrong(name, path, f"has the range {_shown(bounds)}, not [low, high] of an int or float")
    option = Option(
        name=name,
        owner=path.stem,
        type=entry["type"],
        default=entry["default"],
        meaning=entry["meaning"],
        values=None if values is None else tuple(values),
        range=(bounds[0], bounds[1]) if "range" in entry else None,
    )
    try:
        option.check(option.default)
    except EngineError as error:
        raise EngineError("bad_option", f"'{path.name}': {error.message}") from error
    return option


def _has_type(value: Any, kind: str) -> bool:
    """Whether a value is of the type, and, if it is a number, finite and not beyond what an int64 holds."""
    if not isinstance(value, _TYPES[kind]) or (isinstance(value, bool) and kind != "bool"):
        return False
    return kind not in ("int", "float") or abs(value) < _MAX_NUMBER


def _is_range(bounds: Any) -> bool:
    """Whether it is a list of two finite numbers in order."""
    if not isinstance(bounds, list) or [type(bound) in (int, float) for bound in bounds] != [True, True]:
        return False
    low, high = bounds
    return bool(-_MAX_NUMBER < low <= high < _MAX_NUMBER)


def _shown(value: Any) -> str:
    """The value as it is written; Python does not print a number of thousands of digits."""
    try:
        return repr(value)
    except ValueError:
        return "what is too long to print"


def _wrong(name: str, path: Path, what: str) -> EngineError:
    return EngineError("bad_option", f"option '{name}' of '{path.name}' {what}")

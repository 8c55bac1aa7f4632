"""Values of a model's description by key and type, so that a wrong one is named before anything is computed."""

import sys
from collections.abc import Mapping
from typing import Any

from stock.errors import EngineError

__all__ = ["Fields"]

_MISSING = object()


class Fields:
    """A JSON object or GGUF metadata.  Null is the same as absent; EngineError `bad_model` names a key that is off.

    place: the file, for messages.  prefix: stands before every key.
    """

    def __init__(self, values: Mapping[str, Any], place: str, prefix: str = "") -> None:
        self.values, self.place, self.prefix = values, place, prefix

    def __contains__(self, key: str) -> bool:
        return self.values.get(self.prefix + key) is not None

    def get(self, key: str, default: Any = None) -> Any:
        """The value as it is."""
        value = self.values.get(self.prefix + key)
        return default if value is None else value

    def count(self, key: str, default: int | None = None) -> int:
        """A whole number from 1 to 2^53; needed unless there is a default."""
        value = self._need(key, default)
        if type(value) is not int or not 1 <= value <= 1 << 53:
            raise self.wrong(key, "a whole number from 1 to 2^53")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number above 0; needed unless there is a default."""
        value = self._need(key, default)
        if type(value) not in (int, float) or not 0 < value <= sys.float_info.max:
            raise self.wrong(key, "a number above 0")
        return float(value)

    def optional(self, key: str) -> float | None:
        """A number above 0, or None."""
        return self.number(key) if key in self else None

    def flag(self, key: str, default: bool) -> bool:
        """true or false."""
        value = self.get(key, default)
        if type(value) is not bool:
            raise self.wrong(key, "true or false")
        return value

    def integers(self, key: str) -> tuple[int, ...]:
        """One integer or a list of them; none where the key is absent."""
        value = self.get(key, [])
        values = value if isinstance(value, list) else [value]
        if any(type(each) is not int for each in values):
            raise self.wrong(key, "an integer or a list of them")
        return tuple(values)

    def table(self, key: str) -> "Fields":
        """A nested object; empty where the key is absent."""
        value = self.get(key, {})
        if not isinstance(value, dict):
            raise self.wrong(key, "an object")
        return Fields(value, self.place)

    def wrong(self, key: str, wanted: str) -> EngineError:
        """The error for a key whose value is not what is wanted."""
        return EngineError("bad_model", f"'{self.prefix + key}' of {self.place} is {self.get(key)!r}, not {wanted}")

    def _need(self, key: str, default: Any) -> Any:
        value = self.get(key, _MISSING if default is None else default)
        if value is _MISSING:
            raise EngineError("bad_model", f"{self.place} has no '{self.prefix + key}'")
        return value

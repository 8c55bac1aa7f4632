"""Strict shapes of JSON values: what a reply, a job or a request must look like, and nothing else.

A `Check` takes a value and the place it stands at, and raises `Mismatch` with one line.
The JSON schemas in `spt/schemas/` say the same; tests hold the two together.
The harness cannot use those: it imports nothing of ours, and jsonschema is not on a bare machine.
"""

import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

__all__ = [
    "Check",
    "Mismatch",
    "anything",
    "boolean",
    "constant",
    "hexadecimal",
    "integer",
    "items",
    "loads",
    "mapping",
    "number",
    "one_of",
    "optional",
    "record",
    "scalar",
    "text",
]

Check = Callable[[Any, str], None]

_MAX_DIGITS = 100
_HALF_PAIR = re.compile("[\ud800-\udfff]")


class Mismatch(ValueError):
    """A value that does not have its shape."""


def loads(line: bytes | str) -> Any:
    """One JSON value; duplicate keys, NaN and infinities are errors, as are bytes that are not UTF-8 and numbers of
    more than 100 digits, which no float holds.
    """
    try:
        text = line.decode() if isinstance(line, bytes) else line
        return json.loads(
            text,
            object_pairs_hook=_unique,
            parse_constant=_no_constant,
            parse_int=_bounded_integer,
            parse_float=_bounded_float,
        )
    except (ValueError, RecursionError) as error:
        raise Mismatch(f"not JSON ({error})") from None


def _bounded_float(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise ValueError("a number is too large")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("a key stands twice")
    return value


def _no_constant(word: str) -> None:
    raise ValueError(f"{word} is not a number")


def _bounded_integer(digits: str) -> int:
    if len(digits) > _MAX_DIGITS:
        raise ValueError(f"a number has over {_MAX_DIGITS} digits")
    return int(digits)


def anything(value: Any, where: str) -> None:
    """Any JSON value."""


def text(value: Any, where: str) -> None:
    """A string of whole characters: JSON can also write half a surrogate pair."""
    if not isinstance(value, str):
        raise Mismatch(f"{where} is not a string")
    if _HALF_PAIR.search(value):
        raise Mismatch(f"{where} holds half a surrogate pair")


def hexadecimal(digits: int) -> Check:
    """A string of so many lower-case hexadecimal digits: a git tree id has 40, a sha256 64."""

    def check(value: Any, where: str) -> None:
        text(value, where)
        if len(value) != digits or set(value) - set("0123456789abcdef"):
            raise Mismatch(f"{where} is not {digits} hexadecimal digits")

    return check


def boolean(value: Any, where: str) -> None:
    """True or false."""
    if not isinstance(value, bool):
        raise Mismatch(f"{where} is not true or false")


def scalar(value: Any, where: str) -> None:
    """A string, a finite number, true or false."""
    if not isinstance(value, str | bool):
        number()(value, where)


def integer(low: int = 0, high: float = math.inf) -> Check:
    """A whole number from `low` to `high`; `1.0` is none, though JSON schema lets it pass."""

    def check(value: Any, where: str) -> None:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise Mismatch(f"{where} is not a whole number of at least {low}")

    return check


def number(low: float = -math.inf, high: float = math.inf) -> Check:
    """A finite number from `low` to `high`."""

    def check(value: Any, where: str) -> None:
        if isinstance(value, bool) or not isinstance(value, int | float) or not _finite(value):
            raise Mismatch(f"{where} is not a number")
        if not low <= value <= high:
            raise Mismatch(f"{where} is not from {low:g} to {high:g}")

    return check


def _finite(value: int | float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # JSON has whole numbers that no float holds
        return False


def constant(expected: Any) -> Check:
    """Exactly this value."""
    return one_of(expected)


def one_of(*words: Any) -> Check:
    """One of these values."""

    def check(value: Any, where: str) -> None:
        if isinstance(value, bool) or value not in words:
            raise Mismatch(f"{where} is not {' or '.join(repr(word) for word in words)}")

    return check


def items(check_item: Check, least: int = 0, most: float = math.inf) -> Check:
    """A list of `least` to `most` values of one shape."""

    def check(value: Any, where: str) -> None:
        if not isinstance(value, list) or not least <= len(value) <= most:
            raise Mismatch(f"{where} is not a list" + (f" of at least {least}" if least else ""))
        for index, item in enumerate(value):
            check_item(item, f"{where}[{index}]")

    return check


def mapping(check_value: Check) -> Check:
    """An object with any keys and values of one shape."""

    def check(value: Any, where: str) -> None:
        if not isinstance(value, dict):
            raise Mismatch(f"{where} is not an object")
        for key, item in value.items():
            check_value(item, f"{where} '{key}'")

    return check


def optional(check_value: Check) -> Check:
    """Null, or the shape."""

    def check(value: Any, where: str) -> None:
        if value is not None:
            check_value(value, where)

    return check


def record(required: Mapping[str, Check], allowed: Mapping[str, Check] | None = None) -> Check:
    """An object with all `required` keys, perhaps some `allowed` ones, and no other."""
    known = {**required, **(allowed or {})}

    def check(value: Any, where: str) -> None:
        if not isinstance(value, dict):
            raise Mismatch(f"{where} is not an object")
        for key in value:
            if key not in known:
                raise Mismatch(f"{where} has an unknown key '{key}'")
        for key in required:
            if key not in value:
                raise Mismatch(f"{where} lacks the key '{key}'")
        for key, item in value.items():
            known[key](item, f"{where} '{key}'")

    return check

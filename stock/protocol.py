"""Lines of the worker protocol (docs/protocol.md): what each operation's fields are, checked."""

import json
from typing import Any

from stock.errors import EngineError

__all__ = ["MAX_LINE_BYTES", "name_of", "parse"]

MAX_LINE_BYTES = 16 << 20
MAX_ID_CHARACTERS = 1024  # an id comes back in every reply, which must fit a line too
_MAX_DIGITS = 100

_LOAD = {
    "target": dict,
    "drafter": (dict, type(None)),
    "dtype": str,
    "device": str,
    "mode": str,
    "head": str,
    "options": dict,
    "prepared": (str, type(None)),
    "limits": dict,
}
_FIELDS: dict[str, dict[str, Any]] = {
    "load": _LOAD,
    "prepare": {**_LOAD, "dir": str},
    "generate": {
        "id": str,
        "prompt": list,
        "max_tokens": int,
        "stop_ids": list,
        "ignore_eos": bool,
        "sampling": dict,
        "logprobs": bool,
        "digest": bool,
    },
    "cancel": {"id": str},
    "score": {"id": str, "ids": list, "start": int, "sampling": dict},
    "lattice": {"id": str, "ids": list, "start": int, "sampling": dict, "file": str},
    "record": {"on": bool, "file": (str, type(None))},
    "profile": {"on": bool, "file": (str, type(None))},
    "stats": {},
    "shutdown": {},
}
_NESTED: dict[str, dict[str, Any]] = {
    "target": {"path": str, "widen": int, "jitter": int},
    "drafter": {"path": str},
    "limits": {"context": int, "requests": int},
    "sampling": {"temperature": (int, float), "top_p": (int, float), "top_k": int, "seed": int},
}
_IDS = {"prompt", "stop_ids", "ids"}
_CHOICES = {"dtype": ("float32", "bfloat16", "float64"), "mode": ("exact", "fast"), "head": ("model", "fp32")}


def parse(line: bytes) -> dict[str, Any]:
    """A request with all keys known and typed; EngineError `malformed` or `unknown_op` otherwise."""
    if len(line) > MAX_LINE_BYTES:
        raise EngineError("malformed", f"a line is over {MAX_LINE_BYTES} bytes")
    try:
        value = _loads(line)
    except (ValueError, RecursionError) as error:
        raise EngineError("malformed", f"a line is not JSON: {error}") from error
    if not isinstance(value, dict) or value.get("v") is True or value.get("v") != 1 or type(value.get("op")) is not str:
        raise EngineError("malformed", "a line is not an object with v 1 and op")
    operation = value["op"]
    if operation not in _FIELDS:
        raise EngineError("unknown_op", f"unknown operation '{operation}'")
    fields = {key: item for key, item in value.items() if key not in ("v", "op")}
    _check_fields(operation, fields, _FIELDS[operation])
    for name, nested in _NESTED.items():
        if isinstance(fields.get(name), dict) and name in _FIELDS[operation]:
            _check_fields(name, fields[name], nested)
    for name in _IDS & fields.keys():
        if any(type(token) is not int for token in fields[name]):
            raise EngineError("malformed", f"{operation}'s {name} are not all integers")
    if len(fields.get("id", "")) > MAX_ID_CHARACTERS:
        raise EngineError("malformed", f"{operation}'s id has over {MAX_ID_CHARACTERS} characters")
    if "limits" in fields and min(fields["limits"].values()) < 1:
        raise EngineError("malformed", "limits are at least 1")
    if "target" in fields and not 0 <= fields["target"]["jitter"] < 1 << 64:
        raise EngineError("malformed", f"jitter is {fields['target']['jitter']}, not a uint64")
    for name, allowed in _CHOICES.items():
        if name in fields and fields[name] not in allowed:
            raise EngineError("malformed", f"{name} is '{fields[name]}', not one of {', '.join(allowed)}")
    return value


def name_of(line: bytes) -> str | None:
    """The id of a line that could not be handled, if it has one."""
    try:
        value = json.loads(line.decode("utf-8"))
        name = value["id"]
        return name if isinstance(name, str) and len(name) <= MAX_ID_CHARACTERS else None
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def _loads(line: bytes) -> Any:
    """One JSON value, strictly: UTF-8, no key twice, no NaN, and no number that only a program could have made."""
    return json.loads(
        line.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_no_constant, parse_int=_bounded_integer
    )


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


def _check_fields(what: str, fields: dict[str, Any], expected: dict[str, Any]) -> None:
    if fields.keys() != expected.keys():
        wrong = ", ".join(sorted(fields.keys() ^ expected.keys()))
        raise EngineError("malformed", f"{what} has unknown or missing keys: {wrong}")
    for name, kind in expected.items():
        value = fields[name]
        boolean = isinstance(value, bool) and kind is not bool  # in Python a bool is an int
        if boolean or not isinstance(value, kind):
            raise EngineError("malformed", f"{what}'s {name} has the wrong type: {type(value).__name__}")

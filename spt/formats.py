"""Text in and out: strict YAML, JSON lines, and the schemas of `spt/schemas/`.

YAML is read from events, never through a loader: no tag can make an object, no alias can explode, a key given
twice is an error, and a scalar is the string that was written (`no`, `0123` and `12:30` stay themselves).
Every error is one line that names the file and the place in it.
"""

import difflib
import functools
import gzip
import hashlib
import io
import json
import math
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from spt.errors import Usage

__all__ = [
    "MAX_DEPTH",
    "MAX_RECORDS_BYTES",
    "MAX_YAML_BYTES",
    "canonical",
    "check",
    "read_file",
    "read_json",
    "read_jsonl",
    "read_lines",
    "read_yaml",
    "schema_digest",
    "write_jsonl",
]

MAX_YAML_BYTES = 64 * 1024
MAX_RECORDS_BYTES = 256 << 20  # of a file of records, unpacked
_PIECE_BYTES = 1 << 20
MAX_DEPTH = 20
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ufeff\ud800-\udfff]")
_MAX_INTEGER = 2**64
_MAX_SHOWN = 80
_KINDS = {
    "string": "text",
    "object": "a mapping",
    "array": "a list",
    "null": "empty",
    "number": "a number",
    "integer": "a whole number",
    "boolean": "true or false",
}


def read_file(path: Path, most_bytes: int = MAX_RECORDS_BYTES) -> bytes:
    """A regular file's bytes, unpacked where its name ends in `.gz`; never more than `most_bytes` are held.

    Usage for one that is larger or cannot be unpacked, and for a pipe, a device or a folder, which is never opened.
    """
    if not path.is_file():
        raise Usage(f"'{path}' is no regular file")
    packed = path.suffix == ".gz"
    try:
        with gzip.open(path) if packed else path.open("rb") as file:
            # In pieces: to ask for all at once is to hold as much as was asked for.
            data = bytearray()
            while len(data) <= most_bytes and (piece := file.read(min(_PIECE_BYTES, most_bytes + 1 - len(data)))):
                data += piece
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise Usage(f"'{path}' cannot be unpacked: {error}") from None
    if len(data) > most_bytes:
        raise Usage(f"'{path}' holds more than {most_bytes} bytes{' unpacked' if packed else ''}")
    return bytes(data)


def read_yaml(data: bytes, where: str) -> Any:
    """The one document of `data`: mappings, lists and strings; a plain `null` or an empty value is None.

    Raises Usage for anything else, in a message that starts with `where`.
    """
    import yaml

    if len(data) > MAX_YAML_BYTES:
        raise Usage(f"{where}: {len(data)} bytes are more than the {MAX_YAML_BYTES} that a YAML file may have")
    try:
        # libyaml where the wheel has it: fifteen times faster, the same events.
        loader = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader
        return _Reader(yaml.parse(data.decode(), Loader=loader), where).document()
    except UnicodeDecodeError as error:
        raise Usage(f"{where}: byte {error.start} is not UTF-8") from error
    except yaml.YAMLError as error:
        raise Usage(f"{where}: {_yaml_problem(error)}") from error


def _yaml_problem(error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "not YAML"
    place = f"line {mark.line + 1}: " if mark is not None else ""
    return f"{place}{' '.join(str(problem).split())}"


class _Reader:
    """Builds plain values from parser events and refuses what a record has no use for."""

    def __init__(self, events: Iterator[Any], where: str) -> None:
        self.events = iter(events)
        self.where = where

    def document(self) -> Any:
        import yaml as kinds

        if isinstance(self._next(), kinds.StreamStartEvent) and isinstance(event := self._next(), kinds.StreamEndEvent):
            raise Usage(f"{self.where}: the file is empty")
        if event.version or event.tags:
            self._refuse(event, "directives are not allowed")
        value = self._value(self._next(), 0)
        self._next()  # the document's end
        if not isinstance(event := self._next(), kinds.StreamEndEvent):
            self._refuse(event, "a second document is not allowed")
        return value

    def _next(self) -> Any:
        return next(self.events)

    def _refuse(self, event: Any, problem: str) -> None:
        raise Usage(f"{self.where}: line {event.start_mark.line + 1}: {problem}")

    def _value(self, event: Any, depth: int) -> Any:
        import yaml as kinds

        if depth > MAX_DEPTH:
            self._refuse(event, f"nested deeper than {MAX_DEPTH}")
        if isinstance(event, kinds.AliasEvent):
            self._refuse(event, "aliases are not allowed")
        if event.anchor:
            self._refuse(event, "anchors are not allowed")
        if event.tag is not None:
            self._refuse(event, f"tags are not allowed: '{event.tag}'")
        if isinstance(event, kinds.ScalarEvent):
            if _CONTROL.search(event.value):
                self._refuse(event, "control characters are not allowed")
            is_null = not event.style and event.value in ("", "null", "~")
            return None if is_null else event.value
        if isinstance(event, kinds.SequenceStartEvent):
            return list(self._items(depth))
        return self._mapping(depth)

    def _items(self, depth: int) -> Iterator[Any]:
        import yaml as kinds

        while not isinstance(event := self._next(), kinds.SequenceEndEvent):
            yield self._value(event, depth + 1)

    def _mapping(self, depth: int) -> dict[str, Any]:
        import yaml as kinds

        mapping: dict[str, Any] = {}
        while not isinstance(event := self._next(), kinds.MappingEndEvent):
            if not isinstance(event, kinds.ScalarEvent):
                self._refuse(event, "a key must be a plain word")
            key = event.value
            if key in mapping:
                self._refuse(event, f"duplicate key '{key}'")
            if key == "<<":
                self._refuse(event, "merge keys are not allowed")
            self._value(event, depth + 1)  # a key's own anchor, alias or tag
            mapping[key] = self._value(self._next(), depth + 1)
        return mapping


def _finite(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError(f"number '{text[:20]}' is out of range")
    return value


def _integer(text: str) -> int:
    if len(text) > 21 or not -_MAX_INTEGER < (value := int(text)) < _MAX_INTEGER:
        raise ValueError(f"number '{text[:20]}' is out of range")
    return value


def read_json(data: bytes | str, where: str) -> Any:
    """One JSON value; keys given twice, NaN, Infinity and numbers of 64 bits or more are errors."""
    try:
        return json.loads(
            data, object_pairs_hook=_unique, parse_constant=_finite, parse_float=_finite, parse_int=_integer
        )
    except RecursionError as error:
        raise Usage(f"{where}: nested too deep") from error
    except ValueError as error:  # covers JSONDecodeError and UnicodeDecodeError
        raise Usage(f"{where}: {str(error).splitlines()[0]}") from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"duplicate key '{next(name for name in names if names.count(name) > 1)}'")
    return mapping


def read_jsonl(data: bytes, where: str, kind: str) -> list[dict[str, Any]]:
    """The objects of a JSON-lines file, each checked against the schema of `kind`."""
    rows = []
    for row, place in read_lines(data, where):
        check(row, kind, place)
        rows.append(row)
    return rows


def read_lines(data: bytes, where: str) -> Iterator[tuple[Any, str]]:
    """The JSON value of each line and its place in words, one at a time: a file of empty lines ends at its first."""
    for number, line in enumerate(io.BytesIO(data), 1):
        place = f"{where}: line {number}"
        yield read_json(line, place), place


def canonical(value: Any) -> str:
    """JSON with sorted keys and no spaces: one value, one text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def write_jsonl(rows: Iterable[dict[str, Any]]) -> bytes:
    """Canonical JSON, one object a line."""
    return "".join(canonical(row) + "\n" for row in rows).encode()


def check(value: Any, kind: str, where: str) -> None:
    """Raises Usage, in one line, unless `value` follows `spt/schemas/<kind>.json`; 3.0 is no whole number."""
    errors = sorted(_validator(kind).iter_errors(value), key=lambda error: [str(part) for part in error.absolute_path])
    if errors:
        raise Usage(f"{where}: {_schema_problem(errors[0])}")


def _schema_problem(error: Any) -> str:
    """What is wrong, in words of the file: no schema's phrase, no regular expression."""
    while error.validator in ("oneOf", "anyOf") and error.context:
        error = _meant(error.context)
    place = ".".join(str(part) for part in error.absolute_path)
    prefix = f"'{place}': " if place else ""
    if error.validator == "additionalProperties":
        unknown = sorted(set(error.instance) - set(error.schema.get("properties", {})))
        close = difflib.get_close_matches(unknown[0], error.schema.get("properties", {}), 1)
        return f"{prefix}unknown key '{unknown[0]}'" + (f"; did you mean '{close[0]}'?" if close else "")
    if error.validator == "required":
        absent = [name for name in error.validator_value if name not in error.instance]
        return f"{prefix}key '{absent[0]}' is missing"
    return f"{f'{place!r}' if place else 'the whole'} is {_shown(error.instance)}, {_wanted(error)}"


def _meant(errors: Sequence[Any]) -> Any:
    """The first error of the alternative that was meant: the one whose constants fit, then the nearest."""
    alternatives: dict[int, list[Any]] = {}
    for error in errors:
        alternatives.setdefault(error.schema_path[0], []).append(error)
    rank = {"const": 2, "type": 2}
    return min(alternatives.values(), key=lambda one: (max(rank.get(error.validator, 1) for error in one), len(one)))[0]


def _shown(value: Any) -> str:
    if isinstance(value, str):
        line = " ".join(value.split())
        return f"'{line if len(line) <= _MAX_SHOWN else line[:_MAX_SHOWN] + '...'}'"
    kinds = ((bool, "a truth value"), (dict, "a mapping"), (list, "a list"), (type(None), "empty"))
    return next((word for kind, word in kinds if isinstance(value, kind)), str(value))


def _wanted(error: Any) -> str:
    wanted = error.validator_value
    if error.validator in ("enum", "const"):
        return f"not {', '.join(map(str, wanted)) if error.validator == 'enum' else wanted}"
    if error.validator == "type":
        return f"not {' or '.join(_KINDS[kind] for kind in ([wanted] if isinstance(wanted, str) else wanted))}"
    if error.validator == "minItems":
        return "which is too short"
    return f"not {error.schema['description']}" if "description" in error.schema else "which has not the right form"


@functools.cache
def _validator(kind: str) -> Any:
    import referencing
    from referencing.jsonschema import DRAFT202012

    # A `$schema` would take the place of the strict validator at every reference.
    schemas = {
        path.name: {
            key: value for key, value in json.loads(path.read_text(), object_hook=_whole).items() if key != "$schema"
        }
        for path in resources.files("spt.schemas").iterdir()
        if path.name.endswith(".json")
    }
    registry: Any = referencing.Registry().with_resources(
        (name, DRAFT202012.create_resource(schema)) for name, schema in schemas.items()
    )
    return _strict()({"$ref": f"{kind}.json"}, registry=registry)


@functools.cache
def _strict() -> Any:
    """The validator, to which 3.0 is no integer, and which looks at a list of whole numbers once, not item by item."""
    import jsonschema

    base = jsonschema.Draft202012Validator

    def items(validator: Any, wanted: Any, found: Any, schema: Any) -> Iterator[Any]:
        if not _whole_numbers(wanted, found):
            yield from base.VALIDATORS["items"](validator, wanted, found, schema)

    kinds = base.TYPE_CHECKER.redefine("integer", lambda _, value: type(value) is int)
    extend: Any = jsonschema.validators.extend  # which has no types
    return extend(base, {"items": items}, type_checker=kinds)


def _whole_numbers(wanted: Any, found: Any) -> bool:
    """Whether a list is one of whole numbers within the bounds of its schema, which says no more than that."""
    if (
        not isinstance(wanted, dict)
        or wanted.get("type") != "integer"
        or wanted.keys() - {"type", "minimum", "maximum"}
    ):
        return False
    if type(found) is not list or not all(type(each) is int for each in found):
        return False
    return not found or (
        wanted.get("minimum", -math.inf) <= min(found) and max(found) <= wanted.get("maximum", math.inf)
    )


def _whole(schema: dict[str, Any]) -> dict[str, Any]:
    """`pattern` as JSON schema means it: `$` is the end of the text, not the place before a last line break."""
    pattern = schema.get("pattern")
    return schema | {"pattern": re.sub(r"(?<!\\)\$", r"\\Z", pattern)} if isinstance(pattern, str) else schema


@functools.cache
def schema_digest(kind: str) -> str:
    """Names the schema of `kind`, so that a cached answer of `check` is not kept past a change of it."""
    return hashlib.sha256(resources.files("spt.schemas").joinpath(f"{kind}.json").read_bytes()).hexdigest()

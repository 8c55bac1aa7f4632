"""Request lines: what the schema allows is parsed, and every other shape is `malformed` or `unknown_op`."""

import copy
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stock.errors import EngineError
from stock.protocol import MAX_LINE_BYTES, name_of, parse
from tests.stock.talk import ROOT, validator

SCHEMAS = ROOT / "spt" / "schemas"
REQUEST = validator("protocol.json#/$defs/request")
SAMPLING = {"temperature": 0.5, "top_p": 1, "top_k": 0, "seed": 3}
LOAD = {
    "target": {"path": "model", "widen": 1, "jitter": 0},
    "drafter": {"path": "drafter"},
    "dtype": "float32",
    "device": "cpu",
    "mode": "exact",
    "head": "model",
    "options": {"graphs": True},
    "prepared": None,
    "limits": {"context": 100, "requests": 1},
}
GENERATE = {"id": "a", "prompt": [1], "max_tokens": 1, "stop_ids": [], "ignore_eos": True, "sampling": SAMPLING}
LINES = {
    "load": LOAD,
    "prepare": {**LOAD, "dir": "out"},
    "generate": {**GENERATE, "logprobs": True, "digest": False},
    "cancel": {"id": "a"},
    "score": {"id": "a", "ids": [1, 2], "start": 1, "sampling": SAMPLING},
    "lattice": {"id": "a", "ids": [1, 2], "start": 1, "sampling": SAMPLING, "file": "x"},
    "record": {"on": True, "file": "x"},
    "profile": {"on": False, "file": None},
    "stats": {},
    "shutdown": {},
}


def line_of(op, fields):
    return {"v": 1, "op": op, **copy.deepcopy(fields)}


def code_of(line):
    """The error code that parsing gives."""
    with pytest.raises(EngineError) as caught:
        parse(line if isinstance(line, bytes) else json.dumps(line).encode())
    assert "\n" not in caught.value.message
    return caught.value.code


def places(value, path=()):
    """The paths of all keys of nested objects."""
    for key, item in value.items():
        yield (*path, key)
        if isinstance(item, dict) and key != "options":
            yield from places(item, (*path, key))


def changed(op, path, change):
    line = line_of(op, LINES[op])
    where = line
    for key in path[:-1]:
        where = where[key]
    change(where, path[-1])
    return line


PLACES = [(op, path) for op, fields in LINES.items() for path in places(line_of(op, fields))]


@pytest.mark.parametrize("op", LINES)
def test_whole_lines(op):
    """A line of each operation is in the schema, and parsed to itself."""
    line = line_of(op, LINES[op])
    REQUEST.validate(line)
    assert parse(json.dumps(line).encode() + b"\n") == line


def test_operations_are_those_of_the_schema():
    """The engine knows the operations of the schema, no more and no less."""
    schema = json.loads((SCHEMAS / "protocol.json").read_text())
    assert {each["properties"]["op"]["const"] for each in schema["$defs"]["request"]["oneOf"]} == set(LINES)


@pytest.mark.parametrize(("op", "path"), PLACES)
def test_missing_extra_and_mistyped_keys(op, path):
    """Leaving any key out, adding one beside it, or giving it another type is malformed, as the schema has it."""
    shapes = [
        changed(op, path, lambda where, key: where.pop(key)),
        changed(op, path, lambda where, key: where.update({key + "x": 1})),
        changed(op, path, lambda where, key: where.update({key: [[]]})),
    ]
    for line in shapes:
        assert not REQUEST.is_valid(line)
        assert code_of(line) == "malformed"


@pytest.mark.parametrize(("op", "path"), [each for each in PLACES if each[1][-1] not in ("ignore_eos", "logprobs")])
def test_a_bool_is_no_number(op, path):
    """true where a number or a text belongs is malformed, although Python takes it for 1."""
    if path[-1] in ("digest", "on"):
        return
    assert code_of(changed(op, path, lambda where, key: where.update({key: True}))) == "malformed"


@pytest.mark.parametrize("field", ["dtype", "mode", "head"])
def test_closed_choices(field):
    """A type, mode or head that does not exist is malformed."""
    assert code_of({**line_of("load", LOAD), field: "float16"}) == "malformed"


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"\n",
        b"not json",
        b"[]",
        b"7",
        b"null",
        b'"stats"',
        b"{}",
        b'{"v": 1}',
        b'{"op": "stats"}',
        b'{"v": 2, "op": "stats"}',
        b'{"v": "1", "op": "stats"}',
        b'{"v": true, "op": "stats"}',
        b'{"v": 1, "op": null}',
        b'{"v": 1, "op": ["stats"]}',
        b'{"v": 1, "op": "stats"} {}',
        b'{"v": 1, "op": "stats"',
        b"\xff\xfe",
        b"\x00",
        b"[" * 100_000,
        b'{"v": ' + b"9" * 5000 + b', "op": "stats"}',
        b'{"v": 1, "op": "stats", "v": 1}',
        b'\xef\xbb\xbf{"v": 1, "op": "stats"}',
        b'{"v": 1, "op": "cancel", "id": "\xed\xa0\x80"}',
        '{"v": 1, "op": "stats"}'.encode("utf-16"),
    ],
)
def test_no_request(line):
    """Whatever is no object with v 1 and an op is malformed."""
    assert code_of(line) == "malformed"


def test_unknown_operation():
    """Another operation is unknown_op, whatever it carries."""
    assert code_of({"v": 1, "op": "dance", "extra": 1}) == "unknown_op"


def test_longest_line():
    """A line of 16 MiB with its newline is read, one byte more is malformed and says so."""
    frame = len(json.dumps(line_of("record", {"on": True, "file": ""}))) + 1
    line = json.dumps(line_of("record", {"on": True, "file": "x" * (MAX_LINE_BYTES - frame)})).encode() + b"\n"

    assert len(line) == MAX_LINE_BYTES
    assert len(parse(line)["file"]) == MAX_LINE_BYTES - frame
    with pytest.raises(EngineError, match="over 16777216 bytes"):
        parse(b" " + line)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)
    )
)
def test_any_json(value):
    """No JSON value makes the parser raise anything but its own error."""
    for line in (value, {"v": 1, "op": "generate", "sampling": value}, {"v": 1, "op": "load", "target": value}):
        assert code_of(line) in ("malformed", "unknown_op")


@pytest.mark.parametrize(
    ("line", "name"),
    [
        (b'{"v": 1, "op": "dance", "id": "a"}', "a"),
        (b'{"id": 3}', None),
        (b'{"id": null}', None),
        (b'["id"]', None),
        (b"3", None),
        (b"{", None),
        (b"\xff", None),
        (b'{"id": "' + b"x" * 1025 + b'"}', None),
    ],
)
def test_name_of_a_bad_line(line, name):
    """An error is sent under the id of its line, where that has one."""
    assert name_of(line) == name

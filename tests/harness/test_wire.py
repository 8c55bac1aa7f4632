"""harness/wire.py, request.py and job.py against the schemas: the same values pass, the same are refused."""

import copy
import json

import jsonschema
import pytest

from harness import job, request, run, wire
from harness.shape import Mismatch
from tests.harness.schemas import REGISTRY, SCHEMAS, validator

SHA = "0" * 64
OPTION = {"type": "int", "default": 1, "values": [1, 2], "range": [0, 5], "owner": "stock", "meaning": "words"}
REPLIES = [
    {"op": "hello", "engine": "x", "version": "1", "options": {"depth": OPTION}},
    {"op": "ready", "load_s": 0.5, "bytes": 3, "vocabulary": 9, "stop_ids": [2], "context": 64},
    {"op": "prepared", "files": 1, "bytes": 2, "digest": SHA},
    {"op": "tokens", "id": "a", "ids": [1, 2], "logprobs": [-0.5, -1]},
    {"op": "tokens", "id": "a", "ids": [1]},
    {
        "op": "done",
        "id": "a",
        "reason": "stop",
        "usage": {"prompt_tok": 1, "completion_tok": 2, "steps": 0},
        "logits_sha256": SHA,
    },
    {
        "op": "scores",
        "id": "a",
        "start": 1,
        "argmax": [1],
        "margin": [0.5],
        "rank": [0],
        "logit": [-1.5],
        "kept": [True],
    },
    {"op": "lattice", "id": "a", "file": "x", "parts": 1, "digest": SHA},
    {"op": "ok", "to": "record"},
    {"op": "stats", "counters": {"steps": 1.5}},
    {"op": "error", "id": None, "code": "internal", "message": "words"},
]
GREEDY = {"temperature": 0, "top_p": 1, "top_k": 0, "seed": 0}
REQUESTS = [
    {"id": "a", "turns": ["x", "y"], "max_tokens": 3, "category": "c", "ignore_eos": True, "choice": 1},
    {"v": 1, "kind": "request", "id": "a", "ids": [1, 2], "sampling": {**GREEDY, "temperature": 0.5}},
]
SESSION = {
    "v": 1,
    "kind": "session",
    "id": "a",
    "turns": ["x"],
    "family": "f",
    "cap_tok": 9,
    "context_tok": 99,
}
ARM = {"dir": "x", "tree": "0" * 40, "options": {"depth": 3, "name": "x", "fast": True}}
JOB = {
    "v": 1,
    "kind": "job",
    "arms": {"a": ARM, "stock": ARM},
    "deployment": {},
    "requests": "requests.jsonl",
    "seed": 0,
    "rule": "none",
    "phase": "run",
    "units": 0,
    "max_tokens": 8,
}
ANSWER = {
    "v": 1,
    "kind": "answer",
    "request": "a",
    "turn": 0,
    "prompt_tok": 3,
    "ids": [1, 2],
    "reason": "stop",
    "lines": [1, 1],
    "prefill_s": 0.5,
    "decode_s": 0.25,
    "text": "x",
}
WRONG = [None, True, -1, 0, 1, 2.5, "", "x", [], [1], ["x"], [-1], [None], {}, {"x": 1}, 2**70]


def spoiled(value):
    """`value` with each part in turn left out, joined by a stranger, or replaced by something of another type."""
    for path in places(value):
        for wrong in WRONG:
            yield put(value, path, wrong)
        if path and isinstance(path[-1], str):
            yield put(value, path)
        at = value
        for key in path:
            at = at[key]
        if isinstance(at, dict):
            yield put(value, (*path, "stranger"), 1)


def places(value, path=()):
    yield path
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        yield from places(child, (*path, key))


def put(value, path, *new):
    if not path:
        return copy.deepcopy(new[0])
    changed = copy.deepcopy(value)
    at = changed
    for key in path[:-1]:
        at = at[key]
    if new:
        at[path[-1]] = copy.deepcopy(new[0])
    else:
        del at[path[-1]]
    return changed


def accepts(check, value):
    try:
        check(value)
    except Mismatch as error:
        assert "\n" not in str(error)
        return False
    return True


def either(*names):
    return jsonschema.Draft202012Validator({"anyOf": [{"$ref": f"{name}.json"} for name in names]}, registry=REGISTRY)


CHECKS = {
    "reply": (lambda value: wire.check_reply(json.dumps(value).encode()), validator("protocol", "#/$defs/reply")),
    "request": (request._request, either("request", "session")),
    "job": (lambda value: job._JOB(value, "the job"), validator("job")),
    "answer": (lambda value: run.ANSWER(value, "the answer"), validator("answer")),
}
CASES = [
    *(("reply", {"v": 1, **reply}) for reply in REPLIES),
    *(("request", value) for value in [*REQUESTS, SESSION]),
    ("answer", ANSWER),
]


@pytest.mark.parametrize(
    ("kind", "value"), CASES, ids=lambda value: value.get("op", "") if isinstance(value, dict) else value
)
def test_shapes_equal_the_schemas(kind, value):
    """What the schema refuses the harness refuses, and what the schema allows it reads."""
    check, schema = CHECKS[kind]
    spoils = list(spoiled(value))

    assert accepts(check, value)
    assert schema.is_valid(value)
    for changed in spoils:
        assert accepts(check, changed) == schema.is_valid(changed), changed
    assert not all(schema.is_valid(changed) for changed in spoils)


def test_job_refuses_what_the_schema_refuses():
    """A job is held to the schema; its deployment, which the schema leaves open, is held to more."""
    deployment = {
        "name": "x",
        "target": {"path": "x", "widen": 1, "jitter": 0},
        "drafter": None,
        "sampling": GREEDY,
        "dtype": "float32",
        "mode": "exact",
        "device": "cpu",
        "engine": {"kind": "stock"},
        "context": 64,
        "load": {"concurrency": 1, "arrival": "closed"},
    }
    check, schema = CHECKS["job"]
    whole = {**JOB, "deployment": deployment}

    assert accepts(check, whole)
    for changed in spoiled(JOB):
        if isinstance(changed, dict) and changed.get("deployment") == {}:
            changed = {**changed, "deployment": deployment}
            assert accepts(check, changed) == schema.is_valid(changed), changed
    for changed in spoiled(deployment):
        if accepts(check, {**whole, "deployment": changed}):
            assert changed.keys() == deployment.keys()


def test_error_codes_equal_the_schema():
    """The closed list of codes is the schema's."""
    replies = {reply["properties"]["op"]["const"]: reply for reply in SCHEMAS["protocol"]["$defs"]["reply"]["oneOf"]}

    assert list(wire.ERROR_CODES) == replies["error"]["properties"]["code"]["enum"]


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"\xff",
        b"[]",
        b"3",
        b'{"v":1}',
        b'{"v":1,"op":"dance"}',
        b'{"v":1,"op":["ok"],"to":"record"}',
        b'{"v":1,"op":"ok","to":"record","to":"profile"}',
        b'{"v":1,"op":"stats","counters":{"x":NaN}}',
        b'{"v":1,"op":"stats","counters":{"x":1e999}}',
        b'{"v":1,"op":"stats","counters":{"x":1' + b"0" * 400 + b"}}",
        b"[" * 100_000,
        b'{"v":1,"op":"stats","counters":{"x":1' + b"0" * 400 + b"}}",
        b'{"v":1,"op":"error","id":"\\ud800","code":"busy","message":"x"}',
        b'{"v":1,"op":"error","id":"\xed\xa0\x80","code":"busy","message":"x"}',
        '{"v":1,"op":"ok","to":"record"}'.encode("utf-16"),
    ],
)
def test_lines_that_are_no_reply(line):
    """Broken JSON, duplicate keys, numbers that are none and strings that are no text are refused in one line."""
    assert not accepts(wire.check_reply, line)


def test_seeds_on_the_wire():
    """The request seed is the one of docs/protocol.md: the third seed of its vectors comes from 7:0."""
    assert request.request_seed(7, 0) == 8344382540683018229

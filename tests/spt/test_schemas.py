"""The contracts: every schema is a schema, and the fake engine speaks the protocol as written."""

import json
import os
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
import referencing

ROOT = Path(__file__).parents[2]
SCHEMAS = {path.stem: json.loads(path.read_text()) for path in sorted((ROOT / "spt" / "schemas").glob("*.json"))}
REGISTRY = referencing.Registry().with_resources(
    (f"{name}.json", referencing.Resource.from_contents(schema)) for name, schema in SCHEMAS.items()
)
GREEDY = {"temperature": 0, "top_p": 1, "top_k": 0, "seed": 0}


def validator(name, pointer=""):
    return jsonschema.Draft202012Validator({"$ref": f"{name}.json{pointer}"}, registry=REGISTRY)


REPLY, REQUEST = validator("protocol", "#/$defs/reply"), validator("protocol", "#/$defs/request")


def load(**options):
    return {
        "op": "load",
        "target": {"path": "toy", "widen": 1, "jitter": 0},
        "drafter": None,
        "dtype": "float32",
        "device": "cpu",
        "mode": "exact",
        "head": "model",
        "options": options,
        "prepared": None,
        "limits": {"context": 256, "requests": 1},
    }


def generate(**changes):
    line = {"op": "generate", "id": "a", "prompt": [5, 6], "max_tokens": 7, "stop_ids": [2], "ignore_eos": True}
    return {**line, "sampling": GREEDY, "logprobs": True, "digest": True, **changes}


def talk(*lines, check=True):
    """Sends lines to a fresh fake engine, one after the other's answer; returns its exit status and checked replies."""
    ours, theirs = os.pipe(), os.pipe()
    command = [sys.executable, ROOT / "tests/fakes/engine.py", "--in-fd", str(ours[0]), "--out-fd", str(theirs[1])]
    with subprocess.Popen(command, pass_fds=(ours[0], theirs[1])) as child:
        os.close(ours[0])
        os.close(theirs[1])
        with os.fdopen(ours[1], "wb") as out, os.fdopen(theirs[0], "rb") as source:
            replies = [json.loads(source.readline())]
            for line in lines:
                out.write(encode(line, check))
                out.flush()
                for text in source:
                    replies.append(json.loads(text))
                    if replies[-1]["op"] != "tokens":
                        break
    for reply in replies:
        REPLY.validate(reply)
    return child.returncode, replies


def encode(line, check):
    if isinstance(line, bytes):
        return line + b"\n"
    line = {"v": 1, **line}
    if check:
        REQUEST.validate(line)
    return json.dumps(line).encode() + b"\n"


@pytest.mark.parametrize("name", sorted(SCHEMAS))
def test_schema_is_valid(name):
    """Every schema is valid draft 2020-12, closed against unknown keys, and named after its file."""
    jsonschema.Draft202012Validator.check_schema(SCHEMAS[name])
    assert SCHEMAS[name]["$id"] == f"{name}.json"


def test_every_record_of_the_docs_has_a_schema():
    """The table of docs/records.md and the folder of schemas list the same kinds."""
    rows = (ROOT / "docs/records.md").read_text().splitlines()
    named = {row.split("`")[1] for row in rows if row.startswith("| `")}
    assert named == set(SCHEMAS) - {"protocol", "sampling", "deployment"}


def test_error_codes_match_the_docs():
    """The closed list of error codes is the same in the docs and in the schema."""
    replies = {reply["properties"]["op"]["const"]: reply for reply in SCHEMAS["protocol"]["$defs"]["reply"]["oneOf"]}
    rows = (ROOT / "docs/protocol.md").read_text().split("### `error`")[1].split("##")[0].splitlines()
    documented = [row.split("`")[1] for row in rows if row.startswith("| `")]
    assert documented == replies["error"]["properties"]["code"]["enum"]


def test_fake_engine_decodes():
    """A request comes back as prefill's token, then one line an exact pass, then usage that adds up."""
    status, replies = talk(load(tau=3, step_ms=0), generate(), {"op": "stats"}, {"op": "shutdown"})
    ops = [reply["op"] for reply in replies]
    lines = [reply["ids"] for reply in replies if reply["op"] == "tokens"]
    done = next(reply for reply in replies if reply["op"] == "done")

    assert status == 0
    assert ops[:2] == ["hello", "ready"]
    assert [len(ids) for ids in lines] == [1, 3, 3]
    assert done["usage"] == {"prompt_tok": 2, "completion_tok": 7, "steps": 2}
    assert done["reason"] == "length"


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b"not json", "malformed"),
        ({"op": "stats", "extra": 1}, "malformed"),
        ({"op": "dance"}, "unknown_op"),
        (generate(prompt=[]), "bad_request"),
        (generate(prompt=[5000]), "bad_request"),
        (generate(max_tokens=500), "too_long"),
        ({"op": "cancel", "id": "zz"}, "unknown_id"),
        (load(nonsense=1), "bad_option"),
    ],
)
def test_fake_engine_goes_on_after_an_error(line, code):
    """Every bad line gets its code, and the next request still works."""
    status, replies = talk(load(step_ms=0), line, generate(id="b"), {"op": "shutdown"}, check=False)
    errors = [reply["code"] for reply in replies if reply["op"] == "error"]

    assert errors == [code]
    assert status == 0
    assert replies[-2]["op"] == "done"


def test_fake_engine_is_scored_by_another():
    """What one instance says another scores: best tokens have margin 0, scripted mismatches a positive one."""
    _, said = talk(load(mismatch=0.5, seed=3, step_ms=0), generate(max_tokens=40), {"op": "shutdown"})
    answer = [token for reply in said if reply["op"] == "tokens" for token in reply["ids"]]
    score = {"op": "score", "id": "s", "ids": [5, 6, *answer], "start": 2, "sampling": GREEDY}
    _, replies = talk(load(), score, {"op": "shutdown"})
    scores = next(reply for reply in replies if reply["op"] == "scores")
    wrong = [margin > 0 for margin in scores["margin"]]

    assert len(wrong) == 40
    assert wrong == [best != token for best, token in zip(scores["argmax"], answer, strict=True)]
    assert 8 < sum(wrong) < 32


def test_fake_engine_crashes_on_script():
    """crash_after ends the process in the middle of an answer, without `done`."""
    status, replies = talk(load(crash_after=4, step_ms=0), generate())

    assert status == 7
    assert [reply["op"] for reply in replies].count("tokens") == 3
    assert not [reply for reply in replies if reply["op"] == "done"]

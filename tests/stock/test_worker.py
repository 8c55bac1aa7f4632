"""The worker as a process: every reply is in the schema, every mistake has its code, and the worker goes on."""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading

import pytest
import torch
from safetensors.torch import save_file

from spt.lattice import read_lattice
from stock.sampling import Sampling
from tests.stock.drive import decode
from tests.stock.drive import load as load_engine
from tests.stock.talk import GREEDY, ROOT, Worker, generate, load, validator
from tests.stock.tiny import drafter_config, target_config, target_weights, write_drafter, write_target

SAMPLED = {"temperature": 2.0, "top_p": 0.9, "top_k": 20, "seed": 2**64 - 1}


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    folder = tmp_path_factory.mktemp("worker")
    config = target_config("llama", eos_token_id=[2, 9])
    return write_target(folder / "target", config), write_drafter(folder / "drafter", drafter_config(config))


@pytest.fixture(scope="module")
def shared(paths):
    """One loaded worker for all tests that leave it as it was."""
    with Worker(room=paths[0].parent) as worker:
        worker.room = paths[0].parent
        worker.ready = worker.ask(load(*paths))
        worker.usual = worker.ask(generate(id="usual", max_tokens=3))
        yield worker


@pytest.fixture
def worker(shared):
    """The shared worker, which must still serve after the test, with the answer it always gave."""
    yield shared
    assert shared.ask(generate(id="usual", max_tokens=3)) == shared.usual


def error_of(reply):
    assert reply["op"] == "error", reply
    assert reply["message"]
    assert "\n" not in reply["message"]
    assert "Traceback" not in reply["message"]
    return reply["code"]


def answer_of(worker, line):
    """All ids, the lines and `done` of a request."""
    worker.send(line)
    *lines, done = worker.read_through()
    assert all(each["id"] == line["id"] for each in [*lines, done])
    return [token for each in lines for token in each["ids"]], lines, done


def test_hello(shared):
    """`hello` names the engine and declares its options."""
    assert shared.hello["engine"] == "stock"
    assert shared.hello["options"]["draft"]["values"] == ["dflash", "none"]
    assert {entry["owner"] for entry in shared.hello["options"].values()} == {"stock"}


def test_ready(shared, paths):
    """`ready` says what was loaded; bytes are weights and the first request's caches."""
    ready = shared.ready
    engine = load_engine(*paths, context=96)
    engine.warm_up()

    assert ready["vocabulary"] == 64
    assert ready["stop_ids"] == [2, 9]
    assert ready["context"] == 96
    assert ready["bytes"] == engine.resident_bytes() > 4 * 20_000
    assert ready["load_s"] > 0


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_generate(sampling, worker, paths):
    """One line for prefill's token, one for each pass; ids, log-probs and digest are the engine's own."""
    line = generate(prompt=[9, 8, 7], max_tokens=30, sampling=sampling, logprobs=True)
    ids, lines, done = answer_of(worker, line)
    settings = Sampling(**{**sampling, "temperature": float(sampling["temperature"])})
    expected = decode(load_engine(*paths, context=96), [9, 8, 7], 30, settings, ignore_eos=True)

    assert ids == expected.ids
    assert [each["ids"] for each in lines] == expected.lines
    assert [value for each in lines for value in each["logprobs"]] == pytest.approx(expected.logprobs, abs=0)
    assert done["logits_sha256"] == expected.digest
    assert done["usage"] == {"prompt_tok": 3, "completion_tok": 30, "steps": len(lines) - 1}
    assert done["reason"] == "length"
    assert len(lines[0]["ids"]) == 1


def test_fields_that_were_not_asked_for(worker):
    """Without logprobs and digest the lines carry none."""
    _, lines, done = answer_of(worker, generate(digest=False))
    assert all("logprobs" not in each for each in lines)
    assert "logits_sha256" not in done


def test_stop_ids(worker):
    """A stop id ends the answer as its last token, unless ids are ignored."""
    line = generate(max_tokens=20, sampling=SAMPLED)
    ids, _, _ = answer_of(worker, line)
    stop = ids[7]
    stopped, _, done = answer_of(worker, {**line, "stop_ids": [stop, 63], "ignore_eos": False})

    assert stopped == ids[: ids.index(stop) + 1]
    assert done["reason"] == "stop"
    assert answer_of(worker, {**line, "stop_ids": [stop]})[0] == ids


def lattice(**changes):
    """A question for the lattice of two tokens."""
    return {"op": "lattice", "id": "l", "ids": [1, 2], "start": 1, "sampling": GREEDY, "file": "a.lattice", **changes}


BAD_LINES = {
    "no JSON": (b"this is not JSON\n", "malformed"),
    "empty": (b"\n", "malformed"),
    "not UTF-8": (b"\xff\xfe\n", "malformed"),
    "an array": (b"[1]\n", "malformed"),
    "deeper than any parser": (b"[" * 100_000 + b"\n", "malformed"),
    "a long line": (b'{"v": 1, "op": "cancel", "id": "' + b"x" * (16 << 20) + b'"}\n', "malformed"),
    "a very long line": (b"y" * (40 << 20) + b"\n", "malformed"),
    "another version": (b'{"v": 2, "op": "stats"}\n', "malformed"),
    "unknown key": ({"op": "stats", "extra": 1}, "malformed"),
    "missing key": ({"op": "cancel"}, "malformed"),
    "unknown operation": ({"op": "dance"}, "unknown_op"),
    "empty prompt": (generate(prompt=[]), "bad_request"),
    "an id too high": (generate(prompt=[64]), "bad_request"),
    "a negative id": (generate(prompt=[-1]), "bad_request"),
    "an id that is no id": (generate(prompt=["a"]), "malformed"),
    "half an id": (generate(prompt=[1.5]), "malformed"),
    "a bool as id": (generate(prompt=[True]), "malformed"),
    "a stop id too high": (generate(stop_ids=[64]), "bad_request"),
    "no tokens": (generate(max_tokens=0), "bad_request"),
    "fewer than no tokens": (generate(max_tokens=-5), "bad_request"),
    "too long": (generate(max_tokens=94), "too_long"),
    "a prompt beyond the context": (generate(prompt=[1] * 97, max_tokens=1), "too_long"),
    "beyond any number": (generate(max_tokens=10**30), "too_long"),
    "more digits than are printed": (generate(max_tokens=int("9" * 4300)), "malformed"),
    "a stop id of many digits": (generate(stop_ids=[int("9" * 90)]), "bad_request"),
    "a long operation": ({"op": "x" * 1_000_000}, "unknown_op"),
    "UTF-16": ('{"v": 1, "op": "stats"}'.encode("utf-16-le") + b"\n", "malformed"),
    "a surrogate in UTF-8": (b'{"v": 1, "op": "cancel", "id": "\xed\xa0\x80"}\n', "malformed"),
    "a key twice": (b'{"v": 1, "op": "stats", "op": "stats"}\n', "malformed"),
    "NaN under a key that is not read": (b'{"v": 1, "op": "cancel", "id": NaN}\n', "malformed"),
    "temperature below 0": (generate(sampling={**GREEDY, "temperature": -1}), "bad_request"),
    "temperature too small to divide by": (generate(sampling={**GREEDY, "temperature": 1e-40}), "bad_request"),
    "temperature too large": (generate(sampling={**GREEDY, "temperature": 1e300}), "bad_request"),
    "temperature NaN": (generate(sampling={**GREEDY, "temperature": float("nan")}), "malformed"),
    "temperature infinite": (generate(sampling={**GREEDY, "temperature": float("inf")}), "malformed"),
    "top_p 0": (generate(sampling={**GREEDY, "top_p": 0}), "bad_request"),
    "top_p above 1": (generate(sampling={**GREEDY, "top_p": 1.01}), "bad_request"),
    "top_k below 0": (generate(sampling={**GREEDY, "top_k": -1}), "bad_request"),
    "seed below 0": (generate(sampling={**GREEDY, "seed": -1}), "bad_request"),
    "seed too large": (generate(sampling={**GREEDY, "seed": 2**64}), "bad_request"),
    "half a seed": (generate(sampling={**GREEDY, "seed": 0.5}), "malformed"),
    "cancel of nothing": ({"op": "cancel", "id": "nobody"}, "unknown_id"),
    "score from 0": ({"op": "score", "id": "s", "ids": [1, 2], "start": 0, "sampling": GREEDY}, "bad_request"),
    "score of nothing": ({"op": "score", "id": "s", "ids": [], "start": 1, "sampling": GREEDY}, "bad_request"),
    "score behind the end": ({"op": "score", "id": "s", "ids": [1, 2], "start": 2, "sampling": GREEDY}, "bad_request"),
    "score of no id": ({"op": "score", "id": "s", "ids": [1, 99], "start": 1, "sampling": GREEDY}, "bad_request"),
    "score too long": ({"op": "score", "id": "s", "ids": [1] * 97, "start": 1, "sampling": GREEDY}, "too_long"),
    "lattice from 0": (lattice(start=0), "bad_request"),
    "lattice of nothing": (lattice(ids=[]), "bad_request"),
    "lattice of no id": (lattice(ids=[1, 99]), "bad_request"),
    "lattice too long": (lattice(ids=[1] * 97), "too_long"),
    "lattice outside": (lattice(file="/tmp/a.lattice"), "bad_request"),
    "lattice into nowhere": (lattice(file="nowhere/a.lattice"), "bad_request"),
    "lattice into no name": (lattice(file="a\0b"), "bad_request"),
    "lattice of no sampling": (lattice(sampling={**GREEDY, "top_p": 0}), "bad_request"),
    "profile without a file": ({"op": "profile", "on": True, "file": None}, "bad_request"),
    "profile outside": ({"op": "profile", "on": True, "file": "/tmp/profile.jsonl"}, "bad_request"),
    "record without a file": ({"op": "record", "on": True, "file": None}, "bad_request"),
    "record into nowhere": ({"op": "record", "on": True, "file": "nowhere/steps.jsonl"}, "bad_request"),
    "record outside": ({"op": "record", "on": True, "file": "/tmp/steps.jsonl"}, "bad_request"),
    "record above": ({"op": "record", "on": True, "file": "../steps.jsonl"}, "bad_request"),
    "record into the room": ({"op": "record", "on": True, "file": "."}, "bad_request"),
    "record into a folder": ({"op": "record", "on": True, "file": "/"}, "bad_request"),
    "record into no name": ({"op": "record", "on": True, "file": "a\0b"}, "bad_request"),
}


@pytest.mark.parametrize("name", BAD_LINES)
def test_bad_line(name, worker):
    """Every mistake is one short error with its code, under the id of its line, and changes nothing."""
    line, code = BAD_LINES[name]
    if isinstance(line, bytes):
        worker.write(line)
    else:
        worker.send(line, check=False)
    reply = worker.read()

    assert error_of(reply) == code
    assert reply["id"] == (line.get("id") if isinstance(line, dict) else None)
    assert len(reply["message"]) <= 500


@pytest.mark.parametrize("name", ["x" * 1025, "é" * 7_000_000])
def test_id_that_is_too_long_to_be_repeated(name, worker):
    """An id of more than 1024 characters is refused without an id, so that every reply fits a line."""
    worker.write(json.dumps({"v": 1, "op": "cancel", "id": name}, ensure_ascii=False).encode() + b"\n")
    reply = worker.read()

    assert error_of(reply) == "malformed"
    assert reply["id"] is None
    assert error_of(worker.ask({"op": "cancel", "id": "x" * 1024})) == "unknown_id"


def test_top_k_beyond_any_vocabulary(worker):
    """A cut that cuts nothing is no cut, however large."""
    line = generate(sampling={**SAMPLED, "top_k": 10**30})
    assert answer_of(worker, line)[0] == answer_of(worker, {**line, "sampling": {**SAMPLED, "top_k": 0}})[0]


def test_several_lines_at_once(worker):
    """Lines are answered in order, also those that arrive while a request runs."""
    worker.write(
        b"".join(
            json.dumps({"v": 1, **line}).encode() + b"\n"
            for line in (generate(max_tokens=60), {"op": "dance", "id": "x"}, {"op": "stats"}, generate(id="b"))
        )
    )
    replies = [worker.read() for _ in range(2)]
    while sum(reply["op"] == "done" for reply in replies) < 2:
        replies.append(worker.read())

    ops = [reply["op"] for reply in replies if reply["op"] != "tokens"]
    assert ops == ["error", "stats", "done", "done"]
    assert [reply["id"] for reply in replies if reply["op"] == "done"] == ["a", "b"]


def test_duplicate_and_busy(worker):
    """An id that is open is refused, and so is one request more than the limit; the open ones finish."""
    for line in (generate(max_tokens=60), generate(max_tokens=60), generate(id="b"), generate(id="c")):
        worker.send(line)
    replies = []
    while sum(reply["op"] == "done" for reply in replies) < 2:
        replies.append(worker.read())

    errors = [(reply["id"], reply["code"]) for reply in replies if reply["op"] == "error"]
    assert errors == [("a", "duplicate_id"), ("c", "busy")]
    assert answer_of(worker, generate())[2]["reason"] == "length"  # a finished id is free again


def test_cancel(worker):
    """A cancelled request ends with what it has said, the next one runs, and a second cancel finds nothing."""
    worker.send(generate(max_tokens=90))
    worker.send(generate(id="b"))
    first = worker.read()
    worker.send({"op": "cancel", "id": "b"})
    worker.send({"op": "cancel", "id": "a"})
    worker.send({"op": "cancel", "id": "a"})
    replies = [first]
    while replies[-1]["op"] != "error":
        replies.append(worker.read())
    emitted = sum(len(reply["ids"]) for reply in replies if reply["op"] == "tokens" and reply["id"] == "a")
    done = {reply["id"]: reply for reply in replies if reply["op"] == "done"}

    assert done["a"]["reason"] == done["b"]["reason"] == "cancelled"
    assert done["a"]["usage"]["completion_tok"] == emitted < 90
    assert done["b"]["usage"] == {"prompt_tok": 3, "completion_tok": 0, "steps": 0}
    assert done["b"]["logits_sha256"] == hashlib.sha256().hexdigest()
    assert replies[-1]["code"] == "unknown_id"


def test_score(worker):
    """What the worker said scores 0 there, in lists of one length, whatever else is going on."""
    ids, _, _ = answer_of(worker, generate(max_tokens=20, sampling=SAMPLED))
    worker.send(generate(max_tokens=60))
    worker.send({"op": "score", "id": "s", "ids": [5, 6, 7, *ids], "start": 3, "sampling": SAMPLED})
    replies = worker.read_through()
    replies += worker.read_through()
    scores = next(reply for reply in replies if reply["op"] == "scores")

    assert scores["argmax"] == ids
    assert scores["margin"] == [0] * 20
    assert {len(scores[key]) for key in ("argmax", "margin", "rank", "logit", "kept")} == {20}
    assert sum(reply["op"] == "done" for reply in replies) == 1


def test_stats(worker):
    """Counters grow by what was served."""
    before = worker.ask({"op": "stats"})["counters"]
    done = worker.ask(generate())
    after = worker.ask({"op": "stats"})["counters"]

    assert {name: after[name] - before[name] for name in after} == {
        "requests": 1,
        "steps": done["usage"]["steps"],
        "tokens": 8,
    }


def test_lattice(worker):
    """A file of the form that is read elsewhere, whatever else is going on; the path of each step lies in it."""
    worker.ask({"op": "record", "on": True, "file": "steps.jsonl"})
    ids, _, _ = answer_of(worker, generate(max_tokens=20, sampling=SAMPLED))
    worker.ask({"op": "record", "on": False, "file": None})
    worker.send(generate(max_tokens=60))
    worker.send(lattice(id="a#0", ids=[5, 6, 7, *ids], start=3, sampling=SAMPLED))
    replies = worker.read_through()
    replies += worker.read_through()
    reply = next(reply for reply in replies if reply["op"] == "lattice")
    data = (worker.room / "a.lattice").read_bytes()
    [request] = read_lattice(worker.room / "a.lattice").requests

    assert reply["digest"] == hashlib.sha256(data).hexdigest()
    assert (reply["id"], reply["file"], reply["parts"]) == ("a#0", "a.lattice", 1)
    assert (request.request, request.tokens.tolist(), dict(request.sampling)) == ("a#0", [5, 6, 7, *ids], SAMPLED)
    assert sum(reply["op"] == "done" for reply in replies) == 1
    for line in (worker.room / "steps.jsonl").read_text().splitlines():
        step = json.loads(line)
        for depth, (rank, token) in enumerate(zip(step["path"], step["tokens"], strict=False)):
            assert request.ids[step["start"] - 3, depth, rank] == token


def test_lattice_without_a_drafter(paths, tmp_path):
    """There is nothing to rank, and the error says so."""
    with Worker(room=tmp_path) as worker:
        worker.ask(load(paths[0], None))
        assert error_of(worker.ask(lattice())) == "unsupported"


def test_lattice_on_a_full_disk(paths, tmp_path):
    """A file that cannot be written is an error, and the worker goes on."""
    with Worker(FULL, room=tmp_path) as worker:
        worker.ask(load(*paths))
        assert error_of(worker.ask(lattice())) == "bad_request"
        assert worker.ask(generate())["op"] == "done"


def test_record(worker):
    """Step records are in the schema, say what was emitted, are there at once, and end when told."""
    file = worker.room / "steps.jsonl"
    assert worker.ask({"op": "record", "on": True, "file": "steps.jsonl"}) == {"v": 1, "op": "ok", "to": "record"}
    _, lines, done = answer_of(worker, generate(max_tokens=30, sampling=SAMPLED))
    steps = [json.loads(line) for line in file.read_text().splitlines()]
    assert worker.ask({"op": "record", "on": False, "file": None})["op"] == "ok"
    answer_of(worker, generate())

    assert [json.loads(line) for line in file.read_text().splitlines()] == steps
    assert [step["tokens"] for step in steps] == [line["ids"] for line in lines[1:]]
    assert [step["step"] for step in steps] == list(range(done["usage"]["steps"]))
    start = 3
    for step in steps:
        validator("steps.json").validate(step)
        assert step["start"] == start
        assert step["nodes"] == 4
        assert step["path"] == [0] * len(step["path"])
        assert len(step["tokens"]) <= len(step["path"]) + 1
        start += len(step["tokens"])


def test_record_through_a_link(worker):
    """A link does not lead out of the folder that the worker may write to."""
    (worker.room / "link").symlink_to("/dev/full")
    assert error_of(worker.ask({"op": "record", "on": True, "file": "link"})) == "bad_request"


FULL = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))"


def test_record_on_a_full_disk(paths, tmp_path):
    """A record that cannot be written ends with an error, and the request that it was about is none the worse."""
    with Worker(FULL, room=tmp_path) as worker:
        worker.ask(load(*paths))
        before = worker.ask(generate())
        assert worker.ask({"op": "record", "on": True, "file": "steps.jsonl"})["op"] == "ok"
        worker.send(generate())
        error = worker.read_through()[-1]
        rest = worker.read_through()

        assert error_of(error) == "record_ended"
        assert error["id"] is None
        assert "too large" in error["message"]
        assert rest[-1] == before
        assert worker.ask({"op": "record", "on": False, "file": None})["op"] == "ok"


ELSEWHERE = """
import stock.select.chain as chain
from stock.tree import chain_tree
real = chain.Chain.__call__
def other(self, lattices):
    trees = real(self, lattices)
    for tree in trees:
        tree.token[2] = (tree.token[2] + 1) % 64
    return trees
chain.Chain.__call__ = other
from stock.ops import accept
import stock.engine
def all_of(tree, choice):
    import torch
    path = torch.arange(len(tree.token), dtype=torch.int32)
    return accept.Accepted(path, torch.tensor([len(path)], dtype=torch.int32), tree.token.roll(-1))
stock.engine.accept = all_of
"""


def test_record_of_a_token_that_no_lattice_holds(paths, tmp_path):
    """A selection may take tokens from elsewhere: their rank is the number of ranks, and the step goes on."""
    with Worker(ELSEWHERE, room=tmp_path) as worker:
        worker.ask(load(*paths))
        worker.ask({"op": "record", "on": True, "file": "steps.jsonl"})
        assert worker.ask(generate(max_tokens=6))["op"] == "done"
    (step,) = [json.loads(line) for line in (tmp_path / "steps.jsonl").read_text().splitlines()]

    validator("steps.json").validate(step)
    assert step["path"] == [0, 1, 0, 0]


def test_before_load(paths):
    """Before a load every request is not_loaded; a bad one is still malformed; loading afterwards works."""
    with Worker() as worker:
        for line in (generate(), {"op": "stats"}, {"op": "record", "on": False, "file": None}):
            assert error_of(worker.ask(line)) == "not_loaded"
        assert error_of(worker.ask({"op": "cancel", "id": "a"})) == "not_loaded"
        assert error_of(worker.ask({"op": "stats", "x": 1}, check=False)) == "malformed"
        assert worker.ask(load(*paths))["op"] == "ready"
        assert worker.ask(generate())["op"] == "done"
        assert worker.ask({"op": "shutdown"}) == {"v": 1, "op": "ok", "to": "shutdown"}
        assert worker.wait()[0] == 0


def bad_loads(paths, tmp_path):
    """Loads that must fail, with their codes."""
    target, drafter = paths
    other = drafter_config(target_config("llama"), num_target_layers=7)
    cut = write_target(tmp_path / "cut", target_config("llama"))
    data = (cut / "model.safetensors").read_bytes()
    (cut / "model.safetensors").write_bytes(data[: len(data) // 2])
    wide = write_target(tmp_path / "wide", target_config("llama", max_position_embeddings=1 << 40))
    return [
        (load(tmp_path / "nothing"), "bad_model"),
        (load(cut), "bad_model"),
        (load(target, write_drafter(tmp_path / "other", other)), "bad_model"),
        (load(target, tmp_path), "bad_model"),
        (load(target, drafter, speed=3), "bad_option"),
        (load(target, drafter, chain_positions=65), "bad_option"),
        (load(target, draft="dflash"), "bad_option"),
        (load(target, device="cuda:77"), "no_device"),
        (load(target, device="tpu"), "no_device"),
        (load(target, mode="quick"), "malformed"),
        (load(target, dtype="float16"), "malformed"),
        (load(target, limits={"context": 0, "requests": 1}), "malformed"),
        (load(target, limits={"context": 8, "requests": 0}), "malformed"),
        (load(target, limits={"context": 257, "requests": 1}), "bad_request"),
        (load(target, prepared=str(tmp_path / "unprepared")), "bad_request"),
        (load(target, target={"path": str(target), "widen": 3, "jitter": 0}), "bad_model"),
        (load(target, target={"path": str(target), "widen": 1, "jitter": -1}), "malformed"),
        (load(target, target={"path": str(target), "widen": 1, "jitter": 2**64}), "malformed"),
        (load(target, target={"path": "a\0b", "widen": 1, "jitter": 0}), "bad_model"),
        (load(wide, limits={"context": 1 << 40, "requests": 1}), "out_of_memory"),
    ]


def test_bad_loads_and_second_loads(paths, tmp_path):
    """Each failing load says why and leaves nothing loaded; the next good one serves, and replaces what was there."""
    with Worker() as worker:
        for line, code in bad_loads(paths, tmp_path):
            assert error_of(worker.ask(line, check=False)) == code, line
            assert error_of(worker.ask({"op": "stats"})) == "not_loaded"
        for line, code in (bad for bad in bad_loads(paths, tmp_path / "again") if bad[1] != "bad_model"):
            worker.ask(load(paths[0]))
            assert error_of(worker.ask(line, check=False)) == code, line
            assert worker.ask({"op": "stats"})["op"] == ("stats" if code == "malformed" else "error"), line
        assert worker.ask(load(*paths))["context"] == 96
        first = worker.ask(generate())

        second = write_target(tmp_path / "second", target_config("qwen3", vocab_size=50))
        assert worker.ask(load(second, limits={"context": 40, "requests": 1}))["vocabulary"] == 50
        assert error_of(worker.ask(generate(prompt=[55]))) == "bad_request"
        assert worker.ask({"op": "stats"})["counters"] == {"requests": 0, "steps": 0, "tokens": 0}
        assert worker.ask(generate())["logits_sha256"] != first["logits_sha256"]

        assert worker.ask(load(*paths))["op"] == "ready"
        assert worker.ask(generate()) == first
        assert error_of(worker.ask(load(tmp_path / "nothing"))) == "bad_model"
        assert error_of(worker.ask(generate())) == "not_loaded"


def test_load_while_requests_are_open(paths, tmp_path):
    """A second load cancels what is open, each with its `done`; a record goes on with the new engine."""
    file = tmp_path / "steps.jsonl"
    with Worker(room=tmp_path) as worker:
        worker.ask(load(*paths))
        worker.ask({"op": "record", "on": True, "file": str(file)})
        for line in (generate(max_tokens=90), generate(id="b"), load(*paths)):
            worker.send(line)
        replies = [worker.read()]
        while replies[-1]["op"] != "ready":
            replies.append(worker.read())
        done = [reply for reply in replies if reply["op"] == "done"]
        recorded = len(file.read_text().splitlines())
        last = worker.ask(generate())
        after = len(file.read_text().splitlines())

    assert [(reply["id"], reply["reason"]) for reply in done] == [("a", "cancelled"), ("b", "cancelled")]
    assert after - recorded == last["usage"]["steps"] > 0


def test_prepare(paths, tmp_path):
    """`prepare` writes what the seams want, which for stock is nothing, digests it, and ends the process."""
    folder = tmp_path / "prepared"
    with Worker() as worker:
        line = {**load(*paths), "op": "prepare", "dir": str(folder)}
        assert error_of(worker.ask(line)) == "bad_request"
        folder.mkdir()
        (folder / "b").mkdir()
        (folder / "b" / "kernel").write_bytes(b"xyz")
        (folder / "a").write_bytes(b"")
        prepared = worker.ask(line)
        assert worker.wait()[0] == 0
    lines = [f"{hashlib.sha256(b'').hexdigest()}  a\n", f"{hashlib.sha256(b'xyz').hexdigest()}  b/kernel\n"]
    listing = "".join(sorted(lines))

    assert lines != sorted(lines)  # by line, not by path
    assert prepared["files"] == 2
    assert prepared["bytes"] == 3
    assert prepared["digest"] == hashlib.sha256(listing.encode()).hexdigest()


SCALED = """
import torch
from stock.linear.dense import Dense

def prepare(target, options, folder):
    torch.save({name: weight * options["gain"] for name, weight in target.weights.items()}, folder / "scaled.pt")

def build(target, options, prepared):
    return Dense(torch.load(prepared / "scaled.pt") if prepared else target.weights)
"""


def test_a_system_with_an_added_module(paths, tmp_path):
    """Files alone add a seam value and an option; `prepare` runs the module and `load` hands it what it wrote."""
    system, folder = tmp_path / "system", tmp_path / "prepared"
    folder.mkdir()
    shutil.copytree(ROOT / "stock", system / "stock", ignore=shutil.ignore_patterns("__pycache__"))
    (system / "stock" / "linear" / "scaled.py").write_text(SCALED)
    option = '[gain]\ntype = "float"\nrange = [0, 4]\ndefault = 1.0\nmeaning = "factor of every weight"\n'
    (system / "stock" / "options" / "scaled.toml").write_text(option)

    with Worker(system=system) as worker:
        assert worker.hello["options"]["linear"]["values"] == ["dense", "scaled"]
        assert worker.hello["options"]["gain"]["owner"] == "scaled"
        line = load(*paths, linear="scaled", gain=2)
        assert worker.ask({**line, "op": "prepare", "dir": str(folder)})["files"] == 1
        assert worker.wait()[0] == 0
    with Worker(system=system) as worker:
        worker.ask(load(*paths))
        plain = worker.ask(generate())
        worker.ask(load(*paths, linear="scaled"))
        assert worker.ask(generate()) == plain
        worker.ask({**line, "prepared": str(folder)})
        assert worker.ask(generate())["logits_sha256"] != plain["logits_sha256"]


OWN = """
import torch.nn.functional as F
from stock.linear.dense import Dense

class Own(Dense):
    def __init__(self, target):
        names = [name for name, weight in target.weights.items() if weight.dim() == 2 and name != "embed"]
        super().__init__({name: target.weights.pop(name) for name in names})
        assert "head" in names and len(names) == 13

    def tensors(self):
        return list(self.weights.values())

def build(target, options, prepared):
    return Own(target)
"""


@pytest.mark.parametrize("mode", ["exact", "fast"])
@pytest.mark.parametrize("tied", [False, True])
def test_a_module_may_take_all_weights(tied, mode, tmp_path):
    """A linear module that keeps the weights to itself, the head's too, says what dense says; the FP32 head scores.

    What it holds is in the bytes that are reported.
    """
    config = target_config("llama", tie_word_embeddings=tied)
    paths = write_target(tmp_path / "target", config), write_drafter(tmp_path / "drafter", drafter_config(config))
    system = tmp_path / "system"
    shutil.copytree(ROOT / "stock", system / "stock", ignore=shutil.ignore_patterns("__pycache__"))
    (system / "stock" / "linear" / "own.py").write_text(OWN)
    ask = {"op": "score", "id": "s", "ids": [1, 2, 3], "start": 1, "sampling": GREEDY}
    with Worker(system=system) as worker:
        said = []
        for linear in ("dense", "own"):
            for head in ("model", "fp32"):
                ready = worker.ask(load(*paths, linear=linear, mode=mode, head=head))
                said.append((worker.ask(generate()), worker.ask(ask), ready["bytes"]))

    assert said[:2] == said[2:]
    assert said[0][0]["op"] == "done"


PRINTS = """
import builtins, os, sys, threading
def noise():
    while True:
        print("stray", '{"v": 1, "op": "done"}', flush=True)
        os.write(1, b"raw\\n")
        os.write(2, b"raw\\n")
        print("stray", file=sys.stderr, flush=True)
        event.wait(0.001)
event = threading.Event()
threading.Thread(target=noise, daemon=True).start()
"""


def test_stray_prints(paths):
    """Whatever is written to standard output and error while it serves, the protocol is not disturbed."""
    with Worker(PRINTS) as worker:
        drains = [threading.Thread(target=stream.read) for stream in (worker.child.stdout, worker.child.stderr)]
        for drain in drains:
            drain.start()
        assert worker.ask(load(*paths))["op"] == "ready"
        for name in "ab":
            assert worker.ask(generate(id=name))["reason"] == "length"
        worker.ask({"op": "shutdown"})
        assert worker.child.wait(60) == 0
        for drain in drains:
            drain.join()


FAULT = """
import stock.engine
real, calls = stock.engine.Engine._verify, []
def faulty(self, *arguments):
    calls.append(1)
    if len(calls) == 3:
        raise ZeroDivisionError("scripted\\nfault")
    if len(calls) == 6:
        raise MemoryError
    return real(self, *arguments)
stock.engine.Engine._verify = faulty
"""


def test_fault_inside_a_step(paths):
    """A fault ends the request that met it, by name and in one line, and the next one is served."""
    with Worker(FAULT) as worker:
        worker.ask(load(paths[0]))
        for line in (generate(), generate(id="b")):
            worker.send(line)
        replies = worker.read_through()
        assert error_of(replies[-1]) == "internal"
        assert replies[-1]["id"] == "a"
        assert "ZeroDivisionError" in replies[-1]["message"]
        replies = worker.read_through()
        assert (error_of(replies[-1]), replies[-1]["id"]) == ("out_of_memory", "b")
        assert worker.ask(generate(id="a"))["usage"]["completion_tok"] == 8


TOGETHER = """
import stock.engine, stock.schedule.single
from stock.errors import EngineError
stock.schedule.single.build = lambda target, options, prepared: lambda requests: [
    request for request in requests if request.id != "waits" or len(requests) == 1]
def prompt(self, prompt, context, real=stock.engine.Engine._run_prompt):
    if len(prompt) == 5:
        raise EngineError("unsupported", "no prompt of five")
    return real(self, prompt, context)
def verify(self, trees, contexts, real=stock.engine.Engine._verify):
    if len(trees) == 2:
        raise ZeroDivisionError
    return real(self, trees, contexts)
stock.engine.Engine._run_prompt, stock.engine.Engine._verify = prompt, verify
"""


def test_fault_is_told_to_those_that_it_hit(paths):
    """A fault of a prefill is that request's alone, one of a common pass all its requests'; others go on, none is
    met again, and an error that the engine itself names is no exception.
    """
    with Worker(TOGETHER) as worker:
        worker.ask(load(*paths, limits={"context": 96, "requests": 4}))
        lines = (generate(id="waits"), generate(id="a"), generate(id="five", prompt=[1] * 5), generate(id="b"))
        worker.write(b"".join(json.dumps({"v": 1, **line}).encode() + b"\n" for line in lines))
        replies = [worker.read()]
        while replies[-1]["op"] != "done":
            replies.append(worker.read())
        errors = [(reply["id"], error_of(reply)) for reply in replies if reply["op"] == "error"]

        assert errors == [("five", "unsupported"), ("a", "internal"), ("b", "internal")]
        assert replies[-1]["id"] == "waits"
        assert worker.ask(generate(id="five"))["op"] == "done"


def test_weights_that_give_no_numbers(tmp_path):
    """Weights whose products overflow give an error for their requests, and never a line that is no JSON."""
    config = target_config("llama")
    weights = target_weights(config)
    weights["model.norm.weight"] = torch.full((32,), 3e38)
    weights["lm_head.weight"] *= 1e30
    path = write_target(tmp_path / "target", config, weights)
    with Worker() as worker:
        worker.ask(load(path))
        for sampling in (GREEDY, SAMPLED):
            worker.send(generate(logprobs=True, sampling=sampling))
            assert error_of(worker.read()) == "internal"
        for name in "ab":
            worker.send(generate(id=name, logprobs=True, max_tokens=1))
        assert [worker.read()["id"] for _ in "ab"] == ["a", "b"]  # the error has the name of the request that met it
        score = {"op": "score", "id": "s", "ids": [1, 2, 3], "start": 1, "sampling": GREEDY}
        assert error_of(worker.ask(score)) == "internal"
        save_file(target_weights(config), path / "model.safetensors")
        assert worker.ask(load(path))["op"] == "ready"
        assert worker.ask(generate())["op"] == "done"


@pytest.mark.parametrize("when", ["idle", "in a request", "in a line"])
def test_end_of_input(when, paths):
    """The end of the input ends the worker with status 0, quickly and quietly, whatever it is doing."""
    with Worker() as worker:
        if when == "in a request":
            worker.ask(load(*paths))
            worker.send(generate(max_tokens=90))
            worker.read()
        if when == "in a line":
            worker.write(b'{"v": 1, "op": ')
        worker.close_input()
        status, output, errors = worker.wait()

    assert (status, output, errors) == (0, b"", b"")


def test_last_line_without_a_newline(paths):
    """What stands before the end of the input is still a line."""
    with Worker() as worker:
        worker.write(json.dumps({"v": 1, "op": "shutdown"}).encode())
        worker.close_input()
        assert worker.read() == {"v": 1, "op": "ok", "to": "shutdown"}
        assert worker.wait() == (0, b"", b"")


def test_client_that_goes_away():
    """A closed reply pipe ends the worker without a word."""
    with Worker() as worker:
        os.close(worker.source)
        worker.source = os.dup(worker.out)
        worker.send(generate())
        status, output, errors = worker.wait()

    assert (status, output, errors) == (0, b"", b"")


def test_shutdown_with_the_input_open():
    """`shutdown` ends the process while the client's end is still open, every time."""
    for _ in range(5):
        with Worker() as worker:
            assert worker.ask({"op": "shutdown"})["op"] == "ok"
            assert worker.wait() == (0, b"", b"")


def test_kill(paths):
    """A killed worker is dead, and a fresh one says the same."""
    with Worker() as worker:
        worker.ask(load(*paths))
        expected = worker.ask(generate())
        worker.send(generate(max_tokens=90))
        worker.read()
        worker.child.send_signal(signal.SIGKILL)
        assert worker.wait()[0] == -signal.SIGKILL
    with Worker() as worker:
        worker.ask(load(*paths))
        assert worker.ask(generate()) == expected


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "required"),
        (["--in-fd", "x", "--out-fd", "4"], "invalid"),
        (["--in-fd", "77", "--out-fd", "78"], "not open"),
    ],
)
def test_command_line(arguments, words):
    """Missing or closed descriptors are a usage error with status 2, not a traceback."""
    command = [sys.executable, "-P", "-m", "stock.worker", *arguments]
    ran = subprocess.run(command, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False)

    assert ran.returncode == 2
    assert words in ran.stderr
    assert "Traceback" not in ran.stderr


def test_system_whose_options_clash(tmp_path):
    """A system that declares an option twice says so in the protocol, instead of a hello."""
    prelude = "import stock.options as o; real = o.declared; from pathlib import Path\n"
    prelude += f"o._ROOT = Path({str(tmp_path)!r}); o.declared = lambda folder=o._ROOT: real(folder)"
    for owner in ("one", "two"):
        (tmp_path / f"{owner}.toml").write_text('[width]\ntype = "int"\ndefault = 1\nmeaning = "x"\n')
    with Worker(prelude, hello=False) as worker:
        reply = worker.read()
        assert error_of(reply) == "bad_option"
        assert "'width'" in reply["message"]
        assert worker.wait()[0] == 0


def test_hello_is_quick():
    """`hello` does not wait for torch: less than a second of processor time from start to end."""
    before = os.times().children_user
    with Worker() as worker:
        worker.close_input()
        worker.wait()
    assert os.times().children_user - before < 1.0

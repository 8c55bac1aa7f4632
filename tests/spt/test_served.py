"""A deployment that a server answers: what `spt` runs with it, and what it refuses first."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes.server import Script, serving
from tests.harness import toys
from tests.spt.toys import errors_well, make_root, spt

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def server():
    with serving() as made:
        yield made


@pytest.fixture(scope="module")
def pristine(server, tmp_path_factory):
    """A deployment repository beside the toy's model."""
    root = tmp_path_factory.mktemp("served")
    model = toys.write_folder(toys.FAMILIES["smollm"], root / "model")
    (model / "config.json").write_text(json.dumps({"vocab_size": 1000, "max_position_embeddings": 512}))
    assert spt("init", root / "deployment", "--from", make_root(root / "root"), cwd=root).code == 0
    with (root / "deployment/.git/info/exclude").open("a") as file:
        file.write("/*.yaml\n")
    return root / "deployment"


@pytest.fixture
def folder(pristine, server):
    """The repository with its deployment as it is by default; the server has been asked nothing."""
    server.script = Script()
    server.asked.clear()
    server.headers.clear()
    write(pristine, server)
    return pristine


def write(folder, server, **changes):
    value = {
        "spt": "1",
        "name": "served",
        "target": {"path": "../model"},
        "context": "256",
        "engine": {"kind": "openai", "url": server.url, "model": "toy"},
        **changes,
    }
    (folder / "deployment.yaml").write_text(json.dumps(value))


def test_generate(folder, server):
    """A server answers like any engine; its key goes to it alone, and no system of ours is asked for."""
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "OPENAI_API_KEY": "sk-secret"}
    done = subprocess.run(
        [sys.executable, "-P", "-s", "-m", "spt", "generate", "Hi", "--max-tokens", "9", "--json"],
        cwd=folder, env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    shown = json.loads(done.stdout)

    assert (shown["tokens"], shown["reason"]) == (9, "length")
    assert {each.get("Authorization") for each in server.headers} == {"Bearer sk-secret"}
    assert "secret" not in done.stdout + done.stderr


def test_generate_outside_a_repository(folder, server, tmp_path):
    """A deployment file is all that it takes."""
    (tmp_path / "deployment.yaml").write_text((folder / "deployment.yaml").read_text())
    ran = spt("generate", "Hi", "--target", folder.parent / "model", "--max-tokens", "3", cwd=tmp_path)

    assert (ran.code, len(server.asked)) == (0, 2)  # one token at the load, then the answer


def test_drawn_answers_are_said_to_be_the_servers_own(folder):
    """Above temperature 0 the user is told that the answer cannot be had again."""
    ran = spt("generate", "Hi", "--max-tokens", "3", "--temperature", "0.5", cwd=folder)

    assert ran.code == 0
    assert "note: the server draws noise of its own" in ran.err


@pytest.mark.parametrize("words", [("generate", "Hi", "--system"), ("force", "--no-sandbox")])
def test_systems_are_refused(folder, server, words):
    """What a server would not run is not pretended to be run."""
    assert errors_well(spt(*words, "HEAD", cwd=folder), 2, "'HEAD': a server has no system of ours")
    assert server.asked == []


def test_options_are_refused(folder, server):
    """So are options, by flag and by file."""
    assert errors_well(spt("generate", "Hi", "--option", "depth=3", cwd=folder), 2, "'depth'")
    write(folder, server, options={"depth": "3"})
    assert errors_well(spt("generate", "Hi", cwd=folder), 2, "'depth'")
    assert server.asked == []


def test_timing_is_refused(folder):
    """Both arms would be one server; neither a campaign nor a job is made."""
    for words in (("time", "stock"), ("job", "make", "time", "stock", "-o", "made")):
        assert errors_well(spt(*words, cwd=folder), 5, "both arms would be the same server")
    assert not (folder / "made").exists()


def test_forcing_needs_no_sandbox_and_no_noise(folder, server):
    """Both are said before stock is calibrated, with a way out."""
    enclosed = spt("force", "stock", cwd=folder)
    assert errors_well(enclosed, 2, "cannot be enclosed")
    assert "--no-sandbox" in enclosed.err
    write(folder, server, sampling={"temperature": "0.7"})
    assert errors_well(spt("force", "stock", "--no-sandbox", cwd=folder), 5, "temperature 0.7")
    assert not (folder / ".git/spt/calibrations").exists()


@pytest.mark.parametrize("url", ["127.0.0.1:80", "http://me:sk-secret@x", "http://x/v1?key=1"])
def test_addresses_that_are_none(folder, server, url):
    """The file is refused where its address is none, or holds what should not be in a file."""
    write(folder, server, engine={"kind": "openai", "url": url, "model": "toy"})
    assert errors_well(spt("generate", "Hi", cwd=folder), 2, "'engine.url' is")

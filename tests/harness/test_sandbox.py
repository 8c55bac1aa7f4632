"""harness/sandbox.py and harness/probe.py on any machine: what is found, what is refused, and who may run it."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness import probe, sandbox
from harness.client import Engine
from harness.errors import HarnessError, Missing, Unsupported
from harness.sandbox import Bubblewrap, Enclosure, find_bubblewrap
from harness.wire import Settings, Target
from tests.harness.enclosures import as_nobody, works

ROOT = Path(__file__).parents[2]


@pytest.fixture
def fresh():
    """The search is made anew, and forgotten afterwards."""
    find_bubblewrap.cache_clear()
    yield
    find_bubblewrap.cache_clear()


def fake_bwrap(folder, script):
    program = folder / "bwrap"
    program.write_text("#!/bin/sh\n" + script)
    program.chmod(0o755)
    return program


def test_dependency_brings_it(fresh, monkeypatch, tmp_path):
    """With an empty PATH the package's own program is found, as installed with this library on Linux."""
    monkeypatch.setenv("PATH", str(tmp_path))

    assert sandbox._packaged() is not None
    assert os.access(sandbox._packaged(), os.X_OK)


def test_none_here(fresh, monkeypatch, tmp_path):
    """Without any bubblewrap there is an error with two ways out, and no engine runs in the open instead."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sandbox, "_packaged", lambda: None)
    with pytest.raises(Missing) as caught:
        find_bubblewrap()

    assert "bubblewrap" in caught.value.hint
    assert "--no-sandbox" in caught.value.hint


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (
            '[ "$1" = --version ] && echo bubblewrap 9.9 && exit\necho "bwrap: not permitted" >&2; exit 1',
            "not permitted",
        ),
        ("echo cannot run >&2; exit 1", "cannot run"),
    ],
)
def test_refused_here(fresh, monkeypatch, tmp_path, script, words):
    """A kernel that refuses user namespaces is an error that says so in the program's own words."""
    fake_bwrap(tmp_path, script)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(Unsupported, match=words) as caught:
        find_bubblewrap()

    assert "--no-sandbox" in caught.value.hint


def test_a_sandbox_that_does_not_hold_is_noticed(tmp_path):
    """A `bwrap` that just runs the command is found out by the probe, which names what an engine could do."""
    program = fake_bwrap(
        tmp_path, 'while [ "$1" != -- ]; do [ "$1" = --setenv ] && export "$2=$3"; shift; done; shift; exec "$@"'
    )
    enclosure = Enclosure(Bubblewrap(str(program), "0"))
    with pytest.raises(Unsupported) as caught:
        probe.check_sandbox(enclosure)

    for words in ("reach the network", "read a file", "see other processes"):
        assert words in caught.value.message


@pytest.mark.parametrize(
    ("gpu", "words"), [('"CUDA error 100"', "CUDA error 100"), ('"2 GPUs instead of one"', "2 GPUs"), ("null", None)]
)
def test_a_gpu_that_is_not_reached_is_noticed(tmp_path, gpu, words):
    """A sandbox that keeps everything in is no use when the GPU does not work there."""
    program = fake_bwrap(tmp_path, f'echo \'{{"could": [], "gpu": {gpu}}}\' >&4; read line <&3')
    enclosure = Enclosure(Bubblewrap(str(program), "0"), nodes=(Path("/dev/nvidia0"),))
    if words is None:
        assert probe.check_sandbox(enclosure).freeze_s >= 0
        return
    with pytest.raises(Unsupported, match=f"GPU does not work.*{words}"):
        probe.check_sandbox(enclosure)


def test_this_machine(tmp_path):
    """Where bubblewrap works the probe holds; where it does not, its error is what the card shows."""
    ran = subprocess.run(
        [sys.executable, "-m", "harness", "probe"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    told = json.loads(ran.stdout)

    assert told["sandbox"]["holds"] == works()
    assert told["card"]["sandbox"] == told["sandbox"]["word"]
    if works():
        assert told["sandbox"]["word"] == find_bubblewrap().word
        assert told["user_namespaces"] is True
        assert told["sandbox"]["freezes_by"] == told["cgroup"]["freezes_by"]
    else:
        with pytest.raises(HarnessError) as caught:
            find_bubblewrap()
        assert told["sandbox"]["error"] == caught.value.message
        assert told["sandbox"]["word"] == "unsandboxed"
    assert told["device"] is None


def test_as_an_ordinary_user():
    """Everything that root's probe holds also holds for a user without rights, with what that user may not do less."""
    command = [sys.executable, "-m", "harness", "probe"]
    ran = subprocess.run(
        as_nobody(command) if works() else command, cwd=ROOT, capture_output=True, text=True, check=False
    )
    told = json.loads(ran.stdout) if ran.returncode == 0 else ran.stderr

    assert told["sandbox"]["holds"] == works(), told
    if os.getuid() == 0 and works():
        assert told["sandbox"]["freezes_by"] == "signals"  # the cgroups here are root's
        assert told["cgroup"] == {"writable": False, "freezes_by": "signals", "memory": False, "pids": False}


def test_command_line():
    """The list of mounts holds no writable path of the machine, and no device but the GPU's own."""
    box = Enclosure(
        Bubblewrap("/bin/bwrap", "1"), device="cuda:1", nodes=(Path("/dev/nvidia5"), Path("/dev/nvidiactl"))
    )
    words = box.command([sys.executable, "-m", "stock.worker"], {"HOME": "/x"}, Path("/tree"))
    binds = [words[index : index + 3] for index, word in enumerate(words) if "bind" in word]

    assert {bind[0] for bind in binds} == {"--ro-bind", "--ro-bind-try", "--dev-bind"}
    assert [bind[2] for bind in binds if bind[0] == "--dev-bind"] == ["/dev/nvidia5", "/dev/nvidiactl"]
    assert ["--ro-bind", "/tree", "/spt/system"] in binds
    assert not {"/", "/etc", "/home", "/root", "/tmp", "/var", "/dev", "/proc", "/sys"} & {bind[2] for bind in binds}
    for word in ("--unshare-user", "--unshare-net", "--unshare-pid", "--unshare-ipc", "--clearenv", "--disable-userns"):
        assert word in words
    assert words[words.index("--cap-drop") + 1] == "ALL"


def test_settings_from_inside(tmp_path):
    """Inside there is one GPU, and what was prepared lies at one place for every arm."""
    settings = Settings(Target("/model"), device="cuda:3")
    box = Enclosure(Bubblewrap("/bin/bwrap", "1"), files=tmp_path / "files")

    assert box.settings(settings) == dataclasses.replace(settings, device="cuda:0", prepared="/spt/prepared")
    assert dataclasses.replace(box, bubblewrap=None).settings(settings).device == "cuda:3"
    assert dataclasses.replace(box, bubblewrap=None).settings(settings).prepared == str(tmp_path / "files")
    assert dataclasses.replace(box, filling=True).settings(settings).prepared is None


def test_unsandboxed_is_still_frozen_and_killed(tmp_path):
    """Without bubblewrap an engine has its caps and its freezer, and the card says what it lacks."""
    box = Enclosure(None)
    fake = [sys.executable, "-P", "-s", str(ROOT / "tests/fakes/engine.py")]
    with Engine.start(fake, tmp_path, enclosure=box) as engine:
        engine.load(Settings(Target("toy"), dtype="float32", mode="exact", context=64))
        engine.freeze()
        with pytest.raises(ValueError, match="frozen already"):
            engine.freeze()
        engine.thaw()
        assert engine.stats() == {"requests": 0, "steps": 0, "tokens": 0}

    assert box.word == "unsandboxed"

"""What keeps an entry's own commands in: seen through a program that stands in for bubblewrap and notes its words."""

import subprocess
import sys
from pathlib import Path

import pytest

from spt import checks
from spt.checks import run_checks, sandbox_words
from spt.memory import Memory

RECORDER = """#!/bin/sh
printf '%s\\n' "$@" > {log}
for last do :; done
[ "$last" = true ] && {probe}
while [ "$1" != --chdir ]; do shift; done
shift 2
exec "$@"
"""


@pytest.fixture
def recorder(tmp_path, monkeypatch):
    """Puts the stand-in on PATH; its answer to the probe can be set.  Returns the file of its words."""

    def make(probe="exit 0"):
        program, log = tmp_path / "bin/bwrap", tmp_path / "words"
        program.parent.mkdir()
        program.write_text(RECORDER.format(log=log, probe=probe))
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
        checks._bubblewrap.cache_clear()
        return log

    yield make
    checks._bubblewrap.cache_clear()


def test_a_command_sees_programs_and_its_room(recorder, deployment):
    """Nothing of the machine is bound but programs, libraries and the interpreter; only the room may be written."""
    log = recorder()
    (result,) = run_checks(Memory.open(deployment), "fast-linear")
    words = log.read_text().splitlines()
    read = [Path(words[at + 1]) for at, word in enumerate(words) if word in ("--ro-bind", "--ro-bind-try")]
    written = [words[at + 1] for at, word in enumerate(words) if word == "--bind"]

    assert result.passed, result.output
    assert "--unshare-all" in words
    assert Path("/") not in read
    assert not [path for path in read if Path.home().is_relative_to(path) or deployment.is_relative_to(path)]
    assert {Path("/usr"), Path(sys.prefix), Path(sys.base_prefix)} <= set(read)
    assert len(written) == 1 and Path(written[0]).name.startswith("spt-check-")


@pytest.mark.parametrize("probe", ["exit 1", "exec sleep 5"])
def test_a_sandbox_that_does_not_work_is_none(recorder, monkeypatch, probe):
    """One that may make no namespaces, or never answers, is not used, and the words say that there is none."""
    monkeypatch.setattr(checks, "_PROBE_S", 0.3)
    recorder(probe)

    assert "no sandbox here" in sandbox_words()


def test_a_child_that_the_kernel_holds_is_out_of_time():
    """A process that not even SIGKILL ends within the grace is reported as out of time, not as an error of ours."""
    with subprocess.Popen(["sleep", "0"], start_new_session=True) as done:
        done.wait()

        class Held:
            pid = done.pid

            def wait(self, limit_s):
                raise subprocess.TimeoutExpired("held", limit_s)

        assert checks._wait(Held(), 0.1) is None

"""harness/evidence.py and `python -m harness evidence`: what an entry keeps of a timing's samples."""

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest

from harness.errors import HarnessError, Usage
from harness.evidence import evidence
from harness.verdict import verdict
from tests.harness.campaigns import timed_campaign, write
from tests.harness.schemas import validator

ROOT = Path(__file__).parents[2]
NAMED = dict.fromkeys(("host", "uuid"), "some-name")


def campaign(*shape, **options):
    """A campaign on a machine with a name, whose arm a answers its four tokens in two lines once it is confirmed."""
    lines = timed_campaign(*shape, **options)
    lines[1]["card"] = {**lines[1]["card"], **NAMED}
    for line in lines:
        if line["type"] == "answer" and line["phase"] == "confirm" and line["arm"] == "a":
            line["lines"] = [1, 3]
    return lines


def test_what_is_told_is_of_the_judged_units(tmp_path):
    """tau counts the confirmation alone, prefill's token left out; the card has lost what names the machine."""
    path = write(tmp_path / "samples.jsonl", campaign(5, 10, gain=0.05))
    told = evidence(path, tmp_path / "out.gz")

    assert told["tau"] == {"before": 1.0, "after": 3.0}
    assert (told["requests"], told["max_tokens"], told["ignore_eos"]) == (120, 4, False)
    assert not NAMED.keys() & told["card"].keys()
    validator("card").validate(told["card"])


def test_only_cards_lose_something(tmp_path):
    """Every other line stays byte for byte, so the verdict does but for its digest; the bytes are always the same."""
    path = write(tmp_path / "samples.jsonl", campaign(5, 10, gain=0.05))
    for out in ("one.jsonl.gz", "two.jsonl.gz"):
        evidence(path, tmp_path / out)
    before = path.read_bytes().splitlines()
    after = gzip.decompress((tmp_path / "one.jsonl.gz").read_bytes()).splitlines()

    assert [at for at, pair in enumerate(zip(before, after, strict=True)) if pair[0] != pair[1]] == [1]
    assert json.loads(before[1])["card"] == json.loads(after[1])["card"] | NAMED
    assert (tmp_path / "one.jsonl.gz").read_bytes() == (tmp_path / "two.jsonl.gz").read_bytes()
    first, second = verdict("timing", path), verdict("timing", tmp_path / "one.jsonl.gz")
    assert first | {"samples": 0} == second | {"samples": 0}


def test_a_screen_that_ends_a_campaign_is_what_is_told(tmp_path):
    """Of a decline at the screen its units are told."""
    told = evidence(write(tmp_path / "samples.jsonl", campaign(5, gain=-0.05)), tmp_path / "out.gz")

    assert (told["tau"], told["requests"]) == ({"before": 1.0, "after": 1.0}, 60)


def test_what_measured_no_candidate_has_no_figures(tmp_path):
    """A machine that was refused for its noise says nothing of tau."""
    told = evidence(write(tmp_path / "samples.jsonl", campaign(sigma=0.2)), tmp_path / "out.gz")

    assert told["tau"] == {"before": None, "after": None}
    assert (told["requests"], told["max_tokens"]) == (0, None)


def test_what_is_no_evidence(tmp_path):
    """An unfinished campaign and a file that is there are errors, and nothing is written."""
    path = write(tmp_path / "samples.jsonl", campaign(3))
    with pytest.raises(HarnessError, match="is not finished"):
        evidence(path, tmp_path / "out.gz")
    assert not (tmp_path / "out.gz").exists()
    write(path, campaign(5, gain=-0.05))
    (tmp_path / "out.gz").write_text("mine")
    with pytest.raises(Usage, match="is there already"):
        evidence(path, tmp_path / "out.gz")
    assert (tmp_path / "out.gz").read_text() == "mine"


def test_the_command_prints_one_line(tmp_path):
    """What is told is one JSON object on standard output."""
    path = write(tmp_path / "samples.jsonl", campaign(5, gain=-0.05))
    command = [sys.executable, "-m", "harness", "evidence", str(path), "--out", str(tmp_path / "out.gz")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)

    assert json.loads(done.stdout)["requests"] == 60
    assert (tmp_path / "out.gz").is_file()


def test_an_error_of_the_system_is_one_line(tmp_path):
    """A place that cannot be written is said in one line, with the path as it is spelt, and no traceback."""
    path = write(tmp_path / "samples.jsonl", campaign(5, gain=-0.05))
    out = tmp_path / "Absent" / "out.gz"
    command = [sys.executable, "-m", "harness", "evidence", str(path), "--out", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout) == (5, "")
    assert done.stderr.splitlines() == [
        f"error: '{out}': no such file or directory",
        "hint: the same command goes on once that is mended",
    ]

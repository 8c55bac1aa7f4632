"""The commands `requests` and `seal`, and a user's own requests in disjoint shares."""

import datetime
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.errors import Usage
from harness.generator import SETS, Set
from harness.request import Request, read_requests
from harness.requests import Wanted, make_seal, share_of, write_requests

ROOT = Path(__file__).parents[2]
NOW = datetime.datetime(2026, 11, 30, tzinfo=datetime.UTC)


def harness(*arguments, status=0):
    """Runs a command; what it says on standard output, or on standard error where it fails."""
    command = [sys.executable, "-m", "harness", *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stderr
    return done.stdout if not status else done.stderr


def rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_requests_are_written_as_the_set_has_them(tmp_path):
    """Single requests and sessions, of chosen families and from an index on, equal to those that the set gives."""
    out = tmp_path / "requests.jsonl"
    harness("requests", "--set", "force", "--seed", 3, "--first", 5, "--count", 4, "--out", out)
    assert rows(out) == [Set("force", 3).single(index) for index in range(5, 9)]

    chosen = ("--families", "lists", "plans", "--context-tok", 3000)
    harness("requests", "--set", "force", "--seed", 3, "--count", 2, "--sessions", *chosen, "--out", out)
    assert rows(out) == [Set("force", 3, families=("lists", "plans")).session(index, 3000) for index in range(2)]


def test_fixed_counts(tmp_path):
    """Answers of a final have exactly the tokens that were asked for, at the temperature that was asked for."""
    out = tmp_path / "requests.jsonl"
    fixed = ("--fixed-tok", 4096, "--temperature", 1)
    harness("requests", "--set", "confirmation", "--seed", 1, "--count", 3, *fixed, "--out", out)

    assert {(each.max_tokens, each.ignore_eos, each.sampling.temperature) for each in read_requests(out)} == {
        (4096, True, 1.0)
    }
    assert len({each.sampling.seed for each in read_requests(out)}) == 3


def test_a_final_from_seal_to_requests(tmp_path):
    """A seal is made, its commitment can be checked, one job draws, and another one is refused."""
    seal, out = tmp_path / "seal", tmp_path / "final.jsonl"
    commitment = json.loads(harness("seal", "--seal", seal))["commitment"]
    draw = ("requests", "--set", "final", "--seal", seal, "--count", 4, "--out", out)
    harness(*draw, "--job-key", "one")
    drawn = out.read_bytes()

    assert out.stat().st_mode & 0o777 == 0o600
    assert harness("seal", "--seal", seal, "--check", commitment) == ""
    assert "is not what was committed to" in harness("seal", "--seal", seal, "--check", "00", status=1)
    assert "was used" in harness(*draw, "--job-key", "two", status=1)
    assert out.read_bytes() == drawn


def test_a_final_wants_the_generator_that_was_sealed(tmp_path):
    """Requests that nobody committed to are not drawn, and the seal is not spent on them."""
    seal, out = tmp_path / "seal", tmp_path / "final.jsonl"
    harness("seal", "--seal", seal)
    secret = json.loads(seal.read_text())
    seal.write_text(json.dumps({**secret, "generator": "ab" * 32}))
    draw = ("requests", "--set", "final", "--seal", seal, "--job-key", "one", "--count", 4, "--out", out)

    assert "the generator is not the one that was sealed" in harness(*draw, status=1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["seal"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--set", "final", "--count", 1), "error: a final wants the file of its seal and the key of its job"),
        (("--set", "final", "--seed", 1, "--count", 1, "--seal", "s", "--job-key", "k"), "error: a final's seed lies"),
        (("--set", "force", "--count", 1), "error: the set 'force' wants a seed"),
        (("--set", "force", "--seed", 1, "--count", 1, "--seal", "s"), "error: the set 'force' has no seal"),
        (("--set", "exam", "--seed", 1, "--count", 1), "error: no set is called 'exam'"),
        (("--set", "force", "--seed", 1, "--count", 0), "error: no requests: 0 from index 0 on"),
        (("--set", "force", "--seed", 1, "--count", 1, "--families", "odes"), "error: no family of the set 'force'"),
        (("--set", "force", "--seed", 1, "--count", 1, "--context-tok", 99), "error: only sessions have a context"),
        (("--set", "force", "--seed", 1, "--count", 1, "--sessions", "--fixed-tok", 9), "error: answers of a session"),
        (("--set", "force", "--seed", 1, "--count", 1, "--fixed-tok", 0), "error: answers of 0 tokens"),
        (("--set", "force", "--seed", 1, "--count", 1, "--temperature", "nan"), "error: the temperature nan"),
    ],
)
def test_wrong_words_change_nothing(tmp_path, words, message):
    """One line names what is off, and no file is written."""
    said = harness("requests", *words, "--out", tmp_path / "out", status=2)

    assert said.startswith(message)
    assert said.count("error:") == 1
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_not_there(tmp_path):
    """The user's own word is quoted."""
    out = tmp_path / "none" / "out"
    said = harness("requests", "--set", "force", "--seed", 1, "--count", 1, "--out", out, status=2)

    assert said == f"error: cannot write '{out}': No such file or directory\n"


def own(count):
    return [Request(f"r{index}", turns=(f"Question {index}?",)) for index in range(count)]


def test_users_requests_fall_into_disjoint_shares():
    """Every request belongs to one set, whatever its id, its place and the rest of the file."""
    requests = own(400)
    shares = {name: share_of(requests, name, 40) for name in SETS}
    renamed = [Request(f"x{index}", turns=request.turns) for index, request in enumerate(requests[::-1])]

    assert sorted(each.id for share in shares.values() for each in share) == sorted(each.id for each in requests)
    for name, share in shares.items():
        assert {each.turns for each in share_of(renamed, name, 1)} == {each.turns for each in share}


def test_copies_of_a_request_stay_in_one_set():
    """The same question under two ids cannot stand in two sets."""
    twice = [Request("a", turns=("Why?",)), Request("b", turns=("Why?",))]

    assert sorted(len(share_of(twice, name, 0)) for name in SETS) == [0, 0, 0, 0, 2]


def test_too_few_requests():
    """The message says how many there are and about how many it takes."""
    with pytest.raises(Usage) as caught:
        share_of(own(20), "force", 10)

    assert caught.value.message.startswith("the set 'force' needs 10 requests and has ")
    assert caught.value.message.endswith(" of the file's 20")
    assert "about 50 requests" in caught.value.hint


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_a_seed_that_no_seal_holds(tmp_path, seed):
    """A seed is a number of 64 bits; any other leaves no secret behind."""
    with pytest.raises(Usage, match=f"the seed {seed} is not from 0"):
        make_seal(tmp_path / "seal", seed)
    with pytest.raises(Usage, match="no file of a seal"):
        make_seal(Path(), 1)
    assert list(tmp_path.iterdir()) == []


def test_requests_take_the_place_of_files_alone(tmp_path):
    """Neither a device nor a folder is replaced by requests, whoever runs this."""
    os.mkfifo(tmp_path / "fifo")
    wanted = Wanted("development", 1, 2)
    for out in (tmp_path, tmp_path / "fifo", Path()):
        with pytest.raises(Usage, match="no plain file"):
            write_requests([wanted], out, None, None, NOW)
    assert (tmp_path / "fifo").is_fifo()

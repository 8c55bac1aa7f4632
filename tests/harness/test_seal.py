"""The seal of a final: committed before, used once, by one job, whenever a process dies."""

import datetime
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.errors import HarnessError, Missing, Usage
from harness.generator import digest
from harness.requests import Wanted, write_requests
from harness.seal import Seal, create, read, spend, used_path
from tests.harness.schemas import validator

ROOT = Path(__file__).parents[2]
NOW = datetime.datetime(2026, 11, 30, 12, 0, tzinfo=datetime.UTC)
LATER = NOW + datetime.timedelta(hours=1)
SECRET = Seal(bytes(range(32)), 77, "ab" * 32)


def test_commitment_is_what_the_contract_says():
    """sha256 over salt, seed and generator digest; each of the three counts."""
    plain = bytes(range(32)) + (77).to_bytes(8, "little") + bytes.fromhex("ab" * 32)
    others = [
        Seal(bytes(32), 77, "ab" * 32),
        Seal(bytes(range(32)), 78, "ab" * 32),
        Seal(bytes(range(32)), 77, "cd" * 32),
    ]

    assert SECRET.commitment == hashlib.sha256(plain).hexdigest()
    assert len({each.commitment for each in [SECRET, *others]}) == 4


def test_a_revealed_secret_can_be_checked():
    """Whoever holds the commitment can check the record that is published after the final."""
    revealed = json.loads(json.dumps(SECRET.record()))

    assert Seal.of(revealed).commitment == SECRET.commitment
    assert Seal.of({**revealed, "seed": 78}).commitment != SECRET.commitment


def test_the_secret_is_its_owners_alone(tmp_path):
    """The files have mode 0600 whatever the umask, and one that others may read is refused."""
    before = os.umask(0)
    try:
        create(tmp_path / "seal", SECRET)
        spend(tmp_path / "seal", "job", NOW)
    finally:
        os.umask(before)

    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}
    (tmp_path / "seal").chmod(0o640)
    with pytest.raises(Usage, match="others may read the seal"):
        read(tmp_path / "seal")


def test_a_seal_is_never_replaced(tmp_path):
    """Not by another one, and not after its use even if it was removed."""
    path = tmp_path / "seal"
    create(path, SECRET)
    with pytest.raises(Usage, match="is there already"):
        create(path, Seal(bytes(32), 1, "ab" * 32))
    spend(path, "job", NOW)
    path.unlink()
    with pytest.raises(Usage, match="is there already"):
        create(path, SECRET)


def test_one_job_uses_it(tmp_path):
    """The job that came first may come again, and no other ever."""
    path = tmp_path / "seal"
    create(path, SECRET)

    assert spend(path, "job", NOW) == SECRET
    assert spend(path, "job", LATER) == SECRET
    assert json.loads(used_path(path).read_text())["date"] == NOW.isoformat()
    with pytest.raises(HarnessError) as caught:
        spend(path, "another", LATER)
    assert caught.value.exit_code == 1
    assert caught.value.message == f"the seal '{path}' was used on {NOW.isoformat()} by the job 'job'"


@pytest.mark.parametrize("content", [b"", b"{}\n", b"\xff", b'{"v": 1, "kind": "seal"}\n'])
def test_damaged_files_open_nothing(tmp_path, content):
    """A secret or a mark that cannot be read is an error of one line; a damaged mark counts as used."""
    path = tmp_path / "seal"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(Usage):
        read(path)
    path.unlink()
    create(path, SECRET)
    used_path(path).write_bytes(content)
    with pytest.raises(Usage):
        spend(path, "job", NOW)


def test_a_missing_seal_is_missing(tmp_path):
    with pytest.raises(Missing, match="cannot be read"):
        read(tmp_path / "none")


# Forks a final for each step, so that the imports are paid for once.
DYING = """
import os, sys
from pathlib import Path
import tests.harness.test_seal as here

def die_before(step):
    left = [step]
    def hook(event, arguments):
        if event in ("open", "os.link", "os.remove", "os.rename"):
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), 9)
    sys.addaudithook(hook)

status = step = 1
while status:
    folder = Path(sys.argv[1]) / str(step)
    folder.mkdir()
    child = os.fork()
    if not child:
        die_before(step)
        here.whole_final(folder, "job")
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    step += 1
"""


def whole_final(folder, job):
    """What a final does from making its seal to having its requests."""
    path = folder / "seal"
    if not path.exists():
        create(path, Seal(bytes(range(32)), 77, digest()))
    draw(folder, job)


def draw(folder, job, out="requests.jsonl"):
    wanted = Wanted("final", None, 3, longest_tok=60)
    write_requests([wanted], folder / out, folder / "seal", job, NOW)


def test_kill_at_any_step(tmp_path):
    """Killed before any of its file operations a final goes on for its job; no request exists before the mark does."""
    want = tmp_path / "want"
    want.mkdir()
    whole_final(want, "job")
    subprocess.run([sys.executable, "-c", DYING, tmp_path], cwd=ROOT, check=True)
    folders = [folder for folder in tmp_path.iterdir() if folder != want]
    states = set()
    for folder in folders:
        seal, out = folder / "seal", folder / "requests.jsonl"
        states.add((seal.exists(), used_path(seal).exists(), out.exists()))
        if used_path(seal).exists():
            with pytest.raises(HarnessError, match="was used"):
                draw(folder, "another", "more.jsonl")
        whole_final(folder, "job")
        assert out.read_bytes() == (want / "requests.jsonl").read_bytes()

    assert len(folders) > 8
    assert states == {(False, False, False), (True, False, False), (True, True, False), (True, True, True)}


def test_two_jobs_at_once(tmp_path):
    """Of two jobs that reach for the seal in the same moment one gets it."""
    path = tmp_path / "seal"
    create(path, SECRET)
    code = (
        "import sys; from pathlib import Path; import tests.harness.test_seal as t;"
        "sys.stdin.read(); t.spend(Path(sys.argv[1]), sys.argv[2], t.NOW)"
    )
    children = [
        subprocess.Popen([sys.executable, "-c", code, path, f"job{i}"], cwd=ROOT, stdin=subprocess.PIPE, stderr=-3)
        for i in range(3)
    ]
    for child in children:
        child.stdin.close()

    assert sorted(child.wait() for child in children) == [0, 1, 1]


def test_files_fit_their_schemas(tmp_path):
    """The secret and the mark are records like all others."""
    path = tmp_path / "seal"
    create(path, SECRET)
    spend(path, "job", NOW)

    validator("seal").validate(json.loads(path.read_text()))
    validator("seal_used").validate(json.loads(used_path(path).read_text()))

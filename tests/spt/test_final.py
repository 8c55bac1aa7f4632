"""`spt seal` and `spt final`: one final a seal, what can fail before it is spent, and the secret shown at the end."""

import copy
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from spt.arms import Arm
from spt.campaign import Plan
from spt.deployment import read
from spt.errors import Differs, Missing, Usage
from spt.final import Asked, asked_again
from spt.ratio import RawRatio, Speedup, figure_of
from spt.seal import commitment_of, reveal, seal_named
from spt.verdicts import LEDGER, Ledger, named
from tests.harness.enclosures import works
from tests.spt.judged import fake_command, make_deployment
from tests.spt.toys import errors_well, git, snapshot, spt

ROOT = Path(__file__).parents[2]
SANDBOX = [] if works() else ["--no-sandbox"]  # a kernel may refuse namespaces, and the toys are trusted


@pytest.fixture(scope="module")
def pristine(tmp_path_factory):
    """A deployment whose context holds a final, with the seals `one` and `two`."""
    folder = make_deployment(tmp_path_factory.mktemp("toy"))
    value = json.loads((folder / "deployment.yaml").read_text())
    value |= {"context": "8192", "requests": {"generator": "default", "families": ["lists", "letters"]}}
    value["engine"]["command"] = fake_command(step_ms="0", prefill_ms="0")
    value["target"]["path"] = str(folder.parent / "model")
    (folder / "deployment.yaml").write_text(json.dumps(value))
    (folder / "own.yaml").write_text(json.dumps({"tau": "4"}))
    (folder / "far.yaml").write_text(json.dumps({"tau": "4", "far": "0.1"}))
    for name in ("one", "two"):
        made = spt("seal", name, cwd=folder)
        assert made.code == 0, made.err
    return folder


@pytest.fixture
def repository(pristine, tmp_path):
    """A copy of it, to write to."""
    return copied(pristine, tmp_path / "deployment")


def copied(source, to):
    subprocess.run(["cp", "-rp", source, to], check=True)
    return to


def start(folder, *arguments, module="spt"):
    names = ("PATH", "SPT_LOCKS")
    environment = {name: os.environ[name] for name in names if name in os.environ}
    environment |= {"PYTHONPATH": str(ROOT), "LC_ALL": "C.UTF-8"}
    command = [sys.executable, "-P", "-s", "-m", module, *map(str, arguments)]
    return subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def final(folder, system, seal, *more):
    return spt("final", system, "--seal", seal, "--smoke", *SANDBOX, *more, cwd=folder)


def ended(folder, *words):
    """A final once the harness of a killed command has seen that nobody listens."""
    for _ in range(200):
        ran = final(folder, *words)
        if "another judge" not in ran.err and "is writing" not in ran.err:
            return ran
    raise AssertionError(ran.err)


@pytest.fixture(scope="module")
def measured(pristine, tmp_path_factory):
    """A small final of stock@far.yaml by the seal `one`, stopped by the clock and by kill -9 on its way."""
    folder = copied(pristine, tmp_path_factory.mktemp("measured") / "deployment")
    stopped = final(folder, "stock@far.yaml", "one", "--max-minutes", "0")
    assert "a final asks for up to " in stopped.err
    assert "error: the time is up" in stopped.err
    for phase in ("stock: 1 of 2", "answers of stock: 1 of"):
        with start(folder, "final", "stock@far.yaml", "--seal", "one", "--smoke", *SANDBOX) as child:
            for line in child.stderr:
                if line.startswith((phase, "error")):
                    break
            child.send_signal(signal.SIGKILL)
            child.communicate()
        wait = ended(folder, "stock@far.yaml", "one", "--max-minutes", "0")
        assert "the time is up" in wait.err, wait.err
    ran = final(folder, "stock@far.yaml", "one")
    assert ran.code == 1, ran.err
    return folder, ran


def only_final(folder):
    [held] = [held for held in Ledger.find(folder).all() if held.what == "final"]
    return held


# --- the seal ---


def test_a_commitment_is_dated_before_anything_is_drawn(pristine):
    """The secret is its owner's alone, its commitment a commit of the ledger, and nothing of the secret is there."""
    ledger = Ledger.find(pristine)
    sealed = seal_named(ledger, "one")
    secret = json.loads(sealed.file(ledger).read_text())

    assert sealed.file(ledger).stat().st_mode & 0o777 == 0o600
    assert sealed.commitment == commitment_of(secret)
    assert (sealed.drawn, sealed.revealed) == (None, None)
    assert git(pristine, "log", "--format=%s", LEDGER).splitlines() == ["seal: two made", "seal: one made"]
    assert secret["salt"] not in git(pristine, "show", f"{LEDGER}:seal/one.json")


def test_a_name_is_used_once(repository):
    """Neither the name nor the secret of a seal comes again; one that a killed command left is taken over."""
    ledger = Ledger.find(repository)
    before = snapshot(repository)
    assert errors_well(spt("seal", "one", cwd=repository), 2, "the seal 'one' was made on")
    assert errors_well(spt("seal", "One", cwd=repository), 2, "'One' cannot be a name")
    assert errors_well(spt("seal", "a.used", cwd=repository), 2, "cannot be a name")
    assert snapshot(repository) == before

    (ledger.store.state / "seal" / "three").write_bytes((ledger.store.state / "seal" / "two").read_bytes())
    (ledger.store.state / "seal" / "three").chmod(0o600)
    made = spt("seal", "three", "--json", cwd=repository)
    assert made.code == 0, made.err
    assert made.json["commitment"] == seal_named(ledger, "two").commitment


@pytest.mark.parametrize(
    "left",
    [b"{}", b"[]", b"7", b"{", b"", b'{"v": 1, "kind": "seal", "salt": 3, "seed": -1, "generator": "z"}'],
)
def test_what_is_no_secret_is_taken_over_by_nobody(repository, left):
    """A file in the place of a new secret that is none stops the command, and nothing is committed to."""
    path = Ledger.find(repository).store.state / "seal" / "four"
    path.write_bytes(left)
    path.chmod(0o600)
    before = snapshot(repository)

    assert errors_well(spt("seal", "four", cwd=repository), 2, "seal/four: ")
    assert snapshot(repository) == before
    assert path.read_bytes() == left


# --- a final ---


def test_a_killed_final_ends_as_any_other(measured):
    """Stopped and killed, it asks nothing twice, and ends with its verdict and its secret in one commit."""
    folder, ran = measured
    held, ledger = only_final(folder), Ledger.find(folder)
    sealed = seal_named(ledger, "one")

    assert (held.verdict["answer"], held.seal, held.again) == ("reject", "one", None)
    assert ran.out.startswith("reject: ")
    assert "against autoregressive decoding: raw ratio" in ran.out and "speedup" not in ran.out
    assert f"commitment {sealed.commitment[:12]} checked" in ran.out
    assert sealed.revealed["key"] == held.key
    assert commitment_of(sealed.revealed) == sealed.commitment
    subjects = git(folder, "log", "--format=%s", LEDGER).splitlines()
    assert subjects == ["final: reject", "seal: one drawn", "seal: two made", "seal: one made"]
    assert list((folder / ".git/spt/campaigns").iterdir()) == []
    assert {row["sort"]: row["answers"] > 0 for row in held.verdict["sorts"]} == dict.fromkeys(
        ("timed", "sessions", "sampled", "greedy"), True
    )
    assert held.verdict["timing"]["ar"]["tau"]["b"] == 1.0 < held.verdict["timing"]["ar"]["tau"]["a"]
    git(folder, "fsck", "--strict")


def test_the_same_final_gets_its_old_verdict(measured):
    """Nothing is measured again, and another system cannot use the seal any more."""
    folder, ran = measured
    before = snapshot(folder)
    again = final(folder, "stock@far.yaml", "one")

    assert (again.code, again.out, again.err) == (1, ran.out, "")
    assert errors_well(final(folder, "stock@own.yaml", "one"), 2, "the seal 'one' was drawn on", "another final")
    shown = spt("verdict", "show", only_final(folder).key[:12], cwd=folder)
    assert f"commitment {seal_named(Ledger.find(folder), 'one').commitment[:12]} checked" in shown.out
    assert "final" in spt("verdict", "list", cwd=folder).out
    assert snapshot(folder) == before


def test_a_second_final_of_a_system_is_not_silent(measured, tmp_path):
    """Another seal is no other chance: it needs a reason, which the ledger keeps and every print shows."""
    folder = copied(measured[0], tmp_path / "again")
    refused = final(folder, "stock@far.yaml", "two")
    assert errors_well(refused, 2, "had a final before: reject with the seal 'one'", "--again REASON")
    assert not (folder / ".git/spt/seal/two.used").exists()
    assert errors_well(final(folder, "stock@own.yaml", "two", "--again", "x"), 2, "had no final before")

    stopped = final(folder, "stock@far.yaml", "two", "--again", "the first ran hot", "--max-minutes", "0")
    assert "the time is up" in stopped.err
    ledger, first = Ledger.find(folder), only_final(folder).verdict
    assert seal_named(ledger, "two").drawn["again"] == "the first ran hot"
    held = reveal(ledger, like(first, seal_named(ledger, "two")))
    assert held.again == "the first ran hot"
    shown = spt("verdict", "show", held.key[:12], cwd=folder)
    assert "again: the first ran hot\nanother final of this system: reject with the seal 'one'" in shown.out


def like(verdict, sealed, **changed):
    """The same verdict by another seal."""
    made = {**copy.deepcopy(verdict), **changed}
    made["of"] |= {"seal": sealed.commitment, "requests": sealed.drawn["requests"]}
    return made | {"key": named(made["of"])}


def test_a_begun_final_counts_too(repository):
    """Who sees a final go badly cannot leave it and take another seal."""
    final(repository, "stock@own.yaml", "one", "--max-minutes", "0")
    refused = final(repository, "stock@own.yaml", "two")

    assert errors_well(refused, 2, "begun with the seal 'one'", "no verdict")


def test_a_round_that_comes_to_a_system_of_an_earlier_one(measured, pristine, tmp_path):
    """A rejection stands, after any other verdict one more final says why, and one that was begun is not left."""
    drawn = copied(pristine, tmp_path / "drawn")
    assert "the time is up" in final(drawn, "stock@far.yaml", "one", "--max-minutes", "0").err
    first = only_final(measured[0]).verdict

    def asked(answer):
        folder = copied(drawn, tmp_path / str(answer))
        ledger, deployment = Ledger.find(folder), read(folder / "deployment.yaml")
        if answer is not None:
            reveal(ledger, like(first, seal_named(ledger, "one"), answer=answer))
        arms = {"a": first["of"]["a"], "b": first["of"]["b"], "stock": first["stock"]}
        arms = {name: Arm(name, arm["tree"], arm["options"], ledger.store.objects) for name, arm in arms.items()}
        return asked_again(Plan(ledger, deployment, arms, "cpu", None), Asked("two", None, True), "another round")

    for answer in ("accept", "undecided"):
        assert asked(answer) == Asked("two", "another round", True)
    for answer in ("reject", "malformed"):
        assert asked(answer).verdict["answer"] == answer
    assert asked("smoke") == Asked("two", None, True)
    with pytest.raises(Usage, match="begun with the seal 'one'"):
        asked(None)


def test_only_an_accepted_final_is_a_speedup(measured, pristine, tmp_path):
    """The figures of a final are raw ratios until its own forcing accepts, and only as the ledger holds them."""
    ledger, first = Ledger.find(measured[0]), only_final(measured[0]).verdict
    assert isinstance(figure_of(ledger, first, "ar"), RawRatio)
    with pytest.raises(Differs, match="raw ratio"):
        Speedup(ledger, first, "ar")
    folder = copied(pristine, tmp_path / "accepted")
    final(folder, "stock@far.yaml", "two", "--max-minutes", "0")
    accepted = like(first, seal_named(Ledger.find(folder), "two"), answer="accept")
    with pytest.raises(Differs, match="not in the ledger"):
        Speedup(Ledger.find(folder), accepted, "ar")
    reveal(Ledger.find(folder), accepted)
    assert str(figure_of(Ledger.find(folder), accepted, "ar")).startswith("speedup ")

    final(folder, "stock@far.yaml", "one", "--again", "a test", "--max-minutes", "0")
    reveal(Ledger.find(folder), like(first, seal_named(Ledger.find(folder), "one"), answer="reject"))
    assert isinstance(figure_of(Ledger.find(folder), accepted, "ar"), RawRatio)


def test_a_secret_that_was_not_committed_to_is_seen(measured, tmp_path):
    """A ledger whose secret does not fit its commitment is refused wherever the verdict is shown."""
    folder = copied(measured[0], tmp_path / "edited")
    ledger = Ledger.find(folder)
    sealed, held = seal_named(ledger, "one"), only_final(folder)
    record = sealed.record()
    record["revealed"] = {**record["revealed"], "seed": 1}
    with ledger.store.locked():
        ledger.commit({sealed.path: record}, "edited\n")

    for words in (["verdict", "show", held.key], ["verdict", "show", held.key, "--json"]):
        assert errors_well(spt(*words, cwd=folder), 1, "is not what was committed to")


# --- before the seal is spent ---


def break_context(folder):
    value = json.loads((folder / "deployment.yaml").read_text())
    (folder / "deployment.yaml").write_text(json.dumps(value | {"context": "1000"}))


def open_secret(folder):
    (folder / ".git/spt/seal/one").chmod(0o644)


def swap_secret(folder):
    shutil.copy2(folder / ".git/spt/seal/two", folder / ".git/spt/seal/one")


def lose_secret(folder):
    (folder / ".git/spt/seal/one").unlink()


def crash_at_load(folder):
    (folder / "far.yaml").write_text(json.dumps({"load_ms": "1e9"}))


@pytest.mark.parametrize(
    ("spoil", "code", "words"),
    [
        (break_context, 2, ["context of 1000 is too small", "which needs 1280", "set 'context: 1280'"]),
        (open_secret, 2, ["others may read the seal"]),
        (swap_secret, 1, ["is not what was committed to"]),
        (lose_secret, 4, ["cannot be read"]),
        (crash_at_load, 2, ["load_ms"]),
    ],
)
def test_what_can_fail_fails_before(repository, spoil, code, words):
    """The seal is whole after a final that cannot be, and the ledger says nothing of one."""
    spoil(repository)
    tip = git(repository, "rev-parse", LEDGER)
    ran = final(repository, "stock@far.yaml", "one")

    assert ran.code == code, ran.err
    assert all(word in ran.err for word in words), ran.err
    assert "Traceback" not in ran.err
    assert git(repository, "rev-parse", LEDGER) == tip
    assert not (repository / ".git/spt/seal/one.used").exists()


def test_seals_are_listed(measured, tmp_path):
    """Each seal with its commitment, what drew by it and its verdict; nothing of a secret that is not revealed."""
    folder, *_ = measured
    ledger = Ledger.find(folder)
    listed = spt("seal", "--list", cwd=folder)
    one, two = spt("seal", "--list", "--json", cwd=folder).json

    assert (one["name"], two["name"], two["drawn"], two["revealed"]) == ("one", "two", None, None)
    assert one["commitment"][:12] in listed.out
    assert one["drawn"]["a"]["tree"][:12] in listed.out
    assert one["revealed"]["key"][:12] in listed.out
    assert json.loads(seal_named(ledger, "two").file(ledger).read_text())["salt"] not in listed.out
    git(tmp_path, "init", "-q", "empty")
    assert "no seal here yet" in spt("seal", "--list", cwd=tmp_path / "empty").err


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["final", "stock@far.yaml"], 2, "drawn by a seal"),
        (["seal"], 2, "a seal has a name"),
        (["seal", "one", "--list"], 2, "not 'one'"),
        (["final", "stock@far.yaml", "--seal", "nine"], 4, "no seal is called 'nine'"),
        (["final", "nobody", "--seal", "one"], 4, "'nobody'"),
        (["final", "stock@far.yaml", "--seal", "one", "--again", " "], 2, "--again ' ' gives no reason"),
        (["job", "make", "final", "-o", "last"], 2, "drawn by its seal"),
        (["job", "make", "time", "-o", "last", "--seal", "one"], 2, "'time' has no seal"),
    ],
)
def test_wrong_words(repository, words, code, said):
    """A mistake is one line, and leaves nothing behind."""
    before = snapshot(repository)

    assert errors_well(spt(*words, cwd=repository), code, said)
    assert snapshot(repository) == before


# --- another machine ---


def test_a_final_is_measured_elsewhere(pristine, tmp_path):
    """Its requests go into the tar, private, once the seal is spent; samples come back, whole and of this final."""
    folder = copied(pristine, tmp_path / "here")
    make = ("job", "make", "final", "stock@own.yaml", "--smoke", "-o", "last", "--seal")
    assert spt(*make, "one", cwd=folder).code == 0
    assert seal_named(Ledger.find(folder), "one").drawn is not None
    assert spt("job", "pack", "last", "-o", tmp_path / "last.tar", cwd=folder).code == 0
    there = tmp_path / "there"
    there.mkdir()
    assert spt("job", "unpack", tmp_path / "last.tar", there / "last", cwd=there).code == 0
    assert (there / "last" / "requests.jsonl").stat().st_mode & 0o777 == 0o600
    words = ["final", "--job", there / "last/job.json", "--out", there / "last/out", *SANDBOX]
    with start(there, *words, module="harness") as child:
        said, errors = child.communicate()
    assert json.loads(said)["answer"] == "smoke", errors
    spt("job", "pack", there / "last", "--samples", "-o", tmp_path / "back.tar", cwd=there)
    assert spt("job", "unpack", tmp_path / "back.tar", "last", cwd=folder).code == 0
    samples = folder / "last/out/samples.jsonl"
    whole = samples.read_text().splitlines(keepends=True)
    add = ("verdict", "add", samples, "--what", "final")

    samples.write_text("".join(whole[: len(whole) // 2]))
    assert errors_well(spt(*add, cwd=folder), 1, "the final is not finished")
    samples.write_text(whole[0].replace(json.loads(whole[0])["requests"], "0" * 64) + "".join(whole[1:]))
    assert errors_well(spt(*add, cwd=folder), 2, "not of the final that the seal 'one' drew")
    samples.write_text("".join(whole))
    other = copied(pristine, tmp_path / "other")
    assert errors_well(spt(*add, cwd=other), 2, "not of the final that the seal 'one' drew")
    added = spt(*add, cwd=folder)
    assert added.out.startswith("smoke: "), added.err
    assert seal_named(Ledger.find(folder), "one").revealed is not None
    assert spt(*add, cwd=folder).out == added.out
    assert errors_well(spt(*make, "one", cwd=folder), 2, "cannot be a new folder")
    shutil.rmtree(folder / "last")
    assert errors_well(spt(*make, "one", cwd=folder), 2, "has its verdict")
    verdict = only_final(folder).verdict
    with pytest.raises(Missing, match="no seal here"):
        reveal(Ledger.find(folder), {**verdict, "of": {**verdict["of"], "seal": "0" * 64}})
    with pytest.raises(Usage, match="not of the final"):
        reveal(Ledger.find(folder), {**verdict, "of": {**verdict["of"], "a": verdict["stock"]}})

"""The ledger of verdicts: nothing seen is unseen, a key has one verdict, and a speedup needs forcing's word."""

import copy
import gzip
import json
import random
import threading

import pytest

from spt.errors import Differs, Missing, Usage
from spt.ratio import RawRatio, Speedup, figure_of
from spt.verdicts import LEDGER, Ledger, read_samples
from tests.harness.campaigns import write
from tests.spt.judged import forcing, made_up_samples, make_deployment
from tests.spt.toys import errors_well, git, snapshot, spt


@pytest.fixture(scope="module")
def judged(tmp_path_factory):
    """A repository in which stock@fast.yaml is said to be 5 % faster than stock; nobody writes to it."""
    folder = make_deployment(tmp_path_factory.mktemp("judged"))
    samples = made_up_samples(folder, folder.parent / "samples.jsonl", 0.05)
    ran = spt("verdict", "add", samples, cwd=folder)
    assert ran.code == 0, ran.err
    return folder


@pytest.fixture
def repository(judged, tmp_path):
    """A copy of it, to write to."""
    git(tmp_path, "clone", "-q", "--mirror", judged / ".git", "copy/.git")
    folder = tmp_path / "copy"
    git(folder, "config", "core.bare", "false")
    return folder


def only(ledger, what="timing"):
    [held] = [held for held in ledger.all() if held.what == what]
    return held.verdict


def test_the_same_key_gets_its_old_verdict(judged):
    """What was promoted is promoted again without a campaign, with the same samples."""
    before = snapshot(judged)
    told = spt("time", "stock@fast.yaml", "--requests", "many.jsonl", cwd=judged)
    again = spt("time", "stock@fast.yaml", "--json", cwd=judged)

    assert (told.code, again.code) == (0, 0)
    assert told.err == ""
    assert again.json["key"] == only(Ledger.find(judged))["key"]
    assert not (judged / ".git/spt/campaigns").exists()
    assert snapshot(judged) == before


def test_the_block_says_what_the_verdict_holds(judged):
    """Answer, reason, gain, interval, noise, threshold, the published rule, and where it was measured."""
    told = spt("time", "stock@fast.yaml", cwd=judged).out
    verdict = only(Ledger.find(judged))

    for words in (
        f"promote: {verdict['reason']}",
        f"raw ratio {1 + verdict['gain']:.2f}: gain {verdict['gain']:+.2%}",
        f"noise {verdict['noise']:.2%}",
        f"threshold {verdict['threshold']:.2%}",
        "published rule, one bound at 95 %: promote",
        f"between requests {verdict['between'][0]:+.2%} to",
        f"gain without divergence {verdict['gain_same']:+.2%}",
        f"units 10, look 1, voids 0, tokens {verdict['tokens']}",
        f"key {verdict['key'][:12]}",
        "sandbox made up",
    ):
        assert words in told
    assert "speedup" not in told


def test_a_closed_key_keeps_its_verdict(repository):
    """Another verdict on the same key changes nothing, and the old one is returned."""
    ledger = Ledger.find(repository)
    old, tip = only(ledger), git(repository, "rev-parse", LEDGER)
    other = {**old, "answer": "decline", "reason": "another time"}

    assert ledger.add(other) == old
    assert git(repository, "rev-parse", LEDGER) == tip


def test_an_open_answer_is_measured_again(repository):
    """A refusal says nothing of the candidate: the next verdict takes its place, and history keeps both."""
    ledger = Ledger.find(repository)
    old = only(ledger)
    refused = forcing(old, "smoke")
    ledger.add(refused)
    ledger.add_look("forcing", refused["key"], {"phase": "force", "look": 1, "units": 7, "date": "now"})
    assert ledger.held("forcing", refused["key"]).verdict is None
    ledger.add(forcing(old, "reject"))

    assert only(Ledger.find(repository), "forcing")["answer"] == "reject"
    assert len(Ledger.find(repository).held("forcing", refused["key"]).looks) == 1
    subjects = git(repository, "log", "--format=%s", LEDGER).splitlines()
    assert subjects == ["forcing: reject", "forcing: look 1 at force", "forcing: smoke", "timing: promote"]


def test_a_look_is_kept_once(repository):
    """Looks are appended in their order; the same one again is no commit, and none comes after a verdict."""
    ledger, key = Ledger.find(repository), "5" * 64
    looks = [{"phase": "confirm", "look": number, "units": 10 * number, "date": "now"} for number in (1, 2)]
    for look in (*looks, looks[0]):
        ledger.add_look("timing", key, look)

    assert list(Ledger.find(repository).held("timing", key).looks) == looks
    assert len(git(repository, "rev-list", LEDGER).splitlines()) == 3
    with pytest.raises(Usage, match="has its verdict"):
        ledger.add_look("timing", only_key(ledger), looks[0])


def only_key(ledger):
    return next(held.key for held in ledger.all() if held.verdict is not None)


def test_writers_beside_one_another_lose_nothing(repository):
    """Each of several writers appends on what the others wrote."""
    threads = [
        threading.Thread(
            target=Ledger.find(repository).add_look,
            args=("timing", f"{number:064x}", {"phase": "screen", "look": 1, "units": 5, "date": "now"}),
        )
        for number in range(5)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(Ledger.find(repository).all()) == 6
    assert len(git(repository, "rev-list", LEDGER).splitlines()) == 6
    git(repository, "fsck", "--strict")


def test_a_ledger_that_was_edited_is_refused(repository):
    """A verdict under another key than that of what it is of is an error, not an answer."""
    held = only(Ledger.find(repository))
    record = {"v": 1, "kind": "ledger", "what": "timing", "key": "6" * 64, "looks": [], "verdict": held}
    blob = git(repository, "hash-object", "-w", "--stdin", stdin=json.dumps(record).encode())
    inner = git(repository, "mktree", stdin=f"100644 blob {blob}\t{'6' * 64}.json\n".encode())
    tree = git(repository, "mktree", stdin=f"040000 tree {inner}\ttiming\n".encode())
    git(repository, "update-ref", LEDGER, git(repository, "commit-tree", tree, "-m", "x"))

    with pytest.raises(Usage, match="of another key"):
        Ledger.find(repository).held("timing", "6" * 64)


# Types.


def test_no_speedup_without_forcing(repository):
    """A gain is a raw ratio, and nothing makes a speedup of it, until forcing accepted that very system."""
    ledger = Ledger.find(repository)
    timing = only(ledger)
    assert isinstance(figure_of(ledger, timing), RawRatio)
    with pytest.raises(Differs, match="raw ratio"):
        Speedup(ledger, timing)

    for other in (None, "4" * 64):  # the system, but not what was timed
        ledger.add(forcing(timing, timed=other))
        assert isinstance(figure_of(ledger, timing), RawRatio)
        with pytest.raises(Differs, match="accepts the tokens that were timed") as found:
            Speedup(ledger, timing)
        assert found.value.hint == "`spt force A B` forces the tokens that were timed"
    ledger.add(forcing(timing))
    speedup = figure_of(Ledger.find(repository), timing)
    assert isinstance(speedup, Speedup)
    assert str(speedup) == f"speedup {1 + timing['gain']:.3f}"
    assert speedup.forcing == forcing(timing)["key"]
    shown = spt("verdict", "show", timing["key"][:9], cwd=repository)
    assert f"{speedup}: gain" in shown.out and "raw ratio" not in shown.out


OTHER = {"tree": "9" * 40, "options": {}}


@pytest.mark.parametrize("answer", ["reject", "malformed"])
@pytest.mark.parametrize("of", [{"timed": None}, {"b": OTHER}, {"harness": "0.0.1", "timed": "4" * 64}])
def test_what_was_rejected_once_is_no_speedup(repository, answer, of):
    """A rejection of the system on this deployment and card counts, before or after, with whatever it was paired."""
    ledger = Ledger.find(repository)
    timing = only(ledger)
    ledger.add(forcing(timing))
    assert isinstance(figure_of(ledger, timing), Speedup)
    rejected = forcing(timing, answer, **of)
    ledger.add(rejected)

    assert isinstance(figure_of(Ledger.find(repository), timing), RawRatio)
    with pytest.raises(Differs, match="forcing rejected this system") as found:
        Speedup(ledger, timing)
    assert rejected["key"][:12] in found.value.hint
    shown = spt("verdict", "show", rejected["key"][:12], cwd=repository).out
    assert ("none of the tokens that were timed" in shown) == ("timed" not in rejected["of"])


def test_another_systems_rejection_is_its_own(repository):
    """Neither another system's, another deployment's nor another stock's rejection is held against this one."""
    ledger = Ledger.find(repository)
    timing = only(ledger)
    ledger.add(forcing(timing))
    for of in ({"a": OTHER}, {"deployment": "8" * 64}, {"card": {**timing["of"]["card"], "gpu": "other"}}):
        ledger.add(forcing(timing, "reject", **of))
    ledger.add({**forcing(timing, "reject", timed=None), "stock": OTHER})

    assert isinstance(figure_of(Ledger.find(repository), timing), Speedup)


@pytest.mark.parametrize(
    ("verdicts", "told"),
    [
        ([], None),
        ([("accept", {})], 0),
        ([("accept", {"timed": None})], 0),
        ([("accept", {"timed": None, "date": "2099"}), ("smoke", {})], 1),
        ([("accept", {"timed": None}), ("undecided", {"timed": "4" * 64, "date": "2099"})], 1),
        ([("accept", {}), ("reject", {"timed": None})], 1),
        ([("accept", {"a": OTHER})], None),
    ],
)
def test_what_forcing_says_of_a_timed_system(repository, verdicts, told):
    """What passes, else what rejects, else what is of the timed tokens, else the newest; another system's says none."""
    ledger = Ledger.find(repository)
    timing, added = only(ledger), []
    for answer, changes in verdicts:
        date = {"date": changes.pop("date")} if "date" in changes else {}
        added.append(ledger.add({**forcing(timing, answer, **changes), **date}))

    assert ledger.forcing(timing) == (None if told is None else added[told])


def test_verdicts_of_before_are_read(repository):
    """A forcing verdict that says nothing of timed tokens stands, is shown, and makes no speedup."""
    ledger = Ledger.find(repository)
    timing = only(ledger)
    old = {name: value for name, value in forcing(timing, timed=None).items()
           if name not in ("timed", "timed_tok", "compared_tok")}  # fmt: skip
    ledger.add(old)

    assert only(Ledger.find(repository), "forcing") == old
    assert isinstance(figure_of(ledger, timing), RawRatio)
    assert "none of the tokens that were timed" in spt("verdict", "show", old["key"][:12], cwd=repository).out


@pytest.mark.parametrize(
    ("answer", "of", "stock"),
    [
        ("reject", {}, None),
        ("undecided", {}, None),
        ("smoke", {}, None),
        ("accept", {"a": OTHER}, None),
        ("accept", {"deployment": "8" * 64}, None),
        ("accept", {"harness": "9.9"}, None),
        ("accept", {}, OTHER),
    ],
)
def test_the_wrong_forcing_makes_no_speedup(repository, answer, of, stock):
    """Forcing that rejected, or that is of another system, deployment, harness or stock, is no word for this one."""
    ledger = Ledger.find(repository)
    timing = only(ledger)
    verdict = forcing(timing, answer, **of)
    ledger.add({**verdict, "stock": stock} if stock else verdict)

    assert isinstance(figure_of(Ledger.find(repository), timing), RawRatio)
    assert "speedup" not in spt("verdict", "list", cwd=repository).out


def test_a_verdict_that_nobody_recorded_has_no_speedup(repository):
    """Figures that were changed, or are not in the ledger, stay raw whatever forcing said of the system."""
    ledger = Ledger.find(repository)
    timing = only(ledger)
    ledger.add(forcing(timing))
    better = copy.deepcopy(timing) | {"gain": 3.0}

    assert isinstance(figure_of(ledger, better), RawRatio)
    with pytest.raises(Differs, match="not in the ledger"):
        Speedup(ledger, better)
    with pytest.raises(AttributeError):
        Speedup(ledger, timing).value = 9.0


# Commands.


def test_list_and_show(judged):
    """The ledger is read by people and by programs."""
    verdict = only(Ledger.find(judged))
    listed = spt("verdict", "list", cwd=judged)
    assert verdict["key"][:12] in listed.out and "promote" in listed.out
    assert spt("verdict", "list", "--json", cwd=judged).json[0]["verdict"] == verdict
    assert spt("verdict", "show", verdict["key"][:12], "--json", cwd=judged).json[0]["key"] == verdict["key"]
    assert errors_well(spt("verdict", "show", "zz", cwd=judged), 4, "'zz'")


def test_samples_of_something_else_are_refused(judged, tmp_path):
    """Samples of another deployment, damaged ones and none at all leave the ledger as it is."""
    lines = [json.loads(line) for line in (judged.parent / "samples.jsonl").read_text().splitlines()]
    lines[0]["deployment"] = "7" * 64
    other = write(tmp_path / "other.jsonl", lines)
    (tmp_path / "bad.jsonl").write_text("{}\n")
    before = snapshot(judged)

    assert errors_well(spt("verdict", "add", other, cwd=judged), 2, "another deployment")
    assert errors_well(spt("verdict", "add", tmp_path / "bad.jsonl", cwd=judged), 2, "'type'")
    assert errors_well(spt("verdict", "add", tmp_path / "none.jsonl", cwd=judged), 4, "none.jsonl")
    ran = spt("verdict", "add", other, "--reference", other, cwd=judged)
    assert errors_well(ran, 2, "--reference is for forcing, not for timing")
    assert snapshot(judged) == before


def test_samples_that_are_not_whole(tmp_path):
    """Whatever is wrong with a file of samples is said of the file: where it ends, in its midst, or in its kind."""
    whole = gzip.compress(random.Random(7).randbytes(4000))
    middle = bytearray(whole)
    middle[40:60] = bytes(20)
    spoilt = {"cut": whole[:-400], "bent": whole[:10] + b"\xff" * 400, "plain": b"{}\n", "middle": bytes(middle)}
    for name, data in spoilt.items():
        (tmp_path / f"{name}.jsonl.gz").write_bytes(data)
        with pytest.raises(Usage, match=rf"{name}\.jsonl\.gz' are not whole"):
            read_samples(tmp_path / f"{name}.jsonl.gz")
    with pytest.raises(Missing, match="cannot be read: Is a directory"):
        read_samples(tmp_path)
    with pytest.raises(Missing, match="no samples at"):
        read_samples(tmp_path / "absent")


def test_nothing_was_judged(pristine):
    """An empty ledger is said, with what fills it; as JSON it is a list without elements."""
    listed = spt("verdict", "list", cwd=pristine)

    assert (listed.code, listed.out) == (0, "")
    assert "nothing was judged here yet" in listed.err
    assert spt("verdict", "list", "--json", cwd=pristine).json == []


def test_outside_a_repository(tmp_path):
    """Verdicts need a place to be kept, and the error says which."""
    for arguments in (["time", "stock"], ["force", "stock"], ["verdict", "list"]):
        assert errors_well(spt(*arguments, cwd=tmp_path), 2, "kept in a git repository", "`spt init DIR`")

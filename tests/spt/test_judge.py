"""`spt time` and `spt force`, as their user runs them: real processes, real harness, the fake engine."""

import errno
import gzip
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from spt.verdicts import Ledger
from tests.harness.enclosures import works
from tests.spt.judged import FAST, harness, made_up_samples, make_deployment
from tests.spt.toys import commit_files, errors_well, git, snapshot, spt

ROOT = Path(__file__).parents[2]
SANDBOX = [] if works() else ["--no-sandbox"]  # a kernel may refuse namespaces, and the toys are trusted


@pytest.fixture(scope="module")
def pristine_judged(tmp_path_factory):
    return make_deployment(tmp_path_factory.mktemp("toy"))


@pytest.fixture
def repository(pristine_judged, tmp_path):
    """A deployment repository of the toy, to write to; its model stays where it is."""
    folder = tmp_path / "deployment"
    subprocess.run(["cp", "-r", pristine_judged, folder], check=True)
    value = json.loads((folder / "deployment.yaml").read_text())
    value["target"]["path"] = str(pristine_judged.parent / "model")
    (folder / "deployment.yaml").write_text(json.dumps(value))
    return folder


def start(folder, *arguments):
    names = ("PATH", "SPT_LOCKS")
    environment = {name: os.environ[name] for name in names} | {"PYTHONPATH": str(ROOT), "LC_ALL": "C.UTF-8"}
    command = [sys.executable, "-P", "-s", "-m", "spt", *arguments]
    return subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def held(folder):
    return {(one.what, one.key): one for one in Ledger.find(folder).all()}


def samples_of(folder, verdict):
    data = gzip.decompress(Ledger.find(folder).raw(verdict["samples"]).read_bytes())
    return [json.loads(line) for line in data.splitlines()]


def test_a_campaign_survives_kills_and_ends_in_the_ledger(repository):
    """Stopped by the clock, then by kill -9, the same command goes on in the same folder with the same seed."""
    words = ["time", "stock@fast.yaml", "stock@fast.yaml", *SANDBOX, "--requests", "many.jsonl"]
    stopped = spt(*words, "--max-minutes", "0", "--seed", "7", cwd=repository)
    assert stopped.code == 1
    assert "error: the time is up" in stopped.err and "hint: the same command goes on" in stopped.err
    [folder] = (repository / ".git/spt/campaigns").iterdir()
    assert len(folder.name) == 12
    assert json.loads((folder / "job.json").read_text())["seed"] == 7
    assert errors_well(spt(*words, "--seed", "8", cwd=repository), 2, "began with the seed 7")
    other = [*words[:-1], "few.jsonl"]
    assert errors_well(spt(*other, cwd=repository), 2, "began with other requests")

    with start(repository, *words) as child:
        assert "are the same system: what is measured is noise" in child.stderr.readline()
        assert child.stderr.readline().startswith("calibrate: 1 of 8, A/A ")
        child.send_signal(signal.SIGKILL)
        child.communicate()
    assert held(repository) == {}
    ended = until_unlocked(repository, *words)

    assert ended.code == 1
    [one] = held(repository).values()
    verdict = one.verdict
    assert (verdict["what"], verdict["units"] > 0) == ("timing", True)
    assert ended.out.startswith(f"{verdict['answer']}: {verdict['reason']}\n")
    assert "speedup" not in ended.out
    lines = samples_of(repository, verdict)
    assert [line["seed"] for line in lines if line["type"] == "campaign"] == [7]
    assert sum(line["type"] == "card" for line in lines) == 3
    assert list((repository / ".git/spt/campaigns").iterdir()) == []
    git(repository, "fsck", "--strict")


def until_unlocked(folder, *words):
    """The command once the harness of a killed one has seen that nobody listens."""
    deadline = time.monotonic() + 20
    while True:
        ran = spt(*words, cwd=folder)
        if "another judge" not in ran.err or time.monotonic() > deadline:
            return ran
        time.sleep(0.1)


def test_a_campaign_in_which_nothing_was_asked_begins_anew(repository):
    """Requests that cannot be asked, or are too few for a verdict, are mended by others; once one counts they stay."""
    (repository / "none.jsonl").write_text("")
    (repository / "bad.jsonl").write_text("{}\n")
    words = ["time", "stock@fast.yaml", "--no-sandbox", "--max-minutes", "0", "--requests"]
    assert errors_well(spt(*words, "none.jsonl", cwd=repository), 2, "are empty")
    assert errors_well(spt(*words, "bad.jsonl", cwd=repository), 2, "bad.jsonl:1")
    few = spt(*words, "few.jsonl", cwd=repository)
    assert errors_well(few, 2, "holds 12 prompts that differ, and a campaign may need 1848", "let them be generated")
    assert "the time is up" in spt(*words, "many.jsonl", cwd=repository).err

    assert errors_well(spt(*words, "few.jsonl", cwd=repository), 2, "began with other requests")
    [folder] = (repository / ".git/spt/campaigns").iterdir()
    assert (folder / "requests.jsonl").read_bytes() == (repository / "many.jsonl").read_bytes()


def test_looks_count_whatever_came_of_them(repository):
    """A pair that was looked at, and whose samples are gone, is not measured as if nobody had looked."""
    words = ["time", "stock@fast.yaml", "--requests", "many.jsonl", "--no-sandbox"]
    spt(*words, "--max-minutes", "0", cwd=repository)
    [folder] = (repository / ".git/spt/campaigns").iterdir()
    job = json.loads((folder / "job.json").read_text())
    of = json.loads(
        subprocess.run(
            [sys.executable, "-P", "-s", "-m", "harness", "key", "--job", folder / "job.json"],
            env={"PYTHONPATH": str(ROOT)},
            capture_output=True,
            check=True,
        ).stdout
    )
    look = {"phase": "screen", "look": 1, "units": 5, "date": "now"}
    Ledger.find(repository).add_look("timing", of["key"], look)
    assert spt(*words, "--max-minutes", "0", cwd=repository).code == 1  # the samples are there: it would go on
    (folder / "out" / "samples.jsonl").rename(repository / "kept.jsonl")

    assert job["deployment_digest"] == of["of"]["deployment"]
    assert errors_well(spt(*words, cwd=repository), 4, "was looked at before")


def test_forcing_calibrates_once_and_shows_what_it_found(repository):
    """A system that says other tokens is rejected, its events in words; few tokens of stock itself are smoke."""
    far = spt("force", "stock@far.yaml", "--requests", "few.jsonl", *SANDBOX, cwd=repository)
    assert far.code == 1
    assert far.out.startswith("reject: ")
    assert "unexplained: request 'r" in far.out and ", stock [" in far.out
    assert "position" in far.out and "not covered: " in far.out
    calibrations = list((repository / ".git/spt/calibrations").iterdir())
    assert len(calibrations) == 1
    assert "scores of stock, head model" in far.err

    own = spt("force", "stock@fast.yaml", "--requests", "few.jsonl", *SANDBOX, cwd=repository)
    assert own.code == 1
    assert own.out.startswith("smoke: ")
    assert "this accepts nothing" in own.out
    assert "head model" not in own.err  # stock was calibrated before
    again = spt("force", "stock@far.yaml", "--json", *SANDBOX, cwd=repository)
    assert (again.code, again.err, again.json["answer"]) == (1, "", "reject")
    assert {one.verdict["answer"] for one in held(repository).values()} == {"reject", "smoke"}
    audit = again.json["audit"]
    assert audit and all(event["given_text"].isprintable() and event["before"].isprintable() for event in audit)
    looks = [one.looks for one in held(repository).values()]
    assert all(look[0]["phase"] == "force" for look in looks)


def test_forcing_takes_what_was_timed(repository, tmp_path):
    """Once a timing is confirmed here, its tokens are forced first, under a key of their own; without it none are."""
    words = ["force", "stock@fast.yaml", "--requests", "few.jsonl", *SANDBOX]
    plain = spt(*words, cwd=repository)
    assert plain.out.startswith("smoke: ") and "forced: none of the tokens that were timed" in plain.out
    samples = made_up_samples(repository, tmp_path / "samples.jsonl", 0.05)
    assert "promote" in spt("verdict", "add", samples, cwd=repository).out
    ledger = Ledger.find(repository)
    timing = next(one.verdict for one in ledger.all() if one.what == "timing")

    ran = spt(*words, cwd=repository)
    assert ran.code == 1, ran.err
    assert f"forced: the 480 tokens that were timed, samples {timing['samples'][:12]}" in ran.out
    assert "timed" in ran.out and ran.out.startswith("reject: ")  # nobody said these made-up tokens
    verdicts = {one.verdict["timed"]: one.verdict for one in Ledger.find(repository).all() if one.what == "forcing"}
    assert set(verdicts) == {None, timing["samples"]}
    assert "raw ratio" in spt("verdict", "show", timing["key"], cwd=repository).out
    again = spt(*words, "--json", cwd=repository)
    assert (again.err, again.json) == ("", verdicts[timing["samples"]])
    said = [line for line in samples_of(repository, again.json) if line["type"] == "answer"]
    assert [line["phase"] for line in said[:120]] == ["confirm"] * 120
    against = spt("force", "stock@fast.yaml", "stock@seed.yaml", *words[2:], cwd=repository)
    assert "none of the tokens that were timed" in against.out  # of another pair


def test_a_job_of_forcing_brings_what_was_timed(repository, tmp_path):
    """`spt job make force --timed` puts the samples beside the job; they are for forcing alone."""
    samples = made_up_samples(repository, tmp_path / "samples.jsonl", 0.05)
    words = ["stock@fast.yaml", "-o", "job", "--requests", "few.jsonl", "--timed", samples]
    assert errors_well(spt("job", "make", "time", *words, cwd=repository), 2, "--timed is for force")
    missing = [*words[:-1], "none.jsonl"]
    assert errors_well(spt("job", "make", "force", *missing, cwd=repository), 4, "none.jsonl")
    assert not (repository / "job").exists()
    assert spt("job", "make", "force", *words, cwd=repository).code == 0

    assert (repository / "job/timed.jsonl").read_bytes() == samples.read_bytes()
    key = harness("key", "--job", repository / "job/job.json", "--timed", repository / "job/timed.jsonl")
    assert key["of"]["timed"] == hashlib.sha256(samples.read_bytes()).hexdigest()


def test_a_calibration_has_both_kinds_of_requests(repository):
    """Stock is asked sessions and single requests, of all families, with about as many tokens each."""
    value = json.loads((repository / "deployment.yaml").read_text()) | {
        "requests": {"generator": "default", "families": ["lists", "letters"]}
    }
    (repository / "deployment.yaml").write_text(json.dumps(value))
    assert spt("job", "make", "calibrate", "-o", "job", "--seed", "3", cwd=repository).code == 0
    rows = [json.loads(line) for line in (repository / "job/requests.jsonl").read_text().splitlines()]
    kinds = {kind: [row for row in rows if row["kind"] == kind] for kind in ("session", "request")}

    assert sorted(path.name for path in (repository / "job").iterdir() if path.is_file()) == [
        "job.json", "requests.jsonl"
    ]  # fmt: skip
    assert len({row["id"] for row in rows}) == len(rows)
    assert {row["category"] for row in kinds["request"]} == {"lists", "letters"}
    said_tok = [0.4 * 512 * len(kinds["session"]), 100 * len(kinds["request"])]
    assert said_tok == pytest.approx([60_000, 60_000], rel=0.02)


def test_generated_requests_are_unseen_sessions(repository):
    """Without a file the harness generates what is asked: single requests to time, sessions to force."""
    value = json.loads((repository / "deployment.yaml").read_text()) | {
        "requests": {"generator": "default", "families": ["lists", "letters"]}
    }
    (repository / "deployment.yaml").write_text(json.dumps(value))
    rows = {}
    for command in ("time", "force"):
        made = spt("job", "make", command, "stock@fast.yaml", "-o", command, "--seed", "3", cwd=repository)
        assert made.code == 0, made.err
        rows[command] = [
            json.loads(line) for line in (repository / command / "requests.jsonl").read_text().splitlines()
        ]
    units = json.loads((repository / "force" / "job.json").read_text())["units"]

    assert len(rows["time"]) >= 1.5 * 33 * 56
    assert {row["kind"] for row in rows["time"]} == {"request"}
    assert {row["category"] for row in rows["time"]} == {"lists", "letters"}
    assert {row["kind"] for row in rows["force"]} == {"session"}
    assert (len(rows["force"]), units >= 100) == (2 * units, True)
    assert all(row["context_tok"] <= 512 for row in rows["force"])
    both = spt("job", "make", "time", "stock@fast.yaml", "-o", "two", "--devices", "cuda:0,cuda:1", cwd=repository)
    assert both.code == 0
    assert len((repository / "two" / "requests.jsonl").read_text().splitlines()) == 2 * len(rows["time"])
    assert json.loads((repository / "two" / "job.json").read_text())["deployment"]["device"] == "cuda:0"


def test_bad_requests_name_the_users_file(repository):
    """A campaign asks a copy; what is wrong with it is said of the file that the user can mend."""
    (repository / "bad.jsonl").write_text('{"id": "a", "prompt": "x"}\n')
    ran = spt("time", "stock@fast.yaml", "--requests", "bad.jsonl", *SANDBOX, cwd=repository)

    assert errors_well(ran, 2, "bad.jsonl:1: the request has an unknown key 'prompt'", '"turns"')
    assert "campaigns" not in ran.err


def test_a_job_appears_whole(repository, monkeypatch):
    """A disk that is full in the midst of a job leaves no half of one, so that the same command makes it later."""
    with monkeypatch.context() as patch:
        patch.setattr("spt.campaign.export_arms", full_disk)
        ran = spt("job", "make", "time", "stock@fast.yaml", "-o", "new", "--requests", "few.jsonl", cwd=repository)
        assert errors_well(ran, 5, "no space left on device")
    assert not [path for path in repository.iterdir() if "new" in path.name]
    ran = spt("job", "make", "time", "stock@fast.yaml", "-o", "new", "--requests", "few.jsonl", cwd=repository)
    assert (ran.code, (repository / "new/job.json").is_file()) == (0, True)


def full_disk(arms, folder):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_options_at_their_default_are_the_same_system(repository):
    """Nobody gets a second verdict by writing a default out."""
    (repository / "same.yaml").write_text(json.dumps(FAST | {"tau": "1"}))
    trees = []
    for name in ("fast", "same"):
        spt("job", "make", "time", f"stock@{name}.yaml", "-o", name, "--requests", "few.jsonl", cwd=repository)
        trees.append(json.loads((repository / name / "job.json").read_text())["arms"]["a"])

    assert trees[0]["options"] == trees[1]["options"] == {"step_ms": 0.0, "prefill_ms": 0.0, "stop_rate": 0.0}


def test_without_a_sandbox_only_trusted_code_is_judged(repository):
    """What is on main, in stock or in an entry runs, and its card says how; the first foreign path stops the rest."""
    git(repository, "switch", "-q", "-c", "foreign")
    commit_files(repository, {"stock/engine.py": "import os\n", "kernels/zz.py": "x = 1\n"})
    git(repository, "switch", "-q", "main")
    before = snapshot(repository)
    for command in ("time", "force"):
        ran = spt(command, "rev:foreign", "--no-sandbox", "--requests", "few.jsonl", cwd=repository)
        assert errors_well(ran, 2, "'kernels/zz.py' of 'rev:foreign'", "leave out --no-sandbox")
    assert snapshot(repository) == before
    assert not (repository / ".git/spt/campaigns").exists()

    words = ["--no-sandbox", "--requests", "many.jsonl", "--max-minutes", "0"]
    assert "the time is up" in spt("time", "tuned", *words, cwd=repository).err
    [samples] = (repository / ".git/spt/campaigns").glob("*/out/samples.jsonl")
    assert json.loads(samples.read_text().splitlines()[1])["card"]["sandbox"] == "unsandboxed"
    git(repository, "merge", "-q", "foreign")
    assert "the time is up" in spt("time", "rev:foreign", *words, cwd=repository).err


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["time", "nobody"], 4, "'nobody'"),
        (["time", "stock", "--devices", "tpu"], 2, "'tpu'"),
        (["time", "stock", "--devices", "cpu,cuda:0,cuda:1"], 2, "are 3"),
        (["force", "stock", "--devices", "cuda:0,cuda:1"], 2, "at most 1"),
        (["time", "stock", "--deployment", "none.yaml"], 4, "none.yaml"),
        (["time", "stock", "--requests", "none.jsonl"], 4, "none.jsonl"),
        (["time", "stock", "--devices", ""], 2, "''"),
        (["time", "stock", "--devices", "cuda,cuda:0"], 2, "names one device twice"),
        (["time", "stock", "--max-minutes", "-1"], 2, "--max-minutes"),
        (["time", "stock", "--max-minutes", "nan"], 2, "--max-minutes nan"),
        (["force", "stock", "--max-minutes", "inf"], 2, "--max-minutes inf"),
        (["time", "stock@none.yaml"], 2, "none.yaml"),
    ],
)
def test_wrong_words(repository, words, code, said):
    """A mistake is one line, and leaves nothing behind."""
    before = snapshot(repository)

    assert errors_well(spt(*words, cwd=repository), code, said)
    assert snapshot(repository) == before
    assert not list((repository / ".git/spt").glob("campaigns/*"))


def test_an_engine_of_stock_must_be_in_the_tree(repository):
    """A system without an engine is refused before anything is measured."""
    git(repository, "switch", "-q", "-c", "bare")
    commit_files(repository, {"stock/worker.py": None})
    value = json.loads((repository / "deployment.yaml").read_text())
    del value["engine"]
    (repository / "deployment.yaml").write_text(json.dumps(value))

    assert errors_well(spt("time", "rev:bare", cwd=repository), 4, "has no 'stock/worker.py'")

"""harness/timed.py and `force --timed`: what is forced first is what was timed, token for token."""

import json
import random
import shutil

import pytest

from harness.campaign import time_arms
from harness.errors import Usage
from harness.forced import first_look
from harness.forcing import Limits
from harness.samples import read
from harness.scoring import calibrate, force
from harness.verdict import verdict
from harness.wire import Hello, Option
from tests.fakes import engine as fake
from tests.fakes import metronome
from tests.harness.schemas import validator
from tests.harness.test_scoring import FAST, STOCK, make_job

QUICK = {**FAST, "prefill_ms": 4}  # here: 4 % faster
LIMITS = Limits(sessions=20, tokens=3000, bucket_tokens=1000, reference_tokens=9000)


class Speaker(metronome.Metronome):
    """The metronome with the scripted engine's language: times are virtual, tokens are what that engine would say."""

    def start(self, command, folder, cache=None, enclosure=None):
        arm = super().start(command, folder, cache, enclosure)
        arm.__class__ = Speaking
        kinds = {int: "int", float: "float", str: "string"}
        own = {
            name: Option(kinds[type(default)], default, "fake", "") for name, (default, _, _) in fake.OPTIONS.items()
        }
        arm.hello = Hello("speaker", "1", own)
        return arm


class Speaking(metronome.Arm):
    def load(self, settings, patience_s):
        ready = super().load(settings, patience_s)
        self.options["speed"] = 1 + settings.options.get("prefill_ms", 0) / 100
        self.wrong = settings.options.get("mismatch", 0)
        ready.__dict__["context"] = settings.context
        return ready

    def generate(self, request):
        answer, dice, ids = super().generate(request), random.Random(f"{request.id} {self.wrong}"), []
        for _ in range(request.max_tokens):
            best, second, *_ = fake.facts(request.prompt + ids)
            ids.append(second if dice.random() < self.wrong else best)
        answer.ids = ids
        return answer


@pytest.fixture(scope="module")
def room(tmp_path_factory):
    """A folder with stock's calibration, and finished campaigns of an honest and of a bad system."""
    folder = tmp_path_factory.mktemp("timed")
    job = make_job(folder / "reference", STOCK, 40, 300, seed=1)
    calibrate(job, folder / "stock", None, lambda event: None, sandbox=False)
    for name, wrong, tokens in (("honest", 0.006, 40), ("bad", 0.05, 10), ("short", 0.006, 2)):
        job = make_job(folder / f"{name}-race", {**QUICK, "mismatch": wrong}, 1848, tokens, seed=3)
        found = time_arms(job, folder / name, None, lambda event: None, sandbox=False, start=Speaker().start)
        assert (found["answer"], found["units"]) == ("promote", 10)
    return folder


def forced(room, name, timed, requests=120, looks=110, wrong=0.006, events=None):
    """The verdict of forcing in the folder `name`-out, after the samples of `timed`."""
    folder = room / name
    if not folder.is_dir():
        make_job(folder, {**QUICK, "mismatch": wrong}, requests, 300, seed=7, looks=looks)
    emit = (events if events is not None else []).append
    reference, path = room / "stock/samples.jsonl", None if timed is None else room / timed / "samples.jsonl"
    return force(
        folder / "job.json", room / f"{name}-out", reference, None, emit, timed=path, sandbox=False, limits=LIMITS
    )


def test_what_was_timed_is_what_is_forced(room):
    """What arm a said in the confirmation, all and nothing else, is scored; where it is enough nothing is asked."""
    events = []
    found = forced(room, "enough", "honest", events=events)
    timed, mine = read(room / "honest/samples.jsonl"), read(room / "enough-out/samples.jsonl")
    said = [answer for unit in timed.of("confirm") for answer in unit.answers if answer["arm"] == "a"]

    validator("verdict").validate(found)
    assert found["answer"] == "accept", found["reason"]
    assert (found["timed"], found["timed_tok"]) == (timed.digest, 10 * 48 * 40)
    assert found["of"]["timed"] == timed.digest
    assert found["tokens"] + found["looped_tok"] == found["timed_tok"]
    assert [answer for unit in mine.of("confirm") for answer in unit.answers] == said
    assert mine.of("force") == []
    assert not any(event["event"] == "answered" for event in events)
    again = verdict("forcing", room / "enough-out/samples.jsonl", room / "stock/samples.jsonl")
    same = ("key", "of", "samples", "timed", "timed_tok", "mismatch", "excess")
    assert {name: again[name] for name in same} == {name: found[name] for name in same}


def test_a_system_that_was_bad_when_timed_is_rejected(room):
    """Nothing that it says later saves it."""
    found = forced(room, "bad-job", "bad", wrong=0.05)

    assert found["answer"] == "reject"
    assert any(bucket["axis"] == "timed" and bucket["rejects"] for bucket in found["buckets"])


def test_few_timed_tokens_ask_for_as_many_more_as_are_wanted(room):
    """The first look adds units of requests until the rule has what it wants, and not its whole share."""
    found = forced(room, "few", "short")
    samples = read(room / "few-out/samples.jsonl")
    units = samples.of("force")

    assert found["answer"] == "accept", found["reason"]
    assert found["timed_tok"] == 10 * 48 * 2
    wanted = first_look(read(room / "stock/samples.jsonl"), LIMITS).tokens
    assert wanted <= found["tokens"] < wanted + 8 * 300
    assert 0 < len(units) < 110 // 8
    assert len(samples.looks) == 1


def test_a_killed_run_takes_over_what_is_missing(room):
    """From any line on, the same command comes to the same verdict, and no answer counts twice."""
    first = forced(room, "whole", "short")
    path = room / "whole-out/samples.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    for at in (2, 40, 490, len(lines) - 200, len(lines) - 3):
        path.write_text("".join(lines[:at]) + lines[at][:20])
        again = forced(room, "whole", "short")
        same = ("answer", "tokens", "timed", "timed_tok", "mismatch", "sessions")
        assert {name: again[name] for name in same} == {name: first[name] for name in same}, at
    with pytest.raises(Usage, match="forces the tokens that were timed"):
        forced(room, "whole", None)
    with pytest.raises(Usage, match="other samples"):
        forced(room, "whole", "honest")
    path.write_text("".join(lines[:40]))
    with pytest.raises(Usage, match="of 960 timed tokens are here"):
        verdict("forcing", path, room / "stock/samples.jsonl")


def test_requests_that_were_timed_are_not_asked_again(room):
    """A file of requests that both commands read asks each once."""
    rows = (room / "short-race/requests.jsonl").read_text().splitlines(keepends=True)
    make_job(room / "same", {**QUICK, "mismatch": 0.006}, 1, 40, seed=7, looks=300)
    (room / "same/requests.jsonl").write_text("".join(rows))
    forced(room, "same", "short")
    samples = read(room / "same-out/samples.jsonl")
    sessions = [said["session"] for unit in samples.of("confirm", "force") for said in unit.answers]

    assert len(sessions) == len(set(sessions)) > 480


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"arms": "b"}, "another pair: arm 'b' differs"),
        ({"deployment": "7" * 64}, "another deployment"),
        ({"rule": "other"}, "another rule"),
        ({"card": {"torch": "9"}}, "cannot be compared"),
        ({"cut": 900}, "is not finished"),
        ({"cut": None}, "holds no tokens that were timed"),
    ],
)
def test_other_samples_are_refused(change, said, room, tmp_path):
    """Timed samples of another pair, deployment, rule or card, and of an unfinished campaign, are no part of it."""
    lines = [json.loads(line) for line in (room / "honest/samples.jsonl").read_text().splitlines()]
    if "arms" in change:
        lines[0]["arms"][change["arms"]]["options"] = {"tau": 3}
    if "card" in change:
        lines[1]["card"] |= change["card"]
    lines[0] |= {name: value for name, value in change.items() if name in ("deployment", "rule")}
    if "cut" in change:
        lines = lines[: change["cut"]] if change["cut"] else [each for each in lines if each.get("phase") != "confirm"]
    if change.get("cut", 1) is None:
        for each in lines:  # the screen finds nothing
            if each["type"] == "group" and each["arm"] == "a":
                each["seconds"] = [2 * second for second in each["seconds"]]
    (room / "changed").mkdir(exist_ok=True)
    (room / "changed/samples.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    shutil.rmtree(room / "refused-out", ignore_errors=True)

    with pytest.raises(Usage, match=said):
        forced(room, "refused", "changed")

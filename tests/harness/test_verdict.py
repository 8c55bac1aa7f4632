"""harness/verdict.py and `python -m harness verdict`: a verdict is a pure function of samples."""

import hashlib
import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from harness import units, verdict
from harness.errors import HarnessError, Usage
from tests.harness import campaigns
from tests.harness.campaigns import answer, complete, folded, forced, head, line, timed_campaign, unit, void
from tests.harness.schemas import validator

ROOT = Path(__file__).parents[2]
DIGEST = "d" * 64
PROMOTED = timed_campaign(5, 10, gain=0.03)


def ask(*arguments):
    command = [sys.executable, "-m", "harness", "verdict", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


OTHER_STOCK = {"arms": head(stock=campaigns.SYSTEM)[0]["arms"]}


def scored(phase, arm, count=3):
    lines = []
    for index in range(count):
        said = answer(phase, 0, arm, f"{phase}{index}", [5, 6, 7, 8], family="lists")
        lines += [said, *[forced(said, head, wrong=[1]) for head in ("fp32", "model")]]
        lines.append(line("recheck", arm=arm, request=f"{phase}{index}", at=1, stock=0, shape=7))
    return [*lines, complete(phase, 0, [arm])]


FORCED = [*head(), *scored("reference", "stock"), *scored("force", "a")]


def test_timing_verdict(tmp_path):
    """The command prints one verdict that the schema knows, with the digest of the samples."""
    path = campaigns.write(tmp_path / "samples.jsonl", PROMOTED)
    done = ask(path)
    found = json.loads(done.stdout)

    assert (done.returncode, done.stderr) == (0, "")
    validator("verdict").validate(found)
    assert found["answer"] == "promote"
    assert (found["units"], found["look"]) == (10, 1)
    assert found["gain"] == pytest.approx(0.0305, abs=0.003)
    assert found["interval"][0] < found["gain"] < found["interval"][1]
    assert found["threshold"] < found["interval"][0]
    assert found["published"]["answer"] == "promote"
    times = [each for one in folded(PROMOTED).of("confirm") for each in units.request_times(one)]
    between = units.between_requests(times, 0.975)
    assert found["between"] == pytest.approx([math.expm1(between.lower), math.expm1(between.upper)])
    assert found["gain_same"] == pytest.approx(found["gain"], abs=1e-3)
    assert (found["diverged"], found["voids"]) == (0, 0)
    assert found["tokens"] == 10 * 3 * 2 * 2 * 4
    assert found["samples"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert found["date"] == campaigns.CARD["date"]
    assert ask(path).stdout == done.stdout


@pytest.mark.parametrize(
    ("lines", "answer_", "look"),
    [
        (timed_campaign(5), "decline", 0),
        (timed_campaign(5, 20, gain=0.0175, sigma=0.002), "undecided", 2),
        (timed_campaign(sigma=0.02), "refused", 0),
        ([*timed_campaign(), void("screen", 0, "a", "crash", "gone")], "decline", 0),
    ],
)
def test_answers_of_timing(lines, answer_, look):
    """Whatever the answer is, the verdict has the schema's form, and no figure that was not measured."""
    found = verdict.timing_verdict(folded(lines))

    validator("verdict").validate(found)
    assert (found["answer"], found["look"]) == (answer_, look)
    assert (found["gain"] is None) == (found["interval"] is None) == ("not above" not in found["reason"] and look == 0)


def test_divergence_is_told():
    """Requests whose ids differ are counted, and the gain without them stands beside."""
    lines = [*timed_campaign(), *[each for number in range(5) for each in unit("screen", number, 0.01, diverge=True)]]
    found = verdict.timing_verdict(folded(lines))

    assert found["diverged"] == 5 * 3 * 2 * 2
    assert found["gain_same"] is None
    assert found["threshold"] == pytest.approx(0.0305, abs=1e-4)


def test_unfinished_campaign_has_no_verdict(tmp_path):
    """A campaign that is not finished is an error that says what comes next."""
    done = ask(campaigns.write(tmp_path / "samples.jsonl", timed_campaign(3)))

    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.splitlines() == [
        "error: the campaign is not finished: unit 3 of 'screen' comes next",
        "hint: the command that started it goes on from there",
    ]


def test_forcing_verdict(tmp_path):
    """Forcing prints rates, buckets, delta, families and the audit; the calibration may lie in a file of its own."""
    both = campaigns.write(tmp_path / "samples.jsonl", FORCED)
    stock = campaigns.write(tmp_path / "stock.jsonl", [*head(), *scored("reference", "stock")])
    alone = campaigns.write(tmp_path / "alone.jsonl", [*head(), *scored("force", "a")])
    found = json.loads(ask(both, "--what", "forcing").stdout)
    apart = json.loads(ask(alone, "--what", "forcing", "--reference", stock).stdout)

    validator("verdict").validate(found)
    validator("verdict").validate(apart)
    assert (found["answer"], found["tokens"], found["sessions"]) == ("smoke", 12, 3)
    assert found["mismatch"] == found["stock_mismatch"] == 0.25
    assert found["delta_logit"] == [0, 0, 0, 0]
    assert found["families"]["lists"]["tokens"] == 12
    assert [event["explanation"] for event in found["audit"]] == [None] * 3
    assert found["event_tests"][0]["stock_events"] == found["events"] == 3
    assert found["uncovered"] == ["position 0-512", "output 0-512"]
    assert apart["reference"] == hashlib.sha256(stock.read_bytes()).hexdigest()
    same = set(found) - {"samples", "reference"}
    assert {name: found[name] for name in same} == {name: apart[name] for name in same}


def test_audit_holds_two_hundred():
    """More events than 200 are counted, and the 200 largest unexplained ones are shown."""
    lines = [*head(), *scored("reference", "stock"), *scored("force", "a", 250)]
    found = verdict.forcing_verdict(folded(lines))

    assert len(found["audit"]) == 200
    assert found["events"] == 250


def test_malformed_verdict():
    """A malformed answer is a verdict of its own, with the requests."""
    lines = [
        {**each, "max_tokens": 9} if each.get("arm") == "a" and each["type"] == "answer" else each for each in FORCED
    ]
    found = verdict.forcing_verdict(folded(lines))

    validator("verdict").validate(found)
    assert found["answer"] == "malformed"
    assert found["malformed"] == ["force0", "force1", "force2"]


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({"arms": {"a": {"tree": "b" * 40, "options": {}}}}, False),
        ({"arms": {"b": {"tree": "b" * 40, "options": {}}}}, False),
        ({"arms": {"stock": {"tree": "b" * 40, "options": {}}}}, True),
        ({"arms": {"a": {"tree": "c" * 40, "options": {"depth": 3}}}}, False),
        ({"deployment": "0" * 64}, False),
        ({"rule": "other"}, False),
        ({"seed": 8}, True),
        ({"requests": "0" * 64}, True),
        ({"card": {"torch": "9"}}, False),
        ({"card": {"harness": "9"}}, False),
        ({"card": {"cores": 99, "date": "2027-01-01"}}, True),
    ],
)
def test_key_is_of_what_is_compared(change, same):
    """The key changes with the systems, deployment, compared card, harness and rule, and with nothing else."""
    campaign, card = head(**change.get("arms", {}))
    campaign = {**campaign, **{key: value for key, value in change.items() if key in campaign and key != "arms"}}
    card = {**card, "card": {**card["card"], **change.get("card", {})}}

    assert (verdict.key_of(folded([campaign, card])) == verdict.key_of(folded(head()))) is same


def test_key_of_a_known_campaign():
    """The key is sha256 of this text, so that any other program can derive it."""
    systems = [f'{{"options":{{}},"tree":"{letter * 40}"}}' for letter in "ca"]
    text = (
        f'{{"a":{systems[0]},"b":{systems[1]},"card":{{"cuda":null,"driver":null,"gpu":null,"power_cap_w":null,'
        f'"torch":"2.13.0","triton":null}},"deployment":"{DIGEST}","harness":"0.1.0","rule":"paired-1"}}'
    )

    assert verdict.key_of(folded(head())) == hashlib.sha256(text.encode()).hexdigest()


def other_card(**fields):
    return line("card", card={**campaigns.CARD, **fields})


def test_machines_that_differ_are_refused():
    """Cards of one file must be comparable, and so must the calibration's."""
    with pytest.raises(Usage, match=r"'driver' is None and '570\.86'"):
        verdict.timing_verdict(folded([*PROMOTED, other_card(driver="570.86")]))
    assert verdict.timing_verdict(folded([*PROMOTED, other_card(host="other")]))["answer"] == "promote"
    stock = folded([head()[0], other_card(torch="9"), *scored("reference", "stock")])
    with pytest.raises(Usage, match="cannot be compared"):
        verdict.forcing_verdict(folded([*head(), *scored("force", "a")]), stock)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"deployment": "0" * 64}, "another deployment"),
        ({"arms": head(stock=campaigns.SYSTEM)[0]["arms"]}, "another stock"),
    ],
)
def test_calibration_of_something_else_is_refused(change, match):
    """A calibration is of one deployment and one stock."""
    campaign, card = head()
    stock = folded([{**campaign, **change}, card, *scored("reference", "stock")])
    with pytest.raises(Usage, match=match):
        verdict.forcing_verdict(folded([*head(), *scored("force", "a")]), stock)


def test_unknown_rule_is_refused():
    """Another rule's samples get no verdict of this one."""
    campaign, *rest = PROMOTED
    with pytest.raises(HarnessError, match="'paired-0'"):
        verdict.timing_verdict(folded([{**campaign, "rule": "paired-0"}, *rest]))


def test_measuring_loads_no_numpy():
    """The commands that measure start without numpy and scipy."""
    code = "import sys; import harness.__main__; print(sorted({'numpy', 'scipy'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)

    assert done.stdout == "[]\n"


def test_forced_samples_are_no_timing():
    """What was timed and is forced stands in other samples again; these have no timing verdict of their own."""
    timed = line("timed", samples="f" * 64, tokens=5)
    with pytest.raises(Usage, match="force the tokens that were timed"):
        verdict.timing_verdict(folded([*PROMOTED[:2], timed, *PROMOTED[2:]]))

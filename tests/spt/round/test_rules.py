"""Whole rounds by the judge's own rule, and rounds of one deployment that are run in different ways."""

import json
import random
from pathlib import Path

import pytest

from spt.deployment import read
from spt.git.store import Store
from spt.verdicts import Ledger
from tests.spt.report.pages import parse
from tests.spt.round.toys import (
    BOLD,
    BRIEF,
    CANARY,
    DRUM,
    FROM,
    NOOP,
    PAIRED,
    SANDBOX,
    START,
    WRONG,
    add_drafter,
    copied,
    make_round_deployment,
    verified,
)
from tests.spt.toys import git, spt

# Eight tokens a pass: of what an engine does between two waits little is left that could be late.
METRONOME = {"tau": "8", "step_ms": "2", "prefill_ms": "2", "stop_rate": "0"}
CONTEXT = "6144"  # what a full final needs, and a chat's words


def outcomes(ran):
    return {each["id"]: (each["outcome"], each["end"].get("gate")) for each in ran.json["directions"]}


def gates_of(ran, direction):
    """{gate: whether it passed} of a direction's newest candidate."""
    [found] = [each for each in ran.json["directions"] if each["id"] == direction]
    return {each["gate"]: each["passed"] for each in found["gates"]}


# --- the judge's own rule ---


@pytest.fixture(scope="module")
def unsteady(tmp_path_factory):
    """A round on an engine whose pace is too noisy for the judge.  (folder, what it said)"""
    folder = make_round_deployment(
        tmp_path_factory.mktemp("unsteady"),
        [CANARY, WRONG],
        defaults={"step_ms": "0.2", "prefill_ms": "0.2", "noise": "1"},
        context=CONTEXT,
    )
    rng = random.Random(5)
    rows = [
        {"id": f"r{number}", "ids": [rng.randrange(3, 600) for _ in range(5)], "max_tokens": 12}
        for number in range(1900)
    ]
    (folder / "some.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder, spt(*PAIRED, "stock", "--name", "one", "--agent", "memory", "--json", cwd=folder)


def test_a_machine_that_is_too_noisy_says_nothing_of_a_candidate(unsteady):
    """What the judge refuses to time has failed, not been declined: it is told to nobody as an idea without worth."""
    folder, ran = unsteady
    assert outcomes(ran) == {"memory-canary": ("failed", None), "memory-wrong": ("declined", "exact")}, ran.err
    [canary, _] = ran.json["directions"]
    assert canary["end"]["reason"].startswith("the timing is refused: noise ")
    assert not {"screen", "confirm"} & set(gates_of(ran, "memory-canary"))
    assert (ran.code, ran.json["outcome"]) == (1, "nothing promoted")
    assert "rule demo" not in ran.err
    [timing] = [held.verdict for held in Ledger.find(folder).all() if held.verdict["what"] == "timing"]
    assert (timing["answer"], timing["rule"]) == ("refused", "paired-1")


def test_an_answer_that_ends_at_once_hides_nothing(tmp_path):
    """Where all answers end with their first token, exact mode still compares as many tokens as were asked for."""
    late = ("late", {"tau": "4", "mismatch": "1", "mismatch_after": "15"}, {})
    folder = make_round_deployment(tmp_path, [CANARY, late], defaults={"stop_rate": "1"})
    ran = spt(*START, FROM, "--name", "one", "--agent", "memory:canary,late", "--json", cwd=folder)
    assert outcomes(ran)["memory-late"] == ("declined", "exact"), ran.err
    assert gates_of(ran, "memory-canary")["exact"]


def time_steadily(folder, a, b):
    """Times a pair, each the entries that it is made of, until the machine is steady enough for the judge.

    What the judge refuses it leaves open, and what it has judged a round finds in the ledger.
    """

    def system(side):
        if not side:
            return "stock"
        names = "+".join(name for name, _, _ in side)
        options = {name: text for _, own, _ in side for name, text in own.items()}
        (folder / f"{names}.yaml").write_text(json.dumps(options))
        return f"{names}@{names}.yaml"

    for _ in range(12):
        ran = spt("time", system(a), system(b), *SANDBOX, "--json", cwd=folder)
        if ran.json["answer"] != "refused":
            return
    raise AssertionError(f"this machine is too noisy: {ran.json['reason']}")


@pytest.fixture(scope="module")
def judged(tmp_path_factory):
    """A round by the judge's own rule that promoted two entries; nobody writes to it.  (folder, what it said)"""
    folder = make_round_deployment(
        tmp_path_factory.mktemp("judged"),
        [BOLD, BRIEF, CANARY, DRUM, NOOP, WRONG],
        defaults=METRONOME,
        context=CONTEXT,
        requests=None,
    )
    for a, b in (([BOLD], []), ([BRIEF], []), ([CANARY], []), ([CANARY, DRUM], [CANARY]), ([CANARY, DRUM], [])):
        time_steadily(folder, a, b)
    return folder, spt(*PAIRED, "--name", "one", "--agent", "memory", "--json", cwd=folder)


GATES = ("scope", "default", "exact", "checks", "development", "predicted", "screen", "confirm", "force")


@pytest.mark.full
def test_the_judge_promotes_what_is_faster_and_true(judged):
    """Two entries pass all gates; one that forcing alone finds out is declined there, and each other at its own."""
    _, ran = judged
    assert ran.code == 0, ran.err
    assert outcomes(ran) == {
        "memory-bold": ("declined", "force"),
        "memory-brief": ("declined", "screen"),
        "memory-canary": ("promoted", None),
        "memory-drum": ("promoted", None),
        "memory-noop": ("declined", "predicted"),
        "memory-wrong": ("declined", "exact"),
        "whole": ("promoted", None),
    }
    for promoted in ("memory-canary", "memory-drum"):
        assert gates_of(ran, promoted) == dict.fromkeys(GATES, True)
    assert gates_of(ran, "memory-bold") == {**dict.fromkeys(GATES, True), "force": False}
    assert gates_of(ran, "memory-brief") == {**dict.fromkeys(GATES[:-2], True), "screen": False}
    assert gates_of(ran, "whole") == dict.fromkeys(GATES[-3:], True)
    said = [line for line in ran.err.splitlines() if ": force: " in line]
    assert ["passes: accept on" in line for line in said] == [False, True, True, True]
    assert "no: reject on" in said[0]


@pytest.mark.full
def test_what_the_judge_promotes_is_a_speedup(judged):
    """Every figure is one: its lower bound is above the threshold, and the very tokens that were timed are accepted."""
    folder, ran = judged
    promoted = {each["id"]: each["end"] for each in ran.json["directions"] if each["outcome"] == "promoted"}
    ledger = Ledger.find(folder)
    for end in promoted.values():
        timing = ledger.timing(end["timing"])
        assert (end["kind"], end["rule"], timing["rule"]) == ("speedup", "paired-1", "paired-1")
        assert end["low"] > 1 + timing["threshold"] > 1.01
        assert timing["units"] in (10, 20)
        forcing = ledger.held("forcing", end["forcing"]).verdict
        assert (forcing["answer"], forcing["timed"]) == ("accept", timing["samples"])
        assert forcing["tokens"] >= 25_000 and forcing["sessions"] >= 50
    gains = {name: end["gain"] for name, end in promoted.items()}
    assert gains["whole"] == pytest.approx(gains["memory-canary"] * gains["memory-drum"], rel=0.02)
    assert "raw ratio" not in ran.err and "demo" not in ran.err and "smoke" not in ran.err.partition("final: ")[2]


@pytest.mark.full
def test_the_sealed_final_is_a_whole_one_and_accepts(judged):
    """It is no smoke: both comparisons with intervals, long answers, every bucket that they reach."""
    folder, ran = judged
    verdict = Ledger.find(folder).held("final", ran.json["final"]["key"]).verdict
    assert (ran.json["final"]["verdict"], verdict["answer"], verdict["full"]) == ("accept", "accept", True)
    assert verdict["of"]["seal"] == ran.json["begun"]["commitment"]
    told = {sort["sort"]: sort["answers"] for sort in verdict["sorts"]}
    assert (told["timed"], told["sampled"], told["greedy"]) == (15 * 48, 100, 25) and told["sessions"] > 60
    assert {bucket["low"] for bucket in verdict["buckets"] if bucket["axis"] == "output"} == {0, 512, 2048}
    whole = next(each["end"] for each in ran.json["directions"] if each["id"] == "whole")
    against = ran.json["final"]["against_stock"]
    assert against["low"] < against["gain"] < against["high"]
    assert against["gain"] == pytest.approx(whole["gain"], rel=0.15)  # other requests, and no noise is too much
    assert ran.json["final"]["against_ar"]["gain"] > against["gain"]


@pytest.mark.full
def test_the_judges_word_is_evidence(judged, tmp_path):
    """Each promoted entry gets its own line, which the checker accepts and the ledger backs."""
    from spt.evidence import CURRENT, ClaimedSpeedup, evidence_of
    from spt.memory import Memory

    folder = copied(judged[0], tmp_path / "deployment")
    entries = {each["name"]: each for each in judged[1].json["entries"]}
    ends = {each["id"]: each["end"] for each in judged[1].json["directions"]}
    memory = Memory.of(Store.find(folder))
    for name in ("canary", "drum"):
        [line] = evidence_of(memory, name)
        assert (line.kind, line.answer, line.state) == ("judged", "promote", CURRENT)
        assert line.line["verdict"]["key"] == ends[f"memory-{name}"]["timing"] == entries[name]["evidence"]
        assert isinstance(line.ratio, ClaimedSpeedup) and line.ratio.value == ends[f"memory-{name}"]["gain"]
        assert (entries[name]["discovery"], entries[name]["note"]) == (False, "")
    assert set(verified(folder).values()) == {("ok", "ok")}


@pytest.mark.full
def test_the_judges_word_is_told_everywhere(judged, tmp_path):
    """Branch, deployment file, review and report name the system, and call what it gained a speedup."""
    folder, ran = copied(judged[0], tmp_path / "deployment"), judged[1]
    canary, drum, whole = (
        next(each["end"]["gain"] for each in ran.json["directions"] if each["id"] == name)
        for name in ("memory-canary", "memory-drum", "whole")
    )
    log = git(folder, "log", "--reverse", "--format=%s", "refs/spt/stock/current..system/toy/1")
    assert log.splitlines() == [
        "canary: do it",
        "drum: do it",
        "system/toy/1: accept in the final of round one",
    ]
    found = read(Path(ran.json["deployment"]["path"]))
    assert (found.system, found.options) == ("system/toy/1", {"step_ms": DRUM[1]["step_ms"], "tau": "16"})
    assert spt("export", found.system, tmp_path / "out", cwd=folder).code == 0
    reviewed = spt("round", "review", "one", cwd=folder).out
    for gain in (canary, drum):
        assert f"speedup {gain:.3f}, rule paired-1" in reviewed
    told = spt("report", "one", "--out", tmp_path / "page.html", cwd=folder)
    assert told.code == 0, told.err
    assert f"development, over the round's start: speedup {whole:.3f}" in told.out
    assert f"sealed final: accept; over stock speedup {ran.json['final']['against_stock']['gain']:.3f}" in told.out
    page = parse((tmp_path / "page.html").read_text()).text
    for words in (reviewed, told.out, page):
        assert "demo" not in words and "What does not agree" not in words
    assert "raw ratio" not in reviewed + told.out


@pytest.mark.full
def test_the_round_after_the_judges_begins_from_its_system(judged, tmp_path):
    """What is in the system is not proposed again, and nothing else pays on it."""
    folder = copied(judged[0], tmp_path / "deployment")
    ran = spt(*PAIRED, "--name", "two", "--agent", "memory", "--json", cwd=folder)
    assert (ran.code, ran.json["outcome"]) == (1, "nothing promoted"), ran.err
    assert ran.json["begun"]["start"] == judged[1].json["deployment"]["system"]
    assert ran.json["begun"]["start_commit"] == git(folder, "rev-parse", "system/toy/1^")
    assert set(outcomes(ran)) == {f"memory-{name}" for name in ("bold", "brief", "noop", "wrong")}
    assert ran.json["final"] is None and ran.json["deployment"] is None
    assert git(folder, "for-each-ref", "--format=%(refname)", "refs/heads/system") == "refs/heads/system/toy/1"


# --- ways of running ---


BRISK = ("brisk", {"step_ms": "0.5"}, {})
FULLY = ("cost model, 2 agents", ["--agent", "memory:{}", "--agent", "sweep:seed", "--tries", "2", "--agents", "2"])
BARELY = ("no cost model, 1 agent", ["--no-cost-model", "--agent", "memory:{}"])
WAYS = {"fully": FULLY, "barely": BARELY}


@pytest.fixture(scope="module")
def ways(tmp_path_factory):
    """Two rounds in each of two ways, from one start, the second on the first.  (folder, how each ended)"""
    home = tmp_path_factory.mktemp("ways")
    folder = make_round_deployment(home, [BRISK, CANARY])
    add_drafter(home)
    rows = [json.loads(line) | {"max_tokens": 48} for line in (folder / "some.jsonl").read_text().splitlines()]
    (folder / "some.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    ended = {}
    for way, (_, words) in WAYS.items():
        for number, (start, entry) in enumerate((([FROM], "canary"), ([], "brisk")), 1):
            named = [word.format(entry) for word in words]
            begin = [word for word in START if word != "--no-cost-model"]
            ran = spt(*begin, *start, "--name", f"{way}-{number}", *named, "--json", cwd=folder)
            assert ran.code == 0, ran.err
            ended[f"{way}-{number}"] = ran.json
    return folder, ended


def gained(ran):
    """What a round gained over its start: the whole where it was measured, with what was promoted on it."""
    total = 1.0
    for each in ran["directions"]:
        if each["outcome"] == "promoted":
            total = each["end"]["gain"] if each["id"] == "whole" else total * each["end"]["gain"]
    return total


@pytest.mark.full
def test_rounds_in_a_row_go_on_from_one_another(ways):
    """In either way the second begins with the system of the first, and what was judged once is not judged again."""
    folder, ended = ways
    for way in WAYS:
        first, second = ended[f"{way}-1"], ended[f"{way}-2"]
        assert second["begun"]["start"] == first["deployment"]["system"]
        assert second["best"] != first["best"]
        log = git(folder, "log", "--format=%s", f"refs/spt/stock/current..{second['deployment']['branch']}^")
        assert log.splitlines() == ["brisk: do it", "canary: do it"]
    assert ended["fully-1"]["begun"]["start"] == ended["barely-1"]["begun"]["start"]
    canaries = [ended[f"{way}-1"]["directions"][0]["end"] for way in WAYS]
    assert canaries[0]["timing"] == canaries[1]["timing"] and canaries[0]["gain"] == canaries[1]["gain"]


@pytest.mark.full
def test_only_the_way_with_a_cost_model_measures(ways):
    """With it the start and what was promoted stand against their ceilings; without it nothing is measured for that."""
    folder, ended = ways
    told = {each["round"]: each for each in spt("report", "--json", cwd=folder).json["rounds"]}
    for number in (1, 2):
        bare, full = told[f"barely-{number}"], told[f"fully-{number}"]
        assert (bare["ceilings"], ended[f"barely-{number}"]["phases"]["measure"]) == ([], "skipped")
        assert ended[f"fully-{number}"]["phases"]["measure"] == "done"
        taus = [each["tau"] for each in full["ceilings"]]
        assert len(taus) == 2
        assert all(set(each["factors"]) == {"tau", "kernel", "overhead"} for each in full["ceilings"])
        assert taus[0] < taus[1] if number == 1 else taus[0] <= taus[1]


@pytest.mark.full
def test_a_report_compares_the_ways(ways, tmp_path):
    """JSON and page have a row for each, with the gains that the journals hold, and doubt none of them."""
    folder, ended = ways
    report = spt("report", "--json", "--out", tmp_path / "page.html", cwd=folder).json
    rows = {row["way"]: row for row in report["rows"]}
    assert [each["doubts"] for each in report["rounds"]] == [[]] * 4
    assert set(rows) == {way for way, _ in WAYS.values()} and len(report["rows"]) == 2
    page = parse((tmp_path / "page.html").read_text())
    [table] = [each for each in page.find("table") if "by the way they were run" in each.text]
    lines = {line.find("th")[0].text: [cell.text for cell in line.find("td")] for line in table.find("tr")[1:]}
    for name, (way, _) in WAYS.items():
        rounds = [f"{name}-1", f"{name}-2"]
        gains = [gained(ended[each]) for each in rounds]
        sealed = ended[rounds[1]]["final"]["against_stock"]["gain"]
        assert rows[way]["rounds"] == rounds
        assert rows[way]["totals"] == pytest.approx([gains[0], gains[0] * gains[1]])
        assert rows[way]["sealed"]["value"] == pytest.approx(sealed)
        promoted = sum(
            direction["outcome"] == "promoted" and direction["id"] != "whole"
            for each in rounds
            for direction in ended[each]["directions"]
        )
        cells = lines[way]
        assert cells[1] == "2" and cells[3] == str(promoted)
        assert cells[4].startswith(f"raw ratio (rule demo) {gains[0] * gains[1]:.3f}")
        assert cells[5].startswith(f"raw ratio (rule demo) {sealed:.3f}")
    assert any("1.34" in line for line in lines) and any("2.13" in line for line in lines)

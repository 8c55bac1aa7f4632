"""Journals read and folded: nothing damaged is shown, no figure is better than the ledger, products follow bases."""

import gzip
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spt.errors import Missing, Usage
from spt.formats import canonical
from spt.git.store import Store
from spt.report import words
from spt.report.acceptance import curves
from spt.report.events import read_round
from spt.report.lineage import rows
from spt.report.page import ranges
from spt.report.telling import tell
from spt.round.journal import Journal
from spt.verdicts import Ledger
from tests.spt.judged import forcing
from tests.spt.report.journals import (
    CARD,
    DEPLOYMENT,
    NOTHING,
    STOCK,
    Events,
    Maker,
    events_of,
    final,
    key,
    samples,
    timing,
    tree,
    write_journal,
)
from tests.spt.toys import errors_well, git, snapshot, spt

BEGUN = {"deployment": "toy", "digest": DEPLOYMENT, "stock": STOCK, "start": NOTHING, "agents": ["sweep"]}
BEGUN |= {"modes": {"cost_model": True, "agents": 2}}


def begun(name="one", **changes):
    """The events of a round that has begun."""
    events = Events(name)
    events.add("measure", "begun", {**BEGUN, **changes})
    return events


def story_of(repository, events):
    """The story of these events, once they are in the repository."""
    write_journal(repository, events.rows)
    ledger = Ledger(Store.find(repository))
    return tell(read_round(ledger.store, events.round), ledger)


def add(repository, *verdicts):
    """Puts verdicts into the ledger as `spt time` and the like would."""
    made = Maker(repository)
    made.verdicts += verdicts
    made.flush()


# --- journals ---


def test_each_event_has_its_own_commit(repository):
    """A journal as the round itself writes it: the commit of an event is the one whose trailer has its number."""
    store = Store.find(repository)
    journal = Journal(store, "real")
    journal.begin({"limits": {}}, BEGUN, {})
    for number in range(5):
        journal.append("explore", "direction", {"title": f"idea {number}"}, f"d{number}")
    read = read_round(Store.find(repository), "real")

    assert [told.event.seq for told in read.told] == list(range(6))
    for told in read.told:
        trailer = git(repository, "log", "-1", "--format=%(trailers:key=Spt-Seq,valueonly)", told.commit)
        assert int(trailer) == told.event.seq
    assert read.tip == read.told[-1].commit == git(repository, "rev-parse", "refs/spt/round/real")


def test_a_made_up_journal_is_like_a_real_one(repository):
    """What the tests write in bulk has the files, messages and trailers of what the round writes."""
    store = Store.find(repository)
    journal = Journal(store, "real")
    journal.begin({}, BEGUN, {})
    journal.append("tune", "gate", {"gate": "scope", "passed": True, "reason": "", "figure": None, "key": None}, "d")
    write_journal(repository, events_of(repository, "real"), reference="refs/spt/round/made")

    for what in (("--format=%an %ae%n%B",), ("--format=", "--name-status"), ("--format=", "-p", "--", "events.jsonl")):
        real, made = (
            git(repository, "log", *what[:1], f"refs/spt/round/{name}", *what[1:]) for name in ("real", "made")
        )
        assert made == real


def damage(rows):
    """Ways in which a journal can be damaged: words of the error, and the rows or the file's text."""
    lines = "".join(canonical(row) + "\n" for row in rows)
    wrong = [dict(row) for row in rows]
    wrong[1] = {**wrong[1], "phase": "lunch"}
    other = [{**row, "round": "other"} for row in rows]
    gap = [rows[0], *rows[2:]]
    yield "is 'lunch', not", "".join(canonical(row) + "\n" for row in wrong)
    yield "line 1 is event 0 of 'other'", "".join(canonical(row) + "\n" for row in other)
    yield "line 2 is event 2", "".join(canonical(row) + "\n" for row in gap)
    yield "line 3", lines[:-20]
    yield "line 1", "\n" + lines
    yield "holds no event", ""
    yield "duplicate key", lines.replace('"seq":1', '"seq":1,"seq":1')
    yield "out of range", lines.replace('"seq":1', '"seq":1e999')


def put(repository, text, parent=None, reference="refs/spt/round/one"):
    """A commit with this text as the events of a journal."""
    blob = git(repository, "hash-object", "-w", "--stdin", stdin=text.encode())
    made = git(repository, "mktree", stdin=f"100644 blob {blob}\tevents.jsonl\n".encode())
    commit = git(repository, "commit-tree", made, "-m", "x", *(["-p", parent] if parent else []))
    git(repository, "update-ref", reference, commit)
    return commit


@pytest.mark.parametrize("number", range(8))
def test_a_damaged_journal_is_one_line(repository, number):
    """It is said what is wrong and where, nothing is written, and the exit code is that of a wrong file."""
    events = begun()
    events.add("explore", "direction", {"title": "a"}, "a")
    events.add("explore", "declined", {"gate": "scope", "reason": "no"}, "a")
    said, text = list(damage(events.rows))[number]
    put(repository, text)
    before = snapshot(repository)

    assert errors_well(spt("report", "one", cwd=repository), 2, said, "refs/spt/round/one")
    assert snapshot(repository) == before
    assert not (repository / ".git/spt/rounds").exists()


def test_history_that_was_rewritten_is_no_journal(repository):
    """An event that was changed after the fact, or commits that were dropped, are found out."""
    events = begun()
    for number in range(3):
        events.add("explore", "declined", {"gate": "screen", "reason": f"no {number}"}, f"d{number}")
    texts = ["".join(canonical(row) + "\n" for row in events.rows[: number + 1]) for number in range(4)]
    parent = None
    for text in (texts[0], texts[1].replace("no 0", "it paid"), texts[2], texts[3]):
        parent = put(repository, text, parent)
    assert errors_well(spt("report", "one", cwd=repository), 2, "it was rewritten", "refs/spt/round/one: commit '")

    put(repository, texts[3], put(repository, texts[0]))
    assert errors_well(spt("report", "one", cwd=repository), 2, "not a commit for each of its 4 events")


@pytest.mark.parametrize(
    ("event", "data", "said"),
    [
        ("promoted", {"gain": "fast"}, "'gain' is not a number"),
        ("promoted", {"gain": True}, "'gain' is not a number"),
        ("promoted", {"gain": -1.0}, "'gain' is -1, out of range"),
        ("promoted", {"gain": 1e9}, "'gain' is 1e+09, out of range"),
        ("promoted", {}, "'gain' is missing"),
        ("promoted", {"gain": 1.1, "system": []}, "'system' is not a mapping"),
        ("spent", {"wall_s": -3}, "'wall_s' is -3, out of range"),
        ("spent", {"usd": 1e300}, "'usd' is 1e+300, out of range"),
        ("measured", {"factors": 3}, "'factors' is not a mapping"),
        ("measured", {"folder": {}}, "'folder' is not text"),
        ("direction", {"interval": [1.0]}, "'interval' is not an interval"),
        ("direction", {"title": 7}, "'title' is not text"),
        ("gate", {"gate": "screen", "passed": "yes"}, "'passed' is not true or false"),
        ("residual", {"commits": [7]}, "'commits' is not a list of texts"),
        ("residual", {"commits": "all"}, "'commits' is not a list"),
    ],
)
def test_a_number_that_is_none_is_one_line(repository, event, data, said):
    """An event that does not hold what it must is named by number and key."""
    events = begun()
    events.add("explore", event, data, "d")
    write_journal(repository, events.rows)

    assert errors_well(spt("report", "one", cwd=repository), 2, f"refs/spt/round/one: event 1 ({event}): {said}")


def test_what_is_not_known_is_left_alone(repository):
    """Events and keys of a later version neither break the page nor change a number."""
    events = begun(colour="green")
    events.add("explore", "sang", {"song": [1, 2]}, "d")
    found = story_of(repository, events)

    assert (found.tried, found.promotions, found.doubts) == ((), (), ())


def test_an_unknown_round_is_named(repository):
    """Missing, for the library as for the command."""
    with pytest.raises(Missing, match="no round is called 'nobody'"):
        read_round(Store.find(repository), "nobody")
    with pytest.raises(Usage, match="cannot be a name"):
        read_round(Store.find(repository), "../x")


# --- figures ---

A, B = ({"tree": tree(name), "options": {}} for name in "ab")


def promoted(gain=1.05, said="speedup", **changes):
    data = {"system": A, "commit": None, "kind": said, "rule": "paired-1", "gain": gain, "low": 1.04, "high": 1.06}
    return {**data, "timing": None, "forcing": None, **changes}


def only_promotion(repository, **changes):
    events = begun()
    events.add("explore", "direction", {"title": "t", "base": NOTHING}, "d")
    events.add("explore", "promoted", promoted(**changes), "d")
    found = story_of(repository, events)
    return found.promotions[0], found.doubts


def test_a_speedup_is_the_ledgers_word(repository):
    """Only a timing verdict whose tokens forcing accepted, both in this ledger, makes a speedup."""
    verdict = timing(A, NOTHING, 0.05, key("samples"))
    accepted = forcing(verdict)
    add(repository, verdict, accepted)
    one, doubts = only_promotion(repository, timing=verdict["key"], forcing=accepted["key"])

    assert (one.figure.word, one.figure.value) == ("speedup", 1.05)
    assert one.forcing.answer == "accept" and one.forcing.timed
    assert one.source.verdict == f"timing/{verdict['key']}.json"
    assert doubts == ()


@pytest.mark.parametrize("answer", ["reject", "undecided", "malformed", "smoke"])
def test_what_forcing_did_not_accept_is_a_raw_ratio(repository, answer):
    """Whatever the journal says, and the page says that it does not agree."""
    verdict = timing(A, NOTHING, 0.05, key("samples"))
    said = forcing(verdict, answer)
    add(repository, verdict, said)
    one, doubts = only_promotion(repository, timing=verdict["key"], forcing=said["key"])

    assert one.figure.word == "raw ratio"
    assert "it says speedup, and no forcing verdict in the ledger here backs that" in doubts[0]


def test_a_verdict_that_is_not_here_backs_nothing(repository):
    """A journal that came without its ledger has raw ratios, and says which verdicts are missing."""
    one, doubts = only_promotion(repository, timing="5" * 64, forcing="6" * 64)

    assert (one.figure.word, one.forcing) == ("raw ratio", None)
    assert "the ledger here has no timing verdict '555555555555'" in doubts[0]
    assert any("no forcing verdict '666666666666'" in doubt for doubt in doubts)


def test_a_journal_that_disagrees_with_its_verdict_is_a_doubt(repository):
    """A gain that is not the verdict's own is no speedup, even where forcing accepted that system."""
    verdict = timing(A, NOTHING, 0.05, key("samples"))
    accepted = forcing(verdict)
    add(repository, verdict, accepted)
    one, doubts = only_promotion(repository, gain=1.5, timing=verdict["key"], forcing=accepted["key"])

    assert (one.figure.word, one.figure.value) == ("raw ratio", 1.5)
    assert "it says 1.500, and its verdict 1.050" in doubts[0]


def test_a_demo_rule_is_said_on_every_line(repository):
    """What the demo promotes has a raw ratio and the rule's name, on the page and in the terminal."""
    events = begun(rule="demo")
    events.add("explore", "direction", {"title": "t", "base": NOTHING}, "d")
    events.add("explore", "promoted", promoted(said="raw ratio", rule="demo"), "d")
    write_journal(repository, events.rows)
    ran = spt("report", "one", cwd=repository)

    lines = [line for line in ran.out.splitlines() if "ratio" in line or "1.050" in line]
    page = (repository / ".git/spt/rounds/one/report.html").read_text()

    assert len(lines) == 2
    assert all("raw ratio (rule demo) 1.050 (1.040 to 1.060)" in line for line in lines)
    assert page.count("raw ratio (rule demo)") == page.count(">1.050</a>") == 4


def test_an_interval_of_two_units_is_not_shown(repository):
    """A smoke final times two units: its ratio stands alone."""
    verdict = final(A, "smoke", key("samples"))
    verdict["timing"]["stock"]["units"] = 2
    add(repository, verdict)
    events = begun()
    ends = {"gain": 1.31, "low": 0.46, "high": 336.0}
    events.add("final", "final", {"key": verdict["key"], "verdict": "smoke", "against_stock": ends})
    found = story_of(repository, events)

    assert (found.final.stock.value, found.final.stock.low, found.final.stock.high) == (1.31, None, None)


def test_a_final_is_a_speedup_only_where_it_accepts(repository):
    """The final's own forcing decides, and an answer that differs from the ledger's is a doubt."""
    for number, (answer, word) in enumerate((("accept", "speedup"), ("smoke", "raw ratio"), ("reject", "raw ratio"))):
        system = {"tree": tree("final", number), "options": {}}
        verdict = final(system, answer, key("samples"))
        add(repository, verdict)
        events = begun(f"f{number}")
        data = {"key": verdict["key"], "verdict": answer, "against_stock": {"gain": 1.31}, "against_ar": None}
        events.add("final", "final", data)
        found = story_of(repository, events)
        assert (found.final.stock.word, found.final.ar, found.doubts) == (word, None, ())

    events = begun("liar")
    events.add("final", "final", {"key": verdict["key"], "verdict": "accept", "against_stock": {"gain": 1.31}})
    found = story_of(repository, events)
    assert found.doubts == ("event 1 (final): it says accept, and its verdict reject",)


# --- products ---


def chain(events, *gains, start=NOTHING, parallel=False):
    """Promotions of these gains; on one another, or all on the start."""
    base, best = start, start
    for number, gain in enumerate(gains):
        best = {"tree": tree(events.round, number), "options": {}}
        events.add("explore", "direction", {"title": "t", "base": base}, f"d{number}")
        events.add("explore", "promoted", promoted(gain, "raw ratio", system=best), f"d{number}")
        base = start if parallel else best
    return best


@given(st.lists(st.floats(0.5, 2.0), min_size=1, max_size=6))
def test_gains_on_one_another_multiply(tmp_path_factory, gains):
    """The development gain is the product of promotions of which each began at the one before."""
    events = begun()
    chain(events, *gains)
    found = told(events)

    assert math.isclose(found.development.value, math.prod(gains))
    assert found.development.word == "raw ratio"
    assert (found.development.low is None) == (len(gains) > 1)
    assert len(found.development.source.events) == len(gains)


def told(events):
    """The story of events that are nowhere but here."""
    from spt.report.events import Data, Read, Told
    from spt.round.journal import Event

    rows = [Event.of({**row, "data": dict(row["data"])}) for row in events.rows]
    read = Read(events.round, "0" * 40, tuple(Told(row, "0" * 40, Data(row.data, "here")) for row in rows))
    return tell(read, Ledger(Store()))


def test_gains_beside_one_another_do_not_multiply():
    """Promotions that were timed against one base count once: the one that the round ended with."""
    events = begun()
    best = chain(events, 1.1, 1.2, 1.3, parallel=True)
    assert told(events).development.value == 1.3

    events.add("integrate", "direction", {"title": "all", "base": best}, "all")
    events.add("integrate", "promoted", promoted(1.05, system=A), "all")
    assert math.isclose(told(events).development.value, 1.3 * 1.05)


def test_what_was_promoted_beside_the_best_is_not_the_best():
    """A direction that ended later, on an older base, moves nothing: the round's gain is still that of its best."""
    events = begun()
    for name, gain, system, beside in (("one", 1.2, A, False), ("two", 1.1, B, True)):
        events.add("explore", "direction", {"title": "t", "base": NOTHING}, name)
        events.add("explore", "promoted", {**promoted(gain, system=system), "beside": beside}, name)
    assert told(events).development.value == 1.2


def test_a_gain_whose_base_is_not_known_is_not_known():
    """Where promotions do not lead back to the start, there is no number at all."""
    events = begun()
    events.add("explore", "direction", {"title": "t", "base": B}, "d")
    events.add("explore", "promoted", promoted(1.4), "d")
    found = told(events)

    assert (found.path, found.development) == (None, None)


def test_a_base_that_its_verdict_does_not_have_is_a_doubt(repository):
    """Where direction and verdict disagree on what was timed against what, the gain over the start is not known."""
    first, second = timing(A, NOTHING, 0.05, key("a")), timing(B, A, 0.07, key("b"))
    add(repository, first, second)
    events = begun()
    for name, verdict, system in (("one", first, A), ("two", second, B)):
        events.add("explore", "direction", {"title": "t", "base": NOTHING}, name)
        data = promoted(1 + verdict["gain"], "raw ratio", system=system, timing=verdict["key"])
        events.add("explore", "promoted", data, name)
    found = story_of(repository, events)

    assert found.development is None
    assert found.doubts == (
        f"event 4 (promoted): its direction began on {STOCK[:12]}, and it was timed against {A['tree'][:12]}",
    )


def test_what_was_measured_together_is_the_gain():
    """Once the whole was timed against the start, that is the development gain, with its interval; it is no idea."""
    events = begun()
    best = chain(events, 1.1, 1.2)
    events.add("integrate", "direction", {"title": "whole", "agent": "controller", "base": NOTHING}, "whole")
    events.add("integrate", "promoted", promoted(1.29, "raw ratio", system=best), "whole")
    found = told(events)

    assert (found.development.value, found.development.low, found.development.high) == (1.29, 1.04, 1.06)
    assert [each.over for each in found.promotions] == ["the start", "d0", "the start"]
    assert (found.ideas, found.count["promoted"], len(found.promotions)) == (2, 2, 3)


def test_a_round_that_fell_back_has_the_gain_of_what_is_left():
    """Where the whole did not pay, the best is an earlier promotion, and so is the gain."""
    events = begun()
    chain(events, 1.1, 1.2)
    first = events.rows[2]["data"]["system"]
    events.add("integrate", "best", {"system": first, "commit": None, "reason": "the whole does not pay"})
    found = told(events)

    assert found.development.value == 1.1
    assert found.best.tree == first["tree"]
    assert [(name, reason) for name, reason, _ in found.stops] == [("best", "the whole does not pay")]


def test_rounds_in_a_row_are_those_that_go_on(repository):
    """A round follows one of its deployment and way that ended where it began; others begin rows of their own."""
    found = []
    best = NOTHING
    for day, (name, gain) in enumerate((("n1", 1.1), ("n2", 1.2), ("n3", 1.3)), 1):
        events = Events(name, day)
        events.add("measure", "begun", {**BEGUN, "start": best})
        best = chain(events, gain, start=best)
        found.append(told(events))
    for name, changes in (
        ("ablation", {"modes": {"cost_model": False, "agents": 1}}),
        ("elsewhere", {"start": best, "digest": "e" * 64}),
        ("later", {"start": {"tree": tree("other"), "options": {}}}),
    ):
        events = Events(name, 9)
        events.add("measure", "begun", {**BEGUN, **changes})
        chain(events, 1.5, start=changes.get("start", NOTHING))
        found.append(told(events))
    by_name = {row.name: row for row in rows(found[::-1])}

    assert set(by_name) == {"n1 to n3", "ablation", "elsewhere", "later"}
    assert [round(point.total, 6) for point in by_name["n1 to n3"].points] == [1.1, 1.32, 1.716]
    assert by_name["n1 to n3"].points[-1].over_stock == by_name["n1 to n3"].points[-1].total
    assert by_name["later"].points[-1].over_stock is None
    assert by_name["ablation"].way == "no cost model, 1 agent"


# --- acceptance ---


def test_looped_steps_and_prefill_are_left_out(repository):
    """A step whose first token is looped counts in no curve, and prefill's token is no step."""
    events = begun()
    run = list(range(100, 124))
    ids = [1, *run, *run, 7]
    folder = repository / ".git/spt/rounds/one/measured"
    folder.mkdir(parents=True)
    answer = {"ids": ids, "lines": [1, 4, 20, 8, 16, 1]}
    (folder / "answers.jsonl").write_text(json.dumps(answer) + "\n" + '{"ids": [1, 2')
    events.add("measure", "measured", {"folder": "spt/rounds/one/measured", "tau": 2.0})
    [curve] = curves(story_of(repository, events), Ledger(Store.find(repository)))

    # Both runs are looped, the first too, since the marks are of every run that stands twice.
    assert (curve.steps, curve.name) == (3, "measured 1")
    assert curve.tau == pytest.approx((4 + 20 + 1) / 3)
    assert curve.shares[:1] == (1.0,) and curve.shares[4] == pytest.approx(1 / 3)


@pytest.mark.parametrize("folder", ["../../outside", "spt/../../outside", "/etc", "spt/link", "spt/none\0", ""])
def test_a_journal_is_not_followed_out_of_the_repository(repository, folder):
    """A folder that does not lie below the repository's own `spt/` is not read, whatever leads there."""
    outside = repository / "outside"
    outside.mkdir()
    (outside / "answers.jsonl").write_text(json.dumps({"ids": [1, 2, 3], "lines": [1, 2]}) + "\n")
    (repository / ".git/spt").mkdir(exist_ok=True)
    (repository / ".git/spt/link").symlink_to(outside)
    events = begun()
    events.add("measure", "measured", {"folder": folder})

    assert curves(story_of(repository, events), Ledger(Store.find(repository))) == []


def test_samples_that_are_not_what_their_name_says_have_no_curve(repository):
    """A raw file is held against its digest before anything is drawn from it."""
    ledger = Ledger(Store.find(repository))
    raw = ledger.keep_raw(samples(repository / ".git", "x", {"a": A, "b": NOTHING}, "confirm", 1))
    verdict = timing(A, NOTHING, 0.05, raw.name.partition(".")[0])
    add(repository, verdict)
    events = begun()
    events.add("explore", "direction", {"title": "t", "base": NOTHING}, "d")
    events.add("explore", "promoted", promoted(timing=verdict["key"]), "d")
    found = story_of(repository, events)
    assert [curve.name for curve in curves(found, ledger)] == ["last promotion, before", "last promotion, after"]

    raw.write_bytes(gzip.compress(gzip.decompress(raw.read_bytes()).replace(b'"lines": [1', b'"lines": [2')))
    assert curves(found, ledger) == []
    raw.write_bytes(b"no gzip")
    assert curves(found, ledger) == []


# --- words ---


@given(st.floats(-1e15, 1e15))
def test_numbers_stay_short(value):
    """No number that a journal may hold takes more than a column."""
    for write in (words.number, words.ratio, words.count, words.duration, words.dollars):
        assert len(write(abs(value))) < 30


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0, "0.0 s"), (59.94, "59.9 s"), (60, "1 min"), (3599, "1 h 0 min"), (3600, "1 h 0 min"), (90_061, "25 h 1 min")],
)
def test_time_in_words(seconds, said):
    """Seconds below a minute, then minutes, then hours."""
    assert words.duration(seconds) == said


@given(st.lists(st.integers(0, 60)))
def test_ranges_name_exactly_their_numbers(numbers):
    """What is written as ranges can be read back."""
    back = set()
    for part in filter(None, ranges(numbers).split(", ")):
        low, _, high = part.partition("-")
        back |= set(range(int(low), int(high or low) + 1))
    assert back == set(numbers)


def test_what_is_cut_is_counted():
    """A text that is too long says how much of it is missing."""
    assert words.cut("a\n b\t c") == "a b c"
    assert words.cut("x" * 250, 240) == "x" * 240 + "… (10 more characters)"


def test_dates_are_in_utc():
    """A time with a zone is told in UTC; what is no time is told as it is."""
    assert words.date("2026-11-30T13:05:59+01:00") == "2026-11-30 12:05 UTC"
    assert words.date("9999-12-31T23:59:59-23:00") == "9999-12-31T23:59:59-23:00"
    assert words.date("yesterday") == "yesterday"


def test_the_card_of_the_made_up_verdicts_is_one():
    """The generator's card has all compared fields, so that `transfer` finds a machine in it."""
    assert {"gpu", "driver", "torch", "triton", "cuda", "power_cap_w"} <= set(CARD)

"""Evidence in words: whether it is of now, and whether its figure may be called a speedup."""

import gzip
import hashlib
import json
import shutil
from types import SimpleNamespace

import pytest

from spt import record
from spt.folder import add_evidence
from spt.verdicts import Ledger
from tests.spt.judged import forcing, harness, made_up_samples, make_deployment
from tests.spt.toys import (
    edit_and_write_back,
    errors_well,
    evidence_line,
    git,
    make_root,
    snapshot,
    spt,
    write,
    write_entry,
)


@pytest.fixture
def with_evidence(deployment):
    """A function that gives an entry of the deployment some lines of evidence."""

    def give(name, *lines):
        folder = deployment.parent / "entries"
        folder.mkdir(exist_ok=True)
        spt("entry", "export", name, "--to", folder, cwd=deployment)
        write(folder / name, {"evidence/2026-01-02-toy.jsonl": "".join(lines)})
        ran = spt("entry", "import", folder, name, cwd=deployment)
        assert ran.code == 0, ran.err
        return deployment

    return give


SAMPLES = "3" * 64
TIMED = {"evidence": "judged", "verdict": {"key": "2" * 64, "answer": "promote", "samples": SAMPLES}}


def forced(answer="accept", timed=SAMPLES):
    """What a line says of forcing."""
    rates = {"mismatch": 0.01, "stock_mismatch": 0.01, "tokens": 60_000, "sessions": 110}
    return {"key": "5" * 64, "answer": answer, **rates, "timed": timed}


def listed(folder, name):
    found = spt("entry", "list", "--json", cwd=folder).json
    return next(row for row in found if row["name"] == name)["evidence"]


@pytest.mark.parametrize(
    ("changes", "ratio"),
    [
        ({}, "raw ratio 1.25"),
        ({**TIMED, "evidence": "raw", "forcing": forced()}, "raw ratio 1.25"),
        (TIMED, "raw ratio 1.25"),
        ({**TIMED, "forcing": forced("reject")}, "raw ratio 1.25"),
        ({**TIMED, "forcing": forced(timed=None)}, "raw ratio 1.25"),
        ({**TIMED, "forcing": forced(timed="4" * 64)}, "raw ratio 1.25"),
        ({"evidence": "judged", "forcing": forced()}, "raw ratio 1.25"),
        ({**TIMED, "forcing": forced()}, "claimed speedup 1.25"),
        ({"gain": None}, None),
    ],
)
def test_a_figure_is_called_what_it_is(deployment, with_evidence, changes, ratio):
    """A line that says judged, its timed tokens accepted by forcing, claims a speedup; all else is a raw ratio."""
    with_evidence("tuned", evidence_line(deployment, "tuned", **changes))
    (found,) = listed(deployment, "tuned")

    assert found["ratio"] == ratio
    assert found["state"] == "current"
    if ratio is None or ratio.startswith("raw"):
        printed = spt("entry", "list", cwd=deployment).out + spt("entry", "show", "tuned", cwd=deployment).out
        assert "speedup" not in printed


def test_evidence_ages(deployment, with_evidence, tmp_path):
    """Evidence is current on the stock it was taken on, carried when stock moved, stale when the entry changed."""
    with_evidence("fast-linear", evidence_line(deployment, "fast-linear"))
    states = [listed(deployment, "fast-linear")[0]["state"]]
    newer = make_root(tmp_path / "newer", entries=False)
    write(newer, {"kernels/mm.py": "# moved\n"})
    spt("init", deployment, "--from", newer, cwd=tmp_path)
    states.append(listed(deployment, "fast-linear")[0]["state"])
    assert spt("entry", "refresh", "--all", cwd=deployment).code == 0
    states.append(listed(deployment, "fast-linear")[0]["state"])
    edit_and_write_back(deployment, "fast-linear", {"kernels/w12.py": "# faster\n"})
    states.append(listed(deployment, "fast-linear")[0]["state"])

    assert states == ["current", "carried", "carried", "stale"]


def test_evidence_of_another_system_is_carried(deployment, with_evidence):
    """Evidence of a system that today's entries do not make is not current."""
    with_evidence("tuned", evidence_line(deployment, "tuned", system_tree="4" * 40))

    assert listed(deployment, "tuned")[0]["state"] == "carried"


def test_evidence_of_a_system_on_top_is_current(deployment, with_evidence):
    """An entry that was measured within the system of an entry that requires it was measured as it is now."""
    tree = git(deployment, "rev-parse", "entry/tuned~1^{tree}")
    with_evidence("fast-linear", evidence_line(deployment, "fast-linear", system_tree=tree))

    assert listed(deployment, "fast-linear")[0]["state"] == "current"


def test_evidence_is_append_only(deployment, with_evidence):
    """Importing a folder that lacks lines which the repository has keeps them, as a new record on the same P."""
    first, second = evidence_line(deployment, "tuned"), evidence_line(deployment, "tuned", gain=0.5)
    with_evidence("tuned", first)
    patch = git(deployment, "rev-parse", "entry/tuned~2")
    with_evidence("tuned", second)
    text = git(deployment, "show", "entry/tuned:.spt/entries/tuned/evidence/2026-01-02-toy.jsonl")

    assert [json.loads(line)["gain"] for line in text.splitlines()] == [0.25, 0.5]
    assert git(deployment, "rev-parse", "entry/tuned~3") == patch


def test_show_names_evidence_changes_and_ids(deployment, with_evidence):
    """`show` prints the card, what changes, and each line of evidence with its words."""
    with_evidence("tuned", evidence_line(deployment, "tuned"))
    printed = spt("entry", "show", "tuned", cwd=deployment).out
    found = spt("entry", "show", "tuned", "--json", cwd=deployment).json

    assert "evidence: current, raw: raw ratio 1.25, interval +0.200 to +0.300, 10 units" in printed
    assert "edits   stock/linear/w12.py" in printed
    assert found["closure"] == ["fast-linear", "tuned"]
    assert found["delta_id"] in printed


def test_a_system_of_entries_that_a_line_names_is_current(deployment, with_evidence):
    """Entries of today that nobody requires together are a system of now once a line names them, and only then."""
    tree = spt("entry", "apply", "tuned", "tree-select", "--tree-only", cwd=deployment).out.strip()
    pins = [f"{name}@{listed_delta(deployment, name)}" for name in ("fast-linear", "tree-select", "tuned")]
    write_entry(deployment.parent, "more", {"stock/select/more.py": "# more\n"}, seams={"select": ["more"]})
    spt("entry", "import", deployment.parent / "entries/more", cwd=deployment)
    with_evidence(
        "tuned",
        evidence_line(deployment, "tuned", system_tree=tree),
        evidence_line(deployment, "tuned", system_tree=tree, entries=pins),
        evidence_line(deployment, "tuned", system_tree=tree, entries=pins[:2]),
        evidence_line(deployment, "tuned", system_tree="4" * 40, entries=pins),
        evidence_line(deployment, "tuned", system_tree=tree, entries=[*pins, f"gone@{'0' * 64}"]),
    )

    assert [one["state"] for one in listed(deployment, "tuned")] == ["carried", "current", *["carried"] * 3]


def listed_delta(folder, name):
    return next(row for row in spt("entry", "list", "--json", cwd=folder).json if row["name"] == name)["delta_id"]


# `spt entry record`.


@pytest.fixture(scope="module")
def race(tmp_path_factory):
    """A deployment whose ledger says that `tuned` is 5 % faster and `tuned@seed.yaml` no faster, and a checkout."""
    folder = make_deployment(tmp_path_factory.mktemp("race"))
    for system, gain in (("tuned", 0.05), ("tuned@seed.yaml", 0.0)):
        samples = made_up_samples(folder, folder.parent / f"{system}.jsonl", gain, system)
        ran = spt("verdict", "add", samples, cwd=folder)
        assert ran.code == (0 if gain else 1), ran.err
    return folder


@pytest.fixture
def place(race, tmp_path):
    """A copy of both: `at` is the deployment, `root` the checkout."""
    shutil.copytree(race.parent, tmp_path / "race")
    at, root = tmp_path / "race/deployment", tmp_path / "race/root"
    ledger = Ledger.find(at)
    by_answer = {held.verdict["answer"]: held.verdict for held in ledger.all()}
    return SimpleNamespace(at=at, root=root, ledger=ledger, verdict=by_answer["promote"], no=by_answer["decline"])


def recorded(place, name="tuned", key=None, *arguments, entries="entries", cwd=None):
    key = place.verdict["key"][:9] if key is None else key
    where = [] if entries is None else ["--entries", place.root / entries]
    return spt("entry", "record", name, key, *where, *arguments, cwd=cwd or place.at)


def lines(place, name="tuned"):
    (file,) = (place.root / "entries" / name / "evidence").glob("*.jsonl")
    assert file.name == "2026-11-30-toy.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_a_verdict_becomes_evidence(place):
    """The line says what the ledger says, the samples beside it come to the same verdict, and nothing names a host."""
    ran = recorded(place)
    assert ran.code == 0, ran.err
    (line,) = lines(place)
    samples = place.root / "entries/tuned" / line["samples"]["path"]
    of, again = place.verdict["of"], harness("verdict", samples)

    same = ("rule", "units", "gain", "interval", "noise")
    assert {name: line[name] for name in same} == {name: place.verdict[name] for name in same}
    assert (line["options"], line["baseline"], line["deployment"]) == (of["a"]["options"], of["b"], of["deployment"])
    assert (line["system_tree"], line["stock_tree"]) == (of["a"]["tree"], of["b"]["tree"])
    assert line["verdict"] == {name: place.verdict[name] for name in ("key", "answer", "samples")}
    assert [pin.partition("@")[0] for pin in line["entries"]] == ["fast-linear", "tuned"]
    assert (line["tau"], line["forcing"]) == ({"before": 1.0, "after": 1.0}, None)
    assert line["requests"].startswith("120 requests, to 4 tokens or a stop id")
    assert again | {"samples": 0} == place.verdict | {"samples": 0}
    assert b"some-name" in gzip.decompress(place.ledger.raw(place.verdict["samples"]).read_bytes())
    assert b"some-name" not in gzip.decompress(samples.read_bytes()) and "host" not in line["card"]
    assert hashlib.sha256(samples.read_bytes()).hexdigest() == line["samples"]["sha256"]
    (found,) = listed(place.root, "tuned")
    assert (found["state"], found["answer"], found["ratio"]) == ("current", "promote", "raw ratio 1.05")
    shown = spt("entry", "show", "tuned", cwd=place.root).out
    assert "evidence: current, judged (promote): raw ratio 1.05" in shown and "not forced" in shown
    assert "record ok" in spt("entry", "verify", "tuned", cwd=place.root).out


def test_a_killed_run_is_finished_by_the_next(tmp_path):
    """Samples come before the line that names them, so a kill leaves no line without samples."""
    line, file = {"samples": {"path": "evidence/samples/0.gz"}}, "evidence/day.jsonl"
    (tmp_path / "entry" / file).mkdir(parents=True)  # here the line cannot be written
    with pytest.raises(OSError, match="directory"):
        add_evidence(tmp_path / "entry", file, line, b"samples")
    assert (tmp_path / "entry/evidence/samples/0.gz").read_bytes() == b"samples"
    (tmp_path / "entry" / file).rmdir()
    write(tmp_path / "entry", {file: "{}"})

    assert [add_evidence(tmp_path / "entry", file, line, b"samples") for _ in range(2)] == [True, False]
    assert [json.loads(text) for text in (tmp_path / "entry" / file).read_text().splitlines()] == [{}, line]


def test_forcing_is_recorded_once_it_has_spoken(place):
    """The same verdict again adds nothing; once forcing spoke of its tokens, one more line says so."""
    assert recorded(place).code == 0
    untouched = snapshot(place.root)
    again = recorded(place, "tuned", place.verdict["key"], "--json")
    assert (again.code, [again.json]) == (0, lines(place)) and "is already in" in again.err
    assert snapshot(place.root) == untouched
    accepted = place.ledger.add(forcing(place.verdict))
    assert recorded(place).code == 0
    before, after = lines(place)

    assert before == {**after, "forcing": None}
    assert after["forcing"] == {name: accepted[name] for name in after["forcing"]}
    assert after["forcing"].keys() == forced().keys()
    assert [one["ratio"] for one in listed(place.root, "tuned")] == ["raw ratio 1.05", "claimed speedup 1.05"]
    assert "forcing of the timed tokens: accept" in spt("entry", "show", "tuned", cwd=place.root).out


def test_a_decline_is_evidence_and_so_is_a_part_of_a_system(place):
    """What was not promoted is recorded with its figure; an entry below is recorded with the system that held it."""
    assert recorded(place, "fast-linear", place.no["key"]).code == 0
    (line,) = lines(place, "fast-linear")

    assert line["gain"] == place.no["gain"]
    assert line["options"] == place.no["of"]["a"]["options"] != {}
    (found,) = listed(place.root, "fast-linear")
    assert (found["state"], found["answer"], found["kind"]) == ("current", "decline", "judged")
    assert found["ratio"].startswith("raw ratio 1.0")


def test_a_verdict_on_an_older_stock_is_carried(place):
    """Stock moved and the entry did not: where the old stock is known the verdict is recorded, and is not of now."""
    write(place.root, {"kernels/mm.py": "# moved\n"})

    assert recorded(place).code == 0
    assert listed(place.root, "tuned")[0]["state"] == "carried"


def test_a_checkout_has_a_ledger_of_its_own(place):
    """In the checkout itself nothing need be named but the deployment."""
    git(place.root, "init", "-q")
    git(place.root, "fetch", "-q", place.at, "refs/spt/verdicts:refs/spt/verdicts")
    shutil.copytree(place.at / ".git/spt/raw", place.root / ".git/spt/raw")
    file = place.at / "deployment.yaml"

    assert recorded(place, "tuned", None, "--deployment", file, entries=None, cwd=place.root).code == 0
    assert listed(place.root, "tuned")[0]["state"] == "current"


@pytest.mark.parametrize("date", ["../../../x", "/tmp/x", "2026-11-3", "\uff12026-11-30", "", None])
def test_a_card_decides_no_path(date, place, tmp_path):
    """Samples come from elsewhere: where their card has no date of a day, no file is written, wherever it would lie."""
    data = gzip.decompress(place.ledger.raw(place.verdict["samples"]).read_bytes())
    told = [json.loads(text) for text in data.splitlines()]
    told[0]["arms"]["a"]["options"] = {"tau": 3}  # another key
    told[1]["card"] = {name: value for name, value in told[1]["card"].items() if name != "date"}
    if date is not None:
        told[1]["card"]["date"] = date
    (tmp_path / "odd.jsonl").write_text("".join(json.dumps(line) + "\n" for line in told))
    added = spt("verdict", "add", tmp_path / "odd.jsonl", "--json", cwd=place.at)
    assert added.code == 0, added.err
    before = snapshot(tmp_path)

    assert errors_well(recorded(place, key=added.json["key"]), 2, "has no date")
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize(
    ("what", "code", "said"),
    [
        ("unknown", 4, ["begins with 'zz'"]),
        ("several", 2, ["2 timing verdicts", "''"]),
        ("forcing", 2, ["forcing verdict"]),
        ("name", 4, ["there is no entry 'nobody'"]),
        ("not held", 1, ["no system that holds 'tree-select'"]),
        ("not in the system", 2, ["does not hold 'tree-select'"]),
        ("another system", 1, ["'tuned+tree-select' on stock"]),
        ("changed", 1, ["as it is now"]),
        ("deployment", 2, ["another deployment", "--deployment"]),
        ("no samples", 4, ["are not here", "`spt verdict add"]),
        ("other samples", 1, ["that it is named by"]),
        ("large", 2, ["at most"]),
        ("no checkout", 2, ["--entries DIR"]),
        ("elsewhere", 2, ["is not the entries/ of a checkout"]),
        ("no stock", 4, ["the stock tree", "--entries DIR"]),
    ],
)
def test_what_is_not_evidence_is_refused(what, code, said, place, monkeypatch):
    """One line with a hint, and no file is written."""
    name, key, arguments, entries, cwd = "tuned", None, [], "entries", None
    raw = place.ledger.raw(place.verdict["samples"])
    if what in ("unknown", "several"):
        key = {"unknown": "zz", "several": ""}[what]
    elif what == "forcing":
        key = place.ledger.add(forcing(place.verdict))["key"]
    elif what == "name":
        name = "nobody"
    elif what in ("not held", "not in the system"):
        name, arguments = "tree-select", ["--system", "tuned"] if what == "not in the system" else []
    elif what == "another system":
        arguments = ["--system", "tuned+tree-select"]
    elif what == "changed":
        write(place.root, {"entries/fast-linear/tree/kernels/w12.py": "# faster\n"})
    elif what == "deployment":
        text = (place.at / "deployment.yaml").read_text()
        (place.at / "deployment.yaml").write_text(text.replace('"toy"', '"other"'))
    elif what == "no samples":
        raw.unlink()
    elif what == "other samples":
        raw.write_bytes(gzip.compress(b"{}\n"))
    elif what == "large":
        monkeypatch.setattr(record, "SAMPLES_BYTES", 100)
    elif what in ("no checkout", "elsewhere"):
        entries = {"no checkout": None, "elsewhere": "stock"}[what]
    else:
        git(place.root, "init", "-q")
        git(place.root, "fetch", "-q", place.at, "refs/spt/verdicts:refs/spt/verdicts")
        write(place.root, {"kernels/mm.py": "# moved\n"})
        cwd, entries, arguments = place.root, None, ["--deployment", place.at / "deployment.yaml"]
    before = snapshot(place.root)

    ran = recorded(place, name, key, *arguments, entries=entries, cwd=cwd)
    assert errors_well(ran, code, *said), ran.err
    assert "hint: " in ran.err or what == "not in the system"
    assert snapshot(place.root) == before

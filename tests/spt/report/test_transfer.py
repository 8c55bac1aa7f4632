"""How entries transfer: what cards, stock trees and evidence say, and nothing more."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spt.report.transfer import Machine, fits
from tests.spt.report.journals import Maker
from tests.spt.report.pages import parse
from tests.spt.toys import MACHINE, evidence_line, git, spt, write, write_entry

H200 = {**MACHINE, "gpu": "NVIDIA H200", "torch": "2.11.0+cu130", "triton": "3.6.0", "cuda": "13.0"}
ELSEWHERE = "2" * 64


@pytest.fixture
def measured(deployment):
    """The toy, whose entry `fast-linear` paid on one deployment, lost on another and is unclear on a third."""

    def line(**changes):
        return evidence_line(deployment, "fast-linear", **changes)

    lines = {
        "evidence/2026-01-02-toy.jsonl": line(),
        "evidence/2026-01-03-h200.jsonl": line(deployment=ELSEWHERE, card=H200, gain=-0.1, interval=[-0.15, -0.05]),
        "evidence/2026-01-04-wide.jsonl": line(deployment="3" * 64, interval=[-0.1, 0.6])
        + line(deployment="3" * 64, gain=9.0, interval=[8, 10], delta_id="9" * 64),
        "evidence/2026-01-05-bare.jsonl": line(deployment="4" * 64, interval=None),
    }
    folder = deployment.parent / "entries"
    folder.mkdir()
    assert spt("entry", "export", "fast-linear", "--to", folder, cwd=deployment).code == 0
    write(folder / "fast-linear", lines)
    ran = spt("entry", "import", folder, "fast-linear", cwd=deployment)
    assert ran.code == 0, ran.err
    return deployment


def cells(folder, *more):
    """{(entry, deployment): cell} of `spt report --transfer --json`."""
    ran = spt("report", *more, "--transfer", "--json", cwd=folder)
    assert ran.code == 0, ran.err
    found = ran.json["transfer"]
    names = [", ".join(place["names"]) for place in found["places"]]
    return {
        (one["name"], name): cell for one in found["entries"] for name, cell in zip(names, one["cells"], strict=True)
    }


def test_evidence_decides_what_pays(measured):
    """The whole interval above no gain pays, the whole below loses, and without an interval nothing is said."""
    found = cells(measured)

    assert found["fast-linear", "toy"]["pays"] == "pays"
    assert found["fast-linear", "toy"]["figure"] == "raw ratio 1.25"
    assert found["fast-linear", "toy"]["over"] == "stock"
    assert found["fast-linear", "h200"]["pays"] == "loses"
    assert found["fast-linear", "bare"]["pays"] == "unclear"
    assert found["tree-select", "toy"]["pays"] == "not measured"
    assert found["tree-select", "toy"]["line"] is None


def test_stale_evidence_comes_last(measured):
    """A line of another delta never outranks one of today's, however large its figure."""
    cell = cells(measured)["fast-linear", "wide"]

    assert (cell["pays"], cell["state"], cell["others"]) == ("unclear", "current, raw", 1)


def test_an_entry_applies_where_it_composes(measured):
    """On the deployment's own stock where that is here; two entries that meet on a line conflict only together."""
    assert {cell["applies"] for cell in cells(measured).values()} == {"yes"}


def test_a_stock_that_is_not_here_is_said(measured):
    """A deployment on a foreign stock: today's is tried, and the answer says so."""
    line = evidence_line(measured, "tree-select", deployment="5" * 64, stock_tree="7" * 40)
    folder = measured.parent / "entries"
    assert spt("entry", "export", "tree-select", "--to", folder, cwd=measured).code == 0
    write(folder / "tree-select", {"evidence/2026-01-06-far.jsonl": line})
    assert spt("entry", "import", folder, "tree-select", cwd=measured).code == 0

    assert cells(measured)["tree-select", "far"]["applies"] == "yes, on the stock of now; its own is not here"


def test_rounds_are_deployments_too(measured):
    """A round's deployment has a column, with the machine of its verdicts, though no evidence names it."""
    Maker(measured).make("smol-1", tried=2, promoted=1)
    ran = spt("report", "smol-1", "--transfer", cwd=measured)
    found = cells(measured, "smol-1")
    text = parse((measured / ".git/spt/rounds/smol-1/report.html").read_text()).text

    assert ran.code == 0, ran.err
    assert found["fast-linear", "smol-x8-h200"]["pays"] == "not measured"
    assert "NVIDIA H200" in ran.out
    assert "Transfer" in text and "fits: " in text


def test_the_page_of_transfer_alone(measured):
    """Without rounds the page has the table alone, and names where each line is read."""
    ran = spt("report", "--transfer", cwd=measured)
    path = measured / ".git/spt/reports/transfer.html"
    root = parse(path.read_text())

    assert ran.code == 0, ran.err
    assert ran.out.splitlines()[-1] == str(path)
    assert root.find("h1")[0].text == "How entries transfer"
    assert "git show entry/fast-linear:.spt/entries/fast-linear/evidence/2026-01-02-toy.jsonl" in root.text
    assert "raw ratio 1.25 (1.200 to 1.300)" in root.text
    assert "speedup" not in ran.out


def test_entries_without_evidence(deployment):
    """An empty table says why it is empty, and what fills it."""
    ran = spt("report", "--transfer", cwd=deployment)
    assert ran.code == 0, ran.err
    assert "no line of evidence names a deployment; `spt report ROUND --transfer`" in ran.err


def test_shipped_entries_transfer_as_their_evidence_says(tmp_path):
    """Outside of any repository it is what ships that is told, without a page unless one is asked for."""
    ran = spt("report", "--transfer", cwd=tmp_path)
    assert ran.code == 0, ran.err
    assert "note: there is no repository here to put a page into" in ran.err
    assert list(tmp_path.iterdir()) == []
    found = spt("report", "--transfer", "--json", cwd=tmp_path).json["transfer"]
    said = {
        one["name"]: {(cell["figure"].rpartition(" ")[0], cell["pays"]) for cell in one["cells"]}
        for one in found["entries"]
    }

    assert {("claimed speedup", "pays"), ("raw ratio", "pays")} <= said["best-first-tree"]
    assert ("raw ratio", "loses") in said["confident-budget"]
    overs = {cell["over"] for one in found["entries"] if one["name"] == "confident-budget" for cell in one["cells"]}
    assert overs == {"", "the same tree, other options"}
    assert spt("report", "--transfer", "--out", tmp_path / "t.html", cwd=tmp_path).code == 0
    assert (tmp_path / "t.html").is_file()


def test_an_entry_that_cannot_be_read_is_left_out(measured):
    """It is named with the reason, and the others are shown."""
    git(measured, "update-ref", "refs/heads/entry/broken", "HEAD")
    ran = spt("report", "--transfer", cwd=measured)

    assert ran.code == 0, ran.err
    assert "warning: an entry is left out: 'broken': " in ran.err
    assert "fast-linear" in ran.out


def test_hostile_cards_are_text(measured):
    """Titles and requirements of cards are someone else's."""
    folder = measured.parent / "hostile"
    write_entry(folder, "evil", {"kernels/evil.py": "#\n"}, title="<img src=x onerror=alert(1)>")
    card = json.loads((folder / "entries/evil/entry.yaml").read_text())
    card["requires"] |= {"target": ["<script>alert(1)</script>"], "device": ["<b>"]}
    (folder / "entries/evil/entry.yaml").write_text(json.dumps(card))
    ran = spt("entry", "import", folder / "entries", "evil", cwd=measured)
    assert ran.code == 0, ran.err
    assert spt("report", "--transfer", cwd=measured).code == 0
    root = parse((measured / ".git/spt/reports/transfer.html").read_text())

    assert not root.find("script") and not root.find("img") and not root.find("b")
    assert "<script>alert(1)</script>" in root.text


# --- fits ---

CPU = Machine.of({**MACHINE, "cpu": "AMD EPYC", "torch": "2.9.0"})
GPU = Machine.of(H200)


@pytest.mark.parametrize(
    ("requires", "machine", "verdict"),
    [
        ({"device": ["cpu", "sm_90"], "runtime": ["torch >= 2.9, triton >= 3.5 on a GPU"]}, CPU, "yes"),
        ({"device": ["cpu", "sm_90"], "runtime": ["torch >= 2.9, triton >= 3.5 on a GPU"]}, GPU, "yes"),
        ({"device": ["sm_90"]}, CPU, "no"),
        ({"device": ["cpu"]}, GPU, "no"),
        ({"device": ["any"]}, GPU, "yes"),
        ({}, GPU, "yes"),
        ({"runtime": ["torch >= 2.12"]}, GPU, "no"),
        ({"runtime": ["triton >= 3.6.0"]}, GPU, "yes"),
        ({"runtime": ["triton >= 3.6.1 on a GPU"]}, GPU, "no"),
        ({"runtime": ["triton >= 3.5"]}, CPU, "unknown"),
        ({"device": ["sm_90"]}, None, "unknown"),
        ({"device": ["sm_90"]}, Machine("Some New GPU", None, {}), "unknown"),
        ({"runtime": ["a recent driver"]}, GPU, "yes"),
    ],
)
def test_cards_are_held_against_machines(requires, machine, verdict):
    """Devices by compute capability, versions as numbers; what a card does not say in these words decides nothing."""
    assert fits(requires, machine)[0] == verdict


@given(st.tuples(*[st.integers(0, 30)] * 3), st.tuples(*[st.integers(0, 30)] * 3))
def test_versions_are_compared_as_numbers(has, wants):
    """2.11 is newer than 2.9, and 2.9 is 2.9.0."""
    machine = Machine("NVIDIA H200", None, {"torch": ".".join(map(str, has))})
    least = list(wants)
    while least and least[-1] == 0:
        least.pop()
    verdict = fits({"runtime": [f"torch >= {'.'.join(map(str, least or [0]))}"]}, machine)[0]

    assert verdict == ("yes" if has >= wants else "no")

"""Evidence in words: whether it is of now, and whether its figure may be called a speedup."""

import json

import pytest

from tests.spt.toys import edit_and_write_back, evidence_line, git, make_root, spt, write


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


def listed(folder, name):
    found = spt("entry", "list", "--json", cwd=folder).json
    return next(row for row in found if row["name"] == name)["evidence"]


@pytest.mark.parametrize(
    ("changes", "ratio"),
    [
        ({}, "raw ratio 1.25"),
        ({"forcing": {"answer": "accept"}}, "raw ratio 1.25"),
        ({"evidence": "judged"}, "raw ratio 1.25"),
        ({"evidence": "judged", "forcing": {"answer": "reject"}}, "raw ratio 1.25"),
        ({"evidence": "judged", "forcing": {"answer": "accept"}}, "claimed speedup 1.25"),
        ({"gain": None}, None),
    ],
)
def test_a_figure_is_called_what_it_is(deployment, with_evidence, changes, ratio):
    """A line that says judged, with forcing passed, claims a speedup; anything else is a raw ratio."""
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

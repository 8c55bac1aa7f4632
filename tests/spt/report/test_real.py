"""The report of a round that really ran: the machine of phases, the judge and the fake engine wrote its journal."""

import pytest

from tests.spt.report.pages import parse
from tests.spt.report.test_page import NUMBER, Sources, is_written
from tests.spt.round.toys import CANARY, NOOP, START, UNCHECKED, WRONG, make_round_deployment
from tests.spt.toys import git, spt


@pytest.mark.full
def test_a_real_round_is_told(tmp_path):
    """Whatever the round writes is understood: no doubt is left, the demo's rule is said, each number has a source."""
    folder = make_round_deployment(tmp_path, [CANARY, NOOP, WRONG, UNCHECKED])
    ran = spt(*START, cwd=folder)
    assert ran.code == 0, ran.err
    told = spt("report", cwd=folder)
    assert told.code == 0, told.err
    [name] = [one["round"] for one in spt("report", "--json", cwd=folder).json["rounds"]]
    root = parse((folder / f".git/spt/rounds/{name}/report.html").read_text())

    assert "What does not agree" not in root.text
    assert "speedup 1" not in told.out
    assert all("(rule demo)" in line for line in told.out.splitlines() if "raw ratio" in line)
    sources = Sources(folder, root)
    links = [node for node in root.find("a") if "n" in node.classes() and "rows" not in node.classes()]
    links = [node for node in links if not any("-curves" in (one.attributes.get("id") or "") for one in node.above())]
    wrong = [
        link.text
        for link in links
        if link.parent.tag != "th"
        and NUMBER.search(link.text)
        and not is_written(link.text, sources.pool(link.attributes["href"][1:]))
    ]
    assert wrong == []
    assert len(links) > 50
    commits = git(folder, "rev-list", f"refs/spt/round/{name}").splitlines()
    assert len(commits) == git(folder, "show", f"refs/spt/round/{name}:events.jsonl").count("\n") + 1

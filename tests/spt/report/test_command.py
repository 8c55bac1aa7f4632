"""`spt report`: what is printed and written, and one line for each thing that can be wrong."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.spt.report.journals import Maker
from tests.spt.toys import errors_well, git, snapshot, spt

ROOT = Path(__file__).parents[3]
STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def test_a_round_has_its_page_beside_what_it_measured(copy):
    """One round's page lies in its own folder, and its path is the last line of standard output."""
    ran = spt("report", "smol-1", cwd=copy)
    path = copy / ".git/spt/rounds/smol-1/report.html"

    assert ran.code == 0, ran.err
    assert ran.err == ""
    assert ran.out.splitlines()[-1] == str(path)
    assert path.read_text().startswith("<!doctype html>")
    assert path.stat().st_mode & 0o777 == 0o666 & ~umask()
    assert not [left for left in path.parent.iterdir() if left.name.startswith(".")]


def umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_the_summary_says_the_most_important_things(three, tmp_path):
    """Outcome, counts, gains with their words, costs, entries, residual, promotions; nothing steers a terminal."""
    ran = spt("report", "smol-1", "--out", tmp_path / "page.html", cwd=three)

    for words in (
        "smol-1: promoted, 2026-11-01 00:00 UTC to 2026-11-01",
        "deployment smol-x8-h200: 60 directions, 4 promoted, 51 declined, 5 failed, 0 open",
        "development, over the round's start: raw ratio 1.",
        "sealed final: accept; over stock speedup 1.",
        "over AR speedup",
        "entries: entry-smol-1-0, entry-smol-1-1, entry-smol-1-2",
        "residual: ",
        "paired-1",
    ):
        assert words in ran.out
    assert ran.out.count("speedup 1.0") >= 4
    assert not STEERING.search(ran.out)


def test_several_rounds_are_one_page(copy):
    """Rounds may be named in any order and twice; all are shown where none is named."""
    named = spt("report", "smol-2", "smol-1", "smol-2", "--out", "two.html", cwd=copy)
    text = (copy / "two.html").read_text()

    assert named.code == 0, named.err
    assert named.out.splitlines()[-1] == "two.html"
    assert text.index('<h2 id="r0">Round <bdi>smol-1') < text.index('<h2 id="r1">Round <bdi>smol-2')
    assert text.count('<h2 id="r') == 2
    assert spt("report", cwd=copy).out.count("directions, ") == 2


def test_json_has_all_of_it_and_writes_nothing(three):
    """One value on standard output, with each event's commit; a page only where --out asks for one."""
    before = sorted((three / ".git/spt").rglob("*"))
    found = spt("report", "smol-1", "ablation-1", "--json", cwd=three).json
    one = next(each for each in found["rounds"] if each["round"] == "smol-1")

    assert found["page"] is None
    assert sorted((three / ".git/spt").rglob("*")) == before
    assert len(one["tried"]) == 61 and len(one["promotions"]) == 5  # the whole too
    assert {row["way"] for row in found["rows"]} == {"cost model, 4 agents", "no cost model, 1 agent"}
    commits = git(three, "rev-list", "--reverse", "refs/spt/round/smol-1").splitlines()
    assert one["commits"] == commits
    promotion = one["promotions"][0]
    [seq] = promotion["source"]["events"]
    assert f"promoted {promotion['direction']}" in git(three, "log", "-1", "--format=%s", commits[seq])
    assert promotion["figure"]["word"] == "speedup"


def test_json_with_a_page(copy):
    """--json and --out together write the page and name it."""
    ran = spt("report", "smol-1", "--json", "--out", "page.html", cwd=copy)

    assert ran.json["page"] == "page.html"
    assert (copy / "page.html").is_file()


def test_a_page_takes_the_place_of_a_page(copy):
    """The same command again writes over its own page, and over that of other rounds."""
    assert spt("report", "smol-1", "--out", "page.html", cwd=copy).code == 0
    first = (copy / "page.html").read_text()
    assert spt("report", "smol-2", "--out", "page.html", cwd=copy).code == 0

    assert (copy / "page.html").read_text() != first


def foreign(folder):
    """Places where no page can go: the word, the exit code, what is said."""
    (folder / "mine.html").write_text("<html><p>spt report</p></html>")
    (folder / "empty.html").touch()
    (folder / "folder.html").mkdir()
    (folder / "link.html").symlink_to(folder / "mine.html")
    (folder / "dangling.html").symlink_to(folder / "gone.html")
    os.mkfifo(folder / "pipe.html")
    yield "mine.html", 2, "'mine.html' is there, and no report"
    yield "empty.html", 2, "'empty.html' is there, and no report"
    yield "folder.html", 2, "'folder.html' is a folder"
    yield "link.html", 2, "'link.html' is no regular file"
    yield "dangling.html", 2, "'dangling.html' is no regular file"
    yield "pipe.html", 2, "'pipe.html' is no regular file"
    yield "nowhere/page.html", 4, "the folder of 'nowhere/page.html' is not there"
    yield "mine.html/page.html", 4, "the folder of 'mine.html/page.html' is not there"


def test_nothing_of_anybody_else_is_written_over(copy):
    """A file that is no report stays, a missing folder is not made, and nothing follows a link."""
    for word, code, said in list(foreign(copy)):
        before = snapshot(copy)
        for more in ([], ["--json"]):
            ran = spt("report", "smol-1", "--out", word, *more, cwd=copy)
            assert errors_well(ran, code, said), (word, ran.err)
            assert ran.out == ""
        assert snapshot(copy) == before


def test_a_foreign_file_in_the_usual_place_stays(copy):
    """What lies where the page would go, and is none, is not written over."""
    path = copy / ".git/spt/rounds/smol-1/report.html"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("mine")

    assert errors_well(spt("report", "smol-1", cwd=copy), 2, "is there, and no report")
    assert path.read_text() == "mine"


def test_unknown_rounds_and_no_rounds(three, repository):
    """A round that is not there is named, with those that are; a repository without any says how one begins."""
    assert errors_well(spt("report", "smol-9", cwd=three), 4, "no round is called 'smol-9'", "smol-1, smol-2")
    assert errors_well(spt("report", "smol-1", "smol-9", "--json", cwd=three), 4, "'smol-9'")
    assert errors_well(spt("report", "../x", cwd=three), 2, "'../x' cannot be a name")
    assert errors_well(spt("report", cwd=repository), 4, "there are no rounds here", "spt round start")
    assert errors_well(spt("report", "any", cwd=repository), 4, "there are: none")


def test_outside_of_a_repository(tmp_path):
    """Rounds need a repository."""
    said = ("rounds are kept in a git repository", "spt init DIR")
    assert errors_well(spt("report", "one", cwd=tmp_path), 2, *said)
    assert errors_well(spt("report", cwd=tmp_path), 2, *said)


def test_a_ledger_that_is_damaged_is_one_line(copy):
    """A verdict that is not what its place says stops the report."""
    held = git(copy, "ls-tree", "-r", "--name-only", "refs/spt/verdicts").splitlines()
    name = next(one for one in held if one.startswith("timing/"))
    index = copy / ".git/spt-index"
    blob = git(copy, "hash-object", "-w", "--stdin", stdin=b"{}")
    git(copy, "read-tree", "refs/spt/verdicts", GIT_INDEX_FILE=str(index))
    git(copy, "update-index", "--cacheinfo", f"100644,{blob},{name}", GIT_INDEX_FILE=str(index))
    tree = git(copy, "write-tree", GIT_INDEX_FILE=str(index))
    git(copy, "update-ref", "refs/spt/verdicts", git(copy, "commit-tree", tree, "-m", "x"))

    assert errors_well(spt("report", cwd=copy), 2, "refs/spt/verdicts:timing/")


def test_without_matplotlib_the_way_out_is_named(three, monkeypatch):
    """The extra is missing: nothing is done, and JSON needs none."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    before = sorted((three / ".git/spt").rglob("*"))

    assert errors_well(spt("report", "smol-1", cwd=three), 4, "matplotlib", "pip install 'specpilot[report]'")
    assert errors_well(spt("report", "smol-1", "--json", "--out", "x.html", cwd=three), 4, "matplotlib")
    assert spt("report", "smol-1", "--json", cwd=three).code == 0
    assert sorted((three / ".git/spt").rglob("*")) == before


def test_a_folder_that_cannot_be_written_is_one_line(copy, monkeypatch):
    """A full or read-only disk leaves what was there."""
    assert spt("report", "smol-1", cwd=copy).code == 0
    path = copy / ".git/spt/rounds/smol-1/report.html"
    before = path.read_bytes()
    full = OSError(28, "No space left on device")

    def refuse(self, other):
        raise full

    monkeypatch.setattr(Path, "replace", refuse)
    assert errors_well(spt("report", "smol-1", cwd=copy), 5, "no space left on device")
    assert path.read_bytes() == before
    assert [left.name for left in path.parent.iterdir()] == ["report.html"]


def test_a_linked_worktree_shows_the_same_rounds(copy):
    """Rounds are the repository's: a worktree of people finds them, and the page lies with the repository."""
    git(copy, "worktree", "add", "-q", "--detach", copy.parent / "linked")
    ran = spt("report", "smol-1", cwd=copy.parent / "linked")

    assert ran.code == 0, ran.err
    assert ran.out.splitlines()[-1] == str(copy / ".git/spt/rounds/smol-1/report.html")


def test_help_is_light():
    """Help loads neither pictures, nor templates, nor git."""
    code = "import sys\nfrom spt.cli import main\ntry:\n main(['report', '--help'])\nexcept SystemExit:\n pass\n"
    code += "print(*(name for name in ('matplotlib', 'jinja2', 'pygit2', 'numpy', 'rich') if name in sys.modules))"
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)

    assert done.stdout.splitlines()[-1] == ""
    assert time.monotonic() - began < 5


@pytest.fixture
def locale_free(copy):
    """The command as a process of its own, without any locale."""
    environment = {"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"], "LC_ALL": "C", "PYTHONUTF8": "0"}
    environment["PYTHONCOERCECLOCALE"] = "0"

    def run(*words):
        command = [sys.executable, "-P", "-s", "-m", "spt", "report", *words]
        return subprocess.run(command, cwd=copy, env=environment, capture_output=True, check=False)

    return run


def test_no_locale_is_no_reason_to_fail(locale_free, copy):
    """The page is UTF-8 whatever the terminal speaks."""
    done = locale_free("smol-1")

    assert done.returncode == 0, done.stderr
    assert "עברית" in (copy / ".git/spt/rounds/smol-1/report.html").read_text(encoding="utf-8")
    assert json.loads(locale_free("smol-1", "--json").stdout)["rounds"]


def test_a_round_of_a_demo_is_told(repository):
    """A round of two directions, as a demo has them."""
    Maker(repository).make("demo-1", tried=2, promoted=1, hostile=False, smoke=True)
    ran = spt("report", "demo-1", cwd=repository)

    assert ran.code == 0, ran.err
    assert "2 directions, 1 promoted, 1 declined" in ran.out

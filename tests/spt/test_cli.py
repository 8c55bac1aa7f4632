"""The command line: fast to start, documented as it is, and kept apart as the design says."""

import subprocess
import sys
from pathlib import Path

import pytest

from spt.cli.output import counted
from spt.cli.reference import reference
from tests.spt.toys import commit_files, errors_well, git, new, spt

ROOT = Path(__file__).parents[2]
HEAVY = ("pygit2", "ruamel", "rich", "jsonschema", "numpy", "torch", "scipy")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["--version"],
        ["entry", "--help"],
        ["entry", "apply", "--help"],
        ["time", "--help"],
        ["walk", "--help"],
        ["job", "pack", "--help"],
    ],
)
def test_help_imports_nothing_heavy(arguments):
    """Help and completion start without git, YAML, tables or numbers."""
    code = f"import sys\nfrom spt.cli import main\ntry:\n main({arguments!r})\nexcept SystemExit:\n pass\n"
    code += f"sys.exit(bool([name for name in {HEAVY!r} if name in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=False)

    assert done.returncode == 0


def test_the_reference_is_what_help_says():
    """docs/cli.md is the output of `python -m spt.cli.reference`."""
    # A process of its own: a command remembers the words of the first context that it was used in.
    done = subprocess.run([sys.executable, "-m", "spt.cli.reference"], cwd=ROOT, capture_output=True, check=True)

    assert (ROOT / "docs" / "cli.md").read_bytes() == done.stdout


def test_every_command_has_an_example():
    """Help is the manual: each command that can be run shows how."""
    sections = reference().split("\n## ")[1:]

    assert len(sections) >= 11
    assert not [section.splitlines()[0] for section in sections if "Example:" not in section]


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (["genrate"], "'generate'"),
        (["entry", "lst"], "'list'"),
        (["entry", "list", "--jsn"], "'--json'"),
    ],
)
def test_what_was_meant_is_said(tmp_path, arguments, meant):
    """A slip in a command or an option is answered with the nearest one."""
    assert errors_well(spt(*arguments, cwd=tmp_path), 2, f"did you mean {meant}?")


def complete(folder, words):
    """What a bash would be offered for the last of some words."""
    environment = {"PYTHONPATH": str(ROOT), "_SPT_COMPLETE": "bash_complete", "COMP_WORDS": " ".join(words)}
    environment |= {"COMP_CWORD": str(len(words) - 1)}
    code = "import sys\nfrom spt.cli import main\ntry:\n main()\nexcept SystemExit:\n pass\n"
    code += f"print([name for name in {HEAVY!r} if name in sys.modules])"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True)
    *offered, heavy = done.stdout.splitlines()
    assert heavy == "[]"
    return [line.partition(",")[2] for line in offered]


def test_names_of_entries_are_completed(deployment, tmp_path):
    """A shell is offered the entries that a command would find, from branches, packed or not, without git."""
    loose = complete(deployment, ["spt", "entry", "apply", "t"])
    git(deployment, "pack-refs", "--all")
    git(deployment, "worktree", "add", "-q", "--detach", tmp_path / "linked")

    assert loose == ["tree-select", "tuned"]
    assert complete(deployment / "stock", ["spt", "entry", "apply", "tuned", "f"]) == ["fast-linear"]
    assert complete(tmp_path / "linked", ["spt", "entry", "show", "tu"]) == ["tuned"]
    assert complete(deployment, ["spt", "generate", "--system", "tuned+tr"]) == ["tuned+tree-select"]
    assert complete(tmp_path, ["spt", "entry", "show", "best"]) == ["best-first-tree"]


def test_shipped_entries_are_said_to_be_those(deployment, tmp_path):
    """Where there is no stock, what is listed ships with the tool, and standard error says so; a clone is led out."""
    git(tmp_path, "clone", "-q", deployment, "clone")
    for arguments in (["list"], ["show", "best-first-tree"], ["verify", "best-first-tree"]):
        ran = spt("entry", *arguments, cwd=tmp_path)
        assert ran.code == 0
        assert ran.err == "note: no stock here: these are the shipped entries\n"
        assert spt("entry", *arguments, cwd=deployment).err.startswith("note") is False
        cloned = spt("entry", *arguments, cwd=tmp_path / "clone")
        assert "`spt init DIR`" in cloned.err and f"`spt entry import '{deployment}'`" in cloned.err
    for arguments in (
        ["entry", "apply", "tuned"],
        ["init", "."],
        ["entry", "refresh", "--all"],
        ["entry", "edit", "a"],
    ):
        assert errors_well(spt(*arguments, cwd=tmp_path / "clone"), 2, f"`spt entry import '{deployment}'` there")


def test_show_says_each_thing_once(deployment):
    """A card that was made of a commit's subject shows it once, and what is required in one line a kind."""
    git(deployment, "switch", "-q", "-c", "round")
    commit = commit_files(deployment, {"kernels/new.py": "x\n"}, "a new kernel")
    assert new(deployment, "mine", commit).code == 0
    shown = spt("entry", "show", "mine", cwd=deployment).out
    regime = spt("entry", "show", "best-first-tree", cwd=deployment.parent).out

    assert shown.count("a new kernel") == 1
    assert regime.count("requires regime: ") == 1


def test_all_or_names(deployment):
    """--all and a name exclude each other, and neither is too little."""
    for verb in ("verify", "refresh"):
        assert errors_well(spt("entry", verb, "--all", "tuned", cwd=deployment), 2, "--all", "'tuned'")
        assert errors_well(spt("entry", verb, cwd=deployment), 2, f"name the entries to {verb}")


def test_counts_agree_with_their_nouns():
    """One is no plural."""
    assert [counted(number, "entry", "entries") for number in (0, 1, 2)] == ["0 entries", "1 entry", "2 entries"]
    assert counted(1, "source system") == "1 source system"


@pytest.mark.parametrize("arguments", [["dance"], ["entry", "dance"], ["entry", "apply"], ["entry", "list", "--dance"]])
def test_wrong_words_are_usage(tmp_path, arguments):
    """What click refuses is exit 2, said like every other error."""
    assert errors_well(spt(*arguments, cwd=tmp_path), 2, "--help` shows how it goes")


def test_json_is_alone_on_standard_output(deployment):
    """--json prints one value and nothing else; talk goes to standard error."""
    for arguments in (["list"], ["show", "tuned"], ["verify", "--all"], ["apply", "tuned"], ["refresh", "--all"]):
        ran = spt("entry", *arguments, "--json", cwd=deployment)
        assert ran.json is not None


def test_an_unknown_entry_is_one_line_everywhere(deployment):
    """The same mistake gets the same answer from every command."""
    for arguments in (["show"], ["apply"], ["verify"], ["edit"], ["refresh"]):
        assert errors_well(spt("entry", *arguments, "nobody", cwd=deployment), 4, "there is no entry 'nobody'")
        assert spt("entry", *arguments, "nobody", "--json", cwd=deployment).out == ""

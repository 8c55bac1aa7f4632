"""The command line: fast to start, documented as it is, and kept apart as the design says."""

import subprocess
import sys
from pathlib import Path

import pytest

from spt.cli.reference import reference
from tests.spt.toys import errors_well, spt

ROOT = Path(__file__).parents[2]
HEAVY = ("pygit2", "ruamel", "rich", "jsonschema", "numpy", "torch", "scipy")


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["entry", "--help"], ["entry", "apply", "--help"]])
def test_help_imports_nothing_heavy(arguments):
    """Help and completion start without git, YAML, tables or numbers."""
    code = f"import sys\nfrom spt.cli import main\ntry:\n main({arguments!r})\nexcept SystemExit:\n pass\n"
    code += f"sys.exit(bool([name for name in {HEAVY!r} if name in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=False)

    assert done.returncode == 0


def test_the_reference_is_what_help_says():
    """docs/cli.md is the output of `python -m spt.cli.reference`."""
    assert (ROOT / "docs" / "cli.md").read_text() == reference()


def test_every_command_has_an_example():
    """Help is the manual: each command that can be run shows how."""
    sections = reference().split("\n## ")[1:]

    assert len(sections) >= 11
    assert not [section.splitlines()[0] for section in sections if "Example:" not in section]


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

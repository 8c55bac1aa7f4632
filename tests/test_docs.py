"""The pages: one sentence a line, no link that leads nowhere, no command that does not exist."""

import hashlib
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest

from spt.cli import cli

ROOT = Path(__file__).parents[1]
PAGES = [
    ROOT / name
    for name in subprocess.run(
        ["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
]
ABBREVIATION = re.compile(r"\b(e\.g|i\.e|etc|vs|al|cf|approx|no|fig)\.$", re.IGNORECASE)
BLOCK = re.compile(r"^```.*?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")


def names(paths):
    return [str(path.relative_to(ROOT)) for path in paths]


def prose(text):
    """Number and words of each line that is no code, table or heading, without its mark and its bold label."""
    text = BLOCK.sub(lambda block: "\n" * block[0].count("\n"), text)
    for number, line in enumerate(text.splitlines(), 1):
        if not line.startswith(("|", "#")):
            words = re.sub(r"`[^`]*`", "X", line)
            yield number, re.sub(r"^\s*([-*] |\d+\. )?\s*(\*\*[^*]+\*\*\s+)?", "", words)


def sentence_ends(line):
    """Where a sentence ends and another begins."""
    ends = re.finditer(r"[.?!][\"')*]*\s+(?=\S)", line)
    return [end.start() for end in ends if not ABBREVIATION.search(line[: end.start() + 1])]


def blocks(page):
    """The lines of a page's code blocks, continued ones joined."""
    text = "".join(block[1] for block in BLOCK.finditer(page.read_text()))
    return text.replace("\\\n", " ").splitlines()


def anchors(page):
    """What the headings of a page are called in links."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize(
    "line", ["One. Two", "`a`. `b` is", "Is it? It is.", "(so it is.) Then", "All of it. bf16 too"]
)
def test_two_sentences_are_seen(line):
    """The check below sees what it is for."""
    assert [sentence_ends(words) for _, words in prose(line)] != [[]]


@pytest.mark.parametrize(
    "line",
    ["One, e.g. two.", "Salmon et al. said so.", "Version 1.2.3 of it", "1. **New.** One.", "a ..., b", "`A. B` is"],
)
def test_one_sentence_is_let_through(line):
    """Abbreviations, numbers, labels and code end no sentence."""
    assert [sentence_ends(words) for _, words in prose(line)] == [[]]


@pytest.mark.parametrize("page", PAGES, ids=names(PAGES))
def test_one_sentence_a_line(page):
    """A changed sentence is a changed line."""
    found = [(number, line) for number, line in prose(page.read_text()) if sentence_ends(line)]

    assert found == []


@pytest.mark.parametrize("page", PAGES, ids=names(PAGES))
def test_links_lead_somewhere(page):
    """Every relative link resolves, its anchor too, and every page that is named in code exists."""
    text = page.read_text()
    for link in LINK.findall(BLOCK.sub("", text)):
        if not link.startswith(("https:", "http:")):
            path, _, anchor = link.partition("#")
            target = page.parent / path if path else page
            assert target.exists(), link
            assert not anchor or anchor in anchors(target), link
    for name in re.findall(r"`(docs/[\w/-]+\.md)`", text):
        assert (ROOT / name).exists(), name


def test_every_page_is_linked_from_the_readme():
    """Who starts at the README finds everything."""
    linked = {(ROOT / link.partition("#")[0]).resolve() for link in LINK.findall((ROOT / "README.md").read_text())}

    assert names(page for page in PAGES if page not in linked and page != ROOT / "README.md") == []


def commands(page):
    """The commands of ours in a page's code blocks, as words: each part of a line that `&&` joins."""
    for line in blocks(page):
        for part in line.split(" && "):
            words = shlex.split(part, comments=True) if re.match(r"\s*(spt|make|python3? -m) ", part + " ") else []
            if words:
                yield words


COMMANDS = sorted({tuple(words) for page in PAGES for words in commands(page) if page.name != "cli.md"})


def test_the_readme_shows_commands():
    """The check below has something to check."""
    shown = {words[:2] for words in map(tuple, commands(ROOT / "README.md"))}

    assert {("make", "demo"), ("make", "test"), ("spt", "init"), ("spt", "entry"), ("spt", "generate")} <= shown


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_commands_exist(words):
    """Every command in a page's code is one that there is, with options that it has."""
    if words[0] == "make":
        assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
    elif words[0] == "spt":
        command, context = cli, click.Context(cli)
        rest = list(words[1:])
        while isinstance(command, click.Group) and rest:
            command = command.get_command(context, rest.pop(0))
            assert command is not None
            context = click.Context(command)
        known = {option for parameter in command.params for option in parameter.opts} | {"--help"}
        assert {word for word in rest if word.startswith("--")} <= known
        assert command.get_help(context)
    else:
        module = ROOT / words[2].replace(".", "/")
        assert module.with_suffix(".py").exists() or (module / "__main__.py").exists()


def test_help_of_the_command_line_runs():
    """What the pages tell to type is what is installed: the command itself answers."""
    done = subprocess.run([sys.executable, "-m", "spt", "entry", "--help"], cwd=ROOT, capture_output=True, check=False)

    assert done.returncode == 0


def test_digests_of_the_drafter():
    """The drafter's page states size and sha256 of its files."""
    folder = ROOT / "drafters" / "smollm2-135m-dflash-b16"
    rows = re.findall(
        r"^\| `(.+?)` \| ([\d,]+) \| `([0-9a-f]{64})` \|$", (folder / "README.md").read_text(), re.MULTILINE
    )
    stated = {(name, int(size.replace(",", "")), digest) for name, size, digest in rows}
    files = [path for path in folder.iterdir() if path.name != "README.md"]

    assert stated == {(path.name, path.stat().st_size, hashlib.sha256(path.read_bytes()).hexdigest()) for path in files}

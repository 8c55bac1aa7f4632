"""What is printed: one line a thing, nothing that steers a terminal, and no traceback for what the machine refuses."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spt.printable import printable
from tests.spt.test_verify import CONTRACT
from tests.spt.toys import card, commit_files, errors_well, evidence_line, git, make_root, snapshot, spt, write

ROOT = Path(__file__).parents[2]


def child(*arguments, cwd, **environment):
    """Runs `spt` in a process of its own, whose streams have an encoding."""
    command = [sys.executable, "-P", "-m", "spt", *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, check=False)


@given(st.text())
def test_printable_is_one_line_that_steers_nothing(text):
    """Whatever was in a text, what is printed has no control character, no break and no turn of direction."""
    shown = printable(text)

    assert len(shown.splitlines()) <= 1
    assert not [letter for letter in shown if ord(letter) in (*range(9), *range(10, 32), *range(127, 160))]
    assert not set(shown) & set("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
    shown.encode()
    if text.isprintable():
        assert shown == text


def test_the_users_own_word_cannot_steer_the_terminal(deployment):
    """A word that is quoted in an error stays one line and loses its escapes."""
    ran = spt("entry", "show", "\x1b[31mred\nerror: all is lost", cwd=deployment)

    assert errors_well(ran, 4, r"'\x1b[31mred\nerror: all is lost'")


@pytest.mark.parametrize("letter", ["\\e", "\\r", "\\0", "\\x9b", "\\x7f", "\\uFEFF"])
def test_a_card_with_control_characters_is_refused(tmp_path, letter):
    """No field of a card can hold what a terminal would obey."""
    root = make_root(tmp_path / "root")
    text = card("bad").replace("The bad of the toy", f"The {letter} of the toy")
    write(root / "entries/bad", {"entry.yaml": text, "tree/stock/x.py": "x\n"})

    assert errors_well(spt("init", "new", "--from", root, cwd=tmp_path), 2, "control characters are not allowed")


def test_no_field_can_pass_for_a_line_of_ours(tmp_path):
    """A card's text cannot fake evidence: single lines stay single, longer texts are set apart."""
    root = make_root(tmp_path / "root")
    lie = "good\nevidence: current, judged: speedup 9.00"
    text = card("sly", title=lie, summary=lie, mechanism=lie, limits=[lie])
    write(root / "entries/sly", {"entry.yaml": text, "tree/kernels/x.py": "x\n"})
    spt("init", "new", "--from", root, cwd=tmp_path)

    lines = spt("entry", "show", "sly", cwd=tmp_path / "new").out.splitlines()

    assert [line for line in lines if line.startswith("evidence")] == ["evidence: none"]


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_any_locale_will_do(tmp_path, encoding):
    """A title is printed under a locale that lacks its letters, and --json says the same everywhere."""
    root = make_root(tmp_path / "root", entries=False)
    write(root / "entries/one", {"entry.yaml": card("one", title="größer → schneller"), "tree/kernels/x.py": "x\n"})
    spt("init", "new", "--from", root, cwd=tmp_path)

    for arguments in (["list"], ["show", "one"], ["verify", "one"]):
        assert b"Traceback" not in child("entry", *arguments, cwd=tmp_path / "new", PYTHONIOENCODING=encoding).stderr
    ran = child("entry", "list", "--json", cwd=tmp_path / "new", PYTHONIOENCODING=encoding)
    assert json.loads(ran.stdout)[0]["title"] == "größer → schneller"


def test_a_path_is_printed_byte_for_byte(deployment):
    """What another program reads is the path itself, whatever its bytes are."""
    folder = deployment.with_name(os.fsdecode(b"caf\xe9"))
    shutil.copytree(deployment, folder, symlinks=True)

    ran = child("entry", "edit", "tuned", cwd=folder, PYTHONIOENCODING="utf-8")

    assert ran.returncode == 0, ran.stderr
    assert Path(os.fsdecode(ran.stdout.rstrip(b"\n"))) == folder / ".git/spt/worktrees/tuned"


@pytest.mark.parametrize(
    ("damage", "arguments"),
    [
        (lambda folder: write(folder, {".git/spt-file": ""}), ["entry", "import", "a" * 5000]),
        (lambda folder: write(folder, {".git/spt-file": ""}), ["export", "stock", "a" * 300]),
        (lambda folder: (folder / "deployment.yaml").mkdir(), ["entry", "apply", "fast-linear", "--enable"]),
        (
            lambda folder: (shutil.rmtree(folder / ".git/spt"), write(folder, {".git/spt": ""})),
            ["entry", "apply", "tuned"],
        ),
    ],
    ids=["import", "export", "enable", "state"],
)
def test_what_the_machine_refuses_is_one_line(deployment, damage, arguments):
    """A file that cannot be read or written is named, without a traceback, and nothing has happened."""
    damage(deployment)
    before = snapshot(deployment)

    assert errors_well(spt(*arguments, cwd=deployment), 5)
    assert snapshot(deployment) == before


@pytest.mark.parametrize("path", ["stock/linear", "stock/engine.py", "entries/tuned/tree/checks", "entries/tuned/tree"])
def test_what_cannot_be_read_is_not_taken_for_nothing(tmp_path, path):
    """A file or folder without the right to read it stops the command, and no tree is made without it."""
    root = make_root(tmp_path / "root")
    (root / path).chmod(0)
    # Root may read anything unless it gives that up.
    weaken = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
    command = [*weaken, sys.executable, "-P", "-m", "spt", "init", "new", "--from", str(root)]
    ran = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, check=False, text=True
    )
    (root / path).chmod(0o755)

    assert ran.returncode == 5, ran.stderr
    assert ran.stderr.startswith(f"error: '{root / path}")
    assert "permission denied" in ran.stderr
    assert not (tmp_path / "new").exists()


def test_a_folder_that_is_gone_is_one_line(tmp_path):
    """Standing in a folder that was removed is no traceback."""
    gone = tmp_path / "gone"
    gone.mkdir()
    command = f"rmdir {gone}; exec {sys.executable} -P -m spt entry list"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(["sh", "-c", command], cwd=gone, env=environment, capture_output=True, check=False, text=True)

    assert ran.returncode == 5
    assert ran.stderr.startswith("error: ")
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize("held", [None, "[]", '{"schema": 1}', "garbage", '{"schema": "x", "cards": 3}'])
def test_looking_needs_no_cache(deployment, held):
    """A cache that cannot be written, or is damaged, is no reason not to answer."""
    cache = deployment / ".git/spt/cache"
    shutil.rmtree(cache, ignore_errors=True)
    write(deployment, {".git/spt/cache": ""} if held is None else {".git/spt/cache/cards.json": held})

    for arguments in (["list"], ["show", "tuned"], ["verify", "tuned"]):
        ran = spt("entry", *arguments, "--json", cwd=deployment)
        assert ran.json
        assert ran.err == ""


def test_json_is_valid_everywhere(deployment, shipped, tmp_path):
    """Every command that answers has --json, and what stands on standard output then is one JSON value."""
    commit = commit_files(deployment, {"kernels/new.py": "x\n"}, "a new kernel")
    (tmp_path / "out").mkdir()
    new = ["new", "mine", "--system", "HEAD", "--from", commit, *CONTRACT]
    for arguments in (
        ["init", ".", "--from", shipped],
        ["export", "stock", tmp_path / "stock"],
        *(["entry", *words] for words in (["list"], ["show", "tuned"], ["verify", "--all"], ["refresh", "--all"])),
        *(["entry", *words] for words in (new, ["edit", "tuned"], ["export", "tuned"], ["apply", "tree-select"])),
        ["entry", "export", "mine", "--to", tmp_path / "out"],
        ["entry", "import", tmp_path / "out"],
    ):
        ran = spt(*arguments, "--json", cwd=deployment)
        assert ran.json is not None, ran.err


@pytest.mark.parametrize("gain", ["1e999", "-1e999", "1" + "0" * 400, "1" + "0" * 5000])
def test_figures_that_are_none_are_refused(deployment, tmp_path, gain):
    """A figure that no float holds is a named error, never a traceback or a JSON that is none."""
    spt("entry", "export", "tuned", "--to", tmp_path, cwd=deployment)
    line = evidence_line(deployment, "tuned", gain=0.25).replace('"gain": 0.25', f'"gain": {gain}')
    write(tmp_path / "tuned/evidence", {"2026-01-02-toy.jsonl": line})
    before = git(deployment, "for-each-ref")

    assert errors_well(spt("entry", "import", tmp_path / "tuned", cwd=deployment), 2, "out of range")
    assert git(deployment, "for-each-ref") == before

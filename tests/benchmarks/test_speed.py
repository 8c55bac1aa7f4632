"""benchmarks/speed.py on a CPU: rounds, resumption, refusals, the check before the clock, the floor."""

import json
import shutil

import pytest

from benchmarks.figures import complete_rounds
from benchmarks.rows import read_lines
from tests.benchmarks.conftest import SETTINGS, run, speed

BROKEN = """

def _broken(tree, chosen, inner=accept):
    accepted = inner(tree, chosen)
    if int(accepted.count) > 1:
        accepted.emitted[0] = (accepted.emitted[0] + 1) % 17
    return accepted


accept = _broken
"""


def test_a_round_holds_every_setting_and_the_order_moves_on(whole):
    """Each request is answered by all settings next to one another, transformers by every second request."""
    rows = [row for row in read_lines(whole[1]) if row["kind"] == "answer"]
    orders = []
    while rows:
        own = [row for row in rows if row["id"] == rows[0]["id"]]
        assert rows[: len(own)] == own
        assert [row["place"] for row in own] == list(range(len(own)))
        orders.append([row["setting"] for row in own])
        rows = rows[len(own) :]

    assert [set(order) for order in orders] == [set(SETTINGS), set(SETTINGS[:4]), set(SETTINGS)]
    assert orders[0][0] != orders[2][0]


def test_answers_end_at_stop_ids(tiny, composed, whole, tmp_path):
    """Nothing follows a stop id unless --ignore-eos asks for it, and lines count the ids."""
    rows = [row for row in read_lines(whole[1]) if row["kind"] == "answer"]
    assert all(2 not in row["ids"][:-1] and sum(row["lines"]) == len(row["ids"]) <= 12 for row in rows)
    ended = [row for row in rows if row["ids"][-1] == 2]
    assert {row["setting"] for row in ended} >= {"ar", "transformers", "transformers-assisted"}
    out = tmp_path / "rows.jsonl"
    assert speed(tiny, composed, out, "--ignore-eos", settings=["ar"]).returncode == 0
    assert all(len(row["ids"]) == 12 for row in read_lines(out) if row["kind"] == "answer")


def test_peers_decode_the_same_weights(whole):
    """In float32 transformers says what stock says, plain and assisted."""
    rounds = complete_rounds([row for row in read_lines(whole[1]) if row["kind"] == "answer"], SETTINGS)

    assert len(rounds) == 2
    assert all(len({tuple(row["ids"]) for row in answers.values()}) == 1 for answers in rounds.values())


def test_report_has_ratios_identity_and_loops(whole):
    """The report gives each setting its ratios with an interval, the share of equal ids and the looped tokens."""
    said = whole[0].stdout

    assert "3 requests, answers to 12 tokens or to a stop id" in said
    assert said.count("against ar: median") == 5 and said.count("against chain: median") == 4
    assert "tokens looped" in said and "ids as ar's in 3 of 3" in said
    assert "chain, tree:6:0:3, confident:0.02:6:0:3 say what ar says" in said


def test_a_stopped_run_goes_on(tiny, composed, tmp_path):
    """Rounds that are whole are kept; one that was cut off, in the middle of a line even, is measured anew."""
    out = tmp_path / "rows.jsonl"
    assert speed(tiny, composed, out).returncode == 0
    lines = out.read_bytes().split(b"\n")
    answers = [index for index, line in enumerate(lines) if b'"kind": "answer"' in line]
    kept = lines[: answers[4] + 1]  # one round of three, and two answers of the next
    out.write_bytes(b"\n".join(kept) + b"\n" + lines[answers[5]][:40])
    assert speed(tiny, composed, out).returncode == 0
    rows = read_lines(out)
    runs = [row["run"] for row in rows if row["kind"] == "answer"]

    assert [json.loads(line) for line in kept] == rows[: len(kept)]
    assert runs == [1] * 5 + [2] * 6
    assert sum(row["kind"] == "check" for row in rows) == 1
    assert len(complete_rounds([row for row in rows if row["kind"] == "answer"], SETTINGS[:3])) == 3
    before = out.read_bytes()
    assert speed(tiny, composed, out).returncode == 0
    assert out.read_bytes() == before


@pytest.mark.parametrize(
    "what", ["tree", "jitter", *(pytest.param(each, marks=pytest.mark.full) for each in ("requests", "target"))]
)
def test_rows_of_something_else_are_refused(what, tiny, composed, tmp_path):
    """A file that was measured on another system, target or request set is named as such and stays as it is."""
    out = tmp_path / "rows.jsonl"
    other = tmp_path / "tiny"
    shutil.copytree(tiny, other)
    shutil.copytree(composed, tmp_path / "system")
    assert speed(other, tmp_path / "system", out, "--count", "1", settings=["ar"]).returncode == 0
    before = out.read_bytes()
    more = []
    if what == "tree":
        (tmp_path / "system" / "stock" / "note.md").write_text("changed\n")
    elif what == "requests":
        (other / "requests.jsonl").write_bytes((other / "requests.jsonl").read_bytes() + b'{"id": "x", "ids": [3]}\n')
    elif what == "target":
        config = json.loads((other / "target" / "config.json").read_text())
        (other / "target" / "config.json").write_text(json.dumps(config | {"rope_theta": 5000.0}))
    else:
        more = [f"--{what}", "7"]
    done = speed(other, tmp_path / "system", out, "--count", "1", *more, settings=["ar"])

    assert done.returncode == 1
    assert f"whose {what} is" in done.stderr and len(done.stderr.splitlines()) == 1
    assert out.read_bytes() == before


def test_a_system_that_says_something_else_is_not_timed(tiny, composed, tmp_path):
    """A selection that breaks the target's own choices fails in exact mode, before the clock."""
    system = tmp_path / "system"
    shutil.copytree(composed, system)
    path = system / "stock" / "ops" / "accept.py"
    path.write_text(path.read_text() + BROKEN)
    done = speed(tiny, system, tmp_path / "rows.jsonl")

    assert done.returncode == 1
    assert "in exact mode" in done.stderr and "says something else than ar" in done.stderr
    assert not any(row["kind"] == "answer" for row in read_lines(tmp_path / "rows.jsonl"))


def test_a_floor_without_a_figure_fails(tiny, composed, tmp_path):
    """Where a floor is asked for, no AR row or no copy rate is a failure and not a pass."""
    for settings in (["ar"], ["chain"]):
        out = tmp_path / f"{settings[0]}.jsonl"
        done = speed(tiny, composed, out, "--ar-floor", "0.7", "--count", "1", settings=settings)
        assert done.returncode == 1
        assert "the floor of 70% is not met" in done.stderr


def test_stock_alone_needs_no_transformers(tiny, composed, tmp_path):
    """Without a transformers setting the package is not imported."""
    (tmp_path / "transformers").mkdir()
    (tmp_path / "transformers" / "__init__.py").write_text("raise RuntimeError('imported')\n")
    out = tmp_path / "rows.jsonl"
    asked = ("--count", "1")
    done = run(
        "speed",
        *("--device", "cpu", "--dtype", "float32", "--context", "128", "--tokens", "4", "--check-tokens", "2"),
        *("--target", tiny / "target", "--drafter", tiny / "drafter", "--system", composed, "--out", out),
        *("--requests", tiny / "requests.jsonl", "--settings", "ar", *asked),
        cwd=tmp_path,
    )

    assert done.returncode == 0, done.stderr

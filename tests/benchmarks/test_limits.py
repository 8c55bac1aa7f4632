"""Limits of the benchmarks: a figure below fails, and the numbers that it is made of are the measured ones."""

import json
from itertools import repeat

import pytest

from benchmarks.memory import BRANCH, CHERRY_PICK, VERIFY, Times, failures
from benchmarks.rows import Rows, read_lines
from benchmarks.tau import check_limit


def times(branch_s, verify_s, cherry_s):
    wall_s = {BRANCH: branch_s, VERIFY: verify_s, CHERRY_PICK: cherry_s}
    return Times(wall_s, wall_s)


def test_memory_is_held_against_cherry_pick_and_against_its_own_growth():
    """Ratios are made within a run, so a slow run of the whole machine fails nobody."""
    good = times([0.1, 0.9, 0.1], [0.09, 0.8, 0.09], [1.1, 9.5, 1.1])
    assert failures("disk", {140: good, 280: times([0.29] * 3, [0.2] * 3, [])}) == []
    (slow,) = failures("disk", {140: times([0.1] * 3, [0.2] * 3, [1.1] * 3)})
    assert "spt verify --all of 140 entries is 5.5x" in slow
    (grown,) = failures("disk", {140: good, 280: times([0.31] * 3, [0.2] * 3, [])})
    assert "spt apply --branch takes 1.55 times the CPU" in grown


@pytest.mark.parametrize(("limit", "code"), [(None, 0), (2.0, 0), (2.6, 1)])
def test_tau(limit, code, capsys):
    """Micro over all kept steps; where every step looped there is nothing to hold against a limit."""
    answers = [{"counts": {"kept_tokens": 30, "kept_steps": 10}}, {"counts": {"kept_tokens": 20, "kept_steps": 10}}]

    assert check_limit(answers, limit) == code
    assert check_limit([{"counts": {"kept_tokens": 0, "kept_steps": 0}}], 1.0) == 1
    assert "tau is -" in capsys.readouterr().err


def test_only_a_newline_ends_a_line(tmp_path):
    """U+2028 and U+0085 stand in texts."""
    path = tmp_path / "rows.jsonl"
    rows = [{"text": "a\u2028b\u0085c"}, {"text": "d"}]
    path.write_bytes("\n".join(json.dumps(row, ensure_ascii=False) for row in rows).encode())

    assert read_lines(path) == rows


def test_a_torn_line_is_dropped_and_written_over(tmp_path):
    """What a kill left of a line neither counts nor spoils the next one."""
    path = tmp_path / "rows.jsonl"
    rows = Rows(path, {"tree": "a"})
    rows.begin({"key": {"tree": "a"}})
    for number in repeat(1, 2):
        rows.add({"kind": "answer", "number": number})
    path.write_bytes(path.read_bytes()[:-9])
    again = Rows(path, {"tree": "a"})
    again.add({"kind": "answer", "number": 3})

    assert (again.run, len(again.of("answer"))) == (2, 2)
    assert read_lines(path) == again.rows

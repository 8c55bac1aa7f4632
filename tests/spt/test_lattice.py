"""Lattice files and folders of measurements are read whole and right, or refused with a reason."""

import hashlib
import json
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness import tau
from spt.errors import Missing, SptError, Usage
from spt.lattice import Origin, looped, read_lattice
from spt.steps import Steps
from tests.fakes.lattice import DRAFTER, TARGET, some_ranks, write_lattice, write_measurement, write_summary
from tests.spt.measuring import held_within

TOKENS, START = list(range(100, 112)), 4
ANSWERS = {"a": ([5, 6, 7], [[8], [9, 10], [11]]), "b": ([5], [[12]])}
ORIGIN = Origin(TARGET, 1, 0, DRAFTER)


@pytest.fixture
def file(tmp_path):
    write_lattice(tmp_path / "a.lattice", TOKENS, START, *some_ranks(8, 3, 4, 512))
    return tmp_path / "a.lattice"


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 6), st.integers(1, 4), st.integers(1, 5), st.sampled_from([512, 70_000]), st.integers(1, 3))
def test_what_was_written_is_read(tmp_path_factory, positions, depths, ranks, vocabulary, parts):
    """Ids, log-probabilities and tokens come back as they were, for ids of two and four bytes, in any parts."""
    folder, parts = tmp_path_factory.mktemp("lattice"), min(parts, positions)
    ids, logprobs = some_ranks(positions, depths, ranks, vocabulary)
    tokens = [vocabulary - 1, *range(positions)]
    write_lattice(folder / "a.lattice", tokens, 1, ids, logprobs, vocabulary=vocabulary, parts=parts)
    lattice = read_lattice(folder / "a.lattice", ORIGIN)
    [request] = lattice.requests
    np.testing.assert_array_equal(request.ids, ids)
    np.testing.assert_array_equal(request.logprobs, logprobs.astype(np.float32))
    assert request.logprobs.dtype == np.float32
    assert (request.tokens.tolist(), request.start, request.positions) == (tokens, 1, positions)
    assert (lattice.depths, lattice.ranks, lattice.vocabulary) == (depths, ranks, vocabulary)


def test_a_folder_holds_each_answer_with_its_steps(tmp_path):
    """Answers come in order, with lines of the wire and steps; one that was all prefill has no step."""
    first, second = read_lattice(write_measurement(tmp_path / "m", ANSWERS)).requests
    assert (first.request, first.category, first.lines.tolist()) == ("a#0", "toy", [1, 2, 1])
    assert first.steps.start.tolist() == [3, 5]
    assert first.steps.anchor.tolist() == [8, 10]
    assert first.steps.tokens == ((9, 10), (11,))
    assert first.steps.path == ((0,), ())
    assert first.steps.us.tolist() == [[1.0, 2.0, 0.5, 0.25]] * 2
    assert (second.request, second.steps, second.lines.tolist()) == ("b#0", None, [1])


@given(st.lists(st.integers(0, 2), max_size=80), st.integers(2, 5))
def test_looped_tokens_are_those_of_the_judge(tokens, run_tok):
    """The marks of a lattice and the counts of the harness are one definition."""
    assert looped(tokens, run_tok).tolist() == tau.looped(tokens, run_tok)


@pytest.mark.parametrize("size", [0, 5, 14, 60, 300, 500, -33, -1])
def test_a_cut_file_is_refused_wherever_it_ends(file, size):
    """No cut goes unseen, and the error names the file."""
    file.write_bytes(file.read_bytes()[:size])
    with pytest.raises(Usage, match=r"a\.lattice' is (cut|no lattice)"):
        read_lattice(file)


def test_every_changed_byte_is_seen(file):
    """A change anywhere is an error, never another number."""
    data = file.read_bytes()
    for at in range(0, len(data), 11):
        file.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        with pytest.raises(SptError, match=r"a\.lattice"):
            read_lattice(file)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"drafter": "c" * 64}, "another drafter: cccccccccccc, not bbbbbbbbbbbb"),
        ({"target": {"digest": "c" * 64, "widen": 1, "jitter": 0}}, "another target: cccccccccccc, not aaaaaaaaaaaa"),
        ({"target": {"digest": TARGET, "widen": 8, "jitter": 0}}, "another widening: 8, not 1"),
        ({"target": {"digest": TARGET, "widen": 1, "jitter": 3}}, "another jitter: 3, not 0"),
        ({"extra": 1}, "unknown key 'extra'"),
        ({"start": 12}, "starts at 12 of 12 tokens"),
        ({"depths": 0}, "'depths' is 0"),
        ({"vocabulary": 5}, "the vocabulary has 5"),
        ({"positions": 7}, "where its header says"),
        ({"positions": 9}, "is cut"),
        ({"first": 5}, "under the name of the first"),
        ({"part": 1}, "part 2 of a lattice"),
        ({"parts": 2}, "part 2 of 2"),
        ({"depths": 32767, "ranks": 32767}, "is cut"),
        ({"tokens": 2**31 - 1}, "is cut"),
        ({"positions": 2**31 - 1}, "is cut"),
        *(
            ({name: most}, f"'{name}' is {most}")
            for name in ("depths", "ranks", "positions", "tokens")
            for most in (2**40, 2**62, 3.0, 13.0, 1e18, True)
        ),
        *(
            ({name: most}, f"'{name}' is {most}")
            for name in ("start", "first", "parts", "block", "vocabulary")
            for most in (2**62, 13.0)
        ),
    ],
)
def test_a_file_that_does_not_fit_is_refused(tmp_path, changes, problem):
    """A lattice of other models, or one whose header lies, says what is wrong in one line, and no array is made."""
    path = tmp_path / "a.lattice"
    write_lattice(path, TOKENS, START, *some_ranks(8, 3, 4, 512), header=changes)
    with held_within(64 << 20), pytest.raises(SptError) as caught:
        read_lattice(path, ORIGIN)
    assert problem.replace("True", "a truth value") in caught.value.message
    assert "\n" not in caught.value.message


def test_parts_must_be_of_one_lattice(tmp_path):
    """A part is not read by itself, nor missing, nor of another answer."""
    path, second, third = write_lattice(tmp_path / "a.lattice", TOKENS, START, *some_ranks(8, 3, 4, 512), parts=3)
    with pytest.raises(Usage, match=r"is a part of '.*a\.lattice'"):
        read_lattice(second)
    second.write_bytes(third.read_bytes())
    with pytest.raises(Usage, match="a part of another lattice"):
        read_lattice(path)
    second.unlink()
    with pytest.raises(Missing, match="part 2 of 3"):
        read_lattice(path)


@pytest.mark.parametrize("value", [np.nan, 0.5, -1e-3])
def test_ranks_out_of_order_are_refused(tmp_path, value):
    """Log-probabilities fall from rank to rank, and are numbers."""
    ids, logprobs = some_ranks(8, 3, 4, 512)
    logprobs[3, 1, 2] = value
    write_lattice(tmp_path / "a.lattice", TOKENS, START, ids, logprobs)
    with pytest.raises(Usage, match="not in order"):
        read_lattice(tmp_path / "a.lattice")


def edit(folder, name, change):
    """Changes the rows of a file of JSON lines, and the summary with it."""
    rows = [json.loads(line) for line in (folder / name).read_text().splitlines()]
    change(rows)
    (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    write_summary(folder, 5, 3, 4)


@pytest.mark.parametrize(
    ("name", "change", "problem"),
    [
        ("steps.jsonl", lambda rows: rows.pop(), "holds 1 steps of 'a#0', and the wire had 2"),
        ("steps.jsonl", lambda rows: rows.clear(), "holds 0 steps of 'a#0', and the wire had 2"),
        ("steps.jsonl", lambda rows: rows.pop(0), "step 1 of 'a#0' where step 0 belongs"),
        ("steps.jsonl", lambda rows: rows[0].update(tokens=[9, 9]), "step 0 of 'a#0' is not what the wire had"),
        ("steps.jsonl", lambda rows: rows[1].update(start=4), "step 1 of 'a#0' is not what the wire had"),
        ("steps.jsonl", lambda rows: rows[1].update(draft_us=-1), "line 2: 'draft_us' is -1"),
        ("steps.jsonl", lambda rows: rows.append({**rows[0], "request": "c#0"}), "holds 'c#0', which was not answered"),
        ("answers.jsonl", lambda rows: rows[1].update(ids=[13]), "of another answer than 'answers.jsonl' holds"),
        ("answers.jsonl", lambda rows: rows[0].update(lines=[1, 1, 1]), "4 tokens, and 3 in its lines"),
        ("answers.jsonl", lambda rows: rows.pop(), "holds 'b#0', which was not answered"),
        ("answers.jsonl", lambda rows: rows.append({**rows[0], "request": "c"}), "holds no lattice of 'c#0'"),
    ],
)
def test_a_folder_whose_parts_disagree_is_refused(tmp_path, name, change, problem):
    """Answers, steps and lattices tell of the same tokens, or of nothing."""
    folder = write_measurement(tmp_path / "m", ANSWERS)
    edit(folder, name, change)
    with pytest.raises(SptError) as caught:
        read_lattice(folder)
    assert problem in caught.value.message


def test_a_folder_that_is_not_finished_or_was_changed_is_refused(tmp_path):
    """Without a summary nobody knows what is still to come; with one, every byte counts."""
    folder = write_measurement(tmp_path / "m", ANSWERS)
    with pytest.raises(Missing, match="no lattice at"):
        read_lattice(tmp_path / "nowhere")
    (folder / "steps.jsonl").write_bytes((folder / "steps.jsonl").read_bytes()[:-1])
    with pytest.raises(Usage, match=r"steps\.jsonl' was cut or changed"):
        read_lattice(folder)
    (folder / "steps.jsonl").unlink()
    with pytest.raises(Missing, match=r"steps\.jsonl' is not there"):
        read_lattice(folder)
    (folder / "measurement.json").unlink()
    with pytest.raises(Missing, match="no finished measurement"):
        read_lattice(folder)


FOREIGN = [
    ({"target": {"digest": "c" * 64, "widen": 1, "jitter": 0}}, "another target"),
    ({"target": {"digest": TARGET, "widen": 8, "jitter": 0}}, "another widening"),
    ({"target": {"digest": TARGET, "widen": 1, "jitter": 7}}, "another jitter"),
    ({"drafter": "c" * 64}, "another drafter"),
    ({"deployment": {"mode": "fast"}}, "has mode exact, and its folder's 'measurement.json' fast"),
    ({"deployment": {"dtype": "bfloat16"}}, "has dtype float32, and its folder's 'measurement.json' bfloat16"),
]


@pytest.mark.parametrize(("change", "problem"), FOREIGN)
def test_a_folder_holds_lattices_of_what_it_measured(tmp_path, change, problem):
    """Lattices of other models, mode or type than the summary names are refused, though all of them agree."""
    folder = write_measurement(tmp_path / "m", ANSWERS)
    summary = json.loads((folder / "measurement.json").read_text())
    (folder / "measurement.json").write_text(json.dumps(summary | change))
    with pytest.raises(Usage, match=problem):
        read_lattice(folder)


def test_a_folder_without_answers_is_refused(tmp_path):
    """A measurement of nothing has no lattice."""
    with pytest.raises(Usage, match="holds no answer"):
        read_lattice(write_measurement(tmp_path / "m", {}))


def test_only_files_are_lattices(tmp_path):
    """A pipe or a device is never opened, whether it is named, or lies among the parts of a folder."""
    pipe = tmp_path / "pipe.lattice"
    os.mkfifo(pipe)
    for path in (pipe, Path("/dev/zero"), Path("/dev/full")):
        with pytest.raises(Usage, match="is no regular file"):
            read_lattice(path)
    folder = write_measurement(tmp_path / "m", ANSWERS)
    for file in ("lattices/00000.lattice", "steps.jsonl", "answers.jsonl", "measurement.json"):
        kept = (folder / file).read_bytes()
        (folder / file).unlink()
        os.mkfifo(folder / file)
        with pytest.raises(SptError):
            read_lattice(folder)
        (folder / file).unlink()
        (folder / file).write_bytes(kept)


def test_a_part_of_sixteen_mebibytes_is_refused(tmp_path):
    """A file stays below what a store of files takes."""
    path = tmp_path / "a.lattice"
    ids = np.zeros((1, 1024, 4096), np.uint16)
    write_lattice(path, [1, 2], 1, ids, np.full(ids.shape, -1, np.float16))
    with pytest.raises(Usage, match="of less than 16777216"):
        read_lattice(path)
    assert hashlib.sha256(path.read_bytes()[:-32]).digest() == path.read_bytes()[-32:]


def test_steps_of_an_answer_are_arrays(tmp_path):
    """Counts are int64, times float64, one column a phase."""
    steps = read_lattice(write_measurement(tmp_path / "m", ANSWERS)).requests[0].steps
    assert isinstance(steps, Steps)
    assert (steps.start.dtype, steps.us.dtype, steps.us.shape) == (np.int64, np.float64, (2, 4))

"""harness/samples.py: the schema and the checks are one, what counts is what the contract says, nothing is lost."""

import fcntl
import gzip
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness import samples
from harness.errors import HarnessError, Missing, Usage
from harness.shape import Mismatch
from tests.harness import campaigns
from tests.harness.campaigns import answer, complete, folded, forced, head, line, unit, void
from tests.harness.schemas import SCHEMAS, validator
from tests.harness.test_wire import accepts, spoiled

ROOT = Path(__file__).parents[2]
SAID = answer("confirm", 0, "a", "r", [5, 6], family="lists")
FINAL = line("final", commitment="f" * 64, stock_units=10, ar_units=5, force_units=24, reference_units=114, full=True)
EXAMPLES = {
    each["type"]: each
    for each in [
        *head(a={"tree": "c" * 40, "options": {"depth": 3, "name": "x", "fast": True}}),
        FINAL,
        line("load", phase="screen", unit=0, half=0, arm="a", load_s=1.5, prepared="0" * 64),
        next(each for each in unit("screen", 0) if each["type"] == "group"),
        SAID,
        line("redraw", phase="screen", unit=0, half=1, quartet=2, groups=[4, 5]),
        complete("screen", 0, ["a", "b"], [["a", "b"], ["b"]]),
        void("screen", 0, "a", "busy", "words"),
        forced(SAID, wrong=[1]),
        line("recheck", arm="a", request="r", at=1, stock=7, shape=8),
        line("look", what="forcing"),
        line("timed", samples="1" * 64, tokens=7),
    ]
}


@pytest.mark.parametrize("kind", EXAMPLES)
def test_shapes_equal_the_schema(kind):
    """What the schema refuses the harness refuses, and what the schema allows it reads."""
    schema, value = validator("samples"), EXAMPLES[kind]
    spoils = list(spoiled(value))

    assert accepts(samples.check, value)
    assert schema.is_valid(value)
    for changed in spoils:
        assert accepts(samples.check, changed) == schema.is_valid(changed), changed
    assert not all(schema.is_valid(changed) for changed in spoils)


def test_every_type_of_line_has_an_example():
    """The types of the schema are those above."""
    assert {each["properties"]["type"]["const"] for each in SCHEMAS["samples"]["oneOf"]} == set(EXAMPLES)


@pytest.mark.parametrize(
    "bad",
    [
        {**EXAMPLES["group"], "tokens": [4]},
        {**EXAMPLES["forced"], "rank": [0]},
        {**EXAMPLES["answer"], "lines": [1]},
    ],
    ids=lambda value: value["type"],
)
def test_lists_that_belong_together_have_one_length(bad, tmp_path):
    """Lists that run beside one another are as long as one another, in a file and before they come into one."""
    with pytest.raises(Usage, match=r"samples\.jsonl:3: "):
        samples.read(campaigns.write(tmp_path / "samples.jsonl", [*head(), bad]))
    fields = {key: value for key, value in bad.items() if key not in ("v", "kind", "type")}
    with samples.Writer(tmp_path / "new.jsonl") as writer, pytest.raises(Mismatch):
        writer.add(bad["type"], **fields)
    assert (tmp_path / "new.jsonl").read_bytes() == b""


def test_unit_counts_when_its_line_is_there():
    """Groups and answers without their unit's line do not count."""
    lines = unit("screen", 0)

    assert [each.name for each in folded([*head(), *lines]).units] == ["unit 0 of screen"]
    assert folded([*head(), *lines[:-1]]).units == ()


def test_void_takes_back_what_stood_before():
    """A void unit may be run again; only what stands after the void counts."""
    found = folded([*head(), *unit("screen", 0, gain=0.5)[:-1], void("screen", 0), *unit("screen", 0)])

    assert len(found.units) == len(found.voids) == 1
    assert len(found.units[0].groups) == 12
    assert {second for group in found.units[0].groups for second in group["seconds"]} == {1.0}


def test_void_takes_back_a_complete_unit_and_its_scores():
    """A unit that was complete is void as well, and what was scored of it."""
    said = answer("force", 0, "a", "r", [5])
    lines = [*head(), said, complete("force", 0), forced(said)]
    found = folded([*lines, void("force", 0), *lines[2:]])

    assert [each.name for each in folded(lines).units] == ["unit 0 of force"]
    assert folded([*lines, void("force", 0)]).units == ()
    assert len(found.forced) == 1


def test_process_that_goes_on_starts_its_timed_unit_anew():
    """What a killed process left of a timed unit does not count; answers that nobody timed do."""
    timed, said = unit("screen", 0), answer("force", 0, "a", "r", [5])
    again = head()[1]
    found = folded([*head(), *timed[:-3], said, again, *timed, complete("force", 0)])

    assert len(found.of("screen")[0].groups) == 12
    assert found.of("force")[0].answers == (said,)


def test_redrawn_quartet_does_not_count():
    """Groups before a redraw of their quartet are left out, with their answers; those after it count."""
    lines = unit("screen", 0, quartets=1)
    other = [
        {**each, "request": "x" + each["request"]}
        if each["type"] == "answer"
        else {**each, "requests": ["x" + name for name in each["requests"]], "group": each["group"] + 9}
        for each in lines[:-1]
    ]
    redraw = line("redraw", phase="screen", unit=0, half=0, quartet=0, groups=[9, 10])
    found = folded([*head(), *other, redraw, *lines]).units[0]

    assert {group["group"] for group in found.groups} == {0, 1}
    assert not [said for said in found.answers if said["request"].startswith("x")]
    assert found.groups == folded([*head(), *lines]).units[0].groups


def test_warm_up_is_no_answer():
    """An answer that no group holds was not timed, so it is left out of a timed unit."""
    warm = answer("screen", 0, "a", "warm", [5])
    found = folded([*head(), warm, *unit("screen", 0)]).units[0]

    assert "warm" not in {said["request"] for said in found.answers}


@pytest.mark.parametrize(
    ("lines", "match"),
    [
        ([head()[1]], "a campaign stands in the first line"),
        ([*head(), head()[0]], "a campaign stands in the first line"),
        (head()[:1], "do not begin"),
        ([*head(), *unit("screen", 0), *unit("screen", 0)[:1]], "was complete before"),
        ([*head(), complete("force", 0), complete("force", 0)], "complete already"),
        ([*head(), SAID, SAID, complete("force", 0)], None),
        (
            [*head(), *[answer("force", 0, "a", "r", [5])] * 2, complete("force", 0)],
            "answered twice",
        ),
        ([*head(), forced(SAID), forced(SAID)], "scored before"),
        ([*head(), EXAMPLES["recheck"], EXAMPLES["recheck"]], "scored before"),
        ([*head(), *[each for each in unit("screen", 0) if each["type"] != "answer"]], "without an answer"),
    ],
)
def test_files_that_contradict_themselves(lines, match, tmp_path):
    """A file out of order is refused by its line; answers of another unit, still open, are no contradiction."""
    path = campaigns.write(tmp_path / "samples.jsonl", lines)
    if match is None:
        assert samples.read(path).units[0].answers == ()
        return
    with pytest.raises(Usage, match=match):
        samples.read(path)


@settings(deadline=None)
@given(cut=st.integers(0, 400), seed=st.integers(0, 3))
def test_half_a_last_line_is_cut_off(cut, seed, tmp_path_factory):
    """However a file is torn, the lines before the tear are read, and the next writer goes on behind them."""
    path = tmp_path_factory.mktemp("torn") / "samples.jsonl"
    campaigns.write(path, [*head(), *unit("screen", seed)])
    data = path.read_bytes()
    start = len("".join(data.decode().splitlines(keepends=True)[:2]))
    path.write_bytes(data[: start + cut])
    whole = data[: start + cut].rfind(b"\n") + 1

    read = samples.read(path)
    with samples.Writer(path) as writer:
        writer.add("look", what="forcing")

    assert path.read_bytes()[:whole] == data[:whole]
    assert path.read_bytes()[whole:].count(b"\n") == 1
    assert samples.read(path).units == read.units


def test_compressed_samples_are_the_same(tmp_path):
    """A compressed file has the units and the digest of the plain one; one that is torn is refused."""
    plain = campaigns.write(tmp_path / "samples.jsonl", [*head(), *unit("screen", 0)])
    packed = tmp_path / "samples.jsonl.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))

    assert samples.read(packed) == samples.read(plain)
    packed.write_bytes(packed.read_bytes()[:-20])
    with pytest.raises(Usage, match="not whole"):
        samples.read(packed)
    with pytest.raises(Missing):
        samples.read(tmp_path / "none.jsonl")


def test_two_judges_do_not_mix(tmp_path):
    """A second writer is turned away while the first is there."""
    path = tmp_path / "samples.jsonl"
    with samples.Writer(path), pytest.raises(Usage, match="another judge"), samples.Writer(path):
        pass
    with samples.Writer(path) as writer, path.open("rb") as other:
        writer.add("look", what="forcing")
        with pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_full_disk_takes_no_half_line(tmp_path):
    """A line that does not fit is an error in one line, and nothing of it stays."""
    path = tmp_path / "samples.jsonl"
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        with samples.Writer(path) as writer:
            writer.add("look", what="forcing")
            before = path.read_bytes()
            resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 10, limits[1]))
            with pytest.raises(HarnessError, match="cannot write"):
                writer.add("look", what="forcing")
            assert path.read_bytes() == before
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
            writer.add("look", what="forcing")
            assert path.read_bytes() == before * 2
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, ignored)


def test_killed_writer_loses_no_line_that_it_wrote(tmp_path):
    """After kill -9 every line that `add` returned from is there, and the file can be written again."""
    path = tmp_path / "samples.jsonl"
    code = (
        "import sys, pathlib; from harness.samples import Writer\n"
        "with Writer(pathlib.Path(sys.argv[1])) as writer:\n"
        "    for count in range(10**6):\n"
        "        writer.add('look', what='forcing'); print(count, flush=True)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code, path], cwd=ROOT, stdout=subprocess.PIPE) as child:
        child.stdout.readline()
        time.sleep(0.05)
        os.kill(child.pid, signal.SIGKILL)
        said = child.stdout.read().split(b"\n")[:-1]

    with samples.Writer(path):
        assert path.read_bytes().count(b"\n") >= len(said) + 1


@pytest.mark.parametrize(
    ("field", "value", "same"), [("harness", "9", False), ("power_cap_w", 300, False), ("host", "x", True)]
)
def test_comparable_cards(field, value, same):
    """Cards are comparable iff the compared fields are equal."""
    assert samples.comparable(campaigns.CARD, {**campaigns.CARD, field: value}) is same


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [
        ("answer", "ids", [5, 2**31]),
        ("answer", "prompt", [10**30]),
        ("answer", "max_tokens", 10**30),
        ("forced", "argmax", [10**30, 5]),
        ("forced", "start", 2**31),
    ],
)
def test_numbers_beyond_every_vocabulary(tmp_path, kind, field, value):
    """A number that no id, index or count can be is said with its line, wherever the samples come from."""
    said = campaigns.answer("force", 0, "a", "r", [5, 6])
    lines = [*campaigns.head(), said, campaigns.forced(said)]
    lines = [{**line, field: value} if line["type"] == kind else line for line in lines]
    path = campaigns.write(tmp_path / "samples.jsonl", lines)
    with pytest.raises(Usage, match=rf"samples.jsonl:\d: '{field}' holds a number beyond every vocabulary"):
        samples.read(path)

"""spt/measured.py: what cannot have been measured is refused, in one line that names the file and the place in it."""

import gzip
import json
import os
from pathlib import Path

import pytest

from spt.errors import SptError, Usage
from spt.measured import read_measured
from spt.study import study
from tests.spt.measuring import change_summary, held_within, measure_toy, profile_rows, write_toy

CARD = {"gpu": "NVIDIA H200", "driver": "1", "torch": "2", "triton": "3", "cuda": "13", "power_cap_w": 700.0}
KEY = {"target": "a" * 64, "drafter": "b" * 64, "widen": 1, "jitter": 0, "dtype": "bfloat16", "card": CARD}
ABOUT = {"v": 1, "run": 1, "kind": "about", "key": KEY, "copy_bytes_s": 4e12}
ANSWER = {
    "v": 1,
    "run": 1,
    "kind": "answer",
    "setting": "chain",
    "options": {"chain_positions": 4},
    "repeat": 0,
    "id": "r",
    "prompt_tok": 9,
    "ids": list(range(12)),
    "lines": [1, 4, 3, 4],
    "decode_s": 0.015,
}
PHASES = {"draft_us": 1.0, "verify_us": 2.0, "accept_us": 1.0, "host_us": 1.0}
PHASED = {"v": 1, "run": 1, "kind": "phases", "setting": "chain", "steps": 3, **PHASES}


def write_rows(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def key(**changes):
    return ABOUT | {"key": KEY | changes}


def test_rows_that_are_whole(tmp_path):
    """The rows that the others are made of are read."""
    run = read_measured([write_rows(tmp_path / "rows", ABOUT, ANSWER, PHASED)], 15).run("chain")

    assert (run.tau, run.step_us, run.setting.nodes) == (pytest.approx(11 / 3), pytest.approx(5000), 4)
    assert run.samples[0].setting.context_tok == 9 + 6


def test_a_mean_context_is_of_the_rows_that_say_it(tmp_path):
    """Rows without the length of their prompt do not pull the mean to zero."""
    silent = {name: value for name, value in ANSWER.items() if name != "prompt_tok"} | {"id": "other"}
    run = read_measured([write_rows(tmp_path / "rows", ABOUT, ANSWER, silent)], 15).run("chain")

    assert run.setting.context_tok == 9 + 6


ODD = [
    *({"lines": lines} for lines in ([1, 99], [-1, 13], [0, 12], [], "text", [1.0, 11.0], [True, 11], [2**63], None)),
    *({"ids": ids} for ids in ([], [1], [-1] * 12, [2**40] * 12, "ids", [1.5] * 12, None)),
    *({"prompt_tok": tok} for tok in (-1, 0, 1e308, 9.0, "9", None, True)),
    *({"options": options} for options in (None, [], "text", {"select": 3}, {"draft": []}, {"other": {}})),
    *({"options": {name: value}} for name in ("best_first_nodes", "best_first_positions", "chain_positions")
      for value in (-1, "many", 3.0, 2**40, True, "-1", "0" * 5000)),
    *({"decode_s": time} for time in (0, 0.0, -1.0, 1e-160, 1e308, 1e9, "1", None, True)),
    *({"setting": name} for name in (None, 3, [], "")),
    *({"id": name} for name in (None, 3, [])),
    *({"kind": name} for name in (None, 3, [], "other")),
]  # fmt: skip


@pytest.mark.parametrize("change", ODD, ids=str)
def test_answers_that_cannot_be(tmp_path, change):
    """An answer of an impossible form, size or time is an error of its line."""
    path = write_rows(tmp_path / "rows", ABOUT, ANSWER, ANSWER | {"id": "odd"} | change)
    with pytest.raises(Usage, match=r"rows: line 3: ") as caught:
        read_measured([path], 15)
    assert "\n" not in caught.value.message


ODD_HEADS = [
    *(key(target=digest) for digest in (None, 3, [], "short", "A" * 64)),
    *(key(dtype=dtype) for dtype in (None, 3, [], {})),
    *(key(widen=widen) for widen in (None, 0, "1", 1.0, 2**70 // 2**10, True)),
    *(key(card=CARD | {"gpu": gpu}) for gpu in (3, [], True)),
    *(key(card=CARD | {"power_cap_w": cap}) for cap in (-1, "700", [])),
    *(key(card=card) for card in (None, [], {})),
    *(key(drafter=drafter) for drafter in (3, [], "short")),
    *(ABOUT | {"copy_bytes_s": rate} for rate in (-1.0, 0, "4e12", 1e308, 1e-300, True)),
    *(PHASED | {"verify_us": us} for us in ("text", None, 1e308, -1.0, True, 0, 1e-300)),
    *(PHASED | {"steps": steps} for steps in (-1, "3", 3.0, None)),
    *({name: value for name, value in PHASED.items() if name != left} for left in ("draft_us", "steps", "setting")),
]


@pytest.mark.parametrize("row", ODD_HEADS, ids=str)
def test_heads_and_phases_that_cannot_be(tmp_path, row):
    """What a run says of itself, and its phases, have their types and bounds."""
    with pytest.raises(Usage, match=r"rows: line 2: "):
        read_measured([write_rows(tmp_path / "rows", ANSWER, row, ABOUT)], 15)


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        ((ABOUT, ANSWER, ANSWER), "'r#0' of 'chain' was there before"),
        ((ABOUT, ANSWER, ANSWER | {"id": "s", "options": {}}), "'chain' has other options than before"),
        ((ABOUT, key(jitter=1), ANSWER), "line 1: its key is not that of the file's other runs"),
        ((ABOUT, PHASED), "lacks 'answer'"),
        ((ABOUT, 3), "line 2: the whole is 3, not a mapping"),
    ],
)
def test_rows_that_do_not_go_together(tmp_path, rows, why):
    """An answer counts once, and a file holds one key and one system a setting."""
    with pytest.raises(Usage, match=why):
        read_measured([write_rows(tmp_path / "rows", *rows)], 15)


# --- folders whose digests are right ---


@pytest.fixture
def toy(tmp_path):
    return write_toy(tmp_path)


def change_rows(folder, name, change):
    """Puts a change over each record of a file, and its digest into the summary."""
    rows = [json.loads(line) | change for line in (folder / name).read_text().splitlines()]
    (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    change_summary(folder, gpu="NVIDIA H200")


@pytest.mark.parametrize(
    ("name", "change"),
    [
        *(("answers.jsonl", {"decode_s": time}) for time in (0, 1e-160, 1e308, "1")),
        *(("answers.jsonl", {"lines": lines}) for lines in ([], [2**63], [1, 2], [1.0], [13, 0])),
        *(("answers.jsonl", {"ids": ids}) for ids in ([], [2**63], [1.0] * 13)),
        *(("steps.jsonl", {part: value}) for part in ("start", "anchor", "nodes") for value in (2**63, 3.0, -1)),
        ("steps.jsonl", {"nodes": 10**7}),
        ("steps.jsonl", {"path": [2**63]}),
        ("steps.jsonl", {"verify_us": 1e308}),
    ],
    ids=str,
)
def test_records_that_cannot_be(tmp_path, toy, name, change):
    """Answers and steps of impossible numbers are refused where they stand, and nothing is computed of them."""
    folder = measure_toy(tmp_path / "chain", toy)
    change_rows(folder, name, change)
    with pytest.raises(Usage, match=rf"{name}: line 1: "):
        study([folder], toy)


@pytest.mark.parametrize(
    "change",
    [
        *({"deployment": {name: value}} for name in ("dtype", "mode", "sampling") for value in ([], 3, None)),
        *({"system": {"tree": "c" * 40, "options": options}} for options in (
            [], {"best_first_nodes": []}, {"best_first_nodes": 10**18}, {"draft": 3}, {"x": {}})),
        {"target": {"digest": "a" * 64, "widen": 1.0, "jitter": 0}},
    ],
    ids=str,
)  # fmt: skip
def test_summaries_that_cannot_be(tmp_path, toy, change):
    """A summary's options, types and mode have their forms."""
    folder = measure_toy(tmp_path / "chain", toy)
    change_summary(folder, gpu="NVIDIA H200", **change)
    with pytest.raises(Usage, match=r"measurement\.json: '"):
        read_measured([folder], 3)


@pytest.mark.parametrize("us", [0, 1e-300])
def test_steps_that_take_no_time(tmp_path, toy, us):
    """Phases share the clock of the answers, so that they have a time to share."""
    folder = measure_toy(tmp_path / "chain", toy, times=dict.fromkeys(PHASES, us))
    with pytest.raises(Usage, match="its steps took no time to verify"):
        study([folder], toy)


@pytest.mark.parametrize("change", [{"classes": {}}, {"classes": {"gaps": {"us": 5.0, "calls": 1}}}])
def test_a_profile_without_kernels(tmp_path, toy, change):
    """Where no class took any time there is nothing to divide by."""
    folder = measure_toy(tmp_path / "chain", toy)
    rows = [json.loads(line) | change for line in profile_rows().splitlines()]
    write_rows(folder / "profile.jsonl", *rows)
    with pytest.raises(Usage, match="no kernel that took any time"):
        study([folder], toy)


@pytest.mark.parametrize(
    "change", [{"context": 1e308}, {"batch": 1e308}, {"rows": 1e308}, {"wall_us": 1e308}, {"steps": 3.0}]
)
def test_profiles_that_cannot_be(tmp_path, toy, change):
    """Sizes and times of a profile are bounded."""
    folder = measure_toy(tmp_path / "chain", toy)
    write_rows(folder / "profile.jsonl", *(json.loads(line) | change for line in profile_rows().splitlines()))
    with pytest.raises(Usage, match=r"profile\.jsonl: line 1: "):
        study([folder], toy)


def test_packed_rows_are_never_held_whole(tmp_path):
    """A small file that unpacks to a large one is an error before it is unpacked."""
    path = tmp_path / "rows.jsonl.gz"
    with gzip.open(path, "wb") as file:
        for _ in range(300):
            file.write(bytes(1 << 20))
    assert path.stat().st_size < 1 << 20
    with pytest.raises(SptError, match="holds more than 268435456 bytes unpacked"):
        read_measured([path], 15)
    path.write_bytes(gzip.compress(b"\n" * (8 << 20)))
    with held_within(40 << 20), pytest.raises(SptError, match="line 1: Expecting value"):
        read_measured([path], 15)


def test_only_files_are_rows(tmp_path):
    """A pipe or a device is never opened, packed or not."""
    for name in ("pipe", "pipe.gz"):
        os.mkfifo(tmp_path / name)
    for path in (tmp_path / "pipe", tmp_path / "pipe.gz", Path("/dev/zero"), Path("/dev/full")):
        with pytest.raises(Usage, match="is no regular file"):
            read_measured([path], 15)


# --- sources beside each other ---

OTHERS = [
    ({"drafter": "e" * 64}, "its drafter is"),
    ({"target": {"jitter": 7}}, "its jitter is '7', not '0'"),
    ({"deployment": {"mode": "fast"}}, "its mode is 'fast', not 'exact'"),
    ({"deployment": {"sampling": {"temperature": 1, "top_p": 1, "top_k": 0, "seed": 0}}}, "its sampling is"),
    *(
        ({"card": {name: "other"}}, f"its {name} is 'other', not 'one'")
        for name in ("driver", "torch", "triton", "cuda")
    ),
    ({"card": {"power_cap_w": 300}}, "its power_cap_w is '300', not '700'"),
    ({"card": {"gpu": None, "cpu": "other"}}, "its cpu is 'other', not 'one'"),
    ({"card": {"gpu": None, "cores": 3}}, "its cores is '3', not '2'"),
]
GREEDY = {"temperature": 0, "top_p": 1, "top_k": 0, "seed": 0}


def two_folders(tmp_path, toy, change):
    """Two measurements, the second changed; both on the GPU or the processor of the change."""
    folders = [measure_toy(tmp_path / name, toy) for name in ("first", "second")]
    gpu = change.get("card", {}).get("gpu", "NVIDIA H200")
    for folder, own in zip(folders, ({}, change), strict=True):
        path = folder / "measurement.json"
        summary = json.loads(path.read_text())
        summary["card"] |= dict.fromkeys(("driver", "torch", "triton", "cuda", "cpu"), "one")
        summary["card"] |= {"power_cap_w": 700, "gpu": gpu, "cores": 2}
        summary["deployment"] = {"mode": "exact", "sampling": GREEDY}
        for name, value in own.items():
            summary[name] = {**summary[name], **value} if isinstance(value, dict) else value
        path.write_text(json.dumps(summary))
    return folders


@pytest.mark.parametrize(("change", "why"), OTHERS, ids=str)
def test_foreign_measurements_are_not_mixed(tmp_path, toy, change, why):
    """Two measurements agree in drafter, jitter, mode, sampling and card."""
    with pytest.raises(Usage, match=f"second' is of another target, type or device: {why}"):
        read_measured(two_folders(tmp_path, toy, change), 3)
    assert len(read_measured(two_folders(tmp_path / "alike", toy, {}), 3).runs) == 2


@pytest.mark.parametrize(
    "change",
    [{"drafter": "e" * 64}, {"jitter": 3}, {"card": CARD | {"driver": "2"}}, {"card": CARD | {"power_cap_w": 9}}],
)
def test_foreign_rows_are_not_mixed(tmp_path, change):
    """So do two files of rows; what only one of them states is not compared."""
    first = write_rows(tmp_path / "first", ABOUT, ANSWER)
    second = write_rows(tmp_path / "second", key(**change), ANSWER | {"setting": "chain:4"})
    with pytest.raises(Usage, match="is of another target, type or device"):
        read_measured([first, second], 15)
    silent = {name: value for name, value in KEY.items() if name not in ("drafter", "jitter")}
    about = ABOUT | {"key": silent | {"card": {"gpu": CARD["gpu"]}}}
    with pytest.raises(Usage, match="is of another target, type or device"):
        read_measured([write_rows(tmp_path / "silent", about, ANSWER | {"setting": "ar"}), first, second], 15)
    assert len(read_measured([tmp_path / "silent", second], 15).runs) == 2


def test_one_measurement_by_two_paths_counts_once(tmp_path, toy):
    """A link is the folder that it points at, whatever it is called."""
    folder = measure_toy(tmp_path / "chain", toy)
    (tmp_path / "link").symlink_to(folder)
    for sources in ([folder, tmp_path / "link"], [tmp_path / "link", folder], [folder, folder / ".." / "chain"]):
        with pytest.raises(Usage, match="holds 'chain' once more"):
            read_measured(sources, 3)

"""`spt ceiling`, as its user sees it."""

import json
import shutil

import pytest

from tests.fakes.lattice import write_measurement
from tests.smollm2 import gguf
from tests.spt.measuring import DRAFTER, H200, change_summary, measure_toy, profile_rows, write_toy
from tests.spt.toys import errors_well, spt

LATER = "2100-01-01T00:00:00+00:00"  # than any prediction that a test writes
PLAIN = {"draft_us": 0.0, "verify_us": 3000.0, "accept_us": 100.0, "host_us": 50.0}


@pytest.fixture
def toy(tmp_path):
    return write_toy(tmp_path)


@pytest.fixture
def measured(tmp_path, toy):
    """A folder of the toy with a profile."""
    folder = measure_toy(tmp_path / "chain", toy)
    (folder / "profile.jsonl").write_text(profile_rows())
    return folder


@pytest.fixture
def ceiling(tmp_path, toy, monkeypatch):
    """Runs the command on the toy's models, in a wide terminal."""
    monkeypatch.setenv("COLUMNS", "200")

    def run(*words):
        return spt("ceiling", *words, "--target", toy.target, "--drafter", toy.drafter, cwd=tmp_path)

    return run


def answer(ran):
    """The JSON that a command printed, which went well."""
    assert ran.code == 0, ran.err
    return json.loads(ran.out)


def test_text_and_json_say_the_same(ceiling, measured, tmp_path):
    """Both ceilings with their bases, the three factors, classes, sensitivity; pictures where they are asked for."""
    shown = ceiling(measured, "--plot", tmp_path / "c.svg")
    told = answer(ceiling(measured, "--json"))

    for word in ("published", "calibrated", "gemm", "attention", "kernel", "overhead", "sensitivity", "datasheet"):
        assert word in shown.out
    assert [each["kind"] for each in told["ceilings"]] == ["published", "calibrated"]
    assert told["device"] == "H200 SXM"
    assert f"{told['ceilings'][0]['factors']['kernel']:.2f}" in shown.out
    walked = {each["policy"]: each["tau"] for each in told["points"]}
    (row,) = (line.split() for line in shown.out.splitlines() if line.split()[:1] == ["48"])
    assert row[-1] == f"{walked['tree:48:3:4']:.2f}"  # the last column has all positions
    assert (tmp_path / "c.svg").read_text().startswith("<?xml")


def test_the_plan(ceiling, measured):
    """Every direction with its bounds, and whether it reaches 3 %."""
    told = answer(ceiling(measured, "--plan", "--json"))
    shown = ceiling(measured, "--plan").out

    assert {each["direction"] for each in told} == {
        "bigger-trees",
        "smaller-trees",
        "more-positions",
        "w12-weights",
        "faster-head",
        "fewer-launches",
        "shared-budget",
        "two-level-verification",
    }
    assert all(each["direction"] in shown for each in told)
    assert all(each["worth"] == (each["gain"] is not None and each["gain"] >= 0.03) for each in told)


def test_predictions_are_written_once_and_checked(ceiling, measured, tmp_path, toy):
    """What is predicted goes into a file before it is run; the check prints each signed error."""
    file = tmp_path / "predicted.json"
    record = answer(ceiling(measured, "--predict", file, "--at", "7", "--json"))
    new = measure_toy(tmp_path / "tree", toy, options={"select": "best_first"})
    rows = [json.loads(line) | {"nodes": 7} for line in (new / "steps.jsonl").read_text().splitlines()]
    (new / "steps.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    change_summary(new, gpu="NVIDIA H200", date=LATER)
    checked = answer(ceiling(measured, new, "--check", file, "--json"))

    assert json.loads(file.read_text()) == record
    assert [each["name"] for each in checked] == ["7"]
    assert checked[0]["error"] == pytest.approx(record["predictions"][0]["step_us"] / 4500 - 1)
    assert f"{checked[0]['error']:+.2%}" in ceiling(measured, new, "--check", file).out
    assert errors_well(ceiling(measured, "--predict", file, "--at", "7"), 2, "is there already")
    assert errors_well(ceiling(measured, "--check", file), 2, "none of its settings was measured")
    file.write_text(file.read_text().replace('"step_us": ', '"step_us": 1'))
    assert errors_well(ceiling(measured, new, "--check", file), 2, "changed after")


def test_a_policy_is_predicted_with_its_speed(ceiling, tmp_path, toy):
    """--policy walks the lattices of a source, or of --lattices, and says tau, step and the gain over plain decoding;
    what was measured is no prediction unless it is left out of the fit."""
    plain = measure_toy(tmp_path / "ar", toy, lines=(1,) * 7, options={"draft": "none"}, times=PLAIN)
    chain, file = measure_toy(tmp_path / "chain", toy), tmp_path / "predicted.json"
    record = answer(ceiling(plain, chain, "--predict", file, "--policy", "tree:2", "--policy", "chain:2", "--json"))
    tree, short = record["predictions"]
    walked = json.loads(spt("walk", chain, "--policy", "chain:2", "--json", cwd=tmp_path).out)

    assert (tree["setting"], tree["nodes"], short["setting"], short["nodes"]) == ("tree:2", 2, "chain:2", 2)
    assert short["tau"] == pytest.approx(walked["policies"][0]["tau"])
    assert short["speed_tok_s"] == pytest.approx(1e6 * short["tau"] / short["step_us"])
    assert short["interval_us"] is None and short["speedup_interval"] is None  # as many terms as samples
    known = ("--predict", tmp_path / "known.json", "--policy", "chain")
    assert errors_well(ceiling(plain, chain, *known), 2, "'chain' was measured, as 'chain'", "--hold chain")
    walked = measure_toy(tmp_path / "walked", toy)
    shutil.rmtree(chain / "lattices")
    lone = ceiling(plain, chain, "--lattices", walked, "--predict", tmp_path / "2", "--policy", "tree:2")
    assert f"{tree['speedup']:.3f}" in lone.out
    assert "fitted on" in lone.err and "left out" in lone.err


def test_a_prediction_is_met_by_a_run_of_its_policy(ceiling, tmp_path, toy):
    """A run is found by what it ran, whatever its folder is called, and one that the model was fitted on never; with
    rows alike but another policy nothing is confirmed.  A miss is an exit code, and what was not run is named."""
    plain = measure_toy(tmp_path / "ar", toy, lines=(1,) * 7, options={"draft": "none"}, times=PLAIN)
    chain, file = measure_toy(tmp_path / "chain", toy), tmp_path / "predicted.json"
    words = ("--policy", "tree:3:0:4", "--policy", "chain:2")
    record = answer(ceiling(plain, chain, "--predict", file, *words, "--json"))
    assert errors_well(ceiling(plain, chain, "--check", file), 2, "none of its settings was measured")

    options = {"select": "best_first", "best_first_nodes": 3, "best_first_width": 4}
    run = measure_toy(tmp_path / "any name", toy, options=options)
    assert errors_well(ceiling(plain, chain, run, "--check", file), 2, "none of its settings was measured since")
    change_summary(run, gpu="NVIDIA H200", date=LATER)
    checked = ceiling(plain, chain, run, "--check", file, "--json")
    (found,) = json.loads(checked.out)
    assert found["name"] == "tree:3:0:4"
    assert found["tau"] == [record["predictions"][0]["tau"], pytest.approx(2.4)]
    assert found["speedup"][0] == record["predictions"][0]["speedup"]
    assert "not measured: chain:2" in checked.err
    assert checked.code == (0 if found["meets_goal"] else 1)


def test_a_speed_above_its_ceiling_is_an_exit_code(ceiling, tmp_path, toy):
    """A wrong model is said, with exit code 1, and its numbers stay as they are."""
    folder = measure_toy(tmp_path / "fast", toy)
    rows = [json.loads(line) | {"decode_s": 1e-8} for line in (folder / "answers.jsonl").read_text().splitlines()]
    (folder / "answers.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    change_summary(folder, gpu="NVIDIA H200")
    told = ceiling(folder, "--json")

    assert told.code == 1
    assert "the model or its coefficients are wrong" in told.err
    assert all(each["model_is_wrong"] and each["headroom"] < 1 for each in json.loads(told.out)["ceilings"])


def test_mistakes_are_one_line(ceiling, measured, tmp_path, toy):
    """Each mistake is said with its exit code, and no file appears."""
    foreign = write_measurement(tmp_path / "foreign", {"r": ([3], [[4], [5, 6]])})
    other, on_cpu = measure_toy(tmp_path / "other", toy), measure_toy(tmp_path / "processor", toy, gpu=None)
    shutil.rmtree(other / "lattices")
    for words, status, why in (
        ((tmp_path / "nowhere",), 4, "no measurement"),
        ((measured, "--current", "tree"), 2, "'tree' was not measured"),
        ((on_cpu, "--gpu", "NVIDIA H200"), 2, "this was measured on a processor"),
        ((measured, "--gpu", "NVIDIA T4"), 5, "has no 'NVIDIA T4'"),
        ((measured, "--at", "7"), 2, "--at, --policy and --hold"),
        ((measured, "--predict", tmp_path / "p.json"), 2, "nothing is to be predicted"),
        ((measured, "--predict", tmp_path / "p.json", "--at", "many"), 2, "'many' is no setting"),
        ((measured, "--predict", tmp_path / "p.json", "--hold", "chain"), 2, "no measured step"),
        ((measured, "--predict", tmp_path / "p.json", "--policy", "shared:9:2"), 2, "'shared:9:2' cannot be predicted"),
        ((measured, "--predict", tmp_path / "p.json", "--policy", "bush:9"), 2, "'bush:9'"),
        ((measured, "--predict", tmp_path / "p.json", "--policy", "tree:9:0:9"), 2, "rank"),
        ((other, "--lattices", foreign, "--plan"), 2, "are of another target"),
        ((other, "--predict", tmp_path / "p.json", "--policy", "tree:2"), 2, "no lattices to walk"),
        ((measured, "--lattices", tmp_path / "gone"), 4, "gone"),
        ((measured, "--check", tmp_path / "p.json"), 4, "no predictions"),
        ((measured, "--plot", tmp_path / "precious.yaml"), 2, "is no name of a picture"),
        ((measured, "--context", "nan"), 2, "'nan'"),
        ((measured, "--predict", tmp_path / "p.json", "--at", "9" * 400), 2, "is no setting"),
        ((measured, "--widen", "8"), 2, "widened 1 times, not 8"),
    ):
        assert errors_well(ceiling(*words), status, why), words
    assert not (tmp_path / "p.json").exists()


def test_the_shipped_rows_of_an_h200(tmp_path):
    """The command of docs/ceiling.md: rows of benchmarks.speed are explained, and of several settings one is named."""
    words = ("ceiling", H200, "--target", gguf(), "--drafter", DRAFTER, "--widen", 8)
    assert errors_well(spt(*words, cwd=tmp_path), 2, "which is the current one")
    told = answer(spt(*words, "--current", "tree:63:0:16", "--json", cwd=tmp_path))

    assert [each["largest"] for each in told["ceilings"]] == ["kernel", "kernel"]
    assert told["context_assumed"] is True
    assert told["points_from"] == "runs"

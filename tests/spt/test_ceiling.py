"""spt/ceiling.py and what it stands on: factors that multiply to the headroom, floors, sweeps, plans, pictures."""

import gzip
import hashlib
import json
import math
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spt.ceiling import Models, ceiling, floors_us, rates_of, sweep
from spt.cost import Sample, Setting, fit
from spt.curve import Point, ratio_interval, run_point, tau_of, walked_levels
from spt.deployment import content_digest
from spt.devices import TABLE, Device, Rates, find_device, measure_cpu
from spt.errors import Missing, Unsupported, Usage
from spt.gains import Outlook, plan, worth
from spt.lattice import read_lattice
from spt.measured import Run, read_measured
from spt.pictures import draw, waterfall
from spt.printable import printable
from spt.profile import Profile, read_profile
from spt.shapes import Pass
from spt.study import study
from tests.fakes.lattice import write_measurement
from tests.spt.measuring import (
    DFLASH,
    H200,
    MEASUREMENTS,
    PHASES,
    SMOLLM2,
    change_summary,
    measure_toy,
    profile_rows,
    subject,
    write_toy,
)

MODELS = Models(SMOLLM2.widened(8), DFLASH, "bfloat16")
KEPT = {"a": (30.0, 8.0), "b": (22.0, 7.0)}


def a_run(tau=3.5, step_us=5000.0, nodes=15.0, **changes):
    return Run(Setting("now", nodes), tau, KEPT, step_us, (Sample(Setting("now", nodes), step_us),), **changes)


# --- the arithmetic ---


@given(
    st.floats(1.0, 16.0),
    st.floats(200.0, 1e6),
    st.floats(0.01, 1.0),
    st.lists(st.tuples(st.integers(1, 255), st.floats(1.0, 16.0)), max_size=6),
    st.sampled_from(TABLE),
    st.floats(0, 1e5),
)
def test_the_factors_multiply_to_the_headroom(tau, step_us, device_share, points, device, context_tok):
    """tau x kernel x overhead is the ceiling over the current speed, exactly, whatever was measured."""
    run = a_run(tau, step_us, phases_us={"verify": step_us * device_share, "host": 1.0})
    walked = [Point(str(nodes), "tree", nodes, 15, own, {}) for nodes, own in points]
    found = ceiling(MODELS, run, walked, device.published("bfloat16"), context_tok)

    assert math.prod(found.factors.values()) == pytest.approx(found.headroom, rel=1e-12)
    assert found.headroom == pytest.approx(found.speed / run.speed, rel=1e-15)
    assert found.factors["tau"] >= 1 - 1e-12
    assert found.broken == (found.headroom < 1)
    assert found.factors[found.largest] == max(found.factors.values())


@given(st.integers(0, 255), st.floats(0, 1e5), st.integers(1, 64), st.floats(1e11, 1e13), st.floats(1e12, 1e15))
def test_floors_are_monotone(nodes, context_tok, batch, bytes_s, flops_s):
    """More work has no lower floor, and a faster device no higher one, class by class."""
    rates = Rates("made", bytes_s, flops_s, "made")
    here = floors_us(MODELS, Pass(nodes, context_tok, batch), rates)

    for at in (
        Pass(nodes + 1, context_tok, batch),
        Pass(nodes, context_tok + 1, batch),
        Pass(nodes, context_tok, batch + 1),
    ):
        assert all(us >= here[name] for name, us in floors_us(MODELS, at, rates).items())
    for faster in (replace(rates, bytes_s=2 * bytes_s), replace(rates, flops_s=2 * flops_s)):
        assert all(us <= here[name] for name, us in floors_us(MODELS, Pass(nodes, context_tok, batch), faster).items())
    assert floors_us(MODELS, Pass(nodes, context_tok, batch), rates, weight_bits=12.02)["gemm"] <= here["gemm"]


def test_floors_by_hand():
    """One row of the widened SmolLM2 on an H200: 13.59 GB at 90 % of 4.8 TB/s are 3,146 us, at 4.42 TB/s 3,075 us."""
    published, calibrated = rates_of(find_device("NVIDIA H200"), "bfloat16", None)
    at = Pass(0, 0)

    assert floors_us(MODELS, at, published)["gemm"] == pytest.approx(13_589_544_960 / 4.32e12 * 1e6)
    assert floors_us(MODELS, at, calibrated)["gemm"] == pytest.approx(13_589_544_960 / 4.42e12 * 1e6)
    # 512 rows are bound by FLOPs: 2 x 6.795e9 x 512 over 60 % of 989.4 TFLOP/s.
    wide = floors_us(MODELS, Pass(511, 0), published)["gemm"]
    assert wide == pytest.approx(2 * 6_794_772_480 * 512 / (0.6 * 989.4e12) * 1e6)


def test_kernels_come_from_the_profile_where_there_is_one(tmp_path):
    """A profile tells kernels from gaps, phases the device from the host, and a step alone nothing but itself."""
    (tmp_path / "profile.jsonl").write_text(profile_rows())
    profile = read_profile(tmp_path / "profile.jsonl")
    rates = TABLE[0].published("bfloat16")
    profiled, phased, bare = (
        ceiling(MODELS, a_run(**how), [], rates, 512)
        for how in ({"profile": profile, "phases_us": PHASES}, {"phases_us": PHASES}, {})
    )

    assert profiled.kernels_us == pytest.approx(1.05 * (200 + 60 + 3500 + 250 + 150 + 110 + 30 + 5))
    assert (phased.kernels_us, bare.kernels_us) == (4450.0, 5000.0)
    assert [each.basis for each in (profiled, phased, bare)] == ["profile", "phases", "step"]
    assert bare.factors["overhead"] == 1
    assert profiled.classes[0].name == "gemm"
    assert profiled.classes[0].us == pytest.approx(3675)
    assert all(gap.us is None for gap in phased.classes)


def test_a_speed_above_its_ceiling_says_that_the_model_is_wrong():
    """Nothing is clipped: the headroom falls below 1, and the ceiling is called broken."""
    found = ceiling(MODELS, a_run(tau=16, step_us=1000), [], TABLE[0].published("bfloat16"), 512)

    assert found.broken
    assert found.headroom < 1
    assert found.as_json()["model_is_wrong"] is True


def test_several_drafts_have_a_ceiling_of_their_own():
    """Cheap passes and further drafts are paid for; the classic ceiling does not move."""
    levels = Point("levels:1:1:tree:63", "levels", 70.0, 15, 12.0, {}, cheap_passes=1.0, cheap_rows=64.0)
    rates = TABLE[0].published("bfloat16")
    alone, beside = (ceiling(MODELS, a_run(), points, rates, 512) for points in ([], [levels]))

    assert alone.multi_speed is None
    assert beside.speed == alone.speed
    whole_us = sum(floors_us(MODELS, Pass(70, 512, 1, 12), rates, 2.0).values())
    cheap_us = sum(floors_us(MODELS, Pass(63, 512), rates, 0, 8).values())
    assert beside.multi_floor_us == pytest.approx(whole_us + cheap_us)
    assert beside.multi_speed == pytest.approx(1e6 * 12 / (whole_us + cheap_us))


# --- devices ---


@pytest.mark.parametrize(
    ("name", "device"),
    [
        ("NVIDIA H200", "H200 SXM"),
        ("NVIDIA H200 NVL", "H200 NVL"),
        ("NVIDIA H100 80GB HBM3", "H100 SXM"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("NVIDIA A100-SXM4-80GB", "A100 SXM 80 GB"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "RTX PRO 6000"),
        ("NVIDIA L40S", "L40S"),
    ],
)
def test_a_card_names_its_device(name, device):
    """The longest name that fits is meant."""
    assert find_device(name).name == device


def test_no_rate_is_guessed():
    """An unknown card, a type that the table lacks and a device that nobody measured have no number."""
    for unknown in ("NVIDIA T4", "NVIDIA RTX PRO 6000 Blackwell Server Edition"):  # its memory is slower
        with pytest.raises(Unsupported, match=f"has no '{unknown}'"):
            find_device(unknown)
    with pytest.raises(Unsupported, match="nothing of 'float64'"):
        TABLE[0].published("float64")
    (published,) = rates_of(find_device("NVIDIA L40S"), "bfloat16", None)
    assert published.kind == "published"
    with pytest.raises(Unsupported, match="nothing is known"):
        rates_of(Device("x", "x", {}, None), "float32", None)
    assert [rates.kind for rates in rates_of(find_device("NVIDIA L40S"), "bfloat16", 7e11)] == [
        "published",
        "calibrated",
    ]


def test_this_cpu_is_measured():
    """A child copies, reads and multiplies; its rates are those of a machine of this world."""
    device = measure_cpu()
    (rates,) = rates_of(device, "float32", None)

    assert 1e8 < rates.bytes_s < 1e13
    assert 1e8 < rates.flops_s < 1e15
    assert device.source.startswith("measured")
    assert sweep(MODELS, a_run(), [], device, 512, "tau") is None
    with pytest.raises(Unsupported, match="no datasheet"):
        device.published("float32")


# --- the shipped rows of an H200 ---


@pytest.fixture(scope="module")
def h200():
    """Studies of the shipped rows, by current setting."""
    return {name: study([H200], subject(), current=name) for name in ("ar", "chain", "tree:63:0:16")}


def test_the_gap_that_is_named_changes_with_the_system(h200):
    """AR and chain of stock: tau is what is missing, or equal to kernels; once the tree is in, kernels are."""
    factors = {name: found.now.factors for name, found in h200.items()}

    assert h200["ar"].now.largest == "tau"
    assert h200["tree:63:0:16"].now.largest == "kernel"
    assert factors["tree:63:0:16"]["tau"] < factors["chain"]["tau"] < factors["ar"]["tau"]
    assert not any(found.broken for found in h200.values())


def test_another_gap_is_named_once_the_tree_is_applied():
    """From profiled measurements of an H200: what tau leaves to the chain is all but used up behind best-first-tree,
    where the kernels are the largest factor; the headroom is smaller."""
    sources = [MEASUREMENTS / "2026-11-30-h200-fit.jsonl.gz", MEASUREMENTS / "2026-11-30-h200-measured" / "tree63"]
    chain_folder = MEASUREMENTS / "2026-11-30-h200-measured" / "chain"
    rows = study(sources, subject(), current="tree63")
    tree = rows.now
    with pytest.raises(Usage, match="holds 'chain' once more"):
        study([*sources, chain_folder], subject(), current="tree63")
    chain = study([chain_folder, sources[1]], subject(), current="chain").now

    assert tree.basis == chain.basis == "profile"
    assert tree.largest == "kernel"
    assert tree.factors["tau"] < 1.1 < 1.3 < chain.factors["tau"]
    assert tree.headroom < 0.85 * chain.headroom
    assert 1.04 < tree.factors["overhead"] < 1.06


def test_the_ranking_of_the_chain_depends_on_the_shares(h200):
    """Its two largest factors lie so close that tau is the largest at lower shares of the bandwidth."""
    swept = h200["chain"].sensitivity

    assert swept.stands == "kernel"
    assert set(swept.others.values()) == {"tau"}
    assert all(bytes_ < 0.9 for _, bytes_ in swept.others)
    assert not h200["ar"].sensitivity.others


def test_the_realised_gain_of_the_tree_was_inside_the_bounds():
    """From chain, with a cost model that never saw the tree of 63 nodes: its own speed-up is between the bounds."""
    whole = study([H200], subject(), current="chain")
    tree = whole.measured.run("tree:63:0:16")
    unseen = fit([each for each in whole.measured.samples if ":63:" not in each.setting.name])
    points = [replace(run_point(whole.measured.run(name), 15), step_us=None) for name in ("chain", "tree:63:0:16")]
    gains = plan(Outlook(whole.models, whole.now, points, unseen, whole.context_tok, whole.own))
    bigger = next(each for each in gains if each.direction == "bigger-trees")
    realised = tree.speed / whole.run.speed - 1

    assert bigger.low < realised < bigger.high
    assert bigger.gain == pytest.approx(realised, abs=0.03)
    assert bigger in worth(gains)
    seen = next(each for each in whole.plan() if each.direction == "bigger-trees")
    assert "as measured" in seen.basis
    assert seen.gain == pytest.approx(realised, abs=1e-9)


@given(
    st.floats(1.0, 1e7),
    st.floats(1e-3, 1e7),
    st.floats(1e-3, 1e7),
    st.floats(0, 1e6),
    st.floats(1.0, 16.0),
)
def test_a_saving_is_at_most_the_share_of_its_class(step_us, gemm_us, head_us, glue_us, tau):
    """However long the profiled kernels took beside the live step, no class saves more of it than its share, and the
    bounds are in order."""
    us = {"gemm": gemm_us, "head": head_us, "glue": glue_us, "gaps": 3.0}
    profile = Profile(us, step_us, PHASES, 16.0, 512.0, 1.0, 8)
    run = a_run(tau, step_us, profile=profile)
    now = ceiling(MODELS, run, [], TABLE[0].published("bfloat16"), 512)
    gains = {each.direction: each for each in plan(Outlook(MODELS, now, [], fit(run.samples), 512, run_point(run, 15)))}

    whole_us = max(step_us, gemm_us + head_us + glue_us)
    for name, part_us in (("w12-weights", gemm_us), ("faster-head", head_us)):
        found = gains[name]
        assert 0 <= found.low <= found.gain <= found.high
        assert 1 / (1 + found.high) >= 1 - part_us / whole_us - 1e-9
    assert 0 <= gains["fewer-launches"].low <= gains["fewer-launches"].gain <= gains["fewer-launches"].high
    floor_us = now.floor_us if now.floor_us < step_us else step_us
    assert step_us / (1 + gains["faster-head"].high) >= floor_us * (1 - 1e-9)


def test_a_step_that_its_profile_outlasts_saves_its_share(tmp_path, toy):
    """By hand: kernels that took ten times the step save what they would save of the step."""
    folder = measure_toy(tmp_path / "chain", toy)
    (folder / "profile.jsonl").write_text(profile_rows(slower=10.0))
    found = study([folder], toy, nodes=(2, 3))
    w12 = next(each for each in found.plan() if each.direction == "w12-weights")
    kernels_us = found.now.kernels_us
    share = 10 * 1.05 * 3500 / kernels_us

    assert kernels_us > 9 * found.run.step_us
    assert w12.gain == pytest.approx(1 / (1 - share * (1 - 12.02 / 16)) - 1, rel=1e-3)


def test_one_answer_has_a_gain_and_no_bounds(tmp_path, toy):
    """One answer does not tell how answers differ: bounds are unknown, never as narrow as nothing."""
    folders = [measure_toy(tmp_path / str(count), toy, answers=count) for count in (1, 2)]
    alone, both = (
        next(each for each in study([folder], toy, nodes=(4, 8)).plan() if each.direction == "bigger-trees")
        for folder in folders
    )

    assert alone.gain is not None
    assert (alone.low, alone.high) == (None, None)
    assert "one answer has no interval" in alone.basis
    assert both.low < both.high or both.gain == 0


def test_directions_without_numbers_say_why(h200):
    """Where there is no profile and no lattice, what they would tell has no number."""
    gains = {each.direction: each for each in h200["chain"].plan()}

    assert len(gains) == 8
    for name in ("faster-head", "more-positions", "two-level-verification"):
        assert gains[name].gain is None
        assert gains[name] not in worth(gains.values())
    assert gains["shared-budget"].gain == 0
    for each in gains.values():
        assert each.gain is None or each.low <= each.gain <= each.high


def test_the_best_number_of_nodes_at_the_fitted_cost(h200):
    """tau(N) / c(N) is largest at 63 nodes, where the device was fastest too; at floors it is largest at 127."""
    found = h200["chain"]
    point, step = found.fastest()
    speeds = {name: run.speed for name, run in found.measured.runs.items()}

    assert point.policy == max(speeds, key=speeds.get) == "tree:63:0:16"
    assert 1e6 * point.tau / step.step_us == pytest.approx(speeds[point.policy], rel=0.03)
    assert found.now.best.policy == "tree:127:0:16"


def test_pictures_are_the_same_bytes(h200, tmp_path):
    """One SVG holds the three of them, and drawing again changes nothing."""
    for name in ("one.svg", "two.svg"):
        draw(h200["chain"], tmp_path / name)
    data = (tmp_path / "one.svg").read_bytes()
    steps = waterfall(h200["chain"])

    assert data == (tmp_path / "two.svg").read_bytes()
    assert ElementTree.fromstring(data).tag.endswith("svg")
    assert [name.split()[-1] for name, _ in steps] == ["AR", "chain", "overhead", "kernel", "tau"]
    assert steps[-1][1] == pytest.approx(h200["chain"].now.speed, rel=1e-12)
    assert b"tau over node budget" in data


@pytest.mark.parametrize("name", ["$x^{$", "a$b", "$\\frac$", "\x1b[31mred\x1b[0m", "\u202eevil", "\x07", "文"])
def test_names_are_text_in_pictures(tmp_path, toy, name, capfd):
    """Any name of a folder is drawn as it is spelled: no formula, no control character, nothing on the terminal."""
    folder = measure_toy(tmp_path / name, toy)
    draw(study([folder], toy, nodes=(2, 3)), tmp_path / "c.svg")
    text = "".join(ElementTree.fromstring((tmp_path / "c.svg").read_bytes()).itertext())

    assert printable(name) in text
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("context_tok", [1e308, 2.0**31, -1.0, math.inf, math.nan])
def test_a_context_that_no_request_has(context_tok):
    """Floors are counted within bounds."""
    with pytest.raises(Usage, match="tokens of context are outside"):
        floors_us(MODELS, Pass(0, context_tok), TABLE[0].published("bfloat16"))


# --- folders of a toy, with lattices and a profile ---


@pytest.fixture
def toy(tmp_path):
    return write_toy(tmp_path)


def test_a_folder_with_lattices_and_a_profile(tmp_path, toy):
    """Policies are walked, the profile tells the classes, every direction but packed shares has its number."""
    folder = measure_toy(tmp_path / "chain", toy)
    (folder / "profile.jsonl").write_text(profile_rows())
    found = study([folder], toy, nodes=(2, 3))
    gains = {each.direction: each for each in found.plan()}

    assert found.walked
    assert found.context_tok == 20 and not found.context_assumed
    assert {point.kind for point in found.points} == {"run", "chain", "tree", "levels"}
    assert found.now.basis == "profile"
    assert found.now.multi is not None
    assert gains["faster-head"].high > gains["faster-head"].gain > 0
    assert gains["two-level-verification"].gain is not None
    assert json.loads(json.dumps(found.as_json()))["points_from"] == "walks"


def test_a_profile_that_the_summary_names_is_that_one(tmp_path, toy):
    """It is held to its digest as the other files are; one that nobody named is taken as it is."""
    folder = measure_toy(tmp_path / "chain", toy)
    profile = folder / "profile.jsonl"
    profile.write_text(profile_rows())
    assert study([folder], toy).now.basis == "profile"
    files = json.loads((folder / "measurement.json").read_text())["files"]
    change_summary(folder, files={**files, "profile.jsonl": hashlib.sha256(profile.read_bytes()).hexdigest()})
    assert study([folder], toy).now.basis == "profile"
    profile.write_text(profile_rows(slower=0.9))
    with pytest.raises(Usage, match=r"profile\.jsonl' is not the file that was measured"):
        study([folder], toy)
    profile.unlink()
    with pytest.raises(Usage, match=r"profile\.jsonl' is not the file that was measured"):
        study([folder], toy)


def test_bad_measurements_are_named(tmp_path, toy):
    """Each fault is one error that says what is wrong, and no number comes of it."""
    good = measure_toy(tmp_path / "good", toy)
    other = measure_toy(tmp_path / "other", toy)
    change_summary(other, target={"digest": "e" * 64, "widen": 1, "jitter": 0}, gpu="NVIDIA H200")
    looped = measure_toy(tmp_path / "silent", toy, lines=(1,))
    cut = measure_toy(tmp_path / "cut", toy)
    (cut / "steps.jsonl").write_bytes((cut / "steps.jsonl").read_bytes()[:-9])
    for sources, why in (
        ([other], "of another target than"),
        ([good, other], "its digest is"),
        ([good, good], "once more"),
        ([looped], "zero tokens were accepted"),
        ([cut], "not the file that was measured"),
    ):
        with pytest.raises(Usage, match=why):
            study(sources, toy)
    change_summary(cut, gpu="NVIDIA H200")
    with pytest.raises(Usage, match="is cut"):
        study([cut], toy)
    with pytest.raises(Missing, match=r"measurement\.json"):
        study([tmp_path], toy)
    with pytest.raises(Missing, match="no measurement at"):
        study([tmp_path / "nowhere"], toy)
    with pytest.raises(Usage, match="was not measured"):
        study([good], toy, current="tree")


@pytest.mark.parametrize("lines", [(1,), (1, *[3] * 60)])
def test_lattices_without_a_step_that_counts(tmp_path, toy, lines):
    """Walks of answers that loop, or have one token, are no points: one line says so."""
    folder = measure_toy(tmp_path / "chain", toy)
    said = {"r": ([3, 4], [[5] * count for count in lines])}
    digests = {"target": content_digest(toy.target), "drafter": content_digest(toy.drafter)}
    silent = write_measurement(tmp_path / "silent", said, **digests)
    with pytest.raises(Usage, match="no step of the walked answers counts: they loop, or have one token"):
        study([folder], toy, lattices=silent)
    with pytest.raises(Usage, match="no step of the walked answers counts"):
        walked_levels(read_lattice(silent), 3)


def test_drafts_of_any_size_are_walked_within_the_limits(tmp_path, toy):
    """A run of more rows than a policy may have is walked with as many as one may."""
    folder = measure_toy(tmp_path / "chain", toy)
    points = walked_levels(read_lattice(folder), 65535)

    assert {point.policy.rpartition("tree:")[2] for point in points} == {"1023:0:4"}


def test_bad_profiles_are_named(tmp_path):
    """A profile without a phase, a cut one, an empty one, one of another form."""
    path = tmp_path / "profile.jsonl"
    whole = profile_rows()
    for text, why in (
        (profile_rows(without="verify"), "has no phase 'verify'"),
        (whole[:-5], "is cut"),
        ("", "is empty"),
        (whole.replace('"gemm"', '"magic"'), "magic"),
        (whole.replace('"us": 110.0', '"us": -1'), "-1"),
    ):
        path.write_text(text)
        with pytest.raises(Usage, match=why):
            read_profile(path)
    with pytest.raises(Missing):
        read_profile(tmp_path / "none.jsonl")


def test_a_profile_is_a_mean_over_steps(tmp_path):
    """Classes of all phases together, and what they leave of the step is stated."""
    path = tmp_path / "profile.jsonl"
    path.write_text(profile_rows(slower=0.9))
    profile = read_profile(path)

    assert profile.wall_us == pytest.approx(1.05 * sum(PHASES.values()))
    assert profile.us["glue"] == pytest.approx(0.9 * 1.05 * 240)
    assert profile.residual_us == pytest.approx(profile.wall_us - sum(profile.us.values()))
    assert (profile.steps, profile.rows, profile.context_tok) == (16, 4, 20)


def test_rows_say_their_context_and_a_short_chain_its_positions(tmp_path):
    """A chain of fewer positions than the drafter has verifies as many rows; where rows know the length of their
    prompt, a sample's context is the mean of its steps."""
    rows = [json.loads(line) for line in gzip.decompress(H200.read_bytes()).splitlines()]
    about = next(row for row in rows if row["kind"] == "about")
    first = next(row for row in rows if row["kind"] == "answer" and row["setting"] == "chain")
    short = {**first, "setting": "chain:8", "options": {"chain_positions": 8}, "prompt_tok": 100}
    plain = {**first, "setting": "default:select=best_first", "options": {"select": "best_first"}}
    rows = (about, short, first, plain)
    (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    runs = read_measured([tmp_path / "rows.jsonl"], 15).runs
    tree = runs["default:select=best_first"]

    assert (tree.setting.nodes, tree.policy) == (32, "tree:32:0:8")  # the entry's own default

    assert (runs["chain:8"].setting.nodes, runs["chain:8"].positions) == (8, 8)
    assert runs["chain:8"].samples[0].setting.context_tok == 100 + len(first["ids"]) / 2
    assert (runs["chain"].setting.nodes, runs["chain"].samples[0].setting.context_tok) == (15, None)


@pytest.mark.parametrize("cut", [100, 5000])
def test_rows_that_are_cut(tmp_path, cut):
    """A packed file that ends early, and a plain one, are errors."""
    packed = tmp_path / "rows.jsonl.gz"
    packed.write_bytes(H200.read_bytes()[:cut])
    with pytest.raises(Usage, match="cannot be unpacked"):
        read_measured([packed], 15)
    plain = tmp_path / "rows.jsonl"
    plain.write_bytes(gzip.decompress(H200.read_bytes())[: cut * 7])
    with pytest.raises(Usage, match="cut"):
        read_measured([plain], 15)
    plain.write_text('{"kind": "check"}\n')
    with pytest.raises(Usage, match="lacks 'about'"):
        read_measured([plain], 15)


# --- intervals of tau ---


@given(st.lists(st.tuples(st.integers(1, 200), st.integers(1, 50)), min_size=2, max_size=12), st.floats(1.1, 3))
def test_a_ratio_of_taus_by_the_same_answers_has_no_noise_of_its_own(pairs, times):
    """Where every answer gains by the same factor, the interval is that factor alone."""
    before = {str(index): (float(tokens), float(steps)) for index, (tokens, steps) in enumerate(pairs)}
    after = {name: (tokens * times, steps) for name, (tokens, steps) in before.items()}
    ratio, (low, high) = ratio_interval(before, after)

    assert ratio == pytest.approx(times)
    assert low == pytest.approx(high)
    tau, interval = tau_of(before)
    assert interval is not None
    assert interval[0] <= tau <= interval[1]


def test_no_step_is_no_tau():
    """Zero accepted tokens are an error, and one answer has no interval."""
    with pytest.raises(Usage, match="zero tokens"):
        tau_of({"a": (0.0, 0.0)})
    assert tau_of({"a": (6.0, 2.0)}) == (3.0, None)
    for before, after in ((dict(list(KEPT.items())[:1]), KEPT), (KEPT, {"a": (3.0, 1.0), "b": (0.0, 0.0)})):
        assert ratio_interval(before, after)[1] is None
        assert ratio_interval(after, before)[1] is None
    low, high = ratio_interval(KEPT, {"c": (6.0, 2.0), "d": (9.0, 2.0)})[1]
    assert low < high
    with pytest.raises(Usage, match="expected tau"):
        ratio_interval(KEPT, {})

"""spt/cost.py, spt/prediction.py: the model finds what made the times, and says what it did not see."""

import hashlib
import json
import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spt.cost import CostModel, Sample, Setting, fit, means
from spt.curve import Point
from spt.errors import Usage
from spt.measured import Run, read_measured
from spt.prediction import check_predictions, predict_file, setting_at, setting_of
from tests.spt.measuring import H200, MEASUREMENTS

HELD = ("tree:63:0:16", "tree:128:0:16", "confident:0.02:63:0:16")


def made_us(at):
    """What the made times are made of."""
    if not at.drafts:
        return 3000 + 0.05 * at.context_tok
    return 4000 + 6 * at.rows + 0.05 * at.batch * at.context_tok + 30 * (at.batch - 1)


SETTINGS = [
    Setting(f"{nodes}@{context}x{batch}", nodes, context, batch, drafts=nodes > 0)
    for nodes in (0, 15, 32, 63)
    for context in (256, 1024, 3000)
    for batch in ((1, 4) if nodes else (1,))
]
MADE = [Sample(at, made_us(at), 10) for at in SETTINGS]


def test_made_times_are_found_again():
    """Times that are a sum of terms are predicted to a millionth, also where nothing was measured."""
    model = fit(MADE)

    for at in (Setting("new", 47, 700, 2), Setting("ar", 0, 2000, drafts=False)):
        estimate = model.predict(at)
        assert estimate.step_us == pytest.approx(made_us(at), rel=1e-6)
        assert estimate.extrapolates == ()
    assert model.residual_sd < 1e-6
    assert model.coefficients["rows"] == pytest.approx(6, rel=1e-4)


def test_what_was_not_seen_is_named():
    """Rows, context or batch outside what was measured are said with the prediction."""
    model = fit([sample for sample in MADE if sample.setting.batch == 1])

    assert model.predict(Setting("wide", 200, 9000, 3)).extrapolates == ("rows", "batch", "context")
    assert "requests" in model.left_out


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.tuples(st.sampled_from([7, 15, 31, 63, 127]), st.floats(0.8, 1.3)), min_size=4, max_size=12),
    st.integers(1, 200),
)
def test_more_rows_never_cost_less(measured, nodes):
    """Whatever was measured, no term is below zero, so that a larger tree is never predicted to be faster."""
    samples = [Sample(Setting(str(own), own), made_us(Setting("", own, 0)) * noise) for own, noise in measured]
    model = fit(samples)
    here, there = (model.predict(Setting("x", each)) for each in (nodes, nodes + 1))

    assert there.step_us >= here.step_us > 0
    assert all(each >= 0 for each in model.coefficients.values())
    if here.interval_us is not None:
        assert here.interval_us[0] <= here.step_us <= here.interval_us[1]


def test_without_freedom_there_is_no_interval():
    """As many terms as samples leave nothing to tell an error from."""
    model = fit([Sample(Setting("one", 15), 5000.0)])

    assert model.predict(Setting("one", 15)).interval_us is None
    with pytest.raises(Usage, match="no step of that kind was measured"):
        model.predict(Setting("ar", 0, drafts=False))


@pytest.mark.parametrize("samples", [[], [Sample(Setting("x", 1), 0.0)], [Sample(Setting("x", 1), float("nan"))]])
def test_no_time_is_an_error(samples):
    """Nothing measured, and a time that is none, are refused."""
    with pytest.raises(Usage):
        fit(samples)


def test_held_out_settings_of_the_shipped_rows():
    """Fitted on AR, chain and trees of 32 and 127 nodes of an H200, 63 nodes are met within 3 %; the signed errors are
    known, and that of 129 rows, which is beyond what was measured and beyond a full tile, misses."""
    measured = read_measured([H200], 15)
    kept = [sample for sample in measured.samples if sample.setting.name not in HELD]
    model, whole = fit(kept), means(measured.samples)
    errors = {at.name: model.predict(at).step_us / sample.step_us - 1 for at, sample in whole.items()}

    assert errors["tree:63:0:16"] == pytest.approx(0.0141, abs=1e-3)
    assert errors["confident:0.02:63:0:16"] == pytest.approx(0.0094, abs=1e-3)
    assert errors["tree:128:0:16"] == pytest.approx(-0.0315, abs=1e-3)
    assert model.predict(measured.run("tree:128:0:16").setting).extrapolates == ("rows",)
    assert model.predict(measured.run("tree:63:0:16").setting).extrapolates == ()


def runs_of(*samples, tau=4.0):
    """Each sample as a run of its own."""
    return [Run(each.setting, tau, {"a": (tau * each.steps, each.steps)}, each.step_us, (each,)) for each in samples]


def test_an_h200_did_what_was_predicted():
    """Five settings were predicted from six others and run afterwards: every step is met within 1.4 %, and every
    speedup over plain decoding lies in its interval; that of the short chain misses 3 %, since other rows round
    otherwise in BF16 and so say other texts, and its tau with them."""
    measured = read_measured([MEASUREMENTS / "2026-11-30-h200-held.jsonl.gz"], 15)
    path = MEASUREMENTS / "2026-11-30-h200-predicted.json"
    record = json.loads(path.read_text())
    checked = check_predictions(record, [*measured.runs.values()], {measured.target.digest}, path.name)
    errors = {each.name: (round(100 * each.error, 2), round(100 * each.speedup_error, 2)) for each in checked}

    assert errors == {
        "chain:8": (-1.33, 4.66),
        "tree:16:0:16": (0.49, -0.33),
        "tree:63:0:16": (0.05, -0.62),
        "tree:64:0:16": (-1.0, 1.84),
        "tree:128:0:16": (-1.01, 3.1),
    }
    for each, told in zip(checked, record["predictions"], strict=True):
        assert told["speedup_interval"][0] < each.speedup[1] < told["speedup_interval"][1]
    fitted = read_measured([MEASUREMENTS / "2026-11-30-h200-fit.jsonl.gz"], 15)
    assert record["fitted"]["settings"] == sorted(fitted.runs)
    assert record["fitted"]["samples"] == len(fitted.samples)
    told = record["predictions"][2]
    again = fit(fitted.samples).predict(Setting("again", 63, told["context_tok"]))
    assert again.step_us == pytest.approx(told["step_us"], rel=1e-6)


@pytest.fixture
def record():
    """Predictions of two settings that the model was not fitted on."""
    held = [Setting("47@700x2", 47, 700, 2), setting_at("23:512")]
    record = predict_file(fit(MADE), MADE, held, "t" * 64, "2026-12-01T00:00:00+00:00")
    return json.loads(json.dumps(record))


def test_predictions_are_held_against_what_came(record):
    """The error is signed and relative to what was measured; what was not run is not counted as met."""
    came = [Sample(Setting("47@700x2", 47, 700, 2), 1.02 * made_us(Setting("", 47, 700, 2)), 5)]
    (checked,) = check_predictions(record, runs_of(*MADE, *came), {"t" * 64}, "here")

    assert checked.error == pytest.approx(1 / 1.02 - 1, abs=1e-6)
    assert checked.meets_goal
    alike = [Sample(Setting("measured/23", 23, 512.0), 2 * made_us(Setting("", 23, 512)), 5)]
    (checked,) = check_predictions(record, runs_of(*alike), {"t" * 64}, "here")
    assert checked.name == "23:512"
    assert not checked.meets_goal


def test_a_prediction_that_proves_nothing_is_refused(record):
    """Changed afterwards, of another target, never run, or fitted on what it predicts: each is an error."""
    came = [Sample(Setting("47@700x2", 47, 700, 2), 5000.0)]
    better = {**record, "predictions": [{**record["predictions"][0], "step_us": 5000.0}]}

    for bad, target, samples, why in (
        (better, "t" * 64, came, "changed after"),
        (record, "u" * 64, came, "another target"),
        (record, "t" * 64, MADE[:1], "none of its settings"),
        ({**record, "date": None}, "t" * 64, came, "date"),
    ):
        with pytest.raises(Usage, match=why):
            check_predictions(bad, runs_of(*samples), {target}, "here")
    fitted = predict_file(fit(MADE), MADE, [MADE[0].setting], "t" * 64, "2026-12-01T00:00:00+00:00")
    with pytest.raises(Usage, match="was fitted on"):
        check_predictions(fitted, runs_of(*came), {"t" * 64}, "here")


@pytest.mark.parametrize("word", ["", "x", "1:2:3:4", "-1", "63:512:0", "1.5"])
def test_a_word_that_is_no_setting(word):
    """A setting goes NODES[:CONTEXT[:BATCH]], and the error says so."""
    with pytest.raises(Usage, match="NODES"):
        try:
            setting_at(word)
        except Usage as error:
            raise Usage(f"{error.message} {error.hint}") from None


def test_settings_in_words():
    """0 nodes are plain decoding; context and batch have defaults."""
    assert setting_at("0") == Setting("0", 0, None, 1, drafts=False)
    assert setting_at("63:512:4") == Setting("63:512:4", 63, 512, 4)


def test_a_model_is_what_it_was_fitted_on():
    """The mean of a setting is over steps, not over samples."""
    at = SETTINGS[0]
    (merged,) = means([Sample(at, 100.0, 1), Sample(at, 200.0, 3)]).values()

    assert merged == Sample(at, 175.0, 4)
    assert isinstance(fit([replace(sample, steps=1) for sample in MADE]), CostModel)


def test_a_speedup_is_predicted_from_a_walk(record):
    """Speed is tau over the step, speedup is over plain decoding at the same context; both are held against runs that
    measured both, and the interval holds the errors of tau, of the step and of the plain step."""
    point = Point("tree:47", "tree", 47, 15, 5.0, {"a": (50.0, 10.0), "b": (52.0, 10.0), "c": (48.0, 10.0)})
    at, plain = Setting("tree:47", 47, 700), Setting("ar", 0, 700, drafts=False)
    record = predict_file(fit(MADE), MADE, [at], "t" * 64, "2026-12-01T00:00:00+00:00", {"tree:47": point})
    (told,) = record["predictions"]
    speedup = 5.0 * made_us(plain) / made_us(at)

    assert told["speed_tok_s"] == pytest.approx(5e6 / made_us(at), rel=1e-5)
    assert told["speedup"] == pytest.approx(speedup, rel=1e-5)
    assert told["speedup_interval"][0] / speedup == pytest.approx(told["tau_interval"][0] / 5.0, rel=0.01)
    (checked,) = check_predictions(record, runs_of(Sample(at, 1.1 * made_us(at))), {"t" * 64}, "here")
    assert (checked.tau, checked.speedup, checked.speedup_error) == ((5.0, 4.0), None, None)
    ran = runs_of(Sample(at, made_us(at))) + runs_of(Sample(plain, made_us(plain)), tau=1.0)
    (checked,) = check_predictions(record, ran, {"t" * 64}, "here")
    assert checked.speedup_error == pytest.approx(5 / 4 - 1, rel=1e-5)
    assert abs(checked.error) < 1e-5
    assert not checked.meets_goal


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"interval_us": [9000.0, 9001.0]}, "does not hold its step_us"),
        ({"tau": 3.0, "tau_interval": [4.0, 5.0]}, "does not hold its tau"),
        ({"tau_interval": [4.0, 5.0]}, "has not the right form"),
        ({"setting": "\ud800"}, "changed after"),
        ({"step_us": 0.0}, "step_us"),
    ],
)
def test_a_file_that_nobody_wrote_so_is_refused(record, change, why):
    """An interval that does not hold its figure, and text that is none, are an error even under a digest made anew."""
    changed = {**record, "predictions": [{**record["predictions"][0], **change}]}
    body = {name: value for name, value in changed.items() if name != "sha256"}
    text = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    changed["sha256"] = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    came = runs_of(Sample(Setting("47@700x2", 47, 700, 2), 5000.0))

    with pytest.raises(Usage, match=why):
        check_predictions(changed, came, {"t" * 64}, "here")


def test_what_was_measured_before_was_not_predicted(record):
    """A run from before the prediction was written is passed over; one of the same second counts."""
    (run,) = runs_of(Sample(Setting("47@700x2", 47, 700, 2), 5000.0))

    with pytest.raises(Usage, match="measured since 2026-12-01T00:00:00"):
        check_predictions(record, [replace(run, date="2026-11-30T23:59:59+00:00")], {"t" * 64}, "here")
    assert check_predictions(record, [replace(run, date="2026-12-01T00:00:00+00:00")], {"t" * 64}, "here")


def test_another_context_confirms_nothing(record):
    """Rows and batch alike at far more tokens of context are another setting."""
    far = runs_of(Sample(Setting("x", 23, 5120.0), made_us(Setting("", 23, 5120))))

    with pytest.raises(Usage, match="none of its settings"):
        check_predictions(record, far, {"t" * 64}, "here")


def test_one_answer_has_no_interval():
    """From a single answer nobody knows how much another would differ."""
    point = Point("tree:47", "tree", 47, 15, 5.0, {"a": (50.0, 10.0)})
    record = predict_file(fit(MADE), MADE, [Setting("tree:47", 47, 700)], "t" * 64, "2026", {"tree:47": point})

    assert (record["predictions"][0]["tau_interval"], record["predictions"][0]["speedup_interval"]) == (None, None)


@pytest.mark.parametrize(("word", "nodes"), [("chain", 15), ("chain:8", 8), ("tree:8:8:1", 8), ("tree:64:0:16", 64)])
def test_the_setting_of_a_policy(word, nodes):
    """Its rows, at the mean context of what was measured."""
    assert setting_of(word, 15, MADE) == Setting(word, nodes, pytest.approx(1426.67, abs=0.01))
    assert setting_of(word, 15, [Sample(Setting("x", 1), 1.0)]).context_tok is None


@pytest.mark.parametrize("word", ["levels:1:0.98:chain", "shared:64:8", "length:2:15", "tree", "what:3"])
def test_a_policy_without_fixed_rows_has_no_step(word):
    """What has no number of rows of its own, and what is no policy, is refused in the user's word."""
    with pytest.raises(Usage, match=word):
        setting_of(word, 15, MADE)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 65535), st.one_of(st.none(), st.floats(0, 2**31)), st.floats(-3, 12)),
        min_size=1,
        max_size=8,
    )
)
def test_times_of_any_size_are_fitted(rows):
    """Whatever lies within the bounds of a step is fitted, and what does not is refused before the solver sees it."""
    samples = [
        Sample(Setting(str(index), nodes, tok, drafts=nodes > 0), 10**power)
        for index, (nodes, tok, power) in enumerate(rows)
    ]
    model = fit(samples)

    assert model.coefficients
    assert all(us >= 0 and math.isfinite(us) for us in model.coefficients.values())
    for step_us in (0, 1e-160, 9e-4, 2e12, 1e308, math.inf, math.nan):
        with pytest.raises(Usage, match="is no time"):
            fit([*samples, Sample(Setting("odd", 0), step_us)])

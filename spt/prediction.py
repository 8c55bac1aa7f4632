"""Predictions of step times, written down with a digest before the setting is measured, and held against it after."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from spt.cost import CostModel, Estimate, Sample, Setting, means
from spt.errors import Usage
from spt.formats import canonical, check

__all__ = ["GOAL", "Checked", "check_predictions", "predict_file", "setting_at"]

GOAL = 0.03  # of the error, on a device


@dataclass(frozen=True)
class Checked:
    """One held-out setting: predicted and measured microseconds a step."""

    name: str
    predicted_us: float
    interval_us: tuple[float, float] | None
    measured_us: float
    extrapolates: tuple[str, ...]

    @property
    def error(self) -> float:
        """Signed, of the prediction, relative to what was measured."""
        return self.predicted_us / self.measured_us - 1

    @property
    def meets_goal(self) -> bool:
        return abs(self.error) < GOAL


def setting_at(word: str) -> Setting:
    """`NODES[:CONTEXT[:BATCH]]`; 0 nodes are plain decoding.  Usage in the user's words."""
    try:
        nodes, context, batch = ([int(part) for part in word.split(":")] + [0, 1][word.count(":") :])[:3]
        if word.count(":") > 2 or nodes < 0 or context < 0 or batch < 1:
            raise ValueError
    except ValueError:
        raise Usage(f"'{word}' is no setting", "it goes NODES[:CONTEXT[:BATCH]], for instance 63:512:1") from None
    return Setting(word, nodes, context or None, batch, drafts=nodes > 0)


def predict_file(
    model: CostModel, samples: Sequence[Sample], settings: Iterable[Setting], target: str, date: str
) -> dict[str, Any]:
    """What is written before anything is run: each prediction, what the model was fitted on, and a digest of it all."""
    fitted = [[s.setting.name, s.setting.nodes, s.setting.context_tok, s.step_us, s.steps] for s in samples]
    record: dict[str, Any] = {
        "v": 1,
        "kind": "prediction",
        "date": date,
        "target": target,
        "fitted": {
            "settings": sorted({sample.setting.name for sample in samples}),
            "samples": len(samples),
            "sha256": hashlib.sha256(canonical(fitted).encode()).hexdigest(),
        },
        "model": model.as_json(),
        "predictions": [_as_json(model.predict(setting)) for setting in settings],
    }
    return {**record, "sha256": _digest(record)}


def _as_json(estimate: Estimate) -> dict[str, Any]:
    at = estimate.setting
    return {
        "setting": at.name,
        "nodes": at.nodes,
        "context_tok": at.context_tok,
        "batch": at.batch,
        "step_us": estimate.step_us,
        "interval_us": None if estimate.interval_us is None else list(estimate.interval_us),
        "extrapolates": list(estimate.extrapolates),
    }


def _digest(record: dict[str, Any]) -> str:
    return hashlib.sha256(canonical(record).encode()).hexdigest()


def check_predictions(record: Any, samples: Iterable[Sample], target: str, where: str) -> list[Checked]:
    """Every predicted setting that was measured.

    A setting is found by its name, else by nodes and batch.  Usage for a file that was changed, that is of another
    target, that was fitted on what it predicts, or of which nothing was measured.
    """
    check(record, "prediction", where)
    if record["sha256"] != _digest({key: value for key, value in record.items() if key != "sha256"}):
        raise Usage(f"{where}: it was changed after it was written: its digest is not that of what it says")
    if record["target"] != target:
        raise Usage(f"{where}: it is about another target", "a prediction and its check are of one deployment")
    found = []
    measured = means(samples)
    for each in record["predictions"]:
        if each["setting"] in record["fitted"]["settings"]:
            raise Usage(f"{where}: '{each['setting']}' was fitted on, so that it proves nothing")
        own = _steps_of(measured, each)
        if own is not None:
            interval = None if each["interval_us"] is None else (each["interval_us"][0], each["interval_us"][1])
            found.append(Checked(each["setting"], each["step_us"], interval, own, tuple(each["extrapolates"])))
    if not found:
        raise Usage(f"{where}: none of its settings was measured", "run them, and name their measurement")
    return found


def _steps_of(measured: dict[Setting, Sample], predicted: dict[str, Any]) -> float | None:
    """Microseconds a step, mean over the samples of the predicted setting."""
    named = [sample for setting, sample in measured.items() if setting.name == predicted["setting"]]
    shape = predicted["nodes"], predicted["batch"], predicted["nodes"] > 0
    alike = [sample for setting, sample in measured.items() if (setting.nodes, setting.batch, setting.drafts) == shape]
    own = named or alike
    steps = sum(sample.steps for sample in own)
    return sum(sample.step_us * sample.steps for sample in own) / steps if steps else None

"""Steps and speeds predicted, written down with a digest before a setting is measured, and held against it after."""

import hashlib
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from spt.cost import CostModel, Estimate, Sample, Setting, means
from spt.errors import Usage
from spt.formats import canonical, check

if TYPE_CHECKING:
    from spt.curve import Point
    from spt.measured import Run

__all__ = ["GOAL", "Checked", "check_predictions", "predict_file", "setting_at", "setting_of"]

GOAL = 0.03  # of the error, on a device


@dataclass(frozen=True)
class Checked:
    """One held-out setting: predicted and measured microseconds a step.

    tau, speedup: (predicted, measured), where a policy was walked, and where plain decoding was measured as well.
    """

    name: str
    predicted_us: float
    interval_us: tuple[float, float] | None
    measured_us: float
    extrapolates: tuple[str, ...]
    tau: tuple[float, float] | None = None
    speedup: tuple[float, float] | None = None

    @property
    def error(self) -> float:
        """Signed, of the predicted step, relative to what was measured."""
        return self.predicted_us / self.measured_us - 1

    @property
    def speedup_error(self) -> float | None:
        """Signed, of the predicted speedup, relative to what was measured."""
        return None if self.speedup is None else self.speedup[0] / self.speedup[1] - 1

    @property
    def meets_goal(self) -> bool:
        """Whether the error of the step, and of the speedup where there is one, is below `GOAL`."""
        return max(abs(self.error), abs(self.speedup_error or 0.0)) < GOAL


def setting_at(word: str) -> Setting:
    """`NODES[:CONTEXT[:BATCH]]`; 0 nodes are plain decoding.  Usage in the user's words."""
    try:
        nodes, context, batch = ([int(part) for part in word.split(":")] + [0, 1][word.count(":") :])[:3]
        if word.count(":") > 2 or nodes < 0 or context < 0 or batch < 1:
            raise ValueError
    except ValueError:
        raise Usage(f"'{word}' is no setting", "it goes NODES[:CONTEXT[:BATCH]], for instance 63:512:1") from None
    return Setting(word, nodes, context or None, batch, drafts=nodes > 0)


def setting_of(word: str, depths: int, samples: Sequence[Sample]) -> Setting:
    """The setting of a policy in the words of `spt walk`, a request at a time, at the mean context of the samples.

    depths: positions that the drafter proposes.  Usage for a policy whose pass has no fixed number of rows.
    """
    from spt.policy import Chain, Tree, parse_policy

    policy = parse_policy(word)
    if not isinstance(policy, Chain | Tree):
        raise Usage(f"the step of '{word}' cannot be predicted", "a chain or a tree verifies so many rows each step")
    nodes = policy.nodes if isinstance(policy, Tree) else policy.positions or depths
    known = [(sample.setting.context_tok, sample.steps) for sample in samples if sample.setting.context_tok]
    steps = sum(count for _, count in known)
    context_tok = sum(tok * count for tok, count in known) / steps if steps else None
    return Setting(word, nodes, context_tok, drafts=nodes > 0)


def predict_file(
    model: CostModel,
    samples: Sequence[Sample],
    settings: Iterable[Setting],
    target: str,
    date: str,
    points: Mapping[str, "Point"] = {},
) -> dict[str, Any]:
    """What is written before anything is run: each prediction, what the model was fitted on, and a digest of it all.

    points: what the policy of a setting, by its name, came to on walked lattices.
    """
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
        "predictions": [_as_json(model, setting, points.get(setting.name)) for setting in settings],
    }
    return {**record, "sha256": _digest(record)}


def _as_json(model: CostModel, at: Setting, point: "Point | None") -> dict[str, Any]:
    estimate = model.predict(at)
    return {
        "setting": at.name,
        "nodes": at.nodes,
        "context_tok": at.context_tok,
        "batch": at.batch,
        "step_us": estimate.step_us,
        "interval_us": None if estimate.interval_us is None else list(estimate.interval_us),
        "extrapolates": list(estimate.extrapolates),
        **({} if point is None else _speed(model, at, estimate, point)),
    }


def _speed(model: CostModel, at: Setting, estimate: Estimate, point: "Point") -> dict[str, Any]:
    """tau as it was walked, and the speed and the speedup over plain decoding that follow, with 95 % intervals."""
    speed = 1e6 * point.tau / estimate.step_us
    told: dict[str, Any] = {"tau": point.tau, "tau_interval": None, "speed_tok_s": speed}
    parts = [2 * estimate.relative_sd]
    if point.interval is not None:
        told["tau_interval"] = list(point.interval)
        parts.append((point.interval[1] - point.interval[0]) / 2 / point.tau)
    if "plain" not in model.coefficients:
        return told
    plain = model.predict(Setting("plain", 0, at.context_tok, at.batch, drafts=False))
    speedup = speed * plain.step_us / 1e6
    factor = math.exp(math.hypot(*parts, 2 * plain.relative_sd))
    return {**told, "speedup": speedup, "speedup_interval": [speedup / factor, speedup * factor]}


def _digest(record: dict[str, Any]) -> str:
    return hashlib.sha256(canonical(record).encode()).hexdigest()


def check_predictions(record: Any, runs: Sequence["Run"], targets: Collection[str], where: str) -> list[Checked]:
    """Every predicted setting that was measured; targets: the digests that name what the runs are of.

    A setting is found by its name, else by nodes and batch.  Usage for a file that was changed, that is of another
    target, that was fitted on what it predicts, or of which nothing was measured.
    """
    check(record, "prediction", where)
    if record["sha256"] != _digest({key: value for key, value in record.items() if key != "sha256"}):
        raise Usage(f"{where}: it was changed after it was written: its digest is not that of what it says")
    if record["target"] not in targets:
        raise Usage(f"{where}: it is about another target", "a prediction and its check are of one deployment")
    found = []
    measured = means(sample for run in runs for sample in run.samples)
    for each in record["predictions"]:
        if each["setting"] in record["fitted"]["settings"]:
            raise Usage(f"{where}: '{each['setting']}' was fitted on, so that it proves nothing")
        own = _steps_of(measured, each)
        if own is not None:
            interval = None if each["interval_us"] is None else (each["interval_us"][0], each["interval_us"][1])
            named = next((run for run in runs if run.setting.name == each["setting"]), None)
            speeds = {} if named is None else _speeds_of(each, named, runs)
            found.append(
                Checked(each["setting"], each["step_us"], interval, own, tuple(each["extrapolates"]), **speeds)
            )
    if not found:
        raise Usage(f"{where}: none of its settings was measured", "run them, and name their measurement")
    return found


def _speeds_of(predicted: dict[str, Any], run: "Run", runs: Sequence["Run"]) -> dict[str, tuple[float, float]]:
    """(predicted, measured) of tau and of the speedup, as far as both are known."""
    found = {}
    if "tau" in predicted:
        found["tau"] = predicted["tau"], run.tau
    plain = next((each for each in runs if not each.setting.drafts), None)
    if "speedup" in predicted and plain is not None:
        found["speedup"] = predicted["speedup"], run.speed / plain.speed
    return found


def _steps_of(measured: dict[Setting, Sample], predicted: dict[str, Any]) -> float | None:
    """Microseconds a step, mean over the samples of the predicted setting."""
    named = [sample for setting, sample in measured.items() if setting.name == predicted["setting"]]
    shape = predicted["nodes"], predicted["batch"], predicted["nodes"] > 0
    alike = [sample for setting, sample in measured.items() if (setting.nodes, setting.batch, setting.drafts) == shape]
    own = named or alike
    steps = sum(sample.steps for sample in own)
    return sum(sample.step_us * sample.steps for sample in own) / steps if steps else None

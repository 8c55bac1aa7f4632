"""Steps and speeds predicted, written down with a digest before a setting is measured, and held against it after."""

import hashlib
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from spt.cost import CostModel, Estimate, Sample, Setting
from spt.errors import Usage
from spt.formats import canonical, check

if TYPE_CHECKING:
    from spt.curve import Point
    from spt.measured import Run
    from spt.study import Subject

__all__ = [
    "GOAL",
    "Checked",
    "Wanted",
    "check_predictions",
    "foresee",
    "predict_file",
    "setting_at",
    "setting_of",
]

GOAL = 0.03  # of the error, on a device
MOST = 10**7  # nodes, tokens of context or requests
ALIKE = 1.5  # how far a context may be from that of a prediction


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
        if word.count(":") > 2 or not (0 <= nodes < MOST and 0 <= context < MOST and 1 <= batch < MOST):
            raise ValueError
    except ValueError:
        raise Usage(f"'{word}' is no setting", "it goes NODES[:CONTEXT[:BATCH]], for instance 63:512:1") from None
    return Setting(word, nodes, context or None, batch, drafts=nodes > 0)


def setting_of(word: str, depths: int, samples: Sequence[Sample]) -> Setting:
    """The setting of a policy in the words of `spt walk`, a request at a time, at the mean context of the samples.

    depths: positions that the drafter proposes.  Usage for a policy whose pass has no fixed number of rows.
    """
    from spt.policy import Chain, Tree, budget, parse_policy

    policy = parse_policy(word)
    if not isinstance(policy, Chain | Tree):
        raise Usage(f"the step of '{word}' cannot be predicted", "a chain or a tree verifies so many rows each step")
    nodes = budget(policy, depths) or 0
    known = [(sample.setting.context_tok, sample.steps) for sample in samples if sample.setting.context_tok]
    steps = sum(count for _, count in known)
    context_tok = sum(tok * count for tok, count in known) / steps if steps else None
    return Setting(word, nodes, context_tok, drafts=nodes > 0)


class Wanted(NamedTuple):
    """What is to be predicted, in words.

    at: NODES[:CONTEXT[:BATCH]].  policies: those of `spt walk`.  hold: settings that were measured, out of the fit.
    """

    at: Sequence[str]
    policies: Sequence[str]
    hold: Sequence[str]


def foresee(
    sources: Sequence[Path], subject: "Subject", wanted: Wanted, lattices: Path | None, date: str
) -> dict[str, Any]:
    """The predictions of what is wanted, from measurements and walks; Usage for what was fitted or cannot be walked."""
    from spt.cost import fit
    from spt.curve import walk_policies
    from spt.study import lattices_of, read_subject

    measured = read_subject(sources, subject)
    held = [measured.run(name).setting for name in wanted.hold]
    samples = [sample for sample in measured.samples if sample.setting.name not in wanted.hold]
    policies = [setting_of(word, subject.depths, samples) for word in wanted.policies]
    _refuse_fitted([run for name, run in measured.runs.items() if name not in wanted.hold], wanted.policies)
    lattice = lattices_of(measured, subject, lattices) if policies else None
    if policies and lattice is None:
        raise Usage("there are no lattices to walk a policy on", "--lattices names a folder of `spt measure`")
    points = {} if lattice is None else walk_policies(lattice, wanted.policies)
    settings = [*held, *map(setting_at, wanted.at), *policies]
    return predict_file(fit(samples), samples, settings, measured.target.digest, date, points)


def _refuse_fitted(runs: Iterable["Run"], policies: Iterable[str]) -> None:
    """Usage for a policy whose steps the model would be fitted on."""
    fitted = {run.policy: run.setting.name for run in runs}
    for word in policies:
        if (name := fitted.get(_policy_of(word))) is not None:
            raise Usage(f"'{word}' was measured, as '{name}'", f"--hold {name} leaves it out of the fit")


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
    ends = point.interval
    told = {"tau": point.tau, "tau_interval": None if ends is None else list(ends), "speed_tok_s": speed}
    if "plain" not in model.coefficients:
        return told
    plain = model.predict(Setting("plain", 0, at.context_tok, at.batch, drafts=False))
    speedup = speed * plain.step_us / 1e6
    told |= {"speedup": speedup, "speedup_interval": None}
    if ends is not None and estimate.interval_us is not None and plain.interval_us is not None:
        own = (ends[1] - ends[0]) / 2 / point.tau
        factor = math.exp(math.hypot(own, 2 * estimate.relative_sd, 2 * plain.relative_sd))
        told["speedup_interval"] = [speedup / factor, speedup * factor]
    return told


def _digest(record: dict[str, Any]) -> str:
    return hashlib.sha256(canonical(record).encode()).hexdigest()


def check_predictions(record: Any, runs: Sequence["Run"], targets: Collection[str], where: str) -> list[Checked]:
    """Every predicted setting that was measured; targets: the digests that name what the runs are of.

    A run that the model was fitted on, or that was measured before, confirms nothing and is passed over.  Usage for a
    file that was changed, that is of another target, that was fitted on what it predicts, or of which nothing was
    measured since.
    """
    check(record, "prediction", where)
    _refuse_changed(record, where)
    if record["target"] not in targets:
        raise Usage(f"{where}: it is about another target", "a prediction and its check are of one deployment")
    fitted = record["fitted"]["settings"]
    for each in record["predictions"]:
        if each["setting"] in fitted:
            raise Usage(f"{where}: '{each['setting']}' was fitted on, so that it proves nothing")
    plain = next((run for run in runs if not run.setting.drafts), None)
    fresh = [run for run in runs if run.setting.name not in fitted and (run.date is None or run.date >= record["date"])]
    pairs = [(each, _run_of(each, fresh)) for each in record["predictions"]]
    found = [_checked(each, run, plain) for each, run in pairs if run is not None]
    if not found:
        raise Usage(
            f"{where}: none of its settings was measured since {record['date']}", "run them, and name their measurement"
        )
    return found


def _refuse_changed(record: dict[str, Any], where: str) -> None:
    """Usage where the digest is not that of what the file says, or an interval does not hold its figure."""
    try:
        own = _digest({key: value for key, value in record.items() if key != "sha256"})
    except UnicodeEncodeError:
        own = ""  # half a character: nobody wrote that
    if record["sha256"] != own:
        raise Usage(f"{where}: it was changed after it was written: its digest is not that of what it says")
    for each in record["predictions"]:
        for name, ends in (("step_us", "interval_us"), ("tau", "tau_interval"), ("speedup", "speedup_interval")):
            if each.get(ends) is not None and not each[ends][0] <= each[name] <= each[ends][1]:
                raise Usage(f"{where}: '{each['setting']}': its {ends} does not hold its {name}")


def _run_of(predicted: dict[str, Any], runs: Sequence["Run"]) -> "Run | None":
    """The run of a predicted setting: that of its name, else of its policy, else of its rows and batch."""
    named = [run for run in runs if run.setting.name == predicted["setting"]]
    policy = _policy_of(predicted["setting"])
    if policy is not None:
        alike = [run for run in runs if run.policy == policy]
    else:
        shape = predicted["nodes"], predicted["batch"], predicted["nodes"] > 0
        alike = [
            run
            for run in runs
            if (run.setting.nodes, run.setting.batch, run.setting.drafts) == shape
            and _near(predicted["context_tok"], run.setting.context_tok)
        ]
    return next(iter([*named, *alike]), None)


def _near(predicted_tok: float | None, measured_tok: float | None) -> bool:
    """Whether two contexts are about the same, as far as both are known."""
    if not predicted_tok or not measured_tok:
        return True
    return 1 / ALIKE <= predicted_tok / measured_tok <= ALIKE


def _policy_of(word: str) -> str | None:
    """The policy that a setting is called by; None for one that is called otherwise."""
    from spt.policy import parse_policy

    try:
        return str(parse_policy(word))
    except Usage:
        return None


def _checked(predicted: dict[str, Any], run: "Run", plain: "Run | None") -> Checked:
    interval = None if predicted["interval_us"] is None else (predicted["interval_us"][0], predicted["interval_us"][1])
    tau = (predicted["tau"], run.tau) if "tau" in predicted else None
    known = "speedup" in predicted and plain is not None
    speedup = (predicted["speedup"], run.speed / plain.speed) if known and plain is not None else None
    return Checked(
        predicted["setting"],
        predicted["step_us"],
        interval,
        run.step_us,
        tuple(predicted["extrapolates"]),
        tau,
        speedup,
    )

"""Predictions of `spt ceiling`: written before their setting is run, and held against what came."""

import datetime
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from spt.cli.output import counted, data, print_json, say, table
from spt.errors import Missing, Usage

if TYPE_CHECKING:
    from spt.prediction import Checked, Wanted
    from spt.study import Subject

__all__ = ["check", "predict"]

WIDE = 0.25  # half of a step's interval, from which on it is said


def predict(
    sources: Sequence[Path], subject: "Subject", path: Path, wanted: "Wanted", lattices: Path | None, as_json: bool
) -> None:
    """Predicts, writes and shows."""
    from spt.prediction import foresee

    if not any(wanted):
        raise Usage("nothing is to be predicted", "--at NODES, --policy POLICY, or --hold a setting that was measured")
    if path.exists():
        raise Usage(f"'{path}' is there already", "a prediction is written once, before its setting is run")
    now = datetime.datetime.now(datetime.UTC)
    record = foresee(sources, subject, wanted, lattices, now.isoformat(timespec="seconds"))
    path.write_text(json.dumps(record, indent=1) + "\n")
    if as_json:
        print_json(record)
        return
    rows = [
        (
            each["setting"],
            f"{each['step_us']:.0f}",
            _interval(each["interval_us"]),
            _number(each.get("tau")),
            _number(each.get("speedup"), 3),
            _interval(each.get("speedup_interval"), 2),
            ", ".join(each["extrapolates"]) or "-",
        )
        for each in record["predictions"]
    ]
    columns = ("setting", "step us", "95 % interval", "tau", "x plain", "95 % interval", "extrapolates over")
    table(columns, rows)
    for line in _fit_words(record):
        say(line)
    say(f"written to {path}, sha256 {record['sha256'][:12]}")


def _fit_words(record: Mapping[str, Any]) -> Iterator[str]:
    """What a prediction stands on, and where that is little."""
    model, fitted = record["model"], record["fitted"]
    yield (
        f"fitted on {counted(fitted['samples'], 'sample')} of {', '.join(fitted['settings'])}; "
        f"{counted(model['freedom'], 'degree of freedom', 'degrees of freedom')}, residuals {model['residual_sd']:.2%}"
    )
    if model["left_out"]:
        yield f"left out, since the samples do not tell it from the rest: {', '.join(model['left_out'])}"
    wide = [each["setting"] for each in record["predictions"] if _width(each) > WIDE]
    if wide:
        yield (
            f"note: {', '.join(wide)}: so wide an interval tells little; more answers, more settings or a machine with "
            "nothing else to do narrow it"
        )


def _width(predicted: Mapping[str, Any]) -> float:
    """Half of a step's interval, over the step; 0 where there is none."""
    ends = predicted["interval_us"]
    return 0.0 if ends is None else (ends[1] - ends[0]) / 2 / predicted["step_us"]


def check(sources: Sequence[Path], subject: "Subject", path: Path, as_json: bool) -> None:
    """Shows what came of predictions; exit code 1 where one missed."""
    from spt.formats import read_json
    from spt.prediction import GOAL, check_predictions
    from spt.study import read_subject

    if not path.is_file():
        raise Missing(f"no predictions at '{path}'", "--predict writes them")
    measured = read_subject(sources, subject)
    record = read_json(path.read_bytes(), str(path))
    checked = check_predictions(record, [*measured.runs.values()], subject.names, f"'{path}'")
    came = {each.name for each in checked}
    if left := [each["setting"] for each in record["predictions"] if each["setting"] not in came]:
        say(f"not measured: {', '.join(left)}")
    if as_json:
        step = ("name", "predicted_us", "interval_us", "measured_us", "extrapolates", "error", "meets_goal")
        names = [*step, "tau", "speedup", "speedup_error"]
        print_json([{name: getattr(each, name) for name in names} for each in checked])
    else:
        _show_checked(checked, f"< {GOAL:.0%}")
    if not all(each.meets_goal for each in checked):
        click.get_current_context().exit(1)


def _show_checked(checked: "Sequence[Checked]", goal: str) -> None:
    rows = [
        (
            each.name,
            f"{each.predicted_us:.0f}",
            _interval(each.interval_us),
            f"{each.measured_us:.0f}",
            f"{each.error:+.2%}",
            *(_number(value) for value in each.tau or (None, None)),
            *(_number(value) for value in each.speedup or (None, None)),
            "-" if each.speedup_error is None else f"{each.speedup_error:+.2%}",
            "yes" if each.meets_goal else "no",
        )
        for each in checked
    ]
    step = ["setting", "step us", "95 %", "measured", "error"]
    table((*step, "tau", "measured", "x plain", "measured", "error", goal), rows)
    for each in checked:
        if each.extrapolates:
            data(f"{each.name} extrapolates over {', '.join(each.extrapolates)}")


def _interval(interval: Sequence[float] | None, digits: int = 0) -> str:
    return "-" if interval is None else f"{interval[0]:.{digits}f} to {interval[1]:.{digits}f}"


def _number(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"

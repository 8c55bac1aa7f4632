"""`spt ceiling`: how fast a deployment could be, and where its speed is lost."""

import datetime
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from spt.cli.output import data, print_json, say, table
from spt.errors import Missing, Usage

if TYPE_CHECKING:
    from spt.study import Subject

BAR = 24


@click.command()
@click.argument("sources", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="SOURCE...")
@click.option("--current", metavar="NAME", help="The setting to explain, where several were measured.")
@click.option("--deployment", "file", metavar="FILE", help="Names the models; the nearest deployment.yaml by default.")
@click.option("--target", metavar="PATH", help="The target that was measured.")
@click.option("--drafter", metavar="DIR", help="The drafter that was measured.")
@click.option("--widen", metavar="K", help="How many times as wide the target was made.")
@click.option("--context", type=click.FloatRange(min=0), metavar="N", help="Tokens of context to count floors at.")
@click.option("--gpu", metavar="NAME", help="A device of the table instead of the card's.")
@click.option(
    "--lattices",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="What to walk, where no SOURCE is a folder with lattices.",
)
@click.option("--plan", "as_plan", is_flag=True, help="What each direction could gain, instead of the ceiling.")
@click.option("--plot", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE.svg", help="Also draw pictures.")
@click.option("--predict", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Write predictions.")
@click.option("--at", multiple=True, metavar="NODES[:CONTEXT[:BATCH]]", help="With --predict: of what; repeatable.")
@click.option("--policy", multiple=True, metavar="POLICY", help="With --predict: of what it verifies; repeatable.")
@click.option("--hold", multiple=True, metavar="NAME", help="With --predict: leave it out of the fit, and predict it.")
@click.option("--check", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Hold predictions up.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output instead of text.")
def ceiling(
    sources: tuple[Path, ...],
    current: str | None,
    file: str | None,
    target: str | None,
    drafter: str | None,
    widen: str | None,
    context: float | None,
    gpu: str | None,
    lattices: Path | None,
    as_plan: bool,
    plot: Path | None,
    predict: Path | None,
    at: tuple[str, ...],
    policy: tuple[str, ...],
    hold: tuple[str, ...],
    check: Path | None,
    as_json: bool,
) -> None:
    """Say how fast a deployment could be, and which factor lies between: tau, kernels or overhead

    SOURCE is a folder of `spt measure` (with a profile.jsonl in it, where one was taken), or rows of benchmarks.speed;
    several are of one target, type and device.  docs/ceiling.md has the formulas.  Exit code 1 says that a measured
    speed is above a ceiling: then the model or its coefficients are wrong.

    \b
    Example:
      spt ceiling measured/chain measured/ar --current chain --plot ceiling.svg
      spt ceiling measured/* --predict predicted.json --policy tree:63:0:16 --at 127
      spt ceiling measured/* new/tree63 --check predicted.json
    """
    if (at or policy or hold) and predict is None:
        raise Usage("--at, --policy and --hold say what to predict", "--predict FILE goes with them")
    from spt.choice import choose_deployment

    chosen = choose_deployment(file, target, drafter, {"widen": widen}, Path.cwd())
    for note in chosen.notes:
        say(f"note: {note}")
    deployment = chosen.deployment
    models = deployment.models
    from spt.study import Subject, study

    subject = Subject(models.target, models.drafter, deployment.widen)
    if predict is not None:
        _predict(sources, subject, predict, _Wanted(at, policy, hold), lattices, as_json)
    if check is not None:
        _check(sources, subject, check, as_json)
    if predict is not None or check is not None:
        return
    from spt.devices import find_device

    found = study(
        sources,
        subject,
        current=current,
        context_tok=context,
        device=None if gpu is None else find_device(gpu),
        lattices=lattices,
    )
    if plot is not None:
        from spt.pictures import draw

        draw(found, plot)
        say(f"pictures are in {plot}")
    if as_plan:
        _show_plan(found, as_json)
    elif as_json:
        print_json(found.as_json())
    else:
        _show(found)
    if found.broken:
        say("the current system is faster than a ceiling: the model or its coefficients are wrong")
        click.get_current_context().exit(1)


# --- predictions ---


class _Wanted(NamedTuple):
    """What is to be predicted, in the words of --at, --policy and --hold."""

    at: Sequence[str]
    policies: Sequence[str]
    hold: Sequence[str]


def _predict(
    sources: Sequence[Path], subject: "Subject", path: Path, wanted: _Wanted, lattices: Path | None, as_json: bool
) -> None:
    if not any(wanted):
        raise Usage("nothing is to be predicted", "--at NODES, --policy POLICY, or --hold a setting that was measured")
    if path.exists():
        raise Usage(f"'{path}' is there already", "a prediction is written once, before its setting is run")
    record = _prediction(sources, subject, wanted, lattices)
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
    columns = ("setting", "step us", "95 % interval", "tau", "times plain", "95 % interval", "extrapolates over")
    table(columns, rows)
    say(f"written to {path}, sha256 {record['sha256'][:12]}")


def _prediction(sources: Sequence[Path], subject: "Subject", wanted: _Wanted, lattices: Path | None) -> dict[str, Any]:
    from spt.cost import fit
    from spt.curve import walk_policies
    from spt.prediction import predict_file, setting_at, setting_of
    from spt.study import depths_of, lattices_of, read_subject

    measured = read_subject(sources, subject)
    held = [measured.run(name).setting for name in wanted.hold]
    samples = [sample for sample in measured.samples if sample.setting.name not in wanted.hold]
    settings = [setting_of(word, depths_of(subject), samples) for word in wanted.policies]
    lattice = lattices_of(measured, subject, lattices) if settings else None
    if settings and lattice is None:
        raise Usage("there are no lattices to walk a policy on", "--lattices names a folder of `spt measure`")
    points = {} if lattice is None else walk_policies(lattice, wanted.policies)
    settings = [*held, *map(setting_at, wanted.at), *settings]
    date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return predict_file(fit(samples), samples, settings, measured.target.digest, date, points)


def _check(sources: Sequence[Path], subject: "Subject", path: Path, as_json: bool) -> None:
    from spt.formats import read_json
    from spt.prediction import GOAL, check_predictions
    from spt.study import read_subject, target_names

    if not path.is_file():
        raise Missing(f"no predictions at '{path}'", "--predict writes them")
    measured = read_subject(sources, subject)
    record = read_json(path.read_bytes(), str(path))
    checked = check_predictions(record, [*measured.runs.values()], target_names(subject.target), f"'{path}'")
    if as_json:
        step = ("name", "predicted_us", "interval_us", "measured_us", "extrapolates", "error", "meets_goal")
        names = [*step, "tau", "speedup", "speedup_error"]
        print_json([{name: getattr(each, name) for name in names} for each in checked])
        return
    rows = [
        (
            each.name,
            f"{each.predicted_us:.0f}",
            _interval(each.interval_us),
            f"{each.measured_us:.0f}",
            f"{each.error:+.2%}",
            *(_number(value) for value in each.tau or (None, None)),
            *(_number(value, 3) for value in each.speedup or (None, None)),
            "-" if each.speedup_error is None else f"{each.speedup_error:+.2%}",
            "yes" if each.meets_goal else "no",
            ", ".join(each.extrapolates) or "-",
        )
        for each in checked
    ]
    columns = ["setting", "predicted us", "95 % interval", "measured us", "error"]
    columns += ["tau predicted", "measured", "times plain predicted", "measured", "error"]
    table((*columns, f"within {GOAL:.0%}", "extrapolates over"), rows)


def _interval(interval: Sequence[float] | None, digits: int = 0) -> str:
    return "-" if interval is None else f"{interval[0]:.{digits}f} to {interval[1]:.{digits}f}"


def _number(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


# --- what is shown ---


def _show(found: Any) -> None:
    from spt.pictures import waterfall

    run, now = found.run, found.now
    where = f"{found.device.name}, {found.models.dtype}, {found.context_tok:.0f} tokens of context"
    data(f"{run.setting.name} on {where}{' (assumed)' if found.context_assumed else ''}")
    data(f"tau {run.tau:.2f}, step {run.step_us:.0f} us, {run.speed:.1f} tok/s")
    rows = [
        (
            each.rates.kind,
            f"{each.speed:.0f}",
            f"{each.best.policy} tau {each.best.tau:.2f}",
            *(f"{each.factors[name]:.2f}" for name in ("tau", "kernel", "overhead")),
            f"{each.headroom:.2f}",
            each.largest,
            "-" if each.multi_speed is None else f"{each.multi_speed:.0f}",
        )
        for each in found.ceilings
    ]
    columns = ("ceiling", "tok/s", "best", "tau x", "kernel x", "overhead x", "product", "largest", "multi-draft tok/s")
    table(columns, rows)
    for each in found.ceilings:
        data(f"{each.rates.kind}: {each.rates.base}")
    known = {"profile": "the profile", "phases": "phases, gaps between kernels included", "step": "the step alone"}
    data(f"kernels take {now.kernels_us:.0f} us (from {known[now.basis]}), floors {now.floor_us:.0f} us")
    most = max(speed for _, speed in waterfall(found))
    table(
        ("from plain decoding to the ceiling", "tok/s", ""),
        [(name, f"{speed:.0f}", _bar(speed, most)) for name, speed in waterfall(found)],
    )
    _show_classes(now)
    _show_fastest(found)
    _show_sensitivity(found)


def _show_classes(now: Any) -> None:
    longest = max((gap.us or gap.floor_us for gap in now.classes), default=0.0)
    rows = [
        (
            gap.name,
            "-" if gap.us is None else f"{gap.us:.0f}",
            f"{gap.floor_us:.0f}",
            "-" if gap.us is None or gap.floor_us <= 0 else f"{gap.us / gap.floor_us:.2f}",
            _bar(gap.floor_us if gap.us is None else gap.us, longest),
        )
        for gap in now.classes
    ]
    table(("class", "us", "floor us", "times", ""), rows)


def _show_fastest(found: Any) -> None:
    fastest = found.fastest()
    if fastest is None:
        data("at the fitted cost: one size of drafts was measured, which does not tell what a row costs")
        return
    point, step = fastest
    speed = f"{1e6 * point.tau / step.step_us:.0f} tok/s"
    beyond = f", extrapolated over {', '.join(step.extrapolates)}" if step.extrapolates else ""
    data(
        f"at the fitted cost the fastest is {point.policy}: tau {point.tau:.2f}, {step.step_us:.0f} us, {speed}{beyond}"
    )


def _show_sensitivity(found: Any) -> None:
    swept = found.sensitivity
    if swept is None:
        data("sensitivity: rates are measured, no share is assumed")
        return
    tried = len(swept.ceilings)
    if not swept.others:
        data(
            f"sensitivity: {swept.stands} is the largest at all {tried} pairs of shares (40-90 % FLOPs, 60-100 % bytes)"
        )
        return
    data(f"sensitivity: {swept.stands} is not the largest at {len(swept.others)} of {tried} pairs of shares:")
    for name in dict.fromkeys(swept.others.values()):
        pairs = [shares for shares, largest in swept.others.items() if largest == name]
        flops, bytes_ = ([shares[index] for shares in pairs] for index in (0, 1))
        data(f"  {name}: FLOPs at {_range(flops)}, bytes at {_range(bytes_)} of the datasheet")


def _range(values: Sequence[float]) -> str:
    return f"{min(values):.0%}" if min(values) == max(values) else f"{min(values):.0%} to {max(values):.0%}"


def _show_plan(found: Any, as_json: bool) -> None:
    from spt.gains import LEAST_GAIN, worth

    gains = found.plan()
    passing = {each.direction for each in worth(gains)}
    if as_json:
        names = ("direction", "gain", "low", "high", "basis")
        print_json(
            [{**{name: getattr(each, name) for name in names}, "worth": each.direction in passing} for each in gains]
        )
        return
    rows = [
        (
            each.direction,
            "-" if each.gain is None else f"{each.gain:+.1%}",
            "-" if each.low is None else f"{each.low:+.1%} to {each.high:+.1%}",
            "yes" if each.direction in passing else "no",
            each.basis,
        )
        for each in gains
    ]
    table(("direction", "gain", "bounds", f"reaches {LEAST_GAIN:.0%}", "from"), rows)


def _bar(value: float, most: float) -> str:
    return "#" * round(BAR * value / most) if most > 0 else ""

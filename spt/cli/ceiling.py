"""`spt ceiling`: how fast a deployment could be, and where its speed is lost."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from spt.cli.output import data, print_json, say, table
from spt.errors import Usage

BAR = 24
NOISE = 0.02  # of times that are compared


@click.command()
@click.argument("sources", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="SOURCE...")
@click.option("--current", metavar="NAME", help="The setting to explain, where several were measured.")
@click.option("--deployment", "file", metavar="FILE", help="Names the models; the nearest deployment.yaml by default.")
@click.option("--target", metavar="PATH", help="The target that was measured.")
@click.option("--drafter", metavar="DIR", help="The drafter that was measured.")
@click.option("--widen", metavar="K", help="How many times as wide the target was made.")
@click.option("--context", type=click.IntRange(0, 10**7), metavar="N", help="Tokens of context to count floors at.")
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
    context: int | None,
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
    several are of one target, type and device; `spt measure --option draft=none` measures plain decoding.
    docs/ceiling.md has the formulas.  Exit code 1 says that a measured speed is above a ceiling, so that the model or
    its coefficients are wrong, and with --check that a prediction missed its goal.

    \b
    Example:
      spt ceiling measured/chain measured/ar --current chain --plot ceiling.svg
      spt ceiling measured/* --predict predicted.json --policy tree:63:0:16 --at 127
      spt ceiling measured/* new/tree63 --check predicted.json
    """
    if (at or policy or hold) and predict is None:
        raise Usage("--at, --policy and --hold say what to predict", "--predict FILE goes with them")
    if plot is not None:
        from spt.walk_plot import check_plot

        check_plot(plot)
    from spt.choice import choose_deployment
    from spt.cli import predictions

    chosen = choose_deployment(file, target, drafter, {"widen": widen}, Path.cwd())
    for note in chosen.notes:
        say(f"note: {note}")
    deployment = chosen.deployment
    models = deployment.models
    from spt.prediction import Wanted
    from spt.study import Subject, study

    subject = Subject(models.target, models.drafter, deployment.widen)
    if predict is not None:
        predictions.predict(sources, subject, predict, Wanted(at, policy, hold), lattices, as_json)
    if check is not None:
        predictions.check(sources, subject, check, as_json)
    if predict is not None or check is not None:
        return
    found = study(sources, subject, current=current, context_tok=context, gpu=gpu, lattices=lattices)
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


# --- what is shown ---


def _show(found: Any) -> None:
    from spt.pictures import waterfall

    run, now = found.run, found.now
    where = f"{found.device.name}, {found.models.dtype}, {found.context_tok:.0f} tokens of context"
    data(f"{run.setting.name} on {where}{' (assumed)' if found.context_assumed else ''}")
    _show_measured(found)
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
    for note in _notes(found):
        data(f"note: {note}")
    data(f"kernels take {now.kernels_us:.0f} us (from {known[now.basis]}), floors {now.floor_us:.0f} us")
    most = max(speed for _, speed in waterfall(found))
    table(
        ("from plain decoding to the ceiling", "tok/s", ""),
        [(name, f"{speed:.0f}", _bar(speed, most)) for name, speed in waterfall(found)],
    )
    _show_classes(now)
    _show_points(found)
    _show_fastest(found)
    _show_sensitivity(found)


def _show_measured(found: Any) -> None:
    """Every measured setting, the fastest first, beside plain decoding."""
    plain = found.measured.plain
    runs = sorted(found.measured.runs.values(), key=lambda run: -run.speed)
    rows = [
        (
            run.setting.name,
            run.policy or "-",
            f"{run.tau:.2f}",
            f"{run.step_us:.0f}",
            f"{run.speed:.1f}",
            "-" if plain is None else f"{run.speed / plain.speed:.2f}",
        )
        for run in runs
    ]
    table(("measured", "policy", "tau", "step us", "tok/s", "x plain"), rows)


def _notes(found: Any) -> Iterator[str]:
    """What in the figures cannot be, or could mislead."""
    run, now = found.run, found.now
    if now.best.tau < run.tau:
        yield f"{now.best.policy} accepts less than {run.setting.name}: it gains by rows that it does not verify"
    if now.basis == "profile" and now.kernels_us > (1 + NOISE) * run.step_us:
        yield "the profile's kernels take longer than the live step: they were taken under another load; profile again"
    below = [gap.name for gap in now.classes if gap.us is not None and gap.us < (1 - NOISE) * gap.floor_us]
    if below:
        yield f"{', '.join(below)} took less than the floor: the rates are too low, or were measured under another load"
    if found.device.bytes_s is None:
        yield "a processor's rates are those of just now: what else it does moves floors, factors and ceiling"


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


def _show_points(found: Any) -> None:
    """tau of walked trees over their nodes, a column for each number of positions."""
    from spt.policy import Tree, parse_policy

    walked = [(parse_policy(each.policy), each.tau) for each in found.points if each.kind == "tree"]
    trees = {(tree.nodes, tree.positions): tau for tree, tau in walked if isinstance(tree, Tree)}
    positions = sorted({own for _, own in trees})
    if not trees:
        return
    budgets = sorted({nodes for nodes, _ in trees})
    taus = [[trees.get((nodes, own)) for own in positions] for nodes in budgets]
    rows = [
        (str(nodes), *("-" if tau is None else f"{tau:.2f}" for tau in own))
        for nodes, own in zip(budgets, taus, strict=True)
    ]
    table(("tau of trees: nodes", *(f"{own} positions" for own in positions)), rows)


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

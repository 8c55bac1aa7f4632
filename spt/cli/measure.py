"""spt measure"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from spt.cli.names import complete_entries
from spt.cli.output import data, print_json, say, table


@click.command()
@click.argument("system", required=False, shell_complete=complete_entries)
@click.option("-o", "--out", metavar="DIR", type=click.Path(path_type=Path), required=True, help="Where it will lie.")
@click.option("--deployment", "file", metavar="FILE", help="What to run on; the nearest deployment.yaml by default.")
@click.option("--requests", metavar="FILE", help="JSON lines to ask; the deployment's, or generated, when left out.")
@click.option("--count", type=click.IntRange(min=1), default=64, show_default=True, help="Of generated requests.")
@click.option("--seed", type=click.IntRange(min=0), default=1, show_default=True, help="Of generated requests.")
@click.option(
    "--max-tokens",
    type=click.IntRange(min=1),
    default=256,
    show_default=True,
    help="Of answers whose request names no length.",
)
@click.option("--max-minutes", type=click.FloatRange(min=0), metavar="M", help="Stop then; the command goes on.")
@click.option("--option", "options", metavar="NAME=VALUE", multiple=True, help="An option of the system; repeatable.")
@click.option("--no-options", is_flag=True, help="Leave the options of the deployment file out.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON on standard output.")
def measure(
    system: str | None,
    out: Path,
    file: str | None,
    requests: str | None,
    count: int,
    seed: int,
    max_tokens: int,
    max_minutes: float | None,
    options: tuple[str, ...],
    no_options: bool,
    as_json: bool,
) -> None:
    """Record a system's steps, and the drafter's ranks at every position

    SYSTEM answers requests of the generator's development set, or of a file, and records its steps; then trusted stock
    ranks every position of the answers.  `spt walk DIR` and `spt ceiling DIR` read what is in DIR.  The same command
    goes on where it was stopped.  It runs SYSTEM as you, without a sandbox.

    \b
    Example:
      spt measure -o first
      spt measure best-first-tree -o tree --count 16 --max-minutes 30
    """
    from spt.campaign import naming, scratch
    from spt.choice import Chosen, nearest_deployment, split_options
    from spt.cli.generate import ended_by_exception, make_arm
    from spt.cli.judging import chosen_deployment
    from spt.cli.progress import Progress
    from spt.job import HarnessFailed
    from spt.measure import check_measurable, write_measuring_job
    from spt.measure import measure as run

    deployment = chosen_deployment(file)
    chosen = Chosen(deployment, nearest_deployment(Path.cwd()) if file is None else Path(file))
    check_measurable(deployment)
    wanted = _wanted(requests or deployment.requests.get("file"), requests is None, deployment.folder, count)
    with ended_by_exception(), scratch() as folder:
        arm = make_arm(chosen, system, split_options(options), folder / "system", no_options=no_options)
        arms = {"a": arm, "stock": _stock_arm(arm, folder)}
        job = write_measuring_job(folder, deployment, arms, wanted, seed, max_tokens)
        try:
            with naming(wanted.file, folder / "requests.jsonl"), Progress() as progress:
                summary = run(deployment, job, out, max_minutes, progress)
        except HarnessFailed as error:
            for line in error.log:
                say(f"  {line}")
            raise
    if as_json:
        print_json(summary)
    else:
        _show(summary, out)


def _wanted(file: str | None, of_deployment: bool, folder: Path, count: int) -> Any:
    from spt.campaign import Requests

    path = None if file is None else (folder / file if of_deployment else Path(file))
    return Requests(path, "development", count)


def _stock_arm(arm: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Trusted stock beside the system; one folder serves both where they are the same tree."""
    from spt.resolve import resolve_at
    from spt.system import export

    objects, found = resolve_at(Path(), "stock")
    if found.tree == arm["tree"]:
        return {"dir": arm["dir"], "tree": arm["tree"], "options": {}}
    export(objects, found.tree, folder / "stock")
    return {"dir": "stock", "tree": found.tree, "options": {}}


def _show(summary: Mapping[str, Any], out: Path) -> None:
    rows = [*summary["families"].items(), ("all", summary["counts"])]
    table(("family", "answers", "tokens", "looped", "steps", "tau", "with loops"), [_row(*each) for each in rows])
    for line in _costs(summary):
        data(line)
    data(f"in {out}: answers.jsonl, steps.jsonl, lattices, measurement.json")


def _row(family: str, counts: Mapping[str, Any]) -> tuple[str, ...]:
    whole = (str(counts[name]) for name in ("answers", "tokens", "looped_tokens", "steps"))
    return (family, *whole, _tau(counts["tau"]), _tau(counts["tau_all"]))


def _tau(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _costs(summary: Mapping[str, Any]) -> Iterator[str]:
    lattice, times = summary["lattice"], summary["times"]
    positions = lattice["positions"]
    yield f"prefill {times['prefill_s']:.1f} s, decode {times['decode_s']:.1f} s"
    yield (
        f"lattice {times['lattice_s']:.1f} s, {1e3 * times['lattice_s'] / positions:.1f} ms and "
        f"{lattice['bytes'] / positions:.0f} bytes a token: {lattice['depths']} depths of {lattice['ranks']} ranks"
    )

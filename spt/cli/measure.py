"""spt measure"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from spt.cli.measuring import COUNT, MAX_TOKENS, SEED, Measuring
from spt.cli.names import complete_entries
from spt.cli.output import data, print_json, say, table


@click.command()
@click.argument("system", required=False, shell_complete=complete_entries)
@click.option("-o", "--out", metavar="DIR", type=click.Path(path_type=Path), required=True, help="Where it will lie.")
@click.option("--deployment", "file", metavar="FILE", help="What to run on; the nearest deployment.yaml by default.")
@click.option("--requests", metavar="FILE", help="JSON lines to ask; the deployment's, or generated, when left out.")
@click.option("--count", type=click.IntRange(min=1), default=COUNT, show_default=True, help="Of generated requests.")
@click.option("--seed", type=click.IntRange(min=0), default=SEED, show_default=True, help="Of generated requests.")
@click.option(
    "--max-tokens",
    type=click.IntRange(min=1),
    default=MAX_TOKENS,
    show_default=True,
    help="Of answers whose request names no length.",
)
@click.option("--max-minutes", type=click.FloatRange(min=0), metavar="M", help="Stop then; the command goes on.")
@click.option("--no-profile", is_flag=True, help="Leave out where the time of a step goes, by phase and kernel class.")
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
    no_profile: bool,
    as_json: bool,
) -> None:
    """Record a system's steps, a profile of some, and the drafter's ranks at every position

    SYSTEM answers requests of the generator's development set, or of a file, and records its steps; it answers a few of
    them once more under its profiler; then trusted stock ranks every position of the answers.  `spt walk DIR` and
    `spt ceiling DIR` read what is in DIR.  The same command goes on where it was stopped.  It runs SYSTEM as you,
    without a sandbox; `spt job make measure` is for a machine without git.

    \b
    Example:
      spt measure -o first
      spt measure -o ar --option draft=none
      spt measure best-first-tree -o tree --option select=best_first --option best_first_nodes=15 --max-minutes 30
    """
    from spt.campaign import naming, scratch
    from spt.cli.generate import ended_by_exception
    from spt.cli.progress import Progress
    from spt.job import HarnessFailed
    from spt.measure import measure as run

    measuring = Measuring.of(system, file, requests, count, options, no_options=no_options)
    with ended_by_exception(), scratch() as folder:
        job = measuring.write_job(folder, seed, max_tokens)
        try:
            with naming(measuring.requests.file, folder / "requests.jsonl"), Progress() as progress:
                summary = run(measuring.deployment, job, out, max_minutes, progress, profile=not no_profile)
        except HarnessFailed as error:
            for line in error.log:
                say(f"  {line}")
            raise
    if as_json:
        print_json(summary)
    else:
        _show(summary, out)


def _show(summary: Mapping[str, Any], out: Path) -> None:
    system = summary["system"]
    options = " ".join(f"{name}={value}" for name, value in system["options"].items())
    data(f"system {system['tree'][:12]}, {options or 'every option at its default, as stock decodes'}")
    rows = [*summary["families"].items(), ("all", summary["counts"])]
    table(("family", "answers", "tokens", "looped", "steps", "tau", "with loops"), [_row(*each) for each in rows])
    for line in _costs(summary):
        data(line)
    data(f"in {out}: {', '.join(sorted(summary['files']))}, lattices, measurement.json")


def _row(family: str, counts: Mapping[str, Any]) -> tuple[str, ...]:
    whole = (str(counts[name]) for name in ("answers", "tokens", "looped_tokens", "steps"))
    return (family, *whole, _tau(counts["tau"]), _tau(counts["tau_all"]))


def _tau(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _costs(summary: Mapping[str, Any]) -> Iterator[str]:
    lattice, times = summary["lattice"], summary["times"]
    positions = lattice["positions"]
    decoded = summary["counts"]["step_tokens"] / times["decode_s"] if times["decode_s"] else 0.0
    yield f"prefill {times['prefill_s']:.1f} s, decode {times['decode_s']:.1f} s, {decoded:.1f} tok/s"
    yield (
        f"lattice {times['lattice_s']:.1f} s, {1e3 * times['lattice_s'] / positions:.1f} ms and "
        f"{lattice['bytes'] / positions:.0f} bytes a token: {lattice['depths']} depths of {lattice['ranks']} ranks"
    )

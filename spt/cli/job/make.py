"""spt job make"""

from collections.abc import Mapping
from pathlib import Path

import click

from spt.cli.measuring import COUNT, MAX_TOKENS, SEED, Measuring
from spt.cli.output import print_json, say
from spt.errors import Usage


@click.command()
@click.argument("command", type=click.Choice(["time", "force", "calibrate", "final", "measure"]))
@click.argument("a", required=False)
@click.argument("b", required=False)
@click.option("-o", "--out", type=click.Path(path_type=Path), required=True, metavar="DIR", help="A new folder.")
@click.option("--deployment", "file", metavar="FILE", help="What to run on; the nearest deployment.yaml by default.")
@click.option("--requests", metavar="FILE", help="JSON lines to ask; generated, and never seen, when left out.")
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    metavar="N",
    help=f"Of requests and order; drawn when left out, {SEED} for measure.",
)
@click.option("--devices", metavar="D[,D]", help="The devices that it will run on, as they are called there.")
@click.option("--seal", metavar="NAME", help="Of a final: the seal that draws the requests, which this spends.")
@click.option("--again", metavar="REASON", help="Of a final: why this system gets another one.")
@click.option("--smoke", is_flag=True, help="Of a final: a handful of everything, which accepts nothing.")
@click.option("--timed", type=click.Path(path_type=Path), metavar="SAMPLES", help="For force: what `time` measured.")
@click.option("--count", type=click.IntRange(min=1), help=f"For measure: of generated requests; {COUNT}.")
@click.option(
    "--max-tokens", type=click.IntRange(min=1), help=f"For measure: of answers that name no length; {MAX_TOKENS}."
)
@click.option("--option", "options", metavar="NAME=VALUE", multiple=True, help="For measure: of SYSTEM; repeatable.")
@click.option("--no-options", is_flag=True, help="For measure: leave the options of the deployment file out.")
@click.option("--json", "as_json", is_flag=True, help="Print what was written as JSON on standard output.")
def make(
    command: str,
    a: str | None,
    b: str | None,
    out: Path,
    file: str | None,
    requests: str | None,
    seed: int | None,
    devices: str | None,
    seal: str | None,
    again: str | None,
    smoke: bool,
    timed: Path | None,
    count: int | None,
    max_tokens: int | None,
    options: tuple[str, ...],
    no_options: bool,
    as_json: bool,
) -> None:
    """Write the job of `python -m harness COMMAND` for systems A and B

    COMMAND is time (A against B), force (A, as it was timed against B), calibrate (stock against itself), final (A
    against B, by a seal) or measure (A alone).  `spt time`, `spt force`, `spt final` and `spt measure` write and run
    such jobs themselves; this is for another machine.  A and B are stock where they are left out, and what is measured
    is then what `spt measure` measures.  With --timed the samples go along as timed.jsonl; where they were measured on
    that machine, the harness is told where they lie there.

    \b
    Example:
      spt job make time best-first-tree -o race --devices cuda:0
      spt job make force best-first-tree -o forcing --timed race/out/samples.jsonl
      spt job make final HEAD -o last --seal round-7 --devices cuda:0
      spt job make measure best-first-tree -o tree --count 16 --devices cuda:0
    """
    from spt.cli.judging import chosen_limits, chosen_plan, requests_file
    from spt.final import Asked, make_final
    from spt.judge import make_job

    if out.exists() or not out.absolute().parent.is_dir():
        raise Usage(f"'{out}' cannot be a new folder", "name one that is not there, in a folder that is")
    measured = {"--count": count, "--max-tokens": max_tokens, "--option": options, "--no-options": no_options}
    _refuse_others(command, {"--timed": timed}, "force")
    _refuse_others(command, measured, "measure")
    _refuse_seal(command, sealed=seal is not None, more=again is not None or smoke, requests=requests is not None)
    limits = chosen_limits(None, devices, no_sandbox=False, most=2 if command in ("time", "final") else 1)
    if command == "measure":
        if b is not None:
            raise Usage(f"a measurement is of one system, not of '{b}' too")
        device = limits.devices[0] if limits.devices else None
        measuring = Measuring.of(a, file, requests, count, options, no_options=no_options, device=device)
        measuring.make_job(out.absolute(), seed, max_tokens)
    else:
        plan = chosen_plan(a or "stock", "stock" if command == "calibrate" else b or "stock", file, seed, devices)
        many = max(1, len(limits.devices))
        if seal is not None:
            make_final(plan, Asked(seal, again, smoke), many, out.absolute())
        else:
            make_job(plan, command, requests_file(plan, requests), many, out.absolute(), timed)
    beside = "" if timed is None else f", and {out}/timed.jsonl is for its --timed"
    say(f"a job of `python -m harness {command}` lies in {out}{beside}")
    if as_json:
        print_json({"job": str(out.absolute() / "job.json")})


def _refuse_others(command: str, flags: Mapping[str, object], owner: str) -> None:
    """Usage for the first of one command's flags that another command was given."""
    given = [flag for flag, value in flags.items() if value]
    if given and command != owner:
        raise Usage(f"{given[0]} is for {owner}, not for {command}")


def _refuse_seal(command: str, *, sealed: bool, more: bool, requests: bool) -> None:
    """Usage for a final without a seal or with requests of its own, and for a seal of anything else."""
    final = command == "final"
    if final and (not sealed or requests):
        raise Usage("a final's requests are drawn by its seal", "--seal NAME, without --requests")
    if not final and (sealed or more):
        raise Usage(f"'{command}' has no seal", "--seal, --again and --smoke belong to a final")

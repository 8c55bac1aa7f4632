"""spt job make"""

from pathlib import Path

import click

from spt.cli.output import print_json, say


@click.command()
@click.argument("command", type=click.Choice(["time", "force", "calibrate", "final"]))
@click.argument("a", default="stock")
@click.argument("b", default="stock")
@click.option("-o", "--out", type=click.Path(path_type=Path), required=True, metavar="DIR", help="A new folder.")
@click.option("--deployment", "file", metavar="FILE", help="What to run on; the nearest deployment.yaml by default.")
@click.option("--requests", metavar="FILE", help="JSON lines to ask; generated, and never seen, when left out.")
@click.option("--seed", type=click.IntRange(min=0), metavar="N", help="Of requests and order; drawn when left out.")
@click.option("--devices", metavar="D[,D]", help="The devices that it will run on, as they are called there.")
@click.option("--seal", metavar="NAME", help="Of a final: the seal that draws the requests, which this spends.")
@click.option("--again", metavar="REASON", help="Of a final: why this system gets another one.")
@click.option("--smoke", is_flag=True, help="Of a final: a handful of everything, which accepts nothing.")
@click.option("--timed", type=click.Path(path_type=Path), metavar="SAMPLES", help="For force: what `time` measured.")
@click.option("--json", "as_json", is_flag=True, help="Print what was written as JSON on standard output.")
def make(
    command: str,
    a: str,
    b: str,
    out: Path,
    file: str | None,
    requests: str | None,
    seed: int | None,
    devices: str | None,
    seal: str | None,
    again: str | None,
    smoke: bool,
    timed: Path | None,
    as_json: bool,
) -> None:
    """Write the job of `python -m harness COMMAND` for systems A and B

    COMMAND is time (A against B), force (A, as it was timed against B), calibrate (stock against itself) or final (A
    against B, by a seal).  `spt time`, `spt force` and `spt final` write and run such jobs themselves; this is for
    another machine.  With --timed the samples go along as timed.jsonl; where they were measured on that machine, the
    harness is told where they lie there.

    \b
    Example:
      spt job make time best-first-tree -o race --devices cuda:0
      spt job make force best-first-tree -o forcing --timed race/out/samples.jsonl
      spt job make final HEAD -o last --seal round-7 --devices cuda:0
    """
    from spt.cli.judging import chosen_limits, chosen_plan, requests_file
    from spt.errors import Usage
    from spt.final import Asked, make_final
    from spt.judge import make_job

    if out.exists() or not out.absolute().parent.is_dir():
        raise Usage(f"'{out}' cannot be a new folder", "name one that is not there, in a folder that is")
    final = command == "final"
    if final and (seal is None or requests is not None):
        raise Usage("a final's requests are drawn by its seal", "--seal NAME, without --requests")
    if not final and (seal is not None or again is not None or smoke):
        raise Usage(f"'{command}' has no seal", "--seal, --again and --smoke belong to a final")
    if timed is not None and command != "force":
        raise Usage(f"--timed is for force, not for {command}")
    limits = chosen_limits(None, devices, no_sandbox=False, most=2 if command in ("time", "final") else 1)
    plan = chosen_plan(a, "stock" if command == "calibrate" else b, file, seed, devices)
    count = max(1, len(limits.devices))
    if seal is not None:
        make_final(plan, Asked(seal, again, smoke), count, out.absolute())
    else:
        make_job(plan, command, requests_file(plan, requests), count, out.absolute(), timed)
    beside = "" if timed is None else f", and {out}/timed.jsonl is for its --timed"
    say(f"a job of `python -m harness {command}` lies in {out}{beside}")
    if as_json:
        print_json({"job": str(out.absolute() / "job.json")})

"""spt job"""

import click

from spt.cli import LazyGroup

COMMANDS = {
    "make": ("spt.cli.job.make:make", "Write a job for another machine"),
    "pack": ("spt.cli.job.pack:pack", "Put a job, or its samples, into one tar"),
    "unpack": ("spt.cli.job.unpack:unpack", "Take a job or samples out of a tar"),
}


@click.command(cls=LazyGroup, lazy=COMMANDS)
def job() -> None:
    """Carry work to a machine that has no repository, and samples back

    There the installed harness measures; a tar brings no code that judges.

    \b
    Example:
      spt job make time best-first-tree -o race && spt job pack race -o race.tar
      spt job unpack race.tar --target /models/big && python -m harness time --job race/job.json --out race/out
      spt job pack race --samples -o back.tar
      spt job unpack back.tar race && spt verdict add race/out/samples.jsonl
    """

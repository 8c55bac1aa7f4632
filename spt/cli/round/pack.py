"""spt round pack"""

from pathlib import Path

import click


@click.command()
@click.argument("name", metavar="NAME|DIR")
@click.option("-o", "--out", type=click.Path(path_type=Path), required=True, metavar="FILE.tar", help="What to write.")
@click.option("--samples", is_flag=True, help="To go back: what was measured, without trees and requests.")
def pack(name: str, out: Path, samples: bool) -> None:
    """Put the jobs that a round waits for into one tar, for a machine without git; there, with --samples, what came

    NAME is a round that was started with --elsewhere; DIR is the folder that `spt round unpack` made there.

    \b
    Example:
      spt round pack smol-1 -o there.tar                     # here
      spt round unpack there.tar work --target /models/big   # there
      python -m harness batch work --max-minutes 9           # there
      spt round pack work --samples -o back.tar              # there
      spt round unpack back.tar smol-1 && spt round resume   # here
    """
    from spt.cli.output import counted, say
    from spt.cli.round.named import jobs_folder
    from spt.round.pack import pack_jobs

    count = pack_jobs(jobs_folder(name), out, samples=samples)
    say(f"{out}: {counted(count, 'job')}, {out.stat().st_size} bytes")

"""spt job pack"""

from pathlib import Path

import click


@click.command()
@click.argument("job", metavar="DIR|JOB", type=click.Path(path_type=Path))
@click.option("-o", "--out", type=click.Path(path_type=Path), required=True, metavar="FILE.tar", help="What to write.")
@click.option("--samples", is_flag=True, help="To go back: what was measured, without trees and requests.")
def pack(job: Path, out: Path, samples: bool) -> None:
    """Put a job's folder into one tar: trees, requests, and what was measured so far

    The same folder makes the same bytes.  What an engine prepared stays behind.

    \b
    Example:
      spt job pack race -o race.tar
      spt job pack race --samples -o back.tar
    """
    from spt.cli.output import say
    from spt.pack import pack as write

    write(job, out, samples=samples)
    say(f"{out}: {out.stat().st_size} bytes")

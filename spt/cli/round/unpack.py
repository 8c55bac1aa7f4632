"""spt round unpack"""

from pathlib import Path

import click


@click.command()
@click.argument("file", metavar="FILE.tar", type=click.Path(path_type=Path))
@click.argument("name", metavar="NAME|DIR")
@click.option("--target", metavar="PATH", help="Where the target lies on this machine.")
@click.option("--drafter", metavar="DIR", help="Where the drafter lies on this machine.")
@click.option("--device", metavar="D", help="cpu, cuda or cuda:N.")
def unpack(file: Path, name: str, target: str | None, drafter: str | None, device: str | None) -> None:
    """Take a round's jobs out of a tar into DIR, on another machine; or the samples that came back, into round NAME

    \b
    Example:
      spt round unpack there.tar work --target /models/big --device cuda
      spt round unpack back.tar smol-1
    """
    from spt.cli.judging import moved_here
    from spt.cli.output import say
    from spt.cli.round.named import jobs_folder
    from spt.round.pack import unpack_jobs

    folder = jobs_folder(name, new=True)
    for job in unpack_jobs(file, folder, moved_here(target, drafter, device)):
        say(f"{folder / job}")

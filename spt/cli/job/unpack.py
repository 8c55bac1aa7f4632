"""spt job unpack"""

from pathlib import Path

import click


@click.command()
@click.argument("file", metavar="FILE.tar", type=click.Path(path_type=Path))
@click.argument("folder", metavar="[DIR]", required=False, type=click.Path(path_type=Path))
@click.option("--target", metavar="PATH", help="Where the target lies on this machine.")
@click.option("--drafter", metavar="DIR", help="Where the drafter lies on this machine.")
@click.option("--device", metavar="D", help="cpu, cuda or cuda:N.")
def unpack(file: Path, folder: Path | None, target: str | None, drafter: str | None, device: str | None) -> None:
    """Take a job, or samples of one, out of a tar into DIR, which is called like the tar when left out

    DIR is new, or holds the same job: then samples go on where those in it end, and anything else is a conflict.  A tar
    with links, devices, paths that lead outside or files that belong to no job is refused whole.

    \b
    Example:
      spt job unpack race.tar --target /models/big
      spt job unpack back.tar race
    """
    from spt.cli.judging import moved_here
    from spt.cli.output import show_path
    from spt.errors import Usage
    from spt.pack import unpack as write

    if not file.name:
        raise Usage(f"'{file}' is no tar", "`spt job pack` writes one")
    to = (folder or Path(file.name).with_suffix("")).absolute()
    show_path(write(file, to, moved_here(target, drafter, device)))

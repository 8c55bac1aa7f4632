"""spt w12 unpack"""

from pathlib import Path

import click

from spt.cli.w12.options import packing_options, run


@click.command()
@click.argument("packed", type=click.Path(path_type=Path))
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@packing_options
def unpack(packed: Path, folder: Path, system: str, python: str, as_json: bool) -> None:
    """Write the model of a packed folder as safetensors

    A file that is not what `spt w12 pack` wrote, by a single bit, is an error.  DIR must not exist or be empty; it gets
    all files or none.

    \b
    Example:
      spt w12 unpack packed/ model/
    """
    run(["unpack", packed.absolute(), folder.absolute()], system, python, as_json=as_json)

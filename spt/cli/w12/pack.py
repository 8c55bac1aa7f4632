"""spt w12 pack"""

from pathlib import Path

import click

from spt.cli.w12.options import device_option, packing_options, run


@click.command()
@click.argument("model")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@packing_options
@device_option("Where weights are packed.")
def pack(model: str, folder: Path, system: str, python: str, device: str, as_json: bool) -> None:
    """Write a packed copy of a model into a folder

    MODEL is as for `spt w12 inspect`.  A matrix where packing does not pay, and all that is no matrix, is stored as it
    is.  DIR must not exist or be empty; it gets all files or none.

    \b
    Example:
      spt w12 pack model/ packed/
    """
    from spt.packing import model_at

    words = ["pack", model_at(python, model), folder.absolute(), "--device", device]
    run(words, system, python, as_json=as_json)

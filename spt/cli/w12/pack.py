"""spt w12 pack"""

import sys
from pathlib import Path

import click


@click.command()
@click.argument("model")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--system", metavar="SYSTEM", default="w12-linear", show_default=True, help="Whose command it is.")
@click.option(
    "--python", metavar="PYTHON", default=sys.executable, help="An interpreter with torch; spt's own by default."
)
@click.option("--device", metavar="DEVICE", default="cpu", show_default=True, help="Where weights are packed.")
@click.option("--json", "as_json", is_flag=True, help="Print figures as JSON on standard output.")
@click.pass_context
def pack(
    context: click.Context, model: str, folder: Path, system: str, python: str, device: str, as_json: bool
) -> None:
    """Write a packed copy of a model into a folder

    MODEL is as for `spt w12 inspect`.  A matrix where packing does not pay, and all that is no matrix, is stored as it
    is.  DIR must not exist or be empty; it gets all files or none.

    \b
    Example:
      spt w12 pack model/ packed/
    """
    from spt.packing import model_at, run_packing

    words = ["pack", str(model_at(python, model)), str(folder.absolute()), "--device", device]
    context.exit(run_packing(system, python, [*words, *(["--json"] if as_json else [])]))

"""spt w12 unpack"""

import sys
from pathlib import Path

import click


@click.command()
@click.argument("packed", type=click.Path(path_type=Path))
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--system", metavar="SYSTEM", default="w12-linear", show_default=True, help="Whose command it is.")
@click.option(
    "--python", metavar="PYTHON", default=sys.executable, help="An interpreter with torch; spt's own by default."
)
@click.option("--json", "as_json", is_flag=True, help="Print figures as JSON on standard output.")
@click.pass_context
def unpack(context: click.Context, packed: Path, folder: Path, system: str, python: str, as_json: bool) -> None:
    """Write the model of a packed folder as safetensors

    A file that is not what `spt w12 pack` wrote, by a single bit, is an error.  DIR must not exist or be empty; it gets
    all files or none.

    \b
    Example:
      spt w12 unpack packed/ model/
    """
    from spt.packing import run_packing

    words = ["unpack", str(packed.absolute()), str(folder.absolute())]
    context.exit(run_packing(system, python, [*words, *(["--json"] if as_json else [])]))

"""spt export"""

from pathlib import Path

import click

from spt.cli.output import left_out, print_json, say


@click.command()
@click.argument("system")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print tree and options as JSON on standard output.")
def export(system: str, folder: Path, as_json: bool) -> None:
    """Write a system's files into a folder

    SYSTEM is `stock`, entries joined by `+`, or a git revision (`rev:REV` forces one), perhaps with `@OPTIONS.yaml`.
    DIR must not exist or be empty; it gets all files or none.

    \b
    Example:
      spt export stock /tmp/stock
      spt export best-first-tree+confident-budget@fast.yaml /tmp/system
    """
    from spt.resolve import resolve_at
    from spt.system import export as write

    objects, found = resolve_at(Path(), system)
    write(objects, found.tree, folder)
    left_out(found.left_out)
    say(f"{found.label}: tree {found.tree} in {folder}")
    for name, value in sorted(found.options.items()):
        say(f"option {name} = {value}")
    if as_json:
        print_json({"tree": found.tree, "options": found.options, "folder": str(folder.absolute())})

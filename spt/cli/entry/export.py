"""spt entry export"""

from pathlib import Path

import click

from spt.cli.output import data, say


@click.command()
@click.argument("name")
@click.option(
    "--to",
    metavar="DIR",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Write DIR/NAME/, the bundles of its sources below DIR/sources/, and its line of DIR/lock.jsonl.",
)
def export(name: str, to: Path | None) -> None:
    """Write an open edit back, and an entry's folder

    An edit that `spt entry edit` opened becomes the entry's new commit; the old one stays under refs/spt/rescue.

    \b
    Example:
      spt entry export w12-linear --to ../specpilot/entries
    """
    from spt.home import find_home

    for path in find_home(Path()).export(name, to):
        data(str(path))
    say(f"{name}: written")

"""spt entry refresh"""

from pathlib import Path

import click

from spt.cli.names import complete_entries
from spt.cli.output import print_json, say


@click.command()
@click.argument("names", metavar="[NAME...]", nargs=-1, shell_complete=complete_entries)
@click.option("--all", "everything", is_flag=True, help="Refresh every entry.")
@click.option("--json", "as_json", is_flag=True, help="Print what was done as JSON on standard output.")
def refresh(names: tuple[str, ...], everything: bool, as_json: bool) -> None:
    """Carry entries to the stock of now

    An entry whose files stock left alone keeps its delta.  An edit of a file that stock changed is merged three ways;
    a conflict stops everything, and nothing is written.

    \b
    Example:
      spt entry refresh --all
    """
    from spt.errors import Usage
    from spt.home import find_home

    if names and everything:
        raise Usage(f"--all takes every entry, and '{names[0]}' one", "leave one of them away")
    if not names and not everything:
        raise Usage("name the entries to refresh, or --all")
    happened = find_home(Path()).refresh(list(names), everything=everything)
    for name, word in happened.items():
        say(f"{name}: {word}")
    if as_json:
        print_json(happened)

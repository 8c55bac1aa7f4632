"""spt entry export"""

from pathlib import Path

import click

from spt.cli.names import complete_entries
from spt.cli.output import print_json, say, show_path


@click.command()
@click.argument("name", shell_complete=complete_entries)
@click.option(
    "--to",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Write DIR/NAME/, the bundles of its sources below DIR/sources/, and its line of DIR/lock.jsonl.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the paths that were written as JSON on standard output.")
def export(name: str, to: Path | None, as_json: bool) -> None:
    """Write an open edit back, and an entry's folder

    An edit that `spt entry edit` opened becomes the entry's new commit; the old one stays under refs/spt/rescue, and
    the edit stays open.  The last folder of --to is made where it is not there.

    \b
    Example:
      spt entry export best-first-tree --to ../specpilot/entries
    """
    from spt.home import find_home

    done = find_home(Path()).export(name, to)
    say(f"{name}: delta {done.delta_id[:12]}")
    if done.rescue is not None:
        say(f"{name}: its old tip is '{done.rescue}'")
    if done.edit is not None:
        say(f"the edit stays open in '{done.edit}'; `git worktree remove`, with --force, closes it: it is written back")
        say(f"`spt entry verify {name}` looks at what came of it")
    if as_json:
        print_json([str(path) for path in done.written])
    else:
        for path in done.written:
            show_path(path)

"""spt entry edit"""

from pathlib import Path

import click

from spt.cli.names import complete_entries
from spt.cli.output import print_json, say, show_path


@click.command()
@click.argument("name", shell_complete=complete_entries)
@click.option("--json", "as_json", is_flag=True, help="Print folder and conflicts as JSON on standard output.")
def edit(name: str, as_json: bool) -> None:
    """Open an entry in a worktree

    The worktree stands on the entry's requirements and the stock of now; `git diff HEAD` there shows what the entry
    does.  Where stock changed the same lines, the files hold conflict markers.  `spt entry export NAME` writes it back.

    \b
    Example:
      cd $(spt entry edit best-first-tree)
    """
    from spt.home import find_home

    opened = find_home(Path()).open(name)
    if opened.was_open:
        say(f"{name} is open already, and left as it is")
    for path in opened.conflicts:
        say(f"conflict: {path}")
    say(f"`spt entry export {name}` writes it back; `git worktree remove` closes it")
    if as_json:
        print_json({"folder": str(opened.folder), "conflicts": opened.conflicts, "was_open": opened.was_open})
    else:
        show_path(opened.folder)

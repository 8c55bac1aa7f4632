"""spt round checkout"""

from pathlib import Path

import click


@click.command()
@click.argument("name")
@click.argument("direction", required=False)
@click.option("--dir", "folder", metavar="DIR", help="Where; below the git directory when left out.")
@click.option("--json", "as_json", is_flag=True, help="Print folder, commit and reference as JSON on standard output.")
def checkout(name: str, direction: str | None, folder: str | None, as_json: bool) -> None:
    """Open a round's best, or a direction's work, in a worktree

    The worktree is linked to this repository, for people to read, run and commit in; the work of a direction is its
    newest candidate, or what was rescued of it.  `git worktree remove` closes it.

    \b
    Example:
      cd $(spt round checkout smol-1)
      spt round checkout smol-1 memory-best-first-tree --dir ../outside
    """
    from spt.cli.output import print_json, say, show_path
    from spt.cli.round.named import named_round
    from spt.round.checkout import checkout as open_worktree

    journal = named_round(name)
    opened = open_worktree(journal.store, journal.round, direction, None if folder is None else Path(folder))
    say(f"{opened.reference} is {opened.commit[:12]}; `git worktree remove` closes it")
    if as_json:
        record = {"folder": str(opened.folder), "commit": opened.commit, "reference": opened.reference}
        print_json(record)
    else:
        show_path(opened.folder)

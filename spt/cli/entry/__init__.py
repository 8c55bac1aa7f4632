"""spt entry"""

import click

from spt.cli import LazyGroup

COMMANDS = {
    "list": ("spt.cli.entry.list:list_", "List entries and what they add"),
    "show": ("spt.cli.entry.show:show", "Show one entry: card, changes, evidence"),
    "apply": ("spt.cli.entry.apply:apply", "Compose entries and commit them"),
    "verify": ("spt.cli.entry.verify:verify", "Recompose entries and compare with what they came from"),
    "import": ("spt.cli.entry.import_:import_", "Take entries in from a folder, repository or bundle"),
    "export": ("spt.cli.entry.export:export", "Write an open edit back, and an entry's folder"),
    "edit": ("spt.cli.entry.edit:edit", "Open an entry in a worktree"),
    "record": ("spt.cli.entry.record:record", "Record a timing verdict as evidence of an entry"),
    "refresh": ("spt.cli.entry.refresh:refresh", "Carry entries to the stock of now"),
    "new": ("spt.cli.entry.new:new", "Distil an entry from commits of a system"),
}


@click.command(cls=LazyGroup, lazy=COMMANDS)
def entry() -> None:
    """List, show, apply, verify and make memory entries

    An entry is a proven mechanism: a code delta on stock and the entries it requires, a correctness contract, and
    evidence.  It lives on the branch entry/NAME; docs/memory.md says how.

    \b
    Example:
      spt entry list
      spt entry verify --all
    """

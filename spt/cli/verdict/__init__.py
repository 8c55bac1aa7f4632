"""spt verdict"""

import click

from spt.cli import LazyGroup

COMMANDS = {
    "list": ("spt.cli.verdict.list:list_", "List what was judged"),
    "show": ("spt.cli.verdict.show:show", "Show one verdict"),
    "add": ("spt.cli.verdict.add:add", "Judge samples that were measured elsewhere"),
}


@click.command(cls=LazyGroup, lazy=COMMANDS)
def verdict() -> None:
    """Read the ledger of verdicts, and add what another machine measured

    The ledger is the reference refs/spt/verdicts: a commit for each look and each verdict.

    \b
    Example:
      spt verdict list
    """

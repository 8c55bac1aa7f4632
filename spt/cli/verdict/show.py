"""spt verdict show"""

from pathlib import Path

import click


@click.command()
@click.argument("key")
@click.option("--json", "as_json", is_flag=True, help="Print the record as JSON on standard output.")
def show(key: str, as_json: bool) -> None:
    """Show the verdicts whose key begins with KEY

    \b
    Example:
      spt verdict show 1f0c9a
    """
    from spt.cli.judgement import show_verdict
    from spt.cli.output import data, print_json
    from spt.errors import Missing
    from spt.ratio import figure_of
    from spt.verdicts import Ledger

    ledger = Ledger.find(Path())
    found = [held for held in ledger.all() if held.key.startswith(key)]
    if not found:
        raise Missing(f"no verdict has a key that begins with '{key}'", "`spt verdict list` names those that there are")
    if as_json:
        print_json([held.record() for held in found])
        return
    for held in found:
        data(f"{held.what} {held.key}: {len(held.looks)} looks")
        if held.verdict is not None:
            show_verdict(held.verdict, figure_of(ledger, held.verdict) if held.what == "timing" else None)

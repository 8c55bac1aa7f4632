"""spt verdict show"""

from pathlib import Path

import click


@click.command()
@click.argument("key")
@click.option("--json", "as_json", is_flag=True, help="Print the record as JSON on standard output.")
def show(key: str, as_json: bool) -> None:
    """Show the verdicts whose key begins with KEY

    The secret of a final's seal is held against its commitment.

    \b
    Example:
      spt verdict show 1f0c9a
    """
    from spt.cli.judgement import show_final, show_verdict
    from spt.cli.output import data, print_json
    from spt.errors import Missing
    from spt.ratio import figure_of
    from spt.seal import check_commitment, seal_named
    from spt.verdicts import FINAL, Ledger

    ledger = Ledger.find(Path())
    found = [held for held in ledger.all() if held.key.startswith(key)]
    if not found:
        raise Missing(f"no verdict has a key that begins with '{key}'", "`spt verdict list` names those that there are")
    if as_json:
        for held in found:
            if held.seal is not None:
                check_commitment(seal_named(ledger, held.seal))
        print_json([held.record() for held in found])
        return
    for held in found:
        data(f"{held.what} {held.key}: {len(held.looks)} looks")
        if held.what == FINAL:
            show_final(ledger, held)
        elif held.verdict is not None:
            show_verdict(held.verdict, figure_of(ledger, held.verdict) if held.what == "timing" else None)

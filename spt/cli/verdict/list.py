"""spt verdict list"""

from pathlib import Path

import click


@click.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print the records as JSON on standard output.")
def list_(as_json: bool) -> None:
    """List what was judged here, by kind and key

    \b
    Example:
      spt verdict list
    """
    from spt.cli.output import print_json, say, table
    from spt.ratio import figure_of
    from spt.verdicts import Held, Ledger

    ledger = Ledger.find(Path())
    found = ledger.all()
    if as_json:
        print_json([held.record() for held in found])
        return

    if not found:
        say("nothing was judged here yet: `spt time A B` judges speed, and `spt force A B` what is said")
        return

    def row(held: Held) -> tuple[str, ...]:
        verdict = held.verdict
        if verdict is None:
            return (held.what, held.key[:12], "-", "-", f"looks {len(held.looks)}", "")
        figure = figure_of(ledger, verdict) if held.what != "forcing" else None
        system = f"{verdict['of']['a']['tree'][:12]} {verdict['of']['a']['options'] or ''}"
        return (
            held.what,
            held.key[:12],
            verdict["answer"],
            system,
            "-" if figure is None else str(figure),
            verdict["date"],
        )

    table(("what", "key", "answer", "system", "figure", "date"), [row(held) for held in found])

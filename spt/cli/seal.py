"""spt seal"""

import click


@click.command()
@click.argument("name")
@click.option("--deployment", "file", metavar="FILE", help="Whose Python runs; the nearest deployment.yaml by default.")
@click.option("--json", "as_json", is_flag=True, help="Print the commitment as JSON on standard output.")
def seal(name: str, file: str | None, as_json: bool) -> None:
    """Make the secret of a final, before the round, and publish its commitment

    The secret lies below the git common directory, for its owner alone; the ledger gets its commitment, dated.  `spt
    final SYSTEM --seal NAME` draws by it, once, and reveals it with the verdict.  A name is used once.

    \b
    Example:
      spt seal round-7
    """
    from pathlib import Path

    from spt.cli.judging import chosen_deployment
    from spt.cli.output import data, print_json, say
    from spt.seal import make_seal
    from spt.verdicts import Ledger

    ledger = Ledger.find(Path())
    made = make_seal(ledger, chosen_deployment(file), name)
    if as_json:
        print_json(made.record())
    else:
        data(f"commitment {made.commitment}")
        say(f"the secret lies in {made.file(ledger)}: it draws one final, and nobody may read it before")

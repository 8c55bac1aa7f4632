"""spt seal"""

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from spt.seal import Sealed


@click.command()
@click.argument("name", required=False)
@click.option("--list", "as_list", is_flag=True, help="Show the seals of this repository, and what drew by them.")
@click.option("--deployment", "file", metavar="FILE", help="Whose Python runs; the nearest deployment.yaml by default.")
@click.option("--json", "as_json", is_flag=True, help="Print commitments as JSON on standard output.")
def seal(name: str | None, as_list: bool, file: str | None, as_json: bool) -> None:
    """Make the secret of a final, before the round, and publish its commitment

    The secret lies below the git common directory, for its owner alone; the ledger gets its commitment, dated.  `spt
    final SYSTEM --seal NAME` draws by it, once, and reveals it with the verdict.  A name is used once.

    \b
    Example:
      spt seal round-7
      spt seal --list
    """
    from pathlib import Path

    from spt.cli.judging import chosen_deployment
    from spt.cli.output import data, print_json, say
    from spt.errors import Usage
    from spt.seal import all_seals, make_seal
    from spt.verdicts import Ledger

    if (name is None) != as_list:
        raise Usage("a seal has a name" if name is None else f"--list shows all seals, not '{name}'", "`spt seal NAME`")
    ledger = Ledger.find(Path())
    if name is None:
        _show(all_seals(ledger), as_json=as_json)
        return
    made = make_seal(ledger, chosen_deployment(file), name)
    if as_json:
        print_json(made.record())
    else:
        data(f"commitment {made.commitment}")
        say(f"the secret lies in {made.file(ledger)}: it draws one final, and nobody may read it before")


def _show(seals: "list[Sealed]", *, as_json: bool) -> None:
    from spt.cli.output import print_json, say, table

    if as_json:
        print_json([each.record() for each in seals])
    elif not seals:
        say("there is no seal here yet: `spt seal NAME` makes one")
    else:
        table(("seal", "commitment", "made", "drawn by", "verdict"), map(_row, seals))


def _row(sealed: "Sealed") -> tuple[str, ...]:
    drawn = "-" if sealed.drawn is None else f"{sealed.drawn['a']['tree'][:12]} {sealed.drawn['date']}"
    verdict = "-" if sealed.revealed is None else str(sealed.revealed["key"][:12])
    return sealed.name, sealed.commitment[:12], sealed.date, drawn, verdict

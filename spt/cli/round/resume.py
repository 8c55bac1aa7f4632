"""spt round resume"""

import click

from spt.cli.round.named import round_argument


@click.command()
@round_argument
@click.option("--max-minutes", type=float, metavar="M", help="Stop then; the same command goes on.")
@click.option("--json", "as_json", is_flag=True, help="Print how it ended as JSON on standard output.")
def resume(name: str | None, max_minutes: float | None, as_json: bool) -> None:
    """Go on with a round that was stopped or killed

    What stands in its journal is not done again; a campaign of the judge goes on at its next unit.  NAME may be left
    out where one round has not ended.

    \b
    Example:
      spt round resume
      spt round resume smol-2 --max-minutes 60
    """
    from spt.cli.round.named import named_round
    from spt.cli.round.work import go_on
    from spt.round.budget import checked_minutes

    checked_minutes(max_minutes, "--max-minutes")
    go_on(named_round(name), max_minutes, as_json)

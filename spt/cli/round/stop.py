"""spt round stop"""

import click

from spt.cli.round.named import round_argument


@click.command()
@round_argument
def stop(name: str | None) -> None:
    """Let a round stop after what it is at; `spt round resume` goes on with it

    \b
    Example:
      spt round stop
    """
    from spt.cli.output import data
    from spt.cli.round.named import named_round
    from spt.round.working import ask_to_stop

    journal = named_round(name)
    word = "has stopped" if ask_to_stop(journal) else "was not at work"
    data(f"round {journal.round} {word}")

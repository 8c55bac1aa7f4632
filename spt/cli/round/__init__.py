"""spt round"""

import click

from spt.cli import LazyGroup

COMMANDS = {
    "start": ("spt.cli.round.start:start", "Begin a round on a deployment, and go through its phases"),
    "status": ("spt.cli.round.status:status", "Say where a round stands"),
    "watch": ("spt.cli.round.watch:watch", "Follow a round as it goes"),
    "resume": ("spt.cli.round.resume:resume", "Go on with a round that was stopped or killed"),
    "stop": ("spt.cli.round.stop:stop", "Let a round stop after what it is at"),
    "list": ("spt.cli.round.list:list_", "List the rounds of this repository"),
    "review": ("spt.cli.round.review:review", "Show what a round made: commits, what they change, verdicts"),
}


@click.command("round", cls=LazyGroup, lazy=COMMANDS)
def round_() -> None:
    """Let agents make a deployment faster, and the judge decide what of it counts

    A round measures, plans, explores, integrates, tunes, and ends with a sealed final, entries and a branch of the
    system.  Its journal is the reference refs/spt/round/NAME; whatever ends it, `spt round resume` goes on.

    \b
    Example:
      spt round start --agent sweep --agent memory
      spt round status
    """

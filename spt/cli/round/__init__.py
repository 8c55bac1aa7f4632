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
    "checkout": ("spt.cli.round.checkout:checkout", "Open a round's best, or a direction's work, in a worktree"),
    "pack": ("spt.cli.round.pack:pack", "Put the jobs that a round waits for into one tar, for another machine"),
    "unpack": ("spt.cli.round.unpack:unpack", "Take such jobs out of a tar, or the samples that came back"),
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

"""spt round status"""

import click

from spt.cli.round.named import round_argument


@click.command()
@round_argument
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON on standard output.")
def status(name: str | None, as_json: bool) -> None:
    """Say where a round stands: its phase, what became of its directions, what it spent

    \b
    Example:
      spt round status
      spt round status smol-1 --json
    """
    from spt.cli.output import print_json, say
    from spt.cli.round.named import named_round
    from spt.cli.round.shown import show_state
    from spt.round.show import as_json as told
    from spt.round.working import is_at_work, state_of

    journal = named_round(name)
    state, busy = state_of(journal), is_at_work(journal.store, journal.round)
    if as_json:
        print_json({**told(journal, state), "at_work": busy})
        return
    show_state(journal, state)
    if busy:
        say("a process works on it now")
    elif state.outcome is None:
        say("no process works on it: `spt round resume` goes on")

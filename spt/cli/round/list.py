"""spt round list"""

import click


@click.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print the list as JSON on standard output.")
def list_(as_json: bool) -> None:
    """List the rounds of this repository

    \b
    Example:
      spt round list
    """
    from pathlib import Path

    from spt.cli.output import print_json, say, table
    from spt.git.store import Store
    from spt.round.journal import Journal, rounds
    from spt.round.working import is_at_work, state_of

    store = Store.find(Path())
    rows = []
    for name in rounds(store):
        journal = Journal.open(store, name)
        state = state_of(journal)
        now = "at work" if is_at_work(store, name) else "stopped" if state.stopped else "not at work"
        outcome = state.outcome or f"{state.phase}, {now}"
        promoted = ", ".join(course.direction.id for course in state.promoted)
        rows.append((name, str(state.begun["deployment"]), outcome, promoted or "-", journal.events()[-1].date))
    if as_json:
        keys = ("round", "deployment", "outcome", "promoted", "date")
        print_json([dict(zip(keys, row, strict=True)) for row in rows])
    elif not rows:
        say("there is no round here: `spt round start` begins one")
    else:
        table(("round", "deployment", "outcome", "promoted", "date"), rows)

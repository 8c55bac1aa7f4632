"""spt round list"""

import click


@click.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print the list as JSON on standard output.")
def list_(as_json: bool) -> None:
    """List the rounds of this repository

    A journal that cannot be read is named on standard error, and left out.

    \b
    Example:
      spt round list
    """
    from pathlib import Path

    from spt.cli.output import print_json, say, table
    from spt.errors import SptError
    from spt.git.store import Store
    from spt.round.working import is_at_work, standing

    store = Store.find(Path())
    rows = []
    damaged: list[SptError] = []
    for journal, state in standing(store, damaged):
        name = journal.round
        now = "at work" if is_at_work(store, name) else "stopped" if state.stopped else "not at work"
        outcome = state.outcome or f"{state.phase}, {now}"
        promoted = ", ".join(course.direction.id for course in state.promoted)
        rows.append((name, str(state.begun["deployment"]), outcome, promoted or "-", journal.events()[-1].date))
    for error in damaged:
        say(f"warning: a round is left out: {error.message}")
    if as_json:
        keys = ("round", "deployment", "outcome", "promoted", "date")
        print_json([dict(zip(keys, row, strict=True)) for row in rows])
    elif not rows and not damaged:
        say("there is no round here: `spt round start` begins one")
    elif rows:
        table(("round", "deployment", "outcome", "promoted", "date"), rows)

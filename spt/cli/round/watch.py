"""spt round watch"""

import click

from spt.cli.round.named import round_argument


@click.command()
@round_argument
@click.option("--once", is_flag=True, help="Print what there is, and end.")
def watch(name: str | None, once: bool) -> None:
    """Follow a round as it goes: its journal, an event a line, until it ends or nobody works on it

    \b
    Example:
      spt round watch
    """
    import time
    from pathlib import Path

    from spt.cli.output import data
    from spt.cli.round.named import named_round
    from spt.git.store import Store
    from spt.round.journal import Journal
    from spt.round.working import is_at_work

    journal, shown = named_round(name), 0
    while True:
        busy = is_at_work(journal.store, journal.round)  # asked first: what it wrote last is read after
        journal = Journal.open(Store.find(Path()), journal.round)
        events = journal.events()
        for event in events[shown:]:
            data(f"{event.date} {event.phase}: {event.event}{_words(event.direction, event.data)}")
        shown = len(events)
        if once or not busy:
            return
        time.sleep(1.0)


def _words(direction: str | None, found: "dict[str, object]") -> str:
    """What of an event's data fits a line."""
    if "passed" in found:
        found = {**found, "passed": "passes" if found["passed"] else "no"}
    keys = ("state", "gate", "passed", "verdict", "outcome", "name", "kind", "branch", "title", "note", "reason")
    said = [str(found[key]) for key in keys if found.get(key)]
    return f"{'' if direction is None else f' {direction}'}{': ' if said else ''}{', '.join(said)[:160]}"

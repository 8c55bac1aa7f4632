"""The round that a command is about: the one that its user names, or the only one that can be meant."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from spt.round.journal import Journal

__all__ = ["named_round", "round_argument"]

round_argument = click.argument("name", required=False)


def named_round(name: str | None) -> "Journal":
    """The journal of a round; without a name the newest of those that have not ended, else the newest of all."""
    from spt.errors import Missing
    from spt.git.store import Store
    from spt.round.journal import Journal, rounds
    from spt.round.working import state_of

    store = Store.find(Path())
    if name is not None:
        return Journal.open(store, name)
    journals = [Journal.open(store, each) for each in rounds(store)]
    if not journals:
        raise Missing("there is no round here", "`spt round start` begins one")
    open_ = [journal for journal in journals if state_of(journal).outcome is None]
    return max(open_ or journals, key=lambda journal: journal.events()[-1].date)

"""The round that a command is about: the one that its user names, or the only one that can be meant."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from spt.round.journal import Journal

__all__ = ["jobs_folder", "named_round", "round_argument"]

round_argument = click.argument("name", required=False)


def named_round(name: str | None) -> "Journal":
    """The journal of a round; without a name the newest of those that have not ended, else the newest of all.

    What cannot be read is named and passed over, and is an error where there is nothing else.
    """
    from spt.cli.output import say
    from spt.errors import Missing, SptError
    from spt.git.store import Store
    from spt.round.journal import Journal
    from spt.round.working import standing

    store = Store.find(Path())
    if name is not None:
        return Journal.open(store, name)
    damaged: list[SptError] = []
    found = list(standing(store, damaged))
    if not found:
        raise damaged[0] if damaged else Missing("there is no round here", "`spt round start` begins one")
    for error in damaged:
        say(f"warning: a round is left out: {error.message}")
    open_ = [journal for journal, state in found if state.outcome is None]
    return max(open_ or [journal for journal, _ in found], key=lambda journal: journal.events()[-1].date)


def jobs_folder(word: str, *, new: bool = False) -> Path:
    """The folder of jobs that a word means: that of a round here, or a folder of its own where there is no git.

    new: a word that is neither names a folder that is to be made.
    """
    from spt.errors import SptError
    from spt.round.pack import BATCH

    if (Path(word) / BATCH).is_file() or Path(word).is_absolute() or "/" in word:
        return Path(word).absolute()
    try:
        from spt.round.bench import room_of
        from spt.round.far import jobs_of

        journal = named_round(word)
    except (SptError, ImportError):
        if new:
            return Path(word).absolute()
        raise
    return jobs_of(room_of(journal.store, journal.round))

"""A round's journal as a report reads it: each event with the commit that holds it, its numbers held to their kinds.

A journal may come from elsewhere (`spt round unpack`, a fetch): what is not there is None, what is of another kind than
it must be is one line of error, and a history that was rewritten is no journal.
"""

import hashlib
import io
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from spt.entry import check_name
from spt.errors import Usage
from spt.git.objects import Oid
from spt.git.store import Store
from spt.round.journal import Event, Journal

__all__ = ["Data", "Read", "Told", "read_round"]

_EVENTS = "events.jsonl"
_MOST = 1e15  # of any number; what is larger is damage, and would break the page
_MOST_RATIO = 1e6


@dataclass(frozen=True)
class Data:
    """A mapping of a journal, and its place in words."""

    values: dict[str, Any]
    where: str

    def text(self, name: str, default: str = "") -> str:
        value = self.values.get(name)
        if value is None:
            return default
        if not isinstance(value, str):
            raise self._wrong(name, "text")
        return value

    def word(self, name: str) -> str | None:
        """Text, or None where there is none."""
        return self.text(name) or None

    def flag(self, name: str, default: bool | None = None) -> bool | None:
        value = self.values.get(name)
        if value is not None and not isinstance(value, bool):
            raise self._wrong(name, "true or false")
        return default if value is None else value

    def number(self, name: str, least: float = -_MOST, most: float = _MOST) -> float | None:
        value = self.values.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise self._wrong(name, "a number")
        if not least <= value <= most:
            raise Usage(f"{self.where}: '{name}' is {value:.3g}, out of range")
        return value

    def amount(self, name: str) -> float | None:
        """A number that is not below zero: seconds, tokens, dollars."""
        return self.number(name, 0.0)

    def ratio(self, name: str) -> float | None:
        """A ratio of two times: above zero."""
        return self.number(name, 1 / _MOST_RATIO, _MOST_RATIO)

    def bounds(self, name: str) -> tuple[float, float] | None:
        """Both ends of an interval of ratios."""
        values = self.values.get(name)
        if values is None:
            return None
        if not isinstance(values, list) or len(values) != 2:
            raise self._wrong(name, "an interval")
        ends = Data({"low": values[0], "high": values[1]}, f"{self.where}: '{name}'")
        low, high = ends.ratio("low"), ends.ratio("high")
        return None if low is None or high is None else (low, high)

    def inner(self, name: str) -> "Data | None":
        value = self.values.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self._wrong(name, "a mapping")
        return Data(value, f"{self.where}: '{name}'")

    def items(self, name: str) -> list[Any]:
        value = self.values.get(name)
        if value is None:
            return []
        if not isinstance(value, list):
            raise self._wrong(name, "a list")
        return value

    def words(self, name: str) -> list[str]:
        """A list of texts."""
        found = self.items(name)
        if not all(isinstance(each, str) for each in found):
            raise self._wrong(name, "a list of texts")
        return found

    def _wrong(self, name: str, wanted: str) -> Usage:
        return Usage(f"{self.where}: '{name}' is not {wanted}")


@dataclass(frozen=True)
class Told:
    """One event, and the commit that added it."""

    event: Event
    commit: Oid
    data: Data

    @property
    def name(self) -> str:
        return self.event.event


@dataclass(frozen=True)
class Read:
    """A journal: its newest commit, and all that it tells, oldest first."""

    round: str
    tip: Oid
    told: tuple[Told, ...]


def read_round(store: Store, name: str) -> Read:
    """The journal of a round.  Missing where there is none; Usage where it is damaged or was rewritten."""
    journal = Journal.open(store, check_name(name))
    events, tip = journal.events(), journal.tip()
    if not events:
        raise Usage(f"{journal.reference} holds no event", "this is no journal of a round")
    commits = _commits(store, journal.reference, tip, len(events))
    told = [
        Told(event, commit, Data(event.data, f"{journal.reference}: event {event.seq} ({event.event})"))
        for event, commit in zip(events, commits, strict=True)
    ]
    return Read(name, tip, tuple(told))


def _commits(store: Store, reference: str, tip: Oid, events: int) -> list[Oid]:
    """The commit of each event, oldest first; Usage where one does not hold what its successors say that it held."""
    objects, found = store.objects, [tip]
    while parents := objects.commit(found[-1]).parents:
        if len(parents) != 1 or len(found) > events:
            break
        found.append(parents[0])
    if len(found) != events or objects.commit(found[-1]).parents:
        raise Usage(f"{reference}: its history is not a commit for each of its {events} events")
    found.reverse()
    for commit, blob in zip(found, _prefixes(store, tip), strict=True):
        state = objects.lookup(objects.commit(commit).tree, _EVENTS)
        if state is None or state.oid != blob:
            raise Usage(f"{reference}: commit '{commit[:12]}' holds other events than those after it: it was rewritten")
    return found


def _prefixes(store: Store, tip: Oid) -> Iterator[Oid]:
    """The blob id of the first event, of the first two, and so on: nothing is read to know what a commit must hold."""
    objects = store.objects
    state = objects.lookup(objects.commit(tip).tree, _EVENTS)
    assert state is not None  # the journal read it
    held = bytearray()
    for line in io.BytesIO(objects.blob(state.oid)):
        held += line
        digest = hashlib.sha1(b"blob %d\0" % len(held))
        digest.update(held)
        yield digest.hexdigest()

"""The journal of a round: `refs/spt/round/<id>`, a commit an event, each holding all events so far.

An event and the references that belong to it are published together, objects first; so whatever the journal names is
there, and what it does not name was not done.
"""

import json
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from spt.errors import Missing, Unsupported, Usage
from spt.formats import canonical, check, read_json, read_jsonl
from spt.git.message import TOOL
from spt.git.objects import FILE, Oid, State
from spt.git.store import Store
from spt.git.tree import splice
from spt.verdicts import now

__all__ = [
    "BESIDE",
    "BEST",
    "PHASES",
    "ROUNDS",
    "TREES",
    "TRY",
    "Event",
    "Journal",
    "beside_reference",
    "best_reference",
    "keep_composed",
    "rounds",
    "tree_reference",
    "try_reference",
]

ROUNDS = "refs/spt/round/"
BEST = "refs/spt/best/"
BESIDE = "refs/spt/beside/"
TREES = "refs/spt/trees/"
TRY = "refs/spt/try/"
PHASES = ("measure", "plan", "explore", "integrate", "tune", "final", "distil", "report")
_EVENTS, _SETTINGS = "events.jsonl", "round.yaml"


def best_reference(round_: str) -> str:
    """The reference of a round's current best."""
    return f"{BEST}{round_}"


def beside_reference(round_: str, direction: str) -> str:
    """The reference of a system that was promoted while another had become the best."""
    return f"{BESIDE}{round_}/{direction}"


def try_reference(round_: str, direction: str) -> str:
    """The reference of a direction's newest candidate."""
    return f"{TRY}{round_}/{direction}"


def tree_reference(round_: str, name: str) -> str:
    """The reference of a direction's system tree, or of the start's: it may be of no commit, where others' files lie
    beside the system, and git would remove it."""
    return f"{TREES}{round_}/{name}"


def keep_composed(store: Store, round_: str, direction: str, commit: Oid, tree: Oid) -> None:
    """Publishes what was composed in the controller, so that every handle on the repository finds it."""
    with store.locked():
        store.stage(try_reference(round_, direction), commit)
        store.stage(tree_reference(round_, direction), tree)
        store.publish(f"spt round {round_}: {direction}")


@dataclass(frozen=True)
class Event:
    """One line of a journal (spt/schemas/round_event.json)."""

    round: str
    seq: int
    phase: str
    event: str
    direction: str | None
    data: dict[str, Any]
    date: str

    def record(self) -> dict[str, Any]:
        return {"v": 1, "kind": "round_event", **vars(self)}

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> "Event":
        return cls(**{name: record[name] for name in cls.__dataclass_fields__})


def rounds(store: Store) -> list[str]:
    """The names of a repository's rounds, by name."""
    return [name.removeprefix(ROUNDS) for name in store.references(ROUNDS)]


class Journal:
    """One round's journal; what was read of it stays read, so one process writes it through one object.

    lock: who reads it and appends what follows from that holds it; several threads may write.
    """

    def __init__(self, store: Store, round_: str) -> None:
        self.store = store
        self.round = round_
        self.reference = f"{ROUNDS}{round_}"
        self._events: list[Event] = []
        self._tip: Oid | None = None
        self.lock = threading.RLock()

    @classmethod
    def open(cls, store: Store, round_: str) -> "Journal":
        """The journal of a round that there is; Missing where there is none."""
        journal = cls(store, round_)
        if store.reference(journal.reference) is None:
            there = ", ".join(rounds(store)) or "none"
            raise Missing(f"no round is called '{round_}'", f"there are: {there}")
        return journal

    def events(self) -> list[Event]:
        """All events so far, oldest first."""
        with self.lock:
            self._read()
            return list(self._events)

    def tip(self) -> Oid:
        """The newest commit."""
        self._read()
        assert self._tip is not None
        return self._tip

    def settings(self) -> dict[str, Any]:
        """What the round was started with."""
        self._read()
        where = f"{self.reference}:{_SETTINGS}"
        assert self._tip is not None
        state = self.store.objects.lookup(self.store.objects.commit(self._tip).tree, _SETTINGS)
        if state is None:
            raise Usage(f"{where} is not there", "this is no journal of a round")
        settings: dict[str, Any] = read_json(self.store.objects.blob(state.oid), where)
        return settings

    def begin(self, settings: Mapping[str, Any], data: Mapping[str, Any], references: Mapping[str, Oid]) -> Event:
        """Writes the first event, with the settings; Usage where the round is there already."""
        with self.store.locked():
            if self.store.reference(self.reference) is not None:
                raise Usage(f"there is a round '{self.round}' already", "`spt round resume` goes on with it")
            return self._put("measure", "begun", data, None, references, settings)

    def append(
        self,
        phase: str,
        event: str,
        data: Mapping[str, Any],
        direction: str | None = None,
        references: Mapping[str, Oid | None] | None = None,
    ) -> Event:
        """Appends an event, and moves the references in the same transaction.

        Unsupported where another process wrote to this journal meanwhile: two machines for one round are one too many.
        """
        with self.lock, self.store.locked():
            known = self._tip
            if known is not None and self.store.reference(self.reference) != known:
                raise Unsupported(f"another process writes to the round '{self.round}'", "wait for it, or stop it")
            self._read()
            return self._put(phase, event, data, direction, references or {}, None)

    def _put(
        self,
        phase: str,
        event: str,
        data: Mapping[str, Any],
        direction: str | None,
        references: Mapping[str, Oid | None],
        settings: Mapping[str, Any] | None,
    ) -> Event:
        objects = self.store.objects
        made = Event(self.round, len(self._events), phase, event, direction, dict(data), now())
        check(made.record(), "round_event", f"{self.reference}: event {made.seq}")
        lines = "".join(canonical(each.record()) + "\n" for each in (*self._events, made))
        states = {_EVENTS: State(FILE, objects.add_blob(lines.encode()))}
        if settings is not None:
            # JSON is YAML too, and keeps the types of numbers.
            text = json.dumps(settings, indent=1, sort_keys=True, allow_nan=False)
            states[_SETTINGS] = State(FILE, objects.add_blob(text.encode() + b"\n"))
        tree = splice(objects, None if self._tip is None else objects.commit(self._tip).tree, states)
        subject = f"{phase}: {event}" + (f" {direction}" if direction else "")
        message = f"{subject}\n\nSpt-Round: {self.round}\nSpt-Seq: {made.seq}\n"
        author = TOOL._replace(time_s=int(time.time()))
        commit = objects.add_commit(tree, [] if self._tip is None else [self._tip], author, message)
        self.store.stage(self.reference, commit)
        for name, oid in references.items():
            self.store.stage(name, oid)
        self.store.publish(f"spt round {self.round}: {subject}")
        self._events.append(made)
        self._tip = commit
        return made

    def _read(self) -> None:
        tip = self.store.reference(self.reference)
        if tip is None or tip == self._tip:
            return
        where = f"{self.reference}:{_EVENTS}"
        try:
            state = self.store.objects.lookup(self.store.objects.commit(tip).tree, _EVENTS)
        except (Usage, Missing) as error:
            raise type(error)(f"{self.reference}: {error.message}", error.hint) from None
        if state is None:
            raise Usage(f"{where} is not there", "this is no journal of a round")
        rows = read_jsonl(self.store.objects.blob(state.oid), where, "round_event")
        events = [Event.of(row) for row in rows]
        for number, event in enumerate(events):
            if (event.round, event.seq) != (self.round, number):
                raise Usage(f"{where}: line {number + 1} is event {event.seq} of '{event.round}'")
        if not events:
            raise Usage(f"{where} holds no event", "this is no journal of a round")
        self._events, self._tip = events, tip

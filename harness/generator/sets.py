"""Sets of requests: the same name, seed and index always make the same request, and no other.

A set's name, its seed, the sort of request and the index are the path of the dice, so sets share nothing.
A final's dice also get the secret: without it nobody can draw it before its time.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, count
from pathlib import Path
from typing import Any

from harness.errors import Usage
from harness.generator.conversation import session_turns, single_turn
from harness.generator.dice import Dice
from harness.generator.families import (
    advice,
    classification,
    explaining,
    extraction,
    functions,
    journeys,
    letters,
    lists,
    patterns,
    plans,
    queries,
    reading,
    repair,
    rewrite,
    sharing,
    shopping,
    stories,
    summary,
    tables,
    translation,
)
from harness.generator.family import Family
from harness.generator.scene import Scene
from harness.generator.sealed import minutes, recipes, seating, settings
from harness.generator.sealed.words import SEALED
from harness.generator.words import OPEN

__all__ = ["FAMILIES", "FINAL", "SEALED_FAMILIES", "SETS", "Set", "digest"]

FINAL = "final"
SETS = ("warmup", "development", "confirmation", "force", FINAL)
_OPEN_MODULES = (
    advice, classification, explaining, extraction, functions, journeys, letters, lists, patterns, plans, queries,
    reading, repair, rewrite, sharing, shopping, stories, summary, tables, translation,
)  # fmt: skip
FAMILIES = {module.FAMILY.name: module.FAMILY for module in _OPEN_MODULES}
SEALED_FAMILIES = {module.FAMILY.name: module.FAMILY for module in (minutes, recipes, seating, settings)}
MIXED = "mixed"
SHORTEST_TOK, LONGEST_TOK = 15, 1500
_TURN_TOK = 40  # the least that a turn and its answer take on average; more turns than fit do no harm
_SESSION_OPENING_TOK = 48  # longer ones make a small model loop
_LONG_LETTERS = 300  # an opening of that many has a dozen slots and more


@dataclass(frozen=True)
class Set:
    """A set of requests without end.

    name: one of SETS.  salt: the secret of a final, else empty.  families: names; none of them means all.
    longest_tok: of a prompt, roughly.
    """

    name: str
    seed: int
    salt: bytes = b""
    families: Sequence[str] = ()
    longest_tok: int = LONGEST_TOK
    _all: dict[str, Family] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.name not in SETS:
            raise Usage(f"no set is called '{self.name}'", f"the sets are {', '.join(SETS)}")
        if bool(self.salt) != (self.name == FINAL):
            raise Usage(f"the set '{self.name}' {'wants a' if self.name == FINAL else 'has no'} secret")
        if self.longest_tok < SHORTEST_TOK:
            raise Usage(f"prompts of at most {self.longest_tok} tokens are too short: {SHORTEST_TOK} is the least")
        there = {**FAMILIES, **(SEALED_FAMILIES if self.name == FINAL else {})}
        for family in self.families:
            if family not in there:
                raise Usage(f"no family of the set '{self.name}' is called '{family}'", f"it has {', '.join(there)}")
        object.__setattr__(self, "_all", {name: there[name] for name in self.families or there})

    def single(self, index: int, **changes: Any) -> dict[str, Any]:
        """A request of one turn (docs/records.md, `request`); `changes` are further fields of it."""
        family, _, source = self._start("single", index, self.longest_tok)
        return {
            "v": 1,
            "kind": "request",
            "id": self._id("single", index),
            "category": family.name,
            "turns": [next(source)],
            **({"max_tokens": family.answer_tok} if family.answer_tok else {}),
            **changes,
        }

    def session(self, index: int, context_tok: int = 5120, cap_tok: int = 128) -> dict[str, Any]:
        """A session (docs/records.md, `session`): turns enough to fill `context_tok`, answers of at most `cap_tok`."""
        family, mixed, source = self._start("session", index, min(_SESSION_OPENING_TOK, self.longest_tok))
        turns: list[str] = []
        while sum(len(turn) // 4 for turn in turns) + _TURN_TOK * len(turns) < context_tok:
            turns.append(next(source))
        return {
            "v": 1,
            "kind": "session",
            "id": self._id("session", index),
            "turns": turns,
            "family": MIXED if mixed else family.name,
            "cap_tok": cap_tok,
            "context_tok": context_tok,
        }

    def _start(self, sort: str, index: int, longest_tok: int) -> tuple[Family, bool, Iterator[str]]:
        """The family of a conversation, whether others mix in, and its turns without end."""
        # Whole rounds of families, each in its own order, so that any group of requests is of many sorts.
        root = self._root(sort)
        turn, place = divmod(index, len(self._all))
        family = Dice(*root, "round", turn).shuffled(sorted(self._all))[place]
        dice = Dice(*root, "size", index)
        size_tok = dice.log_between(SHORTEST_TOK, longest_tok)
        words = SEALED if family in SEALED_FAMILIES or (self.name == FINAL and dice.chance(50)) else OPEN
        mixed = sort == "session" and len(self._all) > 1 and dice.chance(50)
        for attempt in count():
            scene = Scene(words, size_tok, *root, family, index, attempt)
            turns = self._turns(self._all[family], scene, sort, mixed)
            opening = next(turns)
            # Few slots can be filled alike by chance, so a short opening goes only where its own hash says.
            if len(opening) > _LONG_LETTERS or share(opening, len(SETS)) == SETS.index(self.name):
                return self._all[family], mixed, chain([opening], turns)
        raise AssertionError("count() has no end")

    def _turns(self, family: Family, scene: Scene, sort: str, mixed: bool) -> Iterator[str]:
        if sort == "single":
            return iter([single_turn(family, scene)])
        others = [self._all[name] for name in sorted(self._all) if name != family.name]
        mates = scene.sample(others, min(len(others), scene.between(2, 4))) if mixed else []
        return session_turns([family, *mates], scene)

    def _id(self, sort: str, index: int) -> str:
        # An id goes over the wire: it must not tell an engine which set it is asked from.
        return hashlib.sha256(json.dumps([*self._root(sort), index]).encode()).hexdigest()[:16]

    def _root(self, sort: str) -> tuple[str | int, ...]:
        return self.name, self.salt.hex(), self.seed, sort


def share(text: str, shares: int) -> int:
    """Which of so many shares a text belongs to, by its hash: from 0 on."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") % shares


def digest() -> str:
    """sha256 over the generator's source: sorted lines `<sha256 of the file>  <path>\\n` of its Python files."""
    root = Path(__file__).parent
    lines = [
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(root).as_posix()}\n"
        for path in sorted(root.rglob("*.py"))
    ]
    return hashlib.sha256("".join(sorted(lines)).encode()).hexdigest()

"""A scene: what one conversation is about.  It fills templates, and remembers what it filled in.

A template is text with slots in braces.  `{given}` is a name that stays the same for the whole conversation, `{given2}`
another one; `{new_given}` is a fresh one, and `{given}` from then on.  `{a_tool}` has its article, `{goods}` is a
plural.  Numbers are `{n}` (2..9), `{nn}` (11..99), `{nnn}` (120..980), and `{price}`, `{year}`, `{month}`, `{weekday}`.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from harness.generator.dice import Dice
from harness.generator.grammar import a, capital, plural
from harness.generator.words import Words

__all__ = ["MONTHS", "WEEKDAYS", "Scene", "price"]

Item = TypeVar("Item")

MONTHS = (
    "January", "February", "March", "April", "May", "June",
    "July", "August", "September", "October", "November", "December",
)  # fmt: skip
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_SLOT = re.compile(r"\{(new_)?(a_)?([a-z]+)([0-9]*)\}")
_BRIEF = (
    "Answer in one sentence.",
    "Answer in two sentences.",
    "Two short sentences are enough.",
    "Be brief.",
    "A single line will do.",
    "Use at most {nn} words.",
    "Keep it under {nn} words.",
    "One sentence, please.",
    "Say it briefly.",
    "No more than two sentences.",
)
_LANGUAGES = ("Python", "JavaScript", "TypeScript", "Rust", "Go", "Java", "C", "C++", "Ruby", "Kotlin", "Swift", "Lua")
_PLURALS = {
    "goods": "good",
    "foods": "food",
    "animals": "animal",
    "plants": "plant",
    "records": "record",
}


def price(dice: Dice, low: int = 1, high: int = 40) -> str:
    """An amount of dollars and cents."""
    return f"${dice.between(low, high)}.{5 * dice.between(1, 19):02d}"


def _town(head: str, tail: str) -> str:
    return head.removesuffix(tail[0]) + tail if head[-2:] == 2 * tail[0] else head + tail


class Scene(Dice):
    """Dice with word lists, a length to aim for, and a memory."""

    def __init__(self, words: Words, size_tok: int, *path: str | int) -> None:
        super().__init__(*path)
        self.words = words
        self.size_tok = size_tok  # of the opening, roughly
        self.questions: list[str] = []  # about a passage that the conversation holds
        self._bound: dict[str, str] = {}
        self._used: dict[str, set[str]] = {}
        self._decks: dict[Sequence[object], Iterator[object]] = {}

    def fill(self, template: str) -> str:
        """A sentence: the template with all slots filled and a capital at the start."""
        return capital(self.phrase(template))

    def phrase(self, template: str) -> str:
        """The template with all slots filled."""
        return _SLOT.sub(self._slot, template)

    def deal(self, templates: Sequence[str]) -> str:
        """The next of these templates, filled; none comes again before all others came."""
        return self.fill(self.next_of(templates))

    def next_of(self, items: Sequence[Item]) -> Item:
        """The next of these items; none comes again before all others came."""
        deck = self._decks.setdefault(items, self.deck(items))
        return next(deck)  # type: ignore[return-value]  # a deck deals what it was made of

    def renew(self, *slots: str) -> None:
        """Fresh values for these slots."""
        for slot in slots:
            self._bound[slot] = self.fresh(slot.rstrip("0123456789"))

    def fresh(self, kind: str) -> str:
        """A value of this kind that the scene has not used, as long as there is one."""
        used = self._used.setdefault(kind, set())
        for _ in range(20):
            if (value := self._make(kind)) not in used:
                break
        used.add(value)
        return value

    def several(self, kind: str, number: int) -> list[str]:
        """So many different values of this kind."""
        return [self.fresh(kind) for _ in range(number)]

    def value(self, slot: str) -> str:
        """What stands for this slot in this conversation."""
        if slot not in self._bound:
            self.renew(slot)
        return self._bound[slot]

    def _slot(self, match: re.Match[str]) -> str:
        new, article, kind, digit = match.groups()
        many = kind in _PLURALS
        kind = _PLURALS.get(kind, kind)
        if kind == "brief":
            return self.fill(self.pick(_BRIEF))
        name = kind + digit
        if new:
            self.renew(name)
        value = self.value(name)
        return a(value) if article else plural(value) if many else value

    def _make(self, kind: str) -> str:
        if kind in _MADE:
            return _MADE[kind](self)
        values: tuple[str, ...] = getattr(self.words, kind)
        return self.pick(values)


_MADE: dict[str, Callable[[Scene], str]] = {
    "n": lambda scene: str(scene.between(2, 9)),
    "nn": lambda scene: str(scene.between(11, 99)),
    "nnn": lambda scene: str(scene.between(120, 980)),
    "price": price,
    "year": lambda scene: str(scene.between(1820, 2019)),
    "month": lambda scene: scene.pick(MONTHS),
    "weekday": lambda scene: scene.pick(WEEKDAYS),
    "full": lambda scene: f"{scene.pick(scene.words.given)} {scene.pick(scene.words.surname)}",
    "town": lambda scene: _town(scene.pick(scene.words.town_head), scene.pick(scene.words.town_tail)),
    "language": lambda scene: scene.pick(_LANGUAGES),
    "letter": lambda scene: scene.pick("aeilnorst"),
    "clock": lambda scene: f"{scene.between(7, 20)}:{scene.pick((0, 5, 10, 15, 20, 25, 30, 35, 40, 45, 50, 55)):02d}",
    "date": lambda scene: f"{scene.between(4, 20)}th",
    "ending": lambda scene: scene.pick(scene.words.town_tail),
    "code": lambda scene: f"{scene.pick('ABCDEFGHKLMNPRTVWXZ')}{scene.pick('ACEHKRTX')}-{scene.between(1000, 9999)}",
}

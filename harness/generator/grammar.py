"""The little English that templates need."""

from collections.abc import Sequence

__all__ = ["a", "capital", "count", "listing", "plural"]

_VOWEL_SOUND = ("hour", "heir", "honest", "honour", "x-ray", "8", "11", "18")
_CONSONANT_SOUND = ("one", "once", "uni", "use", "usual", "eu", "ukulele", "utensil")
_IRREGULAR = {
    "child": "children",
    "goose": "geese",
    "half": "halves",
    "knife": "knives",
    "leaf": "leaves",
    "loaf": "loaves",
    "mouse": "mice",
    "person": "people",
    "potato": "potatoes",
    "scarf": "scarves",
    "sheep": "sheep",
    "shelf": "shelves",
    "tomato": "tomatoes",
}


def a(noun: str) -> str:
    """The noun with `a` or `an`, by its sound."""
    word = noun.lower()
    vowel = word.startswith(_VOWEL_SOUND) or (word[0] in "aeiou" and not word.startswith(_CONSONANT_SOUND))
    return f"{'an' if vowel else 'a'} {noun}"


def plural(noun: str) -> str:
    """The plural of a noun; of several words the last one changes."""
    head, space, last = noun.rpartition(" ")
    return head + space + _plural(last)


def _plural(word: str) -> str:
    if word in _IRREGULAR:
        return _IRREGULAR[word]
    if word.endswith(("s", "x", "ch", "sh", "z")):
        return word + "es"
    if word.endswith("y") and word[-2] not in "aeiou":
        return word[:-1] + "ies"
    return word + "s"


def count(number: int, noun: str) -> str:
    """`1 pen`, `2 pens`."""
    return f"{number} {noun if number == 1 else plural(noun)}"


def listing(items: Sequence[str], last: str = "and") -> str:
    """`a`, `a and b`, `a, b and c`."""
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} {last} {items[-1]}"


def capital(text: str) -> str:
    """The text with its first letter in upper case."""
    return text[:1].upper() + text[1:]

"""Small puzzles of order: who sits where, who came when."""

from harness.generator.family import Family
from harness.generator.grammar import listing
from harness.generator.prose import notes
from harness.generator.scene import Scene

__all__ = ["FAMILY"]

_FRAMES = (
    "sit in a row at the {new_place}",
    "stand in a queue before the {new_event}",
    "live in one street of {new_town}, one house each",
    "finished a race in {new_town}, one after the other",
    "own one {new_good} each, all of different ages",
)
_CLUES = (
    "{0} comes before {1}.",
    "{1} is next to {0}.",
    "{0} is neither first nor last.",
    "Exactly one person is between {0} and {1}.",
    "{1} comes right after {0}.",
    "{0} is not next to {1}.",
    "The one with {a_good} comes before {0}.",
    "{0} was here at {new_clock}, before {1}.",
)
_ASK = ("Who comes last?", "Who can be first?", "Is there more than one answer?", "Give one order that fits.")
_FOLLOW = (
    "What changes if {new_given} joins at the end? {brief}",
    "Which clue is not needed? {brief}",
    "Check your last answer against the first clue. {brief}",
    "Swap the first two. Which clue breaks? {brief}",
    "Add a clue about {a_animal}. One sentence.",
    "How many orders are there without any clue? {brief}",
    "{new_given} says that it has no answer. Is that so? {brief}",
    "Who could hold {a_good}? {brief}",
    "Explain the first step to {a_trade}. {brief}",
    "Invent a clue that names {new_town}. One sentence.",
)


def _opening(scene: Scene) -> str:
    names = scene.several("given", max(3, min(scene.size_tok // 30, 12)))
    clues = []
    for clue in scene.sample(_CLUES, min(len(_CLUES), len(names))):
        first, second = scene.sample(names, 2)
        clues.append(scene.fill(clue.replace("{0}", first).replace("{1}", second)))
    head = scene.fill(f"{listing(names)} {scene.pick(_FRAMES)}.")
    return f"{notes(scene, scene.size_tok - 120)}{head} {' '.join(clues)} {scene.pick(_ASK)}"


FAMILY = Family("seating", "the puzzle", _opening, lambda scene: scene.deal(_FOLLOW))

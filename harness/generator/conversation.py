"""What families' templates are put together to: requests of one turn, and sessions of many."""

from collections.abc import Iterator, Sequence

from harness.generator.asides import aside
from harness.generator.family import Family
from harness.generator.scene import Scene

__all__ = ["session_turns", "single_turn"]

# What fits after any answer; the rest of a conversation is the family's own.
_ABOUT_ANSWERS = (
    "Say your last answer again in {new_nn} words or fewer.",
    "Which part of your last answer are you least sure of? {brief}",
    "Explain your last answer to {a_trade} named {new_given}. {brief}",
    "Give your last answer a title of {new_n} words.",
    "Was your last answer about {new_hobby}? Answer yes or no, and say why in one sentence.",
    "What question could {new_given} ask next? Write only the question.",
    "Name one thing that your last answer leaves out. {brief}",
    "Turn the main point of your last answer into a question.",
)
# Before a short request: there are not enough short ones for everybody.
_LEADS = (
    "{new_full} wants to know this. ",
    "A question from {new_full} in {new_town}. ",
    "Hello, {new_given} here, writing from {new_town}. ",
    "This is for {a_trade} in {new_town}. ",
    "I am {new_a_trade} from {new_town}. ",
    "Good morning from {new_town}! ",
    "{new_full} and I could not agree on this. ",
    "It is {new_clock} in {new_town}, so be quick. ",
    "I ask for my neighbour {new_full}. ",
    "My name is {new_full}. ",
    "Please help {new_given}, {new_a_trade}. ",
)
_SHORT_LETTERS, _LED_PERCENT = 150, 80
_SHORT_ANSWERS = ("Two sentences are enough.", "Keep it to one sentence.", "One short line will do.", "Be very brief.")
_ABOUT_PERCENT, _BACK_PERCENT = 12, 40


def single_turn(family: Family, scene: Scene) -> str:
    """A request that stands alone, with a lead where it is short."""
    opening = family.opening(scene)
    led = len(opening) < _SHORT_LETTERS and scene.chance(_LED_PERCENT)
    return (scene.deal(_LEADS) if led else "") + opening


def session_turns(families: Sequence[Family], scene: Scene) -> Iterator[str]:
    """User turns without end: asides, and now and then a request of the next family and a turn that builds on it.

    No turn comes twice: a model that is asked the same again says the same again.
    """
    asked: set[str] = set()
    for turn in _turns(families, scene):
        if turn not in asked:
            asked.add(turn)
            yield turn


def _turns(families: Sequence[Family], scene: Scene) -> Iterator[str]:
    longest_tok = scene.size_tok
    opened: set[str] = set()
    while True:
        for family in families:
            # Sound answers first: what a model says later, it says in their manner.
            for _ in range(scene.between(5, 9)):
                yield aside(scene)
            if family.name in opened and scene.chance(_BACK_PERCENT):
                yield f"Back to {family.label}. {family.follow(scene)}"
                continue
            opened.add(family.name)
            scene.size_tok = scene.between(15, max(16, longest_tok))
            opening = family.opening(scene)
            yield opening if "\n" in opening else f"{opening} {scene.deal(_SHORT_ANSWERS)}"
            yield scene.deal(_ABOUT_ANSWERS) if scene.chance(_ABOUT_PERCENT) else family.follow(scene)

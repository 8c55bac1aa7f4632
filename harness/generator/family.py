"""A template family: how a conversation of one sort opens, and how it goes on."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from harness.generator.asides import aside
from harness.generator.scene import Scene

__all__ = ["Family"]

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
# Before a short opening: there are not enough short ones for everybody.
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


@dataclass(frozen=True)
class Family:
    """`opening` writes a request that stands alone, `follow` one that builds on what was said."""

    name: str
    label: str  # as in "back to ..."
    opening: Callable[[Scene], str]
    follow: Callable[[Scene], str]

    def single(self, scene: Scene) -> str:
        """A request that stands alone, with a lead where it is short."""
        opening = self.opening(scene)
        led = len(opening) < _SHORT_LETTERS and scene.chance(_LED_PERCENT)
        return (scene.deal(_LEADS) if led else "") + opening

    def turns(self, scene: Scene) -> Iterator[str]:
        """User turns without end: requests, each with turns that build on it and asides.

        No turn comes twice: a model that is asked the same again says the same again.
        """
        asked: set[str] = set()
        for turn in self._turns(scene):
            if turn not in asked:
                asked.add(turn)
                yield turn

    def _turns(self, scene: Scene) -> Iterator[str]:
        size = scene.size_tok
        while True:
            yield self.single(scene)
            for _ in range(scene.between(1, 2)):
                yield scene.deal(_ABOUT_ANSWERS) if scene.chance(12) else self.follow(scene)
            for _ in range(scene.between(6, 10)):
                yield aside(scene)
            scene.size_tok = scene.log_between(15, max(16, size))

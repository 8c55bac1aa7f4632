"""A passage to be shortened."""

from harness.generator.family import Family
from harness.generator.prose import passage
from harness.generator.scene import Scene

__all__ = ["FAMILY"]

_ASK = (
    "Summarise this in one sentence.",
    "Summarise this in {n} sentences.",
    "What is this text about? {brief}",
    "Give the {n} most important facts, one a line.",
    "Write a headline and a subtitle for this.",
    "Summarise this for {a_trade} who has no time. {brief}",
    "Which {n} words describe this text best?",
    "Sum up what it says about people, and leave out everything else.",
    "Write an abstract of at most {nn} words.",
)
_FOLLOW = (
    "Now without any names. {brief}",
    "What did you leave out? {brief}",
    "Which of the facts would {new_given} care about most? {brief}",
    "Shorten your last answer to {new_n} words.",
    "Give one keyword for the text and one for your answer.",
    "Here is more of it. Sum up this part in one sentence.\n\n",
    "And this part? {brief}\n\n",
    "Does this change your summary? {brief}\n\n",
    "Is the tone friendly? {brief}",
    "What would {a_trade} from {new_town} want to know next? {brief}",
    "Is {new_given} named in the text? Answer yes or no.",
    "Name the first place that the text names.",
)


def _opening(scene: Scene) -> str:
    scene.renew("n", "nn", "trade")
    text = passage(scene, max(50, scene.size_tok - 15))
    ask = scene.deal(_ASK)
    return f"{ask}\n\n{text}" if scene.chance(50) else f"{text}\n\n{ask}"


def _follow(scene: Scene) -> str:
    turn = scene.deal(_FOLLOW)
    return turn + passage(scene, scene.between(40, 120)) if turn.endswith("\n") else turn


FAMILY = Family("summary", "the summary", _opening, _follow, answer_tok=48)

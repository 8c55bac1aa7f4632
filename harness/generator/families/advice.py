"""Talk: somebody tells what happened and asks what to do."""

from harness.generator.family import Family
from harness.generator.prose import passage
from harness.generator.scene import Scene

__all__ = ["FAMILY"]

_STORIES = (
    "My neighbour {given} borrowed my {tool} and brought it back broken.",
    "I started {hobby} {n} weeks ago and have lost my patience.",
    "I promised {given} {nn} {foods} for the {event} and have only {n}.",
    "{given} and I both want to lead the group for {hobby} in {town}.",
    "Our {device} makes a noise at {clock} every {weekday}.",
    "I was asked to speak at the {event} and know nothing about {animals}.",
    "I found {a_good} with the name {full} in it on the way to {town}.",
    "My boss at the {place} wants me to work on {weekday} again.",
    "I paid {price} for {a_good} that {given} calls ugly.",
    "{given} the {trade} sent a bill of ${nnn} for work that took {nn} minutes.",
    "I am new in {town} and know nobody but {a_trade}.",
    "The children want {a_animal}, and I do not.",
)
_ASK = (
    "What should I say?",
    "What would you do?",
    "How do I stay friendly?",
    "Is that normal?",
    "Where should I begin?",
    "Should I wait until {month}?",
    "Can you calm me down?",
    "Whom could I ask?",
)
_FOLLOW = (
    "I tried that, and {given} only laughed. What now? {brief}",
    "What if it happens again on {new_weekday}? {brief}",
    "Would {a_trade} see it the same way? {brief}",
    "Give me one sentence that I can say to {new_given}.",
    "That sounds hard. What is the smallest step? {brief}",
    "By the way, do you know {new_topic}? {brief}",
    "Something else: I need a name for {a_animal}. Give me one, with a reason.",
    "Something else: is {new_hobby} expensive? {brief}",
    "Something else: what can I cook with {new_n} {new_foods} and {new_material}? {brief}",
    "I am in {new_town} until {new_clock}. What could I do there? {brief}",
    "My friend {new_full} says the opposite. Who is right? {brief}",
    "Fine. And how much should I spend on {a_good} as a present? {brief}",
    "Tell me something cheerful about {new_animals}. {brief}",
    "Do you remember what I told you first? {brief}",
)


def _opening(scene: Scene) -> str:
    scene.renew("given", "tool", "hobby", "n", "nn", "nnn", "food", "event", "town", "device", "clock", "weekday")
    scene.renew("animal", "good", "full", "place", "price", "trade", "month")
    story = scene.deal(_STORIES)
    if scene.size_tok < 120:
        return f"{story} {scene.deal(_ASK)}"
    return f"{story} Here is what you should know.\n\n{passage(scene, scene.size_tok - 60)}\n\n{scene.deal(_ASK)}"


FAMILY = Family("advice", "what I told you", _opening, lambda scene: scene.deal(_FOLLOW), answer_tok=48)

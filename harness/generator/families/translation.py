"""Translations, into languages and into made-up codes."""

from harness.generator.family import Family
from harness.generator.prose import passage
from harness.generator.scene import Scene

__all__ = ["FAMILY"]

_INTO = (
    "Translate into French",
    "Translate into Spanish",
    "Write in capital letters",
    "Write with the words in reverse order",
    "Replace each number by its word",
    "Leave out every article",
    "Put a dash in place of every vowel",
    "Replace each name by its first letter",
    "Write as a telegram, with STOP after each sentence",
    "Translate into plain English for beginners",
    "Put every noun into brackets",
)
_SENTENCES = (
    "{new_given} has {new_n} {new_goods} and lives in {new_town}.",
    "The {new_place} opens on {new_weekday} at {new_clock}.",
    "My {new_colour} {new_good} is in the {new_place}.",
    "We need {new_nn} {new_foods} for the {new_event}.",
    "{new_full} is {new_a_trade} and likes {new_hobby}.",
    "Where can I buy {a_tool} in {new_town}?",
    "Please do not feed the {new_animals}.",
    "The {new_device} costs {new_price} and is {new_quality}.",
    "In {new_month} {new_given} planted {a_plant}.",
    "There were {new_nnn} people at the {new_event}.",
    "{new_given} forgot the {new_material}, so {new_given2} had to wait.",
)
_FOLLOW = (
    "Now this one: ",
    "The same for: ",
    "Next: ",
    "Do it with this: ",
    "{into}: ",
    "{into}: ",
    "Which word of your last answer was the hardest? {brief}",
    "Turn your last answer back into English.",
    "How would {a_trade} say it? One sentence.",
    "How do you say {a_good} in the same way? One line.",
    "Make a question out of your last answer.",
)


def _opening(scene: Scene) -> str:
    if scene.size_tok > 120:
        return f"{scene.next_of(_INTO)}:\n\n{passage(scene, scene.size_tok - 10)}"
    sentences = [scene.deal(_SENTENCES) for _ in range(max(1, scene.size_tok // 18))]
    return f"{scene.next_of(_INTO)}: {' '.join(sentences)}"


def _follow(scene: Scene) -> str:
    turn = scene.fill(scene.next_of(_FOLLOW).replace("{into}", scene.next_of(_INTO)))
    return turn + scene.deal(_SENTENCES) if turn.endswith(": ") else turn


FAMILY = Family("translation", "the translations", _opening, _follow, answer_tok=48)

"""A passage to be told otherwise."""

from harness.generator.family import Family
from harness.generator.prose import passage
from harness.generator.scene import Scene

__all__ = ["FAMILY"]

_ASK = (
    "Rewrite this in the present tense.",
    "Rewrite this as if {new_given} told it.",
    "Make this more formal.",
    "Make this sound friendly, for a leaflet.",
    "Rewrite this with half as many words.",
    "Rewrite this for readers of {nn} years.",
    "Turn this into an advertisement of {n} sentences.",
    "Rewrite this as a diary entry of {month}.",
    "Rewrite this without any numbers.",
    "Turn this into a message to {new_given} of at most {nn} words.",
    "Rewrite this so that it starts with the {place}.",
)
_FOLLOW = (
    "Rewrite only the first sentence, for {a_trade}.",
    "Say the last sentence in {new_nn} words or fewer.",
    "Replace {new_given} by a neighbour from {new_town} and give one sentence of it.",
    "Now the same as a headline.",
    "Which sentence is the longest? Split it into two.",
    "Write one more sentence about {a_animal}, in the same tone.",
    "Rewrite this sentence in the passive: {new_given} carries {new_n} {new_goods} to the {new_place}.",
    "Rewrite this sentence politely: {new_given}, bring back my {new_tool}.",
    "Rewrite this as a question: the {new_event} in {new_town} was moved to {new_weekday}.",
    "Shorten this: due to the fact that the {new_device} was {new_quality}, {new_full} was not able to use it.",
    "Give the opposite of this: {new_given} always sells {new_foods} in {new_month}.",
    "Join these: {new_given} likes {new_hobby}. {given} lives in {new_town}. {given} has {a_good}.",
    "Make this more exciting: {a_trade} from {new_town} found {new_nn} {new_goods} in the {new_place}.",
    "Which word would you change in your last answer? {brief}",
)
_SHORT = (
    "Rewrite this politely: {given}, give me back the {good} today.",
    "Rewrite this in the past tense: {given} sells {n} {goods} to {a_trade} from {town}.",
    "Say this in other words: the {event} in {town} begins at {clock}.",
    "Make this shorter: at this point in time {full} owns a total of {nn} {animals}.",
)


def _opening(scene: Scene) -> str:
    if scene.size_tok < 50:
        scene.renew("given", "good", "n", "nn", "trade", "town", "event", "clock", "full", "animal")
        return scene.deal(_SHORT)
    ask = scene.deal(_ASK)
    text = passage(scene, scene.size_tok - 15)
    return f"{ask}\n\n{text}" if scene.chance(60) else f"{text}\n\n{ask}"


FAMILY = Family("rewrite", "the text", _opening, lambda scene: scene.deal(_FOLLOW), answer_tok=48)

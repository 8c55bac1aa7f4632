"""Letters and messages to write."""

from harness.generator.family import Family
from harness.generator.prose import passage
from harness.generator.scene import Scene

__all__ = ["FAMILY"]

_TASKS = (
    "Write a letter to the {place} in {town}: the {device} bought for {price} does not work.",
    "Write a letter in which {full} applies for work as {a_trade}.",
    "Write an invitation to the {event} on {weekday} at {clock}.",
    "Write a message to {given}: {n} {goods} are missing from parcel {code}.",
    "Write a letter to {full} that turns down an offer of {price} for {a_good}.",
    "Write a note for the neighbours about {nn} guests and some {hobby} in the yard.",
    "Write a letter of thanks to {given}, {a_trade}, for help with the {animals}.",
    "Write to the town of {town} and ask for {a_plant} in front of the {place}.",
    "Write a reminder: {full} owes {price} since {month}.",
    "Write a letter that ends a contract, number {code}, in {month}.",
    "Write an apology from {given} to {given2} about the {colour} {good}.",
)
_FORM = (
    "",
    "Keep it formal.",
    "At most {nn} words.",
    "Be friendly.",
    "Three short sentences.",
    "Leave out the address.",
    "Sign it as {full2}.",
    "Mention the {event}.",
    "No greeting.",
    "Ask for an answer by {weekday}.",
)
_FOLLOW = (
    "Give me another first sentence, for {a_trade}.",
    "Write only the subject line.",
    "{new_given} answered: no, not before {new_month}. Reply in one sentence.",
    "Replace the date by {new_weekday} at {new_clock}, and show only that sentence.",
    "Which sentence is too hard? Make it softer.",
    "Write the same as a text message of {new_nn} words.",
    "Who else should get a copy? {brief}",
    "Add a sentence about {a_good}, and show only that.",
    "How should {new_full} be addressed? {brief}",
    "What should not be in such a letter? {brief}",
    "Write a new note of two sentences: the {new_place} in {new_town} stays closed on {new_weekday}.",
    "Write a new note of two sentences: {new_given} found {a_tool} at the {new_event}.",
    "Write a closing line with the word {new_good} in it.",
)


def _opening(scene: Scene) -> str:
    scene.renew("place", "town", "device", "price", "full", "full2", "trade", "event", "weekday", "clock", "given", "n")
    scene.renew("given2", "good", "code", "nn", "hobby", "animal", "plant", "month", "colour")
    form = " ".join(filter(None, map(scene.fill, scene.sample(_FORM, scene.between(0, 3)))))
    task = f"{scene.deal(_TASKS)} {form}".rstrip()
    if scene.size_tok < 120:
        return task
    return f"{task} Use what is useful of this:\n\n{passage(scene, scene.size_tok - 50)}"


FAMILY = Family("letters", "the letter", _opening, lambda scene: scene.deal(_FOLLOW), answer_tok=48)

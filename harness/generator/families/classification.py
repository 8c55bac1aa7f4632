"""Short texts to be sorted into classes."""

from harness.generator.family import Family
from harness.generator.scene import Scene

__all__ = ["FAMILY"]

_CLASSES = (
    ("praise", "complaint", "question"),
    ("urgent", "can wait"),
    ("sales", "repairs", "accounts", "other"),
    ("true", "false", "unknown"),
    ("positive", "negative", "mixed"),
    ("food", "travel", "household", "leisure"),
    ("request", "offer", "report"),
    ("formal", "casual"),
)
_TEXTS = (
    "The {new_device} broke after {new_n} days and {new_given} never called back.",
    "Best {new_foods} in {new_town}, and only {new_price}!",
    "Could you tell me whether the {new_place} opens at {new_clock}?",
    "I would like to return {new_n} {new_goods}, they are too {new_quality}.",
    "{new_given} was kind, but the {new_event} started an hour late.",
    "Selling {a_good}, {new_colour}, hardly used, {new_price}.",
    "Where do I find the bill {new_code}?",
    "The {new_animals} of {new_full} are loose on the road to {new_town}!",
    "We had {new_nn} guests for {new_hobby}, and all of them came back.",
    "My {new_tool} is as {new_quality} as ever; nothing to add.",
    "It says {new_nnn} on the box, yet I counted {new_nn}.",
    "Thank you for the {new_colour} {new_good}, {new_given} loves it.",
    "The course in {new_hobby} moves to {new_weekday}.",
    "I have never seen so much {new_material} in one {new_place}.",
    "Please send {new_a_trade} to the {new_place} before {new_clock}, there is smoke.",
)
_FOLLOW = (
    "And this one? One word.\n\n",
    "Which class does this belong to, and how sure are you? {brief}\n\n",
    "Would {new_given} agree with you on this? {brief}\n\n",
    "Change one word so that this falls into another class.\n\n",
    "Which words decided your last answer? {brief}",
    "Suggest one more class, for texts about {new_hobby}. {brief}",
    "Write a text of one sentence about {a_good} that is hard to sort.",
    "Which class will be the most frequent in {new_town}? {brief}",
    "Explain the first class to {a_trade}. {brief}",
    "Write a text for the last class, about {new_animals}. One sentence.",
)


def _opening(scene: Scene) -> str:
    classes = scene.shuffled(scene.pick(_CLASSES))
    names = ", ".join(classes[:-1]) + f" or {classes[-1]}"
    number = max(1, min(scene.size_tok // 22, 60))
    if number == 1:
        return f"Is this {names}?\n\n{scene.deal(_TEXTS)}"
    lines = [f"{index}. {scene.deal(_TEXTS)}" for index in range(1, number + 1)]
    return f"Sort each of these into one of the classes {names}.\n\n" + "\n".join(lines)


def _follow(scene: Scene) -> str:
    turn = scene.deal(_FOLLOW)
    return turn + scene.deal(_TEXTS) if turn.endswith("\n") else turn


FAMILY = Family("classification", "the classes", _opening, _follow)

"""Lists to make: ideas, names, pros and cons, things to take along."""

from harness.generator.family import Family
from harness.generator.prose import notes
from harness.generator.scene import Scene

__all__ = ["FAMILY"]

_TASKS = (
    "List {n} ideas for the {event} in {town}.",
    "Name {n} uses for {a_good} that is no longer needed.",
    "List {n} things that {a_trade} needs on the first day.",
    "Give {n} names for a club that is about {hobby}.",
    "List {n} reasons for and {n2} against a second {place} in {town}.",
    "What should {given} pack for {nn} days of {hobby}? Make a list of {n} things.",
    "Write {n} questions that {given} should ask before buying a used {device}.",
    "Name {n} gifts below {price} for {a_trade} who likes {hobby}.",
    "List {n} foods that go well with {foods}.",
    "Give {n} rules for visitors of the {place}.",
    "List {n} mistakes that beginners make in {hobby}.",
    "Suggest {n} titles for a book about {animals} in {town}.",
    "Name {n} things that can be made of {material}.",
)
_LAYOUT = ("", "", "Use bullet points.", "Number them.", "Separate them with commas.", "Each must fit on one line.")
_RULES = (
    "",
    "At most {nn} words each.",
    "Start each with a verb.",
    "Sort them by cost.",
    "Put the best one first.",
    "No explanations.",
    "None of them may cost more than {price2}.",
    "{given} must like them.",
    "Think of {a_trade}.",
    "Leave out what everybody in {town2} knows.",
)
_FOLLOW = (
    "Choose the best one for {a_trade}. {brief}",
    "Replace the second one by something about {new_hobby}. {brief}",
    "Which of them would {new_given} leave out? {brief}",
    "Explain the first one to a visitor from {new_town}. {brief}",
    "Add one that has to do with {new_animals}.",
    "Which one costs the least? {brief}",
    "Now name {new_n} that need {a_tool}. Only the names, with commas.",
    "Say the third one in other words.",
    "What would {new_full}, {new_a_trade}, add? {brief}",
    "Is there one that children could do alone? {brief}",
    "Which two of them belong together? {brief}",
    "New topic: list {new_n} {new_colour} things, separated by commas.",
    "New topic: name {new_n} words that rhyme with {new_good}, or nearly so.",
    "What is missing if it has to work in {new_month}? {brief}",
)


def _opening(scene: Scene) -> str:
    scene.renew("n", "n2", "nn", "event", "town", "good", "trade", "hobby", "place", "given", "device", "price")
    scene.renew("price2", "town2", "food", "animal", "material")
    parts = (scene.deal(_TASKS), scene.pick(_LAYOUT), scene.deal(_RULES))
    return notes(scene, scene.size_tok - 40) + " ".join(filter(None, parts))


FAMILY = Family("lists", "the list", _opening, lambda scene: scene.deal(_FOLLOW), answer_tok=64)

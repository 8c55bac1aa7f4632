"""Word problems about distance, speed and time."""

from harness.generator.family import Family
from harness.generator.prose import notes
from harness.generator.scene import Scene

__all__ = ["FAMILY"]

_SHORT = (
    "A train needs {nn} minutes for {n} stops. How long does it need for {nn2} stops?",
    "{given} cycles {nn} kilometres in {n} hours. What is the average speed?",
    "How far does a boat sail in {n} hours at {nn} kilometres an hour?",
    "A bus leaves {town} at {clock} and needs {nnn} minutes. When does it arrive?",
)
_LEGS = (
    "walks {new_n} kilometres at {new_n2} kilometres an hour",
    "cycles for {new_nn} minutes at {new_nn2} kilometres an hour",
    "takes a train that covers {new_nnn} kilometres in {new_n} hours",
    "waits {new_nn} minutes for {new_given2}",
    "drives {new_nn} kilometres at {new_nn2} kilometres an hour",
    "rests for {new_nn} minutes near the {new_place}",
    "takes a ferry that needs {new_nnn} minutes for {new_nn} kilometres",
    "rides a tram past {new_n} stops, {new_n2} minutes each",
)
_QUESTIONS = (
    "How long does the whole journey take?",
    "What distance is it in all?",
    "What is the average speed of the whole journey?",
    "When does {given} arrive?",
    "Which part of the journey is the fastest?",
)
_FOLLOW = (
    "What if the last part took {new_nn} minutes longer? {brief}",
    "{new_given2} starts {new_nn} minutes later and moves {new_n} times as fast. Who is first? {brief}",
    "Give the time of the first part in minutes only.",
    "The way back is {new_nn} kilometres longer. How far is it there and back? {brief}",
    "Convert the distance to miles. {brief}",
    "{given} stops at the {new_place} for {new_nn} minutes. When is the arrival now? {brief}",
    "Why does rest not change the distance? {brief}",
    "Write the average speed as a fraction.",
    "At {new_nn} kilometres an hour, how long would all of it take? {brief}",
    "What should {given} take along for such a trip besides {a_good}? {brief}",
    "The road through {new_town} is closed, which adds {new_n} kilometres. How much later is it? {brief}",
)


def _opening(scene: Scene) -> str:
    if scene.size_tok < 50:
        scene.renew("given", "town", "clock", "n", "nn", "nn2", "nnn")
        return scene.deal(_SHORT)
    start = scene.fill("{new_given} leaves {new_town} at {new_clock}. ")
    words = ("First", *scene.sample(("Then", "After that,", "Next,", "Later"), 4))
    legs = [scene.fill(f"{word} {{given}} {scene.next_of(_LEGS)}.") for word in words[: scene.between(2, 5)]]
    return notes(scene, scene.size_tok - 110) + start + " ".join(legs) + " " + scene.deal(_QUESTIONS)


FAMILY = Family("journeys", "the journey", _opening, lambda scene: scene.deal(_FOLLOW), answer_tok=64)

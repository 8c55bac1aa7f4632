"""Things to explain and to compare."""

from harness.generator.family import Family
from harness.generator.prose import notes
from harness.generator.scene import Scene

__all__ = ["FAMILY"]

_TASKS = (
    "Explain {topic} to {a_trade}.",
    "Explain {topic} in {n} sentences.",
    "{given} asks {topic}. What do you say to a child of {n2} years?",
    "Compare {a_device} with {a_tool}: what do they have in common?",
    "What is the difference between {a_animal} and {a_animal2}?",
    "Why would somebody in {town} prefer {a_good} to {a_good2}?",
    "Explain {topic}, and use {a_food} as an example.",
    "Which is better for {hobby}: {a_good} or {a_device}?",
    "What does {a_trade} have to know about {material}?",
    "Tell {given} two things about {plants} that are hard to believe.",
    "What would change in {town} if there were no {animals}?",
)
_FOLLOW = (
    "Give an example with {a_good}. {brief}",
    "What do people often get wrong about it? {brief}",
    "Now explain {new_topic}. {brief}",
    "And {new_topic}? {brief}",
    "How could {new_given} test that at home with {a_food}? {brief}",
    "Which word in your answer needs an explanation? {brief}",
    "How is that different from {new_hobby}? {brief}",
    "Say it as a comparison with {a_device}. {brief}",
    "What has {a_animal} to do with it? {brief}",
    "Ask me one question about it.",
    "I say it has to do with {new_material}. Am I right? {brief}",
    "Would it be the same in {new_month}? {brief}",
    "New topic: what does {new_a_trade} do before {new_clock}? {brief}",
)


def _opening(scene: Scene) -> str:
    scene.renew("topic", "trade", "n", "n2", "given", "device", "tool", "animal", "animal2", "town", "good", "good2")
    scene.renew("food", "hobby", "material", "plant")
    tail = scene.fill(scene.pick((" {brief}", "", "", " Use the text above where it helps.")))
    before = notes(scene, scene.size_tok - 40)
    return before + scene.deal(_TASKS) + (tail if before or "above" not in tail else "")


FAMILY = Family("explaining", "the explanation", _opening, lambda scene: scene.deal(_FOLLOW), answer_tok=48)

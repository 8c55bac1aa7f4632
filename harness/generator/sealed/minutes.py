"""Transcripts of talks: who wants what, and what was agreed."""

from harness.generator.family import Family
from harness.generator.scene import Scene

__all__ = ["FAMILY"]

_SAID = (
    "We should buy {a_device} before {new_month}.",
    "{new_nn} {new_goods} are too many if you ask me.",
    "The {new_place} in {new_town} would be cheaper.",
    "I can do it on {new_weekday} at {new_clock}.",
    "Who pays the {new_price}?",
    "Agreed, as long as {new_given2} writes it down.",
    "No, the {new_material} has not come.",
    "{new_full} wants {new_n} more for the {new_event}.",
    "Let us vote. I am against it.",
    "Nobody told me about the {new_animals}.",
    "I will call {new_given2} tomorrow.",
    "That was settled in {new_year}.",
    "Then the paint must be {new_colour}.",
    "Is {new_hobby} on the list, or not?",
    "My {new_tool} is yours, if it helps.",
)
_ASK = (
    "Write the minutes of this in {n} lines.",
    "What was agreed? {brief}",
    "Who has to do what? One line a person.",
    "Who is against it, and why? {brief}",
    "Sum up what {first} said. {brief}",
    "Which question is still open? {brief}",
)
_FOLLOW = (
    "{first} adds: {said} Does that change anything? {brief}",
    "Write a reminder for {first}. One sentence.",
    "What would {new_given}, who was not there, ask? {brief}",
    "Which day was named? One word.",
    "Say what {first} meant, politely. {brief}",
    "{new_given} joins: {said} Answer for {first}.",
    "Give the talk a title.",
    "How should {a_trade} act on it? {brief}",
    "What does it cost in all? {brief}",
    "Write the next line of the talk, for {first}.",
)


def _filled(scene: Scene, template: str) -> str:
    said = scene.deal(_SAID) if "{said}" in template else ""
    return scene.fill(template.replace("{said}", said).replace("{first}", scene.value("given")))


def _opening(scene: Scene) -> str:
    scene.renew("given", "n")
    names = [scene.value("given"), *scene.several("given", scene.between(1, 3))]
    lines = [f"{scene.pick(names)}: {scene.deal(_SAID)}" for _ in range(max(2, min(scene.size_tok // 18, 80)))]
    ask = _filled(scene, scene.next_of(_ASK))
    return f"{ask}\n\n" + "\n".join(lines)


FAMILY = Family("minutes", "the talk", _opening, lambda scene: _filled(scene, scene.next_of(_FOLLOW)))

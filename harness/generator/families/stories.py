"""Short stories to begin, to continue and to end."""

from harness.generator.family import Family
from harness.generator.prose import passage
from harness.generator.scene import Scene

__all__ = ["FAMILY"]

_TASKS = (
    "Write the first {n} sentences of a story about {a_trade} from {town} and {a_animal}.",
    "Write a short story in which {given} loses {a_good} at the {event}.",
    "Invent a legend about the {place} of {town}. At most {nn} words.",
    "Write a dialogue between {given} and {given2} about {a_device}. {n} lines.",
    "Describe {a_quality} room with {n} {goods} in it.",
    "Write a poem of {n} lines about {animals} in {month}.",
    "Write a scene at {clock}: {full} opens {a_colour} box.",
    "Tell what happened in {town} on a {weekday} in {year}, as an old {trade} would.",
)
_FOLLOW = (
    "What does {new_given} say next? One sentence.",
    "Now {a_animal} comes in. Go on with two sentences.",
    "Suddenly the {new_device} stops. Go on with two sentences.",
    "Describe the {new_place} in one sentence.",
    "Give the story a title.",
    "Let it end in {new_town}, in two sentences.",
    "Why did {new_full} keep quiet? {brief}",
    "Write what {new_given} finds in the {new_colour} {new_good}. {brief}",
    "Tell the last part from the side of {a_trade}. {brief}",
    "A letter with the number {new_code} arrives. What is in it? {brief}",
    "It is {new_weekday} now. What has changed? {brief}",
    "Start another story, about {new_n} {new_plants}. Two sentences.",
    "Start another story, about {new_hobby} and {new_material}. Two sentences.",
)


def _opening(scene: Scene) -> str:
    scene.renew("n", "nn", "trade", "town", "animal", "given", "given2", "good", "event", "place", "device", "quality")
    scene.renew("month", "clock", "full", "colour", "weekday", "year")
    task = scene.deal(_TASKS)
    if scene.size_tok < 120:
        return task
    return f"{passage(scene, scene.size_tok - 40)}\n\n{task} Let it play among these people."


FAMILY = Family("stories", "the story", _opening, lambda scene: scene.deal(_FOLLOW), answer_tok=48)

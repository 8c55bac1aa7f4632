"""Plans: what to do first, what next, who does what."""

from harness.generator.family import Family
from harness.generator.prose import notes
from harness.generator.scene import Scene

__all__ = ["FAMILY"]

_TASKS = (
    "Plan the {event} in {town} for {nnn} visitors.",
    "Plan how {given} can learn {hobby} in {nn} days.",
    "Plan the move of the {place} to {town}.",
    "Plan how to repair {a_device} with {a_tool} and {material}.",
    "Plan a day in {town} for {n} people, one of them {a_trade}.",
    "Plan how to sell {nnn} {goods} in {month}.",
    "Plan how to bring {nn} {animals} to {town} safely.",
    "Plan a week of work for {a_trade} and {n} helpers.",
    "Plan how to paint the {place} {colour} in {n} days.",
    "Plan how to save {price} a week on {foods}.",
)
_LIMITS = (
    "Give {n} steps.",
    "One line a step.",
    "Say how long each step takes.",
    "There are only {nn} hours.",
    "The money ends at ${nnn}.",
    "{full} cannot come on {weekday}.",
    "It rains all week.",
    "Start with the most urgent step.",
    "Nobody may lift anything heavy.",
    "Each step must start with a verb.",
    "At most {nn2} words in all.",
)
_FOLLOW = (
    "Which step takes the longest? {brief}",
    "{new_given} is ill. Who takes over the first step? {brief}",
    "What could go wrong in the second step? {brief}",
    "Which tool is needed first, besides {a_tool}? {brief}",
    "Write the message that tells {new_full} about the plan. Two sentences.",
    "Move everything to {new_weekday}. What changes? {brief}",
    "There are {new_n} helpers more. Which step would you give them? {brief}",
    "What should be bought in {new_town}? Name {new_n} things with commas.",
    "How will {a_trade} know that it is done? {brief}",
    "Drop one step. Which, and why? {brief}",
    "What happens at {new_clock}? {brief}",
    "Plan something else now: lunch for {new_n} guests with {new_foods}. Three short lines.",
    "Plan something else now: an hour of {new_hobby} for {new_n} children. Three short lines.",
)


def _opening(scene: Scene) -> str:
    scene.renew("event", "town", "nnn", "given", "hobby", "nn", "place", "device", "tool", "material", "n", "trade")
    scene.renew("good", "month", "animal", "colour", "price", "food", "full", "weekday", "nn2")
    limits = " ".join(map(scene.fill, scene.sample(_LIMITS, scene.between(0, 4))))
    return notes(scene, scene.size_tok - 60) + f"{scene.deal(_TASKS)} {limits}".rstrip()


FAMILY = Family("plans", "the plan", _opening, lambda scene: scene.deal(_FOLLOW), answer_tok=48)

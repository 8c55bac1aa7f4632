"""Recipes to scale, to change and to put in order."""

from harness.generator.family import Family
from harness.generator.grammar import plural
from harness.generator.prose import notes
from harness.generator.scene import Scene

__all__ = ["FAMILY"]

_AMOUNTS = ("{new_nnn} grams of {item}", "{new_n} {item}", "{new_nn} grams of {item}", "half a cup of {item}")
_ASK = (
    "It serves {new_n}. How much of everything is needed for {new_nn} guests?",
    "{new_given} has only half of the first item. Scale the rest.",
    "Write the recipe with ounces.",
    "Which item is the heaviest? {brief}",
    "{new_given} does not eat {new_foods}. What would you take instead?",
    "In which order would you use them? One line.",
)
_FOLLOW = (
    "Double only the {new_food}. {brief}",
    "What can be prepared on {new_weekday}? {brief}",
    "Name the dish after {new_full}. One name.",
    "Where does {new_given} put it to cool? {brief}",
    "Could {a_trade} eat it at {new_clock}? {brief}",
    "Which drink goes with it in {new_month}? {brief}",
    "What does it cost if all of it costs {new_price} for {new_n}? {brief}",
    "Replace the last item. {brief}",
    "Write a warning for guests who cannot eat {new_foods}.",
    "How would you serve it at the {new_event}? {brief}",
)


def _opening(scene: Scene) -> str:
    items = [plural(food) for food in scene.several("food", max(2, min(scene.size_tok // 14, 14)))]
    lines = [scene.fill(scene.pick(_AMOUNTS).replace("{item}", item)) for item in items]
    head = scene.fill("{new_given} from {new_town} cooks for the {new_event} with this:")
    body = "; ".join(lines) if scene.chance(40) else "\n" + "\n".join(f"- {line}" for line in lines)
    return f"{notes(scene, scene.size_tok - 200)}{head} {body}".replace(": \n", ":\n") + "\n" + scene.deal(_ASK)


FAMILY = Family("recipes", "the recipe", _opening, lambda scene: scene.deal(_FOLLOW))

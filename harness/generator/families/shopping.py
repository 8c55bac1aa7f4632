"""Word problems about money: what is bought, what comes back, what is left."""

from harness.generator.family import Family
from harness.generator.grammar import listing, plural
from harness.generator.prose import notes
from harness.generator.scene import Scene

__all__ = ["FAMILY"]

_ENDINGS = (
    "How much does {given} pay in all?",
    "How much change does {given} get from a bill of $500?",
    "{new_given2} pays {nn} % of it. How much is left for {given}?",
    "A coupon takes {n}0 % off. What does {given} pay?",
    "The next day everything costs {price2} more. What would it cost then?",
    "{given} has ${nn2} in cash and borrows the rest from {given2}. How much is borrowed?",
)
_SHORT = (
    "{given} buys {n} {goods} at {price} each and pays with a bill of $500. How much change is there?",
    "A pack of {n} {goods} costs {price}. What do {nn} packs cost?",
    "{given} saves {price} a week. How much is it after {nn} weeks?",
    "{given} sells {nn} {foods} at {price} each and gives {n} away. How much money comes in?",
)
_FOLLOW = (
    "Now {given} buys {new_n} more. What changes in the total? {brief}",
    "Suppose that each costs {new_price} instead. What is the new total? {brief}",
    "{new_given2} pays for {new_n} of them. How much is left to pay? {brief}",
    "Write the sum as one formula, without words.",
    "Round the total to whole dollars. {brief}",
    "There is a delivery fee of {new_price}. Add it and give only the result.",
    "Could {given} afford it with ${new_nn}? Answer yes or no with a reason of one sentence.",
    "How would {given} check that the total is right? {brief}",
    "What would {a_trade} have paid with a discount of {new_n} %? {brief}",
    "Name another thing that {given} could buy at the {new_place} with the rest. {brief}",
    "If {new_given2} returned {new_n} of them, how much money would come back? {brief}",
)


def _opening(scene: Scene) -> str:
    if scene.size_tok < 50:
        scene.renew("given", "good", "food", "price", "n", "nn")
        return scene.deal(_SHORT)
    kinds = scene.several("good", scene.between(2, 5))
    bought = [scene.fill(f"{scene.between(2, 30)} {plural(kind)} at {{new_price}} each") for kind in kinds]
    head = scene.fill("{new_given} goes shopping in {new_town} and buys ") + listing(bought) + ". "
    tail = scene.pick((" Show each step.", " Explain how you get there.", " {brief}", ""))
    return notes(scene, scene.size_tok - 80) + head + scene.deal(_ENDINGS) + scene.fill(tail)


FAMILY = Family("shopping", "the shopping sums", _opening, lambda scene: scene.deal(_FOLLOW), answer_tok=48)

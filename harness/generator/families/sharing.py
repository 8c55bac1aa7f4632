"""Word problems about parts of a whole: fractions, ratios, ages, mixtures."""

from harness.generator.family import Family
from harness.generator.prose import notes
from harness.generator.scene import Scene

__all__ = ["FAMILY"]

_PROBLEMS = (
    "{given} and {given2} share {nnn} {goods} in the ratio {n} to {n2}. How many does each get?",
    "{given} is {nn} years old and {given2} is {n} years younger. In how many years will they be {nnn} together?",
    "A barrel holds {nnn} litres. {given} fills {n} tenths of it with water. How many litres are missing?",
    "Of {nnn} visitors at the {event}, one in {n} came from {town}. How many came from elsewhere?",
    "{given} mixes {nn} grams of {material} with {nn2} grams of {material2}. Which share is {material}?",
    "{n} {animals} eat {nn} kilograms of hay in {n2} days. How much do {nn2} of them eat in {n3} days?",
    "A rope of {nnn} metres is cut into pieces of {n} metres. How many pieces are there, and what is left?",
    "{given} reads {nn} pages a day, {given2} reads {n} pages more. After how many days have they read {nnn} pages?",
    "A garden is {nn} metres long and {nn2} metres wide. A path takes {nnn} square metres. What is left for {plants}?",
    "Each of {nn} boxes holds {nn2} {foods}, and one in {n} is spoiled. How many good ones are there?",
    "{nnn} {goods} weigh {nn} kilograms in all. What do {nn2} of them weigh?",
    "{given} paints {n} chairs in {n2} hours, {given2} paints {n3} in {n4} hours. Who is faster?",
)
_FOLLOW = (
    "Double the first number and solve it again. {brief}",
    "Which of the numbers could be left out? {brief}",
    "{new_given} gets {new_n} times the share of {new_given2}. What would that be in parts of one hundred? {brief}",
    "Give the result as a decimal number.",
    "Draw up the equation and nothing else.",
    "Suppose {new_given} takes {new_nn} away before the start. What is the result then? {brief}",
    "Is the result more than {new_nnn}? Answer yes or no.",
    "Make up a similar problem about {new_animals}, without its solution.",
    "Make up a similar problem for {a_trade} in {new_town}. Two sentences, no solution.",
    "What is the remainder when {new_nnn} is divided by {new_n}? {brief}",
    "How would you explain the first step to a child of {new_n} years? {brief}",
)


def _opening(scene: Scene) -> str:
    number = max(1, min(scene.size_tok // 60, 12))
    problems = [_problem(scene) for _ in range(number)]
    if number == 1:
        return problems[0]
    head = scene.pick(("Solve these problems.", "Please work through these.", "Give only the results, one a line."))
    return notes(scene, scene.size_tok - 60 * number) + "\n".join(
        [head, *(f"{index}. {problem}" for index, problem in enumerate(problems, start=1))]
    )


def _problem(scene: Scene) -> str:
    scene.renew("given", "given2", "n", "n2", "n3", "n4", "nn", "nn2", "nnn", "good", "animal", "material", "food")
    return scene.deal(_PROBLEMS)


FAMILY = Family("sharing", "the problems about shares", _opening, lambda scene: scene.deal(_FOLLOW))

"""Small programs to write, in several languages."""

from harness.generator.family import Family
from harness.generator.prose import notes
from harness.generator.scene import Scene

__all__ = ["FAMILY"]

_KEEP = (
    "those whose {field} is above {nnn}",
    "those with an even {field}",
    "those whose {field} lies between {nn} and {nnn}",
    "the first {n} of them",
    "those whose name starts with a capital letter",
    "those that were changed in {month}",
    "each one only once",
    "those without a {field}",
)
_GIVE = (
    "returns the sum of each {field2}",
    "returns the one with the largest {field2}",
    "sorts them by {field2}, largest first",
    "groups them by the last digit of {field2}",
    "returns the median {field2}",
    "counts how often each {field2} occurs",
    "prints one line each, with {field2} in {n} columns",
    "returns their names, joined by commas",
    "returns the mean {field2}, or zero where there is none",
    "splits them into pages of {nn}",
)
_RULES = (
    "Do not use a library.",
    "An empty list is allowed.",
    "Do not change what comes in.",
    "Give the function a short comment.",
    "Names should be in lower case.",
    "It should run in linear time.",
    "Ties keep their order.",
    "A negative {field} is an error.",
    "Use at most {nn} lines.",
    "Show only the code.",
    "Add one example call.",
    "At most {nnn} {records} come in.",
)
_SHORT = (
    "Write {a_language} function that returns the {n} {records} with the largest {field}.",
    "Write {a_language} function that counts the letter '{letter}' in the names of {records}.",
    "Write {a_language} function that adds {nn} to the {field} of each {record}.",
    "Write {a_language} function that tells whether the {field} of {a_record} can be divided by {n} but not by {nn}.",
    "Write {a_language} function that prints the {field} of {a_record} {n} times, with a dash in between.",
    "Write {a_language} function that finds the first {record} whose {field} is above {nnn}.",
)
_FOLLOW = (
    "What does it return when the list is empty? {brief}",
    "Rename its argument to {new_records} and show only the first line.",
    "Which line would you change if {new_field} were missing? {brief}",
    "How long does it take for {new_nnn} {records}? {brief}",
    "Write one test for it, in one line.",
    "Which name would suit the function better? {brief}",
    "What goes wrong if {new_field} is negative? {brief}",
    "Describe what it does to {a_trade}, without any code. {brief}",
    "Write a helper that doubles {new_field}. Only {new_n} lines.",
    "Say in one sentence how {new_language} would do it differently.",
    "Write a comment for it of at most {new_nn} words.",
    "Does it need more memory for {new_nnn} items? {brief}",
)


def _opening(scene: Scene) -> str:
    if scene.size_tok < 40:
        scene.renew("language", "letter", "record", "field", "n", "nn", "nnn")
        return scene.deal(_SHORT)
    scene.renew("record", "field", "field2", "language", "n", "nn", "nnn")
    what = f"keeps {scene.next_of(_KEEP)} and {scene.next_of(_GIVE)}"
    task = f"Write {{a_language}} function that takes {{records}}, {what}. "
    rules = scene.sample(_RULES, scene.between(0, 4))
    return notes(scene, scene.size_tok - 100) + scene.fill(task + " ".join(rules)).rstrip()


FAMILY = Family("functions", "the program", _opening, lambda scene: scene.deal(_FOLLOW), answer_tok=48)

"""Regular expressions and other patterns of text."""

from harness.generator.family import Family
from harness.generator.scene import Scene

__all__ = ["FAMILY"]

_MATCH = (
    "codes such as {new_code}",
    "times such as {new_clock}",
    "prices such as {new_price}",
    "years from {new_year} on",
    "words that start with '{new_letter}' and end with '{letter2}'",
    "lines that name {new_given} but not {new_given2}",
    "numbers of exactly {new_n} digits",
    "a town that ends in '{new_ending}'",
    "the word {new_good} with or without an s",
    "lines of at most {new_nn} letters",
    "file names such as {new_record}_{new_nnn}.csv",
    "any of the words {new_animal}, {new_animal2} and {new_animal3}",
)
_FOLLOW = (
    "Does it also match {new_code}? {brief}",
    "Does it match {new_price}? Answer yes or no.",
    "Which part of it matches the digits? {brief}",
    "Make it ignore upper and lower case. Show only the pattern.",
    "Write a text of one line that it does not match.",
    "What does the first sign of it mean? {brief}",
    "Now one for {match}. Show only the pattern.",
    "And one that finds {match}? One line.",
    "How would {language} use it? One line of code.",
    "Explain it to {a_trade}. {brief}",
    "What is the shortest text that it matches?",
    "Could {new_given} do the same without a pattern? {brief}",
)


def _with_match(scene: Scene, template: str) -> str:
    return scene.fill(template.replace("{match}", scene.next_of(_MATCH)))


def _opening(scene: Scene) -> str:
    scene.renew("language")
    ask = scene.pick(
        (
            "Write a regular expression that matches {match}.",
            "I search a log for {match}. Which pattern do I need in {language}?",
            "Give a {language} pattern for {match}, and one example.",
            "Which regular expression finds {match} and also {match2}?",
        )
    )
    ask = ask.replace("{match2}", scene.phrase(scene.next_of(_MATCH)))
    lines = [_line(scene) for _ in range((scene.size_tok - 40) // 25)]
    text = "" if not lines else "\n\nThis is a part of the text:\n\n" + "\n".join(lines)
    return _with_match(scene, ask) + text


def _line(scene: Scene) -> str:
    return scene.fill("{new_clock} {new_code} {new_given} took {new_n} {new_goods} to {new_town}, {new_price}")


FAMILY = Family(
    "patterns", "the pattern", _opening, lambda scene: _with_match(scene, scene.next_of(_FOLLOW)), answer_tok=48
)

"""Settings files to read, to convert and to correct."""

from harness.generator.family import Family
from harness.generator.prose import notes
from harness.generator.scene import Scene

__all__ = ["FAMILY"]

_ASK = (
    "Convert this into {form}.",
    "Explain each line of this in a few words.",
    "Set the {field} of the {record} to {nnn} and show the section.",
    "Which of these values looks wrong? {brief}",
    "Sort the keys of each section.",
    "{given} wants this without the {record}. Show what is left.",
    "Write this as environment variables.",
)
_FORMS = ("JSON", "YAML", "TOML", "an INI file", "a table", "command line options")
_FOLLOW = (
    "Add a key for the {new_field}, and show only that line.",
    "What would {new_nnn} mean for the {new_record}? {brief}",
    "Write a comment above the first section, for {a_trade}.",
    "Which key would you make required? {brief}",
    "Rename the first key to {new_field}. Show only its line.",
    "What if the owner is {new_full}? Show only the line.",
    "Is {new_nn} seconds too long for a timeout? {brief}",
    "Name a key for the {new_colour} {new_device}. One word.",
    "Turn the last section into {form}.",
    "How would {language} read this? One line.",
)
_LINES = (
    'owner = "{new_full}"',
    'town = "{new_town}"',
    "timeout = {new_nn}",
    "retries = {new_n}",
    'start = "{new_clock}"',
    'day = "{new_weekday}"',
    'colour = "{new_colour}"',
    'token = "{new_code}"',
)


def _section(scene: Scene) -> str:
    scene.renew("record", "field", "nnn")
    lines = [line[0].lower() + line[1:] for line in map(scene.fill, scene.sample(_LINES, scene.between(2, 6)))]
    return "\n".join([f"[{scene.value('record')}]", f"{scene.value('field')} = {scene.value('nnn')}", *lines])


def _opening(scene: Scene) -> str:
    sections = [_section(scene) for _ in range(max(1, min(scene.size_tok // 60, 8)))]
    scene.renew("given", "nnn")
    ask = scene.fill(scene.next_of(_ASK).replace("{form}", scene.pick(_FORMS)))
    return f"{notes(scene, scene.size_tok - 480)}{ask}\n\n" + "\n\n".join(sections)


FAMILY = Family(
    "settings", "the settings", _opening,
    lambda scene: scene.fill(scene.next_of(_FOLLOW).replace("{form}", scene.pick(_FORMS))),
)  # fmt: skip

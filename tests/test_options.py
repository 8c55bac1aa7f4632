"""The rules of options, which three parts know: `spt` reads declarations, the harness words, the engine both.

One table holds them together: what one of them lets pass must not fail in the next.
"""

import pytest

from harness.errors import Usage as HarnessUsage
from harness.options import convert
from harness.wire import Option as WireOption
from spt.errors import Usage
from spt.git.objects import FILE, Objects, State
from spt.git.tree import splice
from spt.system import options_of
from stock.errors import EngineError
from stock.options import declared

GOOD, BAD = True, False
DECLARATIONS = [
    ("int", "4", "", GOOD),
    ("int", "4", "range = [1, 8]", GOOD),
    ("int", "4", "range = [4, 4]", GOOD),
    ("float", "0.5", "range = [0, 1]", GOOD),
    ("float", "1", "range = [0, 1]", GOOD),
    ("float", "1", "values = [1, 2.5]", GOOD),
    ("bool", "true", "", GOOD),
    ("string", '"a"', 'values = ["a", "b"]', GOOD),
    ("int", "4", "range = [8, 1]", BAD),
    ("int", "4", "range = [1]", BAD),
    ("int", "4", "range = [1, 2, 3]", BAD),
    ("int", "4", "range = 7", BAD),
    ("int", "4", 'range = ["a", "b"]', BAD),
    ("int", "4", "range = [true, 8]", BAD),
    ("int", "4", "range = [0, inf]", BAD),
    ("float", "0.5", "range = [nan, nan]", BAD),
    ("float", "0.5", "range = [0, nan]", BAD),
    ("string", '"a"', "range = [0, 1]", BAD),
    ("string", '"a"', 'range = ["a", "b"]', BAD),
    ("bool", "true", "range = [0, 1]", BAD),
    ("float", "nan", "", BAD),
    ("float", "inf", "", BAD),
    ("int", "9223372036854775808", "", BAD),
    ("int", "0x" + "f" * 5000, "", BAD),
    ("int", "4", "range = [0, 0x" + "f" * 5000 + "]", BAD),
    ("int", "4.0", "", BAD),
    ("int", "true", "", BAD),
    ("bool", "1", "", BAD),
    ("int", "1", 'values = [1, "b"]', BAD),
    ("int", "1", "values = [1, true]", BAD),
    ("int", "1", "values = 1", BAD),
    ("int", "1", "values = [2]", BAD),
    ("whole", "1", "", BAD),
]


def tree_of(objects, text):
    """A system tree whose one file declares options."""
    return splice(objects, None, {"stock/options/owner.toml": State(FILE, objects.add_blob(text.encode()))})


@pytest.mark.parametrize(("kind", "default", "more", "good"), DECLARATIONS)
def test_declarations(kind, default, more, good, tmp_path):
    """`spt` and the engine take and refuse the same declarations, and read the same out of them."""
    text = f'[x]\ntype = "{kind}"\ndefault = {default}\nmeaning = "words"\n{more}\n'
    (tmp_path / "owner.toml").write_text(text)
    objects = Objects()
    tree = tree_of(objects, text)
    if good:
        ours, theirs = declared(tmp_path)["x"], options_of(objects, tree)["x"]
        assert (ours.type, ours.default, ours.values, ours.range) == (
            theirs.type,
            theirs.default,
            theirs.values,
            theirs.span,
        )
    else:
        with pytest.raises(EngineError):
            declared(tmp_path)
        with pytest.raises(Usage):
            options_of(objects, tree)


NOTHING = object()
WORDS = [
    ("int", "4", 4),
    ("int", "-4", -4),
    ("int", "4.0", NOTHING),
    ("int", "four", NOTHING),
    ("int", "", NOTHING),
    ("int", "true", NOTHING),
    ("int", "0x10", NOTHING),
    ("float", "4", 4.0),
    ("float", "0.5", 0.5),
    ("float", "1e-05", 1e-05),
    ("float", "nan", NOTHING),
    ("float", "inf", NOTHING),
    ("float", "-inf", NOTHING),
    ("float", "1e400", NOTHING),
    ("float", "true", NOTHING),
    ("bool", "true", True),
    ("bool", "false", False),
    ("bool", "1", NOTHING),
    ("bool", "yes", NOTHING),
    ("string", "true", "true"),
    ("string", "4", "4"),
]
DEFAULTS = {"int": "1", "float": "1.0", "bool": "true", "string": '"a"'}


def write(folder, kind):
    """An options file with one option of the type; what `spt` and the engine read out of it."""
    text = f'[x]\ntype = "{kind}"\ndefault = {DEFAULTS[kind]}\nmeaning = "words"\n'
    (folder / "owner.toml").write_text(text)
    objects = Objects()
    return options_of(objects, tree_of(objects, text))["x"], declared(folder)["x"]


@pytest.mark.parametrize(("kind", "word", "value"), WORDS)
def test_words(kind, word, value, tmp_path):
    """A word means the same to `spt` and to the harness, and the engine takes what they make of it."""
    ours, theirs = write(tmp_path, kind)
    wire = {"x": WireOption(**theirs.describe())}
    if value is NOTHING:
        with pytest.raises(Usage):
            ours.value(word, "here")
        with pytest.raises(HarnessUsage):
            convert({"x": word}, wire)
        return
    converted = convert({"x": word}, wire)["x"]
    for found in (ours.value(word, "here"), converted, convert({"x": value}, wire)["x"], theirs.check(converted)):
        assert found == value
        assert type(found) is type(value)


@pytest.mark.parametrize("word", ["1_000", "1__0", " 4", "4 ", "\u0664"])
@pytest.mark.parametrize("kind", ["int", "float"])
def test_digits_are_plain(kind, word, tmp_path):
    """What only Python reads as a number is none."""
    _, theirs = write(tmp_path, kind)
    with pytest.raises(HarnessUsage):
        convert({"x": word}, {"x": WireOption(**theirs.describe())})

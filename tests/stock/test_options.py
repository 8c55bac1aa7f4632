"""Options: declared once, by owner, checked by type, values and range; seams by the modules that are there."""

import importlib
import pkgutil
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

import stock
from stock.errors import EngineError
from stock.options import SEAMS, declared, resolve, seam_module
from tests.stock.drive import load
from tests.stock.tiny import drafter_config, target_config, write_drafter, write_target

ROOT = Path(__file__).parents[2]


def refused(action, *arguments):
    with pytest.raises(EngineError) as caught:
        action(*arguments)
    assert caught.value.code == "bad_option"
    assert "\n" not in caught.value.message
    return caught.value.message


def write(folder, **files):
    """TOML files by owner."""
    folder.mkdir(exist_ok=True)
    for owner, text in files.items():
        (folder / f"{owner}.toml").write_text(text)
    return folder


ONE = '[width]\ntype = "int"\nrange = [1, 8]\ndefault = 4\nmeaning = "how wide"\n'


def test_stock_options():
    """Stock declares its seams and a few numbers, all with a meaning, and resolves to its defaults."""
    options = declared()

    assert set(SEAMS) < set(options)
    assert {option.owner for option in options.values()} == {"stock"}
    assert all(option.meaning for option in options.values())
    assert resolve({}) == {name: option.default for name, option in options.items()}
    assert {name: options[name].default for name in SEAMS} == {
        "draft": "dflash",
        "select": "chain",
        "verify": "tree",
        "linear": "dense",
        "head": "full",
        "cache": "static",
        "schedule": "single",
    }


def test_seam_values_are_the_modules_of_the_folder():
    """A seam takes the names of the modules in its folder, each of which exports build."""
    for seam in SEAMS:
        folder = Path(importlib.import_module(f"stock.{seam}").__path__[0])
        names = [module.name for module in pkgutil.iter_modules([str(folder)])]
        assert list(declared()[seam].values) == sorted(names)
        assert all(callable(seam_module(seam, name).build) for name in names)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("draft", "oracle", "dflash, none"),
        ("draft", 3, "string"),
        ("draft", "../draft/none", "one of"),
        ("draft", "__init__", "one of"),
        ("chain_positions", -1, "0..64"),
        ("chain_positions", 65, "0..64"),
        ("chain_positions", 4.0, "int"),
        ("chain_positions", "4", "int"),
        ("chain_positions", True, "int"),
        ("chain_positions", None, "int"),
        ("chain_positions", [4], "int"),
        ("prefill_rows", 63, "64..8192"),
        ("graphs", 1, "bool"),
        ("graphs", "yes", "bool"),
        ("alignment", "shifted", "auto, same, next"),
        ("alignment", {}, "string"),
        ("speed", 11, "unknown option 'speed'"),
    ],
)
def test_bad_values(name, value, words):
    """Unknown names, wrong types and values out of range are refused in the option's own words."""
    message = refused(resolve, {name: value})
    assert f"'{name}'" in message
    assert words in message


@pytest.mark.parametrize(("name", "value"), [("chain_positions", 0), ("chain_positions", 64), ("graphs", False)])
def test_good_values(name, value):
    """Bounds are inclusive."""
    assert resolve({name: value})[name] == value


def test_float_options(tmp_path):
    """A float option takes whole numbers and gives floats; NaN and infinity are outside every range."""
    text = '[share]\ntype = "float"\nrange = [0, 1]\ndefault = 0.5\nmeaning = "a share"\n'
    share = declared(write(tmp_path / "options", a=text))["share"]

    assert share.check(1) == 1.0
    assert isinstance(share.check(1), float)
    for value in (float("nan"), float("inf"), -0.1, True, "1"):
        refused(share.check, value)


def test_twice_declared(tmp_path):
    """A name that two owners declare is an error that names both."""
    message = refused(declared, write(tmp_path / "options", first=ONE, second=ONE))
    assert "'width'" in message
    assert "first" in message
    assert "second" in message


@pytest.mark.parametrize(
    "text",
    [
        "width = 4",
        "[width]\n[width]",
        "[width",
        '[width]\ntype = "int"\ndefault = 4',
        '[width]\ntype = "int"\nmeaning = "x"',
        '[width]\ntype = "whole"\ndefault = 4\nmeaning = "x"',
        '[width]\ntype = "int"\ndefault = "four"\nmeaning = "x"',
        '[width]\ntype = "int"\nrange = [1, 3]\ndefault = 4\nmeaning = "x"',
        '[width]\ntype = "int"\nrange = [1]\ndefault = 1\nmeaning = "x"',
        '[width]\ntype = "int"\nrange = 7\ndefault = 1\nmeaning = "x"',
        '[width]\ntype = "int"\nrange = ["a", "b"]\ndefault = 1\nmeaning = "x"',
        '[width]\ntype = "int"\nvalues = 3\ndefault = 3\nmeaning = "x"',
        '[width]\ntype = "int"\nvalues = [1, 2]\ndefault = 3\nmeaning = "x"',
        '[width]\ntype = "int"\ndefault = 4\nmeaning = "x"\nunit = "rows"',
        '[width]\ntype = "string"\nvalues = "modules"\ndefault = "none"\nmeaning = "x"',
        '[width]\ntype = ["int"]\ndefault = 4\nmeaning = "x"',
        '[width]\ntype = "int"\ndefault = 4\nmeaning = 3',
        "width = " + "[" * 5000,
    ],
)
def test_bad_declaration(text, tmp_path):
    """A declaration that cannot be understood, or whose default it forbids, names its file."""
    assert "owner.toml" in refused(declared, write(tmp_path / "options", owner=text))


def test_a_file_adds_options(tmp_path):
    """Owners are read in name order; describe() is what `hello` carries."""
    other = '[depth]\ntype = "string"\nvalues = ["a", "b"]\ndefault = "a"\nmeaning = "how deep"\n'
    options = declared(write(tmp_path / "options", zebra=ONE, ant=other))

    assert list(options) == ["depth", "width"]
    width = {"type": "int", "default": 4, "owner": "zebra", "meaning": "how wide", "range": [1, 8]}
    assert options["width"].describe() == width
    assert options["depth"].describe()["values"] == ["a", "b"]


def test_draft_needs_a_drafter(tmp_path):
    """Without a drafter the default is none, and asking for one is an error; `none` ignores a drafter that is there."""
    config = target_config("llama")
    target = write_target(tmp_path / "target", config)
    drafter = write_drafter(tmp_path / "drafter", drafter_config(config))

    assert load(target).system.options["draft"] == "none"
    assert "no drafter" in refused(partial(load, draft="dflash"), target)
    assert load(target, drafter).system.options["draft"] == "dflash"
    alone = load(target, drafter, draft="none").system
    assert alone.drafter is None
    assert alone.limits.rows == 1


def test_options_need_no_torch():
    """The options can be listed before torch is there, so that a worker says hello at once."""
    code = "import sys, stock.options; stock.options.declared(); sys.exit('torch' in sys.modules)"
    environment = {"PYTHONPATH": str(ROOT)}
    assert subprocess.run([sys.executable, "-P", "-c", code], env=environment, check=False).returncode == 0


def test_version():
    """The engine has one."""
    assert re.fullmatch(r"\d+\.\d+\.\d+", stock.__version__)

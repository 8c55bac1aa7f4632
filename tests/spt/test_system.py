"""A system: its grammar, its options, its files."""

import stat

import pytest

from spt.errors import Usage
from spt.git.objects import EXECUTABLE, FILE, LINK, Objects, State
from spt.git.tree import splice, walk
from spt.initialise import plain_tree
from spt.system import export, options_of, read_options, split_system
from tests.spt.toys import STOCK, commit_files, errors_well, git, snapshot, spt, write

TOML = '[{0}]\ntype = "{1}"\ndefault = {2}\nmeaning = "m"\n{3}\n'


def tree_of(objects, files):
    return splice(objects, None, {path: State(FILE, objects.add_blob(text.encode())) for path, text in files.items()})


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("stock", ("stock", None)),
        ("a+b@fast.yaml", ("a+b", "fast.yaml")),
        ("rev:main@{1}", ("rev:main@{1}", None)),
        ("main@{u}@../x.yaml", ("main@{u}", "../x.yaml")),
        ("a@b.yml", ("a@b.yml", None)),
        ("@x.yaml", ("@x.yaml", None)),
    ],
)
def test_options_files_count_at_the_last_at(text, parts):
    """`@FILE` is an options file only at the last @, and only if it ends in .yaml."""
    assert split_system(text) == parts


@pytest.fixture
def released(deployment):
    """The deployment with a branch that holds a promoted system, and one named like an entry."""
    git(deployment, "switch", "-q", "-c", "promoted")
    spt("entry", "apply", "fast-linear", cwd=deployment)
    tree = git(deployment, "rev-parse", "HEAD^{tree}")
    record = f"spt: 1\ntree: {tree}\ndeployment: {'1' * 64}\noptions:\n  linear: w12\n  w12-block: 64\n"
    commit_files(deployment, {".spt/system.yaml": record, "README.md": "mine\n"})
    git(deployment, "switch", "-q", "main")
    git(deployment, "branch", "tree-select", "promoted")
    write(deployment, {"fast.yaml": "w12-block: 32\n"})
    return deployment


def exported(folder, system, name="out"):
    ran = spt("export", system, folder.parent / name, "--json", cwd=folder)
    assert ran.code == 0, ran.err
    return ran.json


def test_an_options_file_without_end(tmp_path):
    """No more of it is read than a YAML file may have."""
    (tmp_path / "options.yaml").symlink_to("/dev/zero")
    with pytest.raises(Usage, match="that a YAML file may have"):
        read_options(tmp_path / "options.yaml")


def test_stock_entries_and_revisions_are_systems(released):
    """SYSTEM is stock, entries, or a revision; what is no part of the system tree is left out."""
    stock = git(released, "rev-parse", "refs/spt/stock/current^{tree}")
    both = spt("entry", "apply", "tuned", "tree-select", "--tree-only", cwd=released).out.strip()

    assert exported(released, "stock", "a") == {"tree": stock, "options": {}, "folder": str(released.parent / "a")}
    assert exported(released, "tree-select+tuned", "b")["tree"] == both
    assert exported(released, "promoted", "c")["options"] == {"linear": "w12", "w12-block": 64}
    assert not (released.parent / "c" / "README.md").exists()
    assert exported(released, "promoted@fast.yaml", "d")["options"] == {"linear": "w12", "w12-block": 32}
    assert exported(released, "tree-select", "e")["tree"] == git(released, "rev-parse", "entry/tree-select~1^{tree}")
    assert exported(released, "rev:tree-select", "f")["tree"] == exported(released, "promoted", "g")["tree"]


@pytest.mark.parametrize(
    ("system", "code", "word"),
    [
        ("", 4, "'' is neither"),
        ("nobody", 4, "'nobody' is neither"),
        ("tuned+nobody", 4, "'nobody' in 'tuned+nobody' is no entry"),
        ("rev:nobody", 4, "'nobody'"),
        ("stock@none.yaml", 2, "'none.yaml' cannot be read"),
        ("stock@fast.yaml", 2, "no option is named 'w12-block'"),
        ("fast-linear@bad.yaml", 2, "option 'w12-block' cannot be '7'"),
        ("fast-linear@typed.yaml", 2, "takes a whole number, not 'many'"),
        ("fast-linear@seam.yaml", 2, "option 'linear' cannot be 'w13'"),
        ("fast-linear@list.yaml", 2, "a mapping from option name"),
    ],
)
def test_bad_systems_are_named(released, system, code, word):
    """A system that is not there, or options that it does not have, are one-line errors, and no folder is made."""
    write(released, {"bad.yaml": "w12-block: 7\n", "typed.yaml": "w12-block: many\n", "seam.yaml": "linear: w13\n"})
    write(released, {"list.yaml": "- a\n"})

    assert errors_well(spt("export", system, "../out", cwd=released), code, word)
    assert not (released.parent / "out").exists()


def test_export_writes_the_tree_exactly(released):
    """What is written rehashes to the tree."""
    found = exported(released, "tuned")
    objects = Objects()

    assert plain_tree(objects, released.parent / "out") == found["tree"]


def test_export_never_overwrites(released):
    """A folder with something in it, a file and a missing parent are refused and left alone."""
    write(released.parent / "full", {"x": "mine\n"})
    before = snapshot(released.parent / "full")

    assert errors_well(spt("export", "stock", "../full", cwd=released), 2, "is not empty")
    assert errors_well(spt("export", "stock", "../full/x", cwd=released), 2, "is not a folder")
    assert errors_well(spt("export", "stock", "../no/where", cwd=released), 2, "does not exist")
    assert snapshot(released.parent / "full") == before


def test_export_keeps_modes_and_links(tmp_path):
    """Executables and links of any repository come out as git would check them out."""
    objects = Objects()
    states = {
        "run": State(EXECUTABLE, objects.add_blob(b"x")),
        "link": State(LINK, objects.add_blob(b"../outside")),
        "d/plain": State(FILE, objects.add_blob(b"y")),
    }
    export(objects, splice(objects, None, states), tmp_path / "out")

    assert stat.S_IMODE((tmp_path / "out/run").stat().st_mode) == 0o755
    assert (tmp_path / "out/link").readlink().as_posix() == "../outside"
    assert (tmp_path / "out/d/plain").read_text() == "y"


def test_export_refuses_a_submodule(released):
    """Its files are not in the repository: a system that has one is not exported with an empty folder in their place,
    as `git archive` would, since that is another system.
    """
    git(released, "update-index", "--add", "--cacheinfo", f"160000,{'1' * 40},stock/fast")
    git(released, "commit", "-qm", "a submodule")
    before = snapshot(released.parent)

    assert errors_well(spt("export", "rev:main", "../out", cwd=released), 2, "'stock/fast' is a submodule")
    assert snapshot(released.parent) == before


def test_outside_a_repository_shipped_stock_can_be_exported(tmp_path):
    """`spt export stock` works anywhere: stock is what ships."""
    ran = spt("export", "stock", "out", cwd=tmp_path)

    assert ran.code == 0, ran.err
    assert (tmp_path / "out/stock/__init__.py").exists()


@pytest.mark.parametrize(
    ("files", "word"),
    [
        ({"a.toml": TOML.format("x", "int", 1, "") * 2}, "a.toml"),
        ({"a.toml": TOML.format("x", "int", 1, ""), "b.toml": TOML.format("x", "int", 1, "")}, "declared twice"),
        ({"a.toml": TOML.format("x", "int", '"1"', "")}, "of type int"),
        ({"a.toml": TOML.format("x", "int", "true", "")}, "of type int"),
        ({"a.toml": TOML.format("x", "number", 1, "")}, "type 'number'"),
        ({"a.toml": TOML.format("x", "int", 1, "values = [2, 3]")}, "cannot be '1'"),
        ({"a.toml": TOML.format("x", "int", 1, "range = [2, 3]")}, "cannot be 1"),
        ({"a.toml": TOML.format("x", "int", 1, "range = [3, 2]")}, "range is [low, high]"),
        ({"a.toml": TOML.format("x", "string", '"a"', "range = [3, 2]")}, "range is [low, high]"),
        ({"a.toml": TOML.format("x", "int", 1, "surprise = 1")}, "unknown key 'surprise'"),
        ({"a.toml": '[x]\ntype = "int"\n'}, "key 'default' is missing"),
        ({"a.toml": "x = 1\n"}, "is not a table"),
        ({"a.toml": '[x]\ntype = ["int"]\ndefault = 1\nmeaning = ""\n'}, "is not one of"),
        ({"a.toml": TOML.format("x", "float", "nan", "")}, "of type float"),
        ({"a.toml": TOML.format("x", "float", "-inf", "")}, "of type float"),
        ({"a.toml": TOML.format("x", "int", "0x" + "f" * 5000, "")}, "of type int"),
        ({"a.toml": TOML.format("x", "int", "1" * 5000, "")}, "a.toml"),
        ({"a.toml": TOML.format("x", "int", 1, "range = [0, 0x" + "f" * 5000 + "]")}, "range is [low, high]"),
        ({"a.toml": "x = " + "[" * 5000}, "nested too deep"),
        ({"a.toml": "#" * 17000}, "more than the 16384"),
        ({"a.toml": "[x\n"}, "a.toml"),
        ({"a.toml": TOML.format("select", "string", '"none"', 'values = "modules"')}, "cannot be 'none'"),
    ],
)
def test_bad_declarations_are_named(files, word):
    """A declaration that does not hold together names its file."""
    objects = Objects()
    declared = {f"stock/options/{name}": text for name, text in files.items()}
    tree = tree_of(objects, {"stock/select/chain.py": "", **declared})

    with pytest.raises(Usage) as caught:
        options_of(objects, tree)
    assert word in caught.value.message
    assert "stock/options/" in caught.value.message


def test_a_seams_values_are_its_modules():
    """A file in a seam's folder is a value of the option of that name."""
    objects = Objects()
    options = options_of(objects, tree_of(objects, {**STOCK, "stock/select/best.py": ""}))

    assert options["select"].values == ("best", "chain")
    assert options["linear"].values == ("dense",)


@pytest.mark.parametrize(
    ("kind", "default", "given", "value"),
    [
        ("int", "1", "2", 2),
        ("int", "1", 2, 2),
        ("float", "1.5", "2", 2.0),
        ("float", "1.5", 2, 2),
        ("bool", "true", "false", False),
        ("string", '"a"', "2", "2"),
    ],
)
def test_values_are_typed_by_their_declaration(kind, default, given, value):
    """Text from a file or a card becomes what the option takes."""
    objects = Objects()
    tree = tree_of(objects, {"stock/options/a.toml": TOML.format("x", kind, default, "")})

    found = options_of(objects, tree)["x"].value(given, "here")
    assert (found, type(found)) == (value, type(value))


def test_walk_is_in_name_order():
    """Walking a tree goes in git's order, folders as if a slash stood behind them."""
    objects = Objects()
    tree = tree_of(objects, {"a/x": "", "a.b": "", "a0": ""})

    assert [path for path, _ in walk(objects, tree)] == ["a.b", "a/x", "a0"]

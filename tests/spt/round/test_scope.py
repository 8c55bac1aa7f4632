"""spt/round/scope.py: which patches may be tried at all, each refusal in one line."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spt.git.objects import EXECUTABLE, FILE, GITLINK, LINK, Objects, State
from spt.git.tree import splice
from spt.round.scope import LITERAL_BYTES, MAX_REASONS, check_scope
from tests.spt.toys import STOCK

LONG = "x" * (LITERAL_BYTES + 1)


def stock(objects, **more):
    """The toy's tree, with further paths: text, or a State."""
    files = {path: State(FILE, objects.add_blob(text.encode())) for path, text in STOCK.items()}
    return splice(objects, None, files | more)


def patched(objects, base, changes):
    """`base` with paths set to text, bytes, a State, or (None) removed."""
    states = {}
    for path, value in changes.items():
        data = value.encode() if isinstance(value, str) else value
        states[path] = State(FILE, objects.add_blob(data)) if isinstance(data, bytes) else value
    return splice(objects, base, states)


def reasons(changes, **more):
    objects = Objects()
    base = stock(objects, **more)
    return check_scope(objects, base, patched(objects, base, changes))


def mode(number, text="x = 1\n"):
    return State(number, Objects().add_blob(text.encode()))


def held(changes):
    """Reasons where the blobs of the states in `changes` are there."""
    objects = Objects()
    base = stock(objects)
    objects.add_blob(b"x = 1\n")
    return check_scope(objects, base, patched(objects, base, changes))


def test_a_patch_within_its_scope():
    """Edits, additions and removals of plain text below the system's folders pass."""
    changes = {
        "stock/engine.py": "line = 1\n",
        "stock/select/best.py": '"""Best first."""\nTABLE = (1, 2, 3)\n',
        "kernels/mm.py": None,
        "checks/best/run.py": "pass\n",
        "stock/options/best.toml": "[x]\n",
    }

    assert reasons(changes) == []
    assert reasons({}) == []


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("README.md", "outside"),
        ("harness/clock.py", "outside"),
        ("stock", "outside"),
        ("entries/x/entry.yaml", "outside"),
        (".spt/system.yaml", "record of spt"),
        ("stock/worker.py", "speaks with the judge"),
        ("stock/conftest.py", "by its name"),
        ("stock/sitecustomize.py", "by its name"),
        ("kernels/SiteCustomize.py", "by its name"),
        ("kernels/x.pth", "by its name"),
        ("stock/.gitattributes", "not allowed"),
        ("stock/.gitmodules", "not allowed"),
        (".gitattributes", "outside"),
        ("stock/.hidden.py", "not allowed"),
        ("stock/a b.py", "not allowed"),
        ("stock/\u202ex.py", "not allowed"),
        ("stock/con.py", "not allowed"),
        ("stock/x.so", "none of"),
        ("stock/Engine.py", "but for case"),
        ("Stock/engine.py", "outside"),
    ],
)
def test_paths(path, words):
    """Each path that an agent may not write is named, with why, on one line."""
    objects = Objects()
    base = stock(objects)
    blob = State(FILE, objects.add_blob(b"x = 1\n"))
    without_twin = objects.build(base, {"stock": None}) if path == "stock" else base
    tree = built(objects, without_twin, path.split("/"), blob)
    found = check_scope(objects, base, tree)

    assert any(words in reason for reason in found), found
    assert all("\n" not in reason and reason.isprintable() for reason in found)


def built(objects, tree, names, state):
    """As splice, without its own refusal of names that are twins."""
    name, *rest = names
    if rest:
        below = objects.entries(tree).get(name) if tree else None
        state = State(0o40000, built(objects, below.oid if below else None, rest, state))
    return objects.build(tree, {name: state})


def test_the_fixed_file_may_not_go():
    """What speaks with the judge may not be removed either."""
    assert "speaks with the judge" in reasons({"stock/worker.py": None})[0]


@pytest.mark.parametrize(
    ("number", "words"), [(LINK, "a symbolic link"), (GITLINK, "a submodule"), (EXECUTABLE, "an executable")]
)
def test_modes(number, words):
    """Nothing but plain files is added, and no plain file becomes anything else."""
    assert words in held({"stock/new.py": mode(number)})[0]
    assert words in held({"stock/engine.py": mode(number)})[0]


def test_a_mode_that_the_base_had():
    """An executable of the base may be edited and stays one."""
    objects = Objects()
    old, new = (State(EXECUTABLE, objects.add_blob(text)) for text in (b"a = 1\n", b"b = 1\n"))
    base = stock(objects, **{"checks/x/run.py": old})

    assert check_scope(objects, base, splice(objects, base, {"checks/x/run.py": new})) == []


@pytest.mark.parametrize(
    ("path", "data", "words"),
    [
        ("stock/a.py", f"x = '{LONG}'\n", "literal"),
        ("stock/a.py", "x = [\n" + "1,\n" * LITERAL_BYTES + "]\n", "literal"),
        ("stock/a.py", "x = (" + f"'{'y' * 1000}'\n" * 80 + ")\n", "literal"),
        ("stock/a.py", "x = {" + ", ".join(f"{n}: b'{n}'" for n in range(9000)) + "}\n", "literal"),
        ("stock/a.py", f"# {'x' * 2**18}\n", "more than"),
        ("stock/a.md", LONG, "more than"),
        ("stock/a.toml", LONG, "more than"),
        ("stock/a.py", b"x = 1\0\n", "no text"),
        ("stock/a.py", b"\xff\xfe", "no text"),
        ("stock/a.py", "x = 'open\n", "no Python"),
        ("stock/a.py", "(" * 100_000, "no Python"),
    ],
)
def test_contents(path, data, words):
    """Tables of answers, files too large to review and what is no text are named."""
    assert words in reasons({path: data})[0]


def test_many_small_tables():
    """Text that is spread over many files is counted together."""
    found = reasons({f"stock/part{number}.py": "# words\n" * 12_000 for number in range(12)})

    assert "it adds" in found[-1]


def test_many_files():
    """A patch that nobody could read is one reason, and a long list of reasons is cut short."""
    assert "401 files" in reasons({f"stock/f{number}.py": "" for number in range(401)})[0]
    many = reasons({f"f{number}.py": "" for number in range(40)})
    assert len(many) == MAX_REASONS
    assert "more" in many[-1]


def test_another_repository():
    """Where the stock is any repository's tree, its own layout is the scope, and records and traps stay out of it."""
    objects = Objects()
    blob = State(FILE, objects.add_blob(b"x = 1\n"))
    base = splice(objects, None, {"src/main.c": blob, ".spt/system.yaml": blob})
    other = State(FILE, objects.add_blob(b"int x;\n"))

    assert check_scope(objects, base, splice(objects, base, {"src/main.c": other, "lib/y.c": other})) == []
    assert check_scope(objects, base, splice(objects, base, {".spt/system.yaml": other})) != []
    assert check_scope(objects, base, splice(objects, base, {"src/conftest.py": other})) != []


def test_a_tree_that_is_not_there():
    """A tree with objects that nobody has is a reason, no error."""
    objects = Objects()
    base = stock(objects)
    tree = splice(objects, base, {"stock/x.py": State(FILE, "1" * 40)})

    assert "cannot be read" in check_scope(objects, base, tree)[0]


@given(st.dictionaries(st.text(min_size=1, max_size=12), st.binary(max_size=60), max_size=4))
def test_any_names_and_bytes(files):
    """Whatever is put below the system, the answer is lines that can be printed; text in place of text passes."""
    objects = Objects()
    base = stock(objects)
    tree = base
    for name, data in files.items():
        parts = [part for part in name.encode(errors="replace").decode().split("/") if part]
        if parts and not any("\0" in part or part in (".", "..") or part.lower() == ".git" for part in parts):
            tree = built(objects, tree, ["checks", "p", *parts], State(FILE, objects.add_blob(data)))

    assert all(reason.isprintable() for reason in check_scope(objects, base, tree))

"""Composition: one tree for a set of entries, whatever the order, and a conflict for both of two or for neither."""

import random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from spt.errors import Conflict, Missing, Usage
from spt.git.compose import Composition, Part, PreimageDiffers
from spt.git.objects import EXECUTABLE, FILE, GITLINK, LINK, Objects, State
from spt.git.tree import Delta, Row, compare, splice, walk

PATHS = ("a.py", "d/b.py", "d/e/c.py")


def blob(objects, text):
    return State(FILE, objects.add_blob(text.encode()))


def tree_of(objects, files):
    """A tree of files by path: text, or (mode, text or commit)."""
    states = {}
    for path, text in files.items():
        mode, text = (FILE, text) if isinstance(text, str) else text
        states[path] = State(mode, text if mode == GITLINK else blob(objects, text).oid)
    return splice(objects, None, states)


def numbered(count, **changed):
    """A file of numbered lines, some of them replaced: numbered(9, l3="x")."""
    return "".join(f"{changed.get(f'l{number}', number)}\n" for number in range(count))


def part(objects, base, name, edits, requires=()):
    """An entry made by hand on top of a tree: `edits` maps path to new text, or to None for a removal."""
    rows = []
    for path, text in sorted(edits.items()):
        rows.append(Row(path, objects.lookup(base, path), None if text is None else blob(objects, text)))
    return Part(name, frozenset(requires), Delta(tuple(rows)))


def text_at(objects, tree, path):
    return objects.blob(objects.lookup(tree, path).oid).decode()


@pytest.fixture
def objects():
    return Objects()


@pytest.fixture
def stock(objects):
    return tree_of(objects, {"a.py": numbered(20), "d/b.py": numbered(5), "keep/x.md": "kept\n"})


def test_one_toucher_is_spliced_exactly(objects, stock):
    """A file that one entry touches holds that entry's blob, and the rest of the tree is untouched."""
    entry = part(objects, stock, "e", {"d/b.py": "new\n", "d/new.py": "added\n", "keep/x.md": None})
    tree = Composition(objects, stock, [entry]).tree({"e"})

    assert compare(objects, stock, tree) == entry.delta
    assert dict(walk(objects, tree)).keys() == {"a.py", "d/b.py", "d/new.py"}


def test_disjoint_hunks_of_independent_entries_merge_once(objects, stock):
    """Two entries that edit one file with an untouched line between compose to both edits."""
    one = part(objects, stock, "one", {"a.py": numbered(20, l3="x")})
    two = part(objects, stock, "two", {"a.py": numbered(20, l5="y")})
    composition = Composition(objects, stock, [two, one])

    assert text_at(objects, composition.tree({"one", "two"}), "a.py") == numbered(20, l3="x", l5="y")


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"a.py": numbered(20, l3="x")}, {"a.py": numbered(20, l4="y")}),
        ({"a.py": numbered(20, l3="x")}, {"a.py": numbered(20, l3="x")}),
        ({"a.py": numbered(20, l3="x")}, {"a.py": None}),
        ({"a.py": None}, {"a.py": None}),
        ({"n.py": "n\n"}, {"n.py": "n\n"}),
        ({"n": "n\n"}, {"n/m.py": "m\n"}),
        ({"Readme.md": "n\n"}, {"README.md": "m\n"}),
        ({"\u00e9.md": "n\n"}, {"e\u0301.md": "m\n"}),
    ],
    ids=["adjacent", "same", "changed-removed", "both-removed", "both-added", "file-folder", "case", "unicode"],
)
def test_a_conflict_is_symmetric(objects, stock, first, second):
    """What conflicts, conflicts whichever entry is named first, and the message names the place."""
    messages = []
    for names in (("one", "two"), ("two", "one")):
        parts = [part(objects, stock, name, edits) for name, edits in zip(names, (first, second), strict=True)]
        with pytest.raises(Conflict) as caught:
            Composition(objects, stock, parts).tree({"one", "two"})
        messages.append(caught.value.message)

    assert messages[0] == messages[1]
    assert any(path in messages[0] for path in (*first, *second))


def test_requires_settles_a_conflict(objects, stock):
    """An entry that requires another is made on top of it, and may then edit the same lines."""
    one = part(objects, stock, "one", {"a.py": numbered(20, l3="x")})
    over = Composition(objects, stock, [one]).tree({"one"})
    two = part(objects, over, "two", {"a.py": numbered(20, l3="xx", l4="y")}, requires=["one"])
    three = part(objects, stock, "three", {"a.py": numbered(20, l9="z")})
    composition = Composition(objects, stock, [three, two, one])

    assert composition.order == ["one", "three", "two"]
    assert text_at(objects, composition.tree(composition.order), "a.py") == numbered(20, l3="xx", l4="y", l9="z")


def test_entries_over_different_requirements_merge_on_what_they_share(objects, stock):
    """Both sides may refine lines of a common requirement, each its own."""
    base = part(objects, stock, "base", {"a.py": numbered(20, l3="x", l9="y")})
    over = Composition(objects, stock, [base]).tree({"base"})
    left = part(objects, over, "left", {"a.py": numbered(20, l3="xx", l9="y")}, requires=["base"])
    right = part(objects, over, "right", {"a.py": numbered(20, l3="x", l9="yy")}, requires=["base"])
    composition = Composition(objects, stock, [base, left, right])

    assert text_at(objects, composition.tree(composition.order), "a.py") == numbered(20, l3="xx", l9="yy")


def test_an_undeclared_dependency_is_named(objects, stock):
    """An entry made on top of another that it does not require is refused, with path and both blobs."""
    one = part(objects, stock, "one", {"a.py": numbered(20, l3="x")})
    over = Composition(objects, stock, [one]).tree({"one"})
    two = part(objects, over, "two", {"a.py": numbered(20, l3="x", l9="y")})

    with pytest.raises(PreimageDiffers, match=r"entry 'two' was made from another 'a\.py'"):
        Composition(objects, stock, [one, two]).tree({"one", "two"})


def test_missing_and_cyclic_requirements_are_named(objects, stock):
    """A requirement that is not there is Missing; a cycle is a mistake in the files."""
    with pytest.raises(Missing, match="'one' requires 'nobody'"):
        Composition(objects, stock, [part(objects, stock, "one", {"a.py": None}, requires=["nobody"])])
    circle = [part(objects, stock, name, {f"{name}.py": "x"}, requires=[other]) for name, other in ("ab", "bc", "ca")]
    with pytest.raises(Usage, match="'a' -> 'b' -> 'c' -> 'a'"):
        Composition(objects, stock, circle)
    with pytest.raises(Usage, match="two entries are named 'one'"):
        Composition(objects, stock, [part(objects, stock, "one", {"a.py": None})] * 2)


def test_a_malformed_stock_tree_is_refused_not_normalised():
    """A tree with zero-padded modes keeps its id or is refused; it is never silently rewritten."""
    objects = Objects()
    raw = bytes.fromhex(objects.add_blob(b"x"))
    tree = objects._add("tree", b"0100644 a\0" + raw)

    with pytest.raises(Exception, match="malformed"):
        splice(objects, tree, {"b": blob(objects, "y")})


# Random memories: files of lines, entries over random requirements, each made on top of what it requires.

edits = st.lists(st.tuples(st.integers(0, 24), st.sampled_from(["replace", "insert", "drop"])), min_size=1, max_size=3)
recipes = st.lists(
    st.tuples(st.sampled_from(PATHS), edits, st.sets(st.integers(0, 6), max_size=2)), min_size=2, max_size=7
)


def edited(lines, changes, tag):
    lines = list(lines)
    for position, what in changes:
        place = position % (len(lines) + 1)
        if what == "insert" or place == len(lines):
            lines.insert(place, f"{tag}+{position}\n")
        elif what == "replace":
            lines[place] = f"{tag}!{position}\n"
        else:
            lines[place : place + 1] = []
    return "".join(lines)


def random_memory(recipe):
    """(objects, stock tree, parts): entries whose requirements conflict among themselves are left out."""
    objects = Objects()
    stock = tree_of(objects, {path: "".join(f"{path} {n}\n" for n in range(25)) for path in PATHS})
    parts = []
    for index, (path, changes, wanted) in enumerate(recipe):
        requires = [parts[other].name for other in wanted if other < len(parts)]
        composition = Composition(objects, stock, parts)
        try:
            base = composition.tree(composition.closed(requires))
        except Conflict:
            continue
        lines = text_at(objects, base, path).splitlines(keepends=True)
        made = part(objects, base, f"e{index}", {path: edited(lines, changes, f"e{index}")}, requires)
        if made.delta.rows[0].old != made.delta.rows[0].new:
            parts.append(made)
    return objects, stock, parts


def tree_or_conflict(action):
    try:
        return action()
    except Conflict:
        return None


def random_order(composition, rng):
    """A random order in which requirements come first."""
    order, left = [], set(composition.order)
    while left:
        ready = sorted(name for name in left if not composition.below(name) & left)
        order.append(rng.choice(ready))
        left.discard(order[-1])
    return order


@settings(max_examples=60, deadline=None)
@example(
    [
        ("d/b.py", [(0, "replace")], set()),
        ("d/b.py", [(0, "insert")], set()),
        ("d/b.py", [(0, "drop")], {1}),
    ],
    0,
)
@given(recipes, st.integers(0, 2**32))
def test_fifty_orders_give_one_tree(recipe, seed):
    """Any order in which requirements come first ends in the same tree, or in a conflict in every order.

    Midway each tree is that of the set so far, and an order ends early only at a set that conflicts as a whole:
    two entries may conflict until a third, which requires one of them, has undone what they meet at.
    """
    objects, stock, parts = random_memory(recipe)
    rng = random.Random(seed)
    by_set = Composition(objects, stock, parts)
    for _ in range(50):
        rng.shuffle(parts)
        composition = Composition(objects, stock, parts)
        order = random_order(composition, rng)
        sets = [order[: count + 1] for count in range(len(order))]
        wanted = [tree_or_conflict(lambda s=names: by_set.tree(s)) for names in sets]
        trees = tree_or_conflict(lambda c=composition, o=order: c.prefixes(o))

        assert trees == (None if None in wanted else wanted)


@settings(max_examples=100, deadline=None)
@example(
    [
        ("a.py", [(0, "replace")], set()),
        ("d/e/c.py", [(0, "insert")], set()),
        ("d/e/c.py", [(0, "replace")], set()),
        ("d/e/c.py", [(0, "drop")], {1}),
    ]
)
@given(recipes)
def test_all_pairs_compose_alike_from_both_sides(recipe):
    """Every pair, on the union of its closures, gives one tree or one conflict.

    A set that composes has no bad pair, unless an entry on top of one of the two undoes what the other meets.
    """
    objects, stock, parts = random_memory(recipe)
    forward, backward = Composition(objects, stock, parts), Composition(objects, stock, parts[::-1])
    whole = tree_or_conflict(lambda: forward.tree(forward.order))
    for one in forward.order:
        for two in forward.order:
            names = forward.closed({one, two})
            tree = tree_or_conflict(lambda n=names: forward.tree(n))
            assert tree == tree_or_conflict(lambda n=names: backward.tree(n))
            on_top = [name for name in forward.order if name not in names and forward.closed({name}) & names]
            if whole is not None and not on_top:
                assert tree is not None


@settings(max_examples=100, deadline=None)
@given(recipes)
def test_each_entry_recomposes_to_the_tree_it_was_made_as(recipe):
    """Requirements plus delta is exactly the tree on which the entry was made, with its edit."""
    objects, stock, parts = random_memory(recipe)
    composition = Composition(objects, stock, parts)
    for entry in parts:
        base = composition.tree(composition.below(entry.name))
        result = composition.tree(composition.closures[entry.name])

        assert compare(objects, base, result) == entry.delta
        assert composition.step(base, composition.below(entry.name), entry.name) == result


states = st.sampled_from([(FILE, "x"), (FILE, "y"), (EXECUTABLE, "x"), (LINK, "x"), (GITLINK, "1" * 40)])
some_files = st.one_of(
    st.dictionaries(st.sampled_from(["a", "b", "d/a", "d/e/f", "d/e/g", "h"]), states, max_size=6),
    st.dictionaries(st.sampled_from(["a/x", "b", "d", "h/i/j"]), states, max_size=4),
)


@settings(max_examples=200, deadline=None)
@given(
    some_files,
    some_files,
)
def test_splice_and_compare_are_inverse(before, after):
    """A comparison says what two walks say; applied to the first tree it gives the second, to the id."""
    objects = Objects()
    old, new = tree_of(objects, before), tree_of(objects, after)
    delta = compare(objects, old, new)
    one, two = dict(walk(objects, old)), dict(walk(objects, new))
    walked = [Row(path, one.get(path), two.get(path)) for path in sorted(one | two) if one.get(path) != two.get(path)]

    assert list(delta.rows) == walked
    assert splice(objects, old, {row.path: row.new for row in delta.rows}) == new
    assert splice(objects, new, {row.path: row.old for row in delta.rows}) == old
    assert delta.id == compare(objects, old, new).id

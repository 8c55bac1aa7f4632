"""Hunks and merges of one file: exact, symmetric, and honest about what meets."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spt.git.merge import Overlap, apply_hunks, hunks, merge, merge_with_markers

lines = st.sampled_from([b"a", b"b", b"c", b"", b"\r", b"same"])
contents = st.lists(lines, max_size=14).map(b"\n".join)


def merged(base, sides, **options):
    try:
        return merge(base, sides, **options)
    except Overlap:
        return None


@settings(max_examples=500)
@given(contents, contents)
def test_hunks_make_the_new_content(old, new):
    """Applying the hunks of two contents to the first gives the second, with an untouched line between hunks."""
    found = hunks(old, new)

    assert apply_hunks(old, found) == new
    assert all(one.end < two.start for one, two in itertools.pairwise(found))


@settings(max_examples=500)
@given(contents, contents, contents)
def test_merge_is_symmetric(base, one, two):
    """Which side is named first changes neither the content nor whether there is a conflict."""
    assert merged(base, [one, two]) == merged(base, [two, one])
    assert merged(base, [one, two], same_is_one=True) == merged(base, [two, one], same_is_one=True)


@settings(max_examples=500)
@given(contents, contents)
def test_one_side_alone_is_that_side(base, one):
    """A side that changes nothing leaves the other as it is; the same change twice is one, if that is asked for."""
    assert merge(base, [one, base]) == one
    assert merge(base, [one, one], same_is_one=True) == one


@settings(max_examples=300)
@given(contents, contents, contents)
def test_markers_appear_only_where_a_merge_conflicts(base, one, two):
    """The marked merge is the plain one where that exists, and else shows both sides of every clash."""
    plain = merged(base, [one, two], same_is_one=True)
    marked = merge_with_markers(base, one, two, ("ours", "theirs"))

    assert plain is None or marked == plain
    assert b"<<<<<<< ours\n" not in marked or plain is None


@pytest.mark.parametrize(
    ("one", "two", "result"),
    [
        (b"1\nX\n3\n4\n", b"1\n2\n3\nY\n", b"1\nX\n3\nY\n"),
        (b"0\n1\n2\n3\n4\n", b"1\n2\n3\n4\n5\n", b"0\n1\n2\n3\n4\n5\n"),
        (b"1\nX\n3\n4\n", b"1\n2\nY\n4\n", None),
        (b"1\nX\n2\n3\n4\n", b"1\n2\n3\n4\nX\n", b"1\nX\n2\n3\n4\nX\n"),
        (b"1\nX\n2\n3\n4\n", b"1\nY\n2\n3\n4\n", None),
        (b"1\nX\n2\n3\n4\n", b"1\nZ\n3\n4\n", None),
        (b"1\n2\n3\n4", b"X\n2\n3\n4\n", b"X\n2\n3\n4"),
    ],
    ids=["apart", "ends", "adjacent", "inserts-apart", "inserts-together", "insert-at-change", "newline-at-end"],
)
def test_one_line_between_decides(one, two, result):
    """Changes with an untouched line between merge; changes that touch do not."""
    assert merged(b"1\n2\n3\n4\n", [one, two]) == result


def test_binary_content_never_merges():
    """What has a NUL byte has no lines to speak of."""
    assert merged(b"a\0\nb\nc\n", [b"A\0\nb\nc\n", b"a\0\nb\nC\n"]) is None

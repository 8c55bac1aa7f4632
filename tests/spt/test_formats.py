"""Strict text: what a record has no use for is refused, in one line that names file and place."""

import gzip
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spt.errors import Usage
from spt.formats import MAX_YAML_BYTES, canonical, check, read_file, read_json, read_jsonl, read_yaml, write_jsonl


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"a: &x 1\nb: *x\n", "line 1: anchors"),
        (b"a: *x\n", "line 1: aliases"),
        (b"- &x [1]\n- [*x, *x]\n", "anchors"),
        (b"a: !!python/object/apply:os.system [x]\n", "line 1: tags"),
        (b"!local a: b\n", "tags"),
        (b"!!str a: b\n", "tags"),
        (b"a: 1\nb: 2\na: 3\n", "line 3: duplicate key 'a'"),
        (b"x: {a: 1, a: 2}\n", "duplicate key 'a'"),
        (b"<<: {a: 1}\n", "merge keys"),
        (b"%YAML 1.1\n---\na: 1\n", "directives"),
        (b"--- 1\n--- 2\n", "second document"),
        (b"", "the file is empty"),
        (b"# nothing\n", "the file is empty"),
        (b"? [a]\n: b\n", "plain word"),
        (b"a: [\n", "line"),
        (b"\tb: 1\n", "line 1"),
        (b"a: \xff\n", "byte 3 is not UTF-8"),
        (b"a: \x01\n", "control characters"),
        (b"[" * 40, "nested deeper than 20"),
        (b"a: " + b"x" * MAX_YAML_BYTES, "more than the 65536"),
    ],
)
def test_yaml_refuses(text, problem):
    """Aliases, tags, duplicate keys and the rest are one-line errors."""
    with pytest.raises(Usage) as caught:
        read_yaml(text, "f.yaml")

    assert caught.value.message.startswith("f.yaml: ")
    assert problem in caught.value.message
    assert "\n" not in caught.value.message


def test_scalars_stay_what_was_written():
    """No scalar changes type behind the author's back."""
    text = b"a: no\nb: 0123\nc: 12:30:45\nd: 2026-01-02\ne: 1.0\nf: 'null'\ng: null\nh:\ni: |\n  two\n  lines\n"

    assert read_yaml(text, "f") == {
        "a": "no",
        "b": "0123",
        "c": "12:30:45",
        "d": "2026-01-02",
        "e": "1.0",
        "f": "null",
        "g": None,
        "h": None,
        "i": "two\nlines\n",
    }


# JSON writes what lies beyond the basic plane as two escapes, which YAML reads as two characters.
letters = st.characters(max_codepoint=0xD7FF, exclude_categories=["Cc"]) | st.sampled_from("\t\n")
words = st.text(letters, max_size=12).filter(lambda word: word != "<<")
plain = st.recursive(
    words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(words, plain, max_size=4))
def test_json_of_strings_is_yaml(value):
    """Any JSON of strings is read as itself: a card may be written as JSON."""
    assert read_yaml(json.dumps(value).encode(), "f") == value


whole_numbers = st.integers(1 - 2**64, 2**64 - 1)


@given(st.lists(st.dictionaries(st.text(max_size=5), whole_numbers | st.text(max_size=5), max_size=3), max_size=4))
def test_json_lines_are_canonical(rows):
    """Lines come back as they were, one text for one value."""
    data = write_jsonl(rows)

    assert [read_json(line, "f") for line in data.split(b"\n")[:-1]] == rows
    assert data == "".join(canonical(dict(reversed(row.items()))) + "\n" for row in rows).encode()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b'{"a":1,"a":2}', "duplicate key 'a'"),
        (b"NaN", "NaN"),
        (b"[" * 100000, "nested too deep"),
        (b"{", "Expecting"),
        (b'"\xff"', "decode"),
    ],
)
def test_json_refuses(text, problem):
    """Keys twice, numbers that are none, and depth are one-line errors."""
    with pytest.raises(Usage, match=problem) as caught:
        read_json(text, "f.json")

    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"tree": "x"}, "f: line 1: 'tree'"),
        ({"surprise": 1}, "f: line 1: unknown key 'surprise'"),
        ({"tree": None}, "f: line 1: 'tree'"),
        ({"entries": []}, "f: line 1: 'entries'"),
    ],
)
def test_schemas_name_line_and_key(change, problem):
    """A line that does not follow its schema says which key and how."""
    line = {"stock_tree": "1" * 40, "entries": [f"a@{'2' * 64}"], "tree": "3" * 40}
    assert read_jsonl(write_jsonl([line]), "f", "source") == [line]

    with pytest.raises(Usage) as caught:
        read_jsonl(write_jsonl([line | change]), "f", "source")
    assert caught.value.message.startswith(problem)


def test_a_missing_key_is_named():
    """What is absent is said by name."""
    with pytest.raises(Usage, match="key 'base_tree' is missing"):
        check({}, "lock", "f")


ANSWER = {"v": 1, "kind": "answer", "request": "r", "turn": 0, "prompt_tok": 1, "reason": "stop", "lines": [1]} | {
    "prefill_s": 0.1,
    "decode_s": 0.1,
}
ODD = st.one_of(st.floats(allow_nan=False), st.booleans(), st.text(), st.none(), st.integers(2**32, 2**64 - 1))


@given(st.lists(st.integers(0, 2**32 - 1)), st.integers(0), ODD)
def test_lists_of_whole_numbers_are_looked_at_item_by_item(numbers, at, odd):
    """A list is what its schema says, or the first item that is not is named; 3.0 is no whole number, nor is true."""
    check({**ANSWER, "ids": numbers}, "answer", "f")
    at %= len(numbers) + 1
    with pytest.raises(Usage, match=f"f: 'ids.{at}' is "):
        check({**ANSWER, "ids": [*numbers[:at], odd, *numbers[at:]]}, "answer", "f")
    with pytest.raises(Usage, match=r"f: 'turn' is 3\.0, not a whole number"):
        check({**ANSWER, "ids": numbers, "turn": 3.0}, "answer", "f")


def test_a_file_is_held_within_its_bound(tmp_path):
    """Packed and plain files are read whole up to a bound, and no further; what is packed badly is said."""
    (tmp_path / "plain").write_bytes(b"x" * 100)
    (tmp_path / "packed.gz").write_bytes(gzip.compress(b"x" * 100))
    for name in ("plain", "packed.gz"):
        assert read_file(tmp_path / name, 100) == b"x" * 100
        with pytest.raises(Usage, match=f"{name}' holds more than 99 bytes"):
            read_file(tmp_path / name, 99)
    (tmp_path / "bad.gz").write_bytes(b"x" * 100)
    with pytest.raises(Usage, match="cannot be unpacked"):
        read_file(tmp_path / "bad.gz")
    with pytest.raises(Usage, match="is no regular file"):
        read_file(tmp_path)

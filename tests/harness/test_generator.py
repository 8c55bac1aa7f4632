"""Generated requests: the same on every machine, unseen, apart from one another, and readable."""

import hashlib
import json
import re
import subprocess
import sys
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.errors import Usage
from harness.generator import FAMILIES, SEALED_FAMILIES, SETS, Set, digest
from harness.generator.dice import Dice
from harness.generator.grammar import a, plural
from harness.generator.sealed.words import SEALED
from harness.generator.words import OPEN, Words
from harness.request import read_requests
from harness.text import load_text
from tests.harness.schemas import validator

ROOT = Path(__file__).parents[2]
SALT = bytes(range(32))
# The digest of `sample()`: it changes with every change of the generator, and only then.
SAMPLE = "f52364b2b9b0b474e5db27f983e4c91f141d2a4f1146bea7099e4c00af27e234"


def a_set(name="development", seed=7, **words):
    return Set(name, seed, SALT if name == "final" else b"", **words)


def sample():
    """Some of everything, as bytes."""
    made = [draw(a_set(name), index) for name in SETS for index in range(8) for draw in (Set.single, Set.session)]
    return b"".join(json.dumps(each).encode() + b"\n" for each in made)


@pytest.fixture(scope="module")
def singles():
    """Requests of every family, those of finals too."""
    return [a_set("final").single(index) for index in range(240)] + [a_set().single(index) for index in range(240)]


@pytest.fixture(scope="module")
def sessions():
    return [a_set("final").session(index) for index in range(12)]


@pytest.fixture(scope="module")
def text(smollm2):
    return load_text(smollm2)


def prompts(requests):
    return [turn for request in requests for turn in request["turns"]]


def test_a_set_is_the_same_everywhere():
    """Committed digests of finals stay good: the bytes do not depend on Python, platform or hash seed."""
    code = "import hashlib, tests.harness.test_generator as t; print(hashlib.sha256(t.sample()).hexdigest())"
    child = [sys.executable, "-c", code]
    other = subprocess.run(child, cwd=ROOT, env={"PYTHONHASHSEED": "5"}, capture_output=True, text=True, check=True)

    assert hashlib.sha256(sample()).hexdigest() == SAMPLE
    assert other.stdout.strip() == SAMPLE


def test_digest_covers_every_source_file(tmp_path):
    """The digest that a final commits to is that of all Python files of the generator, wherever they lie."""
    root = ROOT / "harness/generator"
    lines = sorted(f"{hashlib.sha256(p.read_bytes()).hexdigest()}  {p.relative_to(root)}\n" for p in root.rglob("*.py"))

    assert len(lines) > 25
    assert digest() == hashlib.sha256("".join(lines).encode()).hexdigest()


@given(st.lists(st.integers(1, 2**32), min_size=1, max_size=40), st.integers(0, 2**64 - 1))
@settings(max_examples=50)
def test_dice_stay_in_range_and_repeat(ranges, seed):
    """Numbers lie in their range, and equal paths give equal numbers."""
    dice, again = Dice("x", seed), Dice("x", seed)
    thrown = [dice.below(n) for n in ranges]

    assert all(0 <= value < n for value, n in zip(thrown, ranges, strict=True))
    assert thrown == [again.below(n) for n in ranges]


def test_dice_know_their_path():
    """Paths that look alike when joined are different."""
    paths = [("a", "b"), ("a b",), ("a", "b", ""), (1,), ("1",), (12, 3), (1, 23)]

    assert len({Dice(*path).below(2**60) for path in paths}) == len(paths)


def test_dice_are_even():
    """Each face of a die comes about as often as any other."""
    dice = Dice("even")
    counts = [0] * 6
    for _ in range(6000):
        counts[dice.below(6)] += 1

    assert sum((count - 1000) ** 2 / 1000 for count in counts) < 20.5  # chi-square, 5 degrees, one in a thousand


def test_sets_share_no_request():
    """What one set asks no other asks, whatever the seed."""
    asked = {
        (name, seed): {
            turn
            for index in range(120)
            for turn in Set(name, seed, SALT if name == "final" else b"", longest_tok=60).single(index)["turns"]
        }
        for name in SETS
        for seed in (1, 2)
    }

    for (one, seed), (other, other_seed) in combinations(asked, 2):
        if one != other:
            assert not asked[one, seed] & asked[other, other_seed]


def test_secret_and_seed_decide():
    """Another seed is another set, and another secret another final."""
    ours = prompts(a_set("final", longest_tok=60).single(index) for index in range(50))
    others = prompts(Set("final", 7, bytes(32), longest_tok=60).single(index) for index in range(50))
    seeded = prompts(a_set("final", seed=8, longest_tok=60).single(index) for index in range(50))

    assert not set(ours) & set(others)
    assert not set(ours) & set(seeded)


def test_hardly_any_prompt_comes_twice():
    """Even among the shortest prompts, where there are the fewest, fewer than one in three hundred is a repetition."""
    asked = prompts(a_set(longest_tok=40).single(index) for index in range(1500))

    assert len(asked) - len(set(asked)) < 5


@pytest.mark.full
def test_twenty_thousand_prompts():
    """A long campaign never runs dry: of 20,000 draws fewer than one in a thousand is a repetition."""
    asked = prompts(a_set().single(index) for index in range(20_000))

    assert len(asked) - len(set(asked)) < 20


def test_lengths_spread(singles, text):
    """Prompts have from some twenty to some 1,500 tokens, odd and even, and no length is the usual one."""
    lengths = [len(text.encode(prompt)) for prompt in prompts(singles)]
    bands = [sum(low <= length < 2 * low for length in lengths) / len(lengths) for low in (16, 32, 64, 128, 256, 512)]

    assert min(lengths) <= 20
    assert 1400 <= max(lengths) <= 2100
    assert all(share > 0.05 for share in bands), bands
    assert max(lengths.count(length) for length in lengths) < len(lengths) / 30
    assert 0.4 < sum(length % 2 for length in lengths) / len(lengths) < 0.6


def test_long_prompts_can_be_had(text):
    """The knob for long prompts gives some of several thousand tokens."""
    source = a_set(longest_tok=6000, families=("reading", "summary", "rewrite"))

    longest = max(prompts(source.single(index) for index in range(60)), key=len)

    assert len(text.encode(longest)) > 4000


def test_every_group_is_of_many_families():
    """Each round of indices has every family once, so that no group of requests is of one sort."""
    source = a_set()
    rounds = [[source.single(20 * turn + i)["category"] for i in range(len(FAMILIES))] for turn in range(2)]

    assert [sorted(each) for each in rounds] == [sorted(FAMILIES)] * 2
    assert rounds[0] != rounds[1]


def test_finals_have_families_and_words_of_their_own(singles):
    """A dozen families at least are open, three or more only a final draws, and its own words come in half of it."""
    drawn = {request["category"] for request in singles[:240]}
    open_text, final_text = ("\n".join(prompts(part)) for part in (singles[240:], singles[:240]))
    own = [name for name in SEALED.given if re.search(rf"\b{name}\b", final_text)]

    assert len(FAMILIES) >= 12
    assert len(SEALED_FAMILIES) >= 3
    assert not FAMILIES.keys() & SEALED_FAMILIES.keys()
    assert drawn == FAMILIES.keys() | SEALED_FAMILIES.keys()
    assert len(own) > 20
    assert not any(re.search(rf"\b{name}\b", open_text) for name in SEALED.given)


@pytest.mark.parametrize("kind", Words.__dataclass_fields__)
def test_word_lists_share_nothing(kind):
    """No word of a final's lists stands in the open ones, and none stands twice."""
    ours, theirs = getattr(OPEN, kind), getattr(SEALED, kind)

    assert len(set(ours)) == len(ours)
    assert len(set(theirs)) == len(theirs)
    assert not set(ours) & set(theirs)
    assert all(ours) and all(theirs)


def test_records_fit_their_schemas(singles, sessions, tmp_path):
    """What the generator writes the schemas allow and the harness reads."""
    for request in singles:
        validator("request").validate(request)
    for session in sessions:
        validator("session").validate(session)
    path = tmp_path / "requests.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in singles + sessions))

    assert len(read_requests(path)) == len(singles) + len(sessions)


def test_ids_tell_nothing():
    """An id goes to engines, so it names neither set nor seed, and two requests never share one."""
    made = [draw(a_set(name), index)["id"] for name in SETS for index in range(9) for draw in (Set.single, Set.session)]

    assert len(set(made)) == len(made)
    assert all(re.fullmatch("[0-9a-f]{16}", each) for each in made)


def test_sessions_run_past_4096_tokens(sessions, text):
    """Turns enough to fill the context even where the answers are short, and several that build on earlier ones."""
    for session in sessions:
        asked = len(text.encode(" ".join(session["turns"])))

        assert session["context_tok"] > 4096
        assert asked + 45 * len(session["turns"]) > 4096
        assert session["cap_tok"] == 128
    referring = [turn for turn in prompts(sessions) if re.search(r"\b(it|your last answer|that|first|Back to)\b", turn)]
    assert len(referring) > len(prompts(sessions)) / 4
    assert {"mixed"} < {session["family"] for session in sessions}


def test_a_session_repeats_no_turn(sessions):
    """A model that is asked the same again says the same again."""
    for session in sessions:
        assert len(set(session["turns"])) == len(session["turns"])


VOWEL = re.compile(r"\b[Aa] (?!one|once|uni|use|eu|ukulele|utensil)([aeio]\w+|hour|heir|honest)")
CONSONANT = re.compile(r"\b[Aa]n (?!hour|heir|honest|honour|x-ray)([b-df-hj-np-tv-z]\w+|one|once|uni\w*|use\w*|eu\w*)")


def faults(prompt):
    """What makes a prompt unreadable."""
    code = re.search(r"^(def|function|int|func) ", prompt, re.MULTILINE)
    rules = {
        "slot": r"\{\w+\}|<[RFN]>",
        "double space": r"(?<=\S)  +(?=\S)",
        "space before a sign": r" [,.;:?!](?=\s|$)",
        "double sign": r"\.\.|,,|\?\?|\?\.|\.\?|!\.",
        "space at an end": r"^\s|\s$|[ \t]\n",
        "empty lines": r"\n{3,}",
        "one of many": r"\b1 (?!\d)[a-z]+s\b",
        "three of a letter": r"([a-z])\1\1",
    }
    found = [name for name, rule in rules.items() if re.search(rule, prompt)]
    if not code:
        found += ["a for an"] * bool(VOWEL.search(prompt)) + ["an for a"] * bool(CONSONANT.search(prompt))
        if not prompt[0].isupper() and not prompt[0].isdigit():
            found.append("no capital")
    return found


def test_prompts_read_well(singles, sessions):
    """No empty slot, no wrong article, no stray space or sign: templates and words fit together."""
    bad = {prompt: found for prompt in prompts(singles + sessions) if (found := faults(prompt))}

    assert bad == {}


@pytest.mark.parametrize(
    "prompt",
    ["A orange.", "It is an horse.", "Name {n} of them.", "One  more.", "So , no.", "Done..", "It ends. ", "1 pens"],
)
def test_faults_are_found(prompt):
    """The rules above can fail."""
    assert faults(prompt)


@pytest.mark.parametrize(
    ("noun", "with_article", "many"),
    [
        ("pen", "a pen", "pens"),
        ("hour", "an hour", "hours"),
        ("umbrella", "an umbrella", "umbrellas"),
        ("unit", "a unit", "units"),
        ("electric bike", "an electric bike", "electric bikes"),
        ("box", "a box", "boxes"),
        ("cherry", "a cherry", "cherries"),
        ("tray", "a tray", "trays"),
        ("paint brush", "a paint brush", "paint brushes"),
        ("loaf", "a loaf", "loaves"),
        ("goose", "a goose", "geese"),
    ],
)
def test_grammar(noun, with_article, many):
    """Articles go by sound, plurals by rule and exception."""
    assert a(noun) == with_article
    assert plural(noun) == many


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"name": "train", "seed": 1}, "no set is called 'train'"),
        ({"name": "force", "seed": 1, "families": ("poems",)}, "no family of the set 'force' is called 'poems'"),
        ({"name": "force", "seed": 1, "families": ("recipes",)}, "no family of the set 'force' is called 'recipes'"),
        ({"name": "final", "seed": 1}, "the set 'final' wants a secret"),
        ({"name": "force", "seed": 1, "salt": SALT}, "the set 'force' has no secret"),
        ({"name": "force", "seed": 1, "longest_tok": 3}, "prompts of at most 3 tokens are too short: 15 is the least"),
    ],
)
def test_wrong_words(words, message):
    """What is off is named in one line."""
    with pytest.raises(Usage) as caught:
        Set(**words)

    assert caught.value.message == message

"""The words of policies: what they mean, and what is said of words that mean nothing."""

import tomllib
from pathlib import Path

import pytest

from spt.errors import Usage
from spt.policy import Chain, Confident, Length, Levels, Shared, Tree, budget, parse_policy, running_policy

ROOT = Path(__file__).parents[2]
MEANT = {
    "chain": Chain(0),
    "chain:8": Chain(8),
    "tree:63": Tree(63, 0, 8),
    "tree:63:15:16": Tree(63, 15, 16),
    "confident:31:0:8:0.02": Confident(31, 0, 8, 0.02),
    "length:2:15": Length(2, 15),
    "shared:64:8": Shared(64, 8, 0, 8),
    "shared:64:8:15:4": Shared(64, 8, 15, 4),
    "levels:1:0.98:chain:8": Levels(1, 0.98, 0.98, Chain(8)),
    "levels:2:0.977/0.866:tree:31:15:8": Levels(2, 0.977, 0.866, Tree(31, 15, 8)),
    "levels:1:recorded:chain": Levels(1, None, None, Chain(0)),
}


@pytest.mark.parametrize("word", MEANT)
def test_a_word_is_a_policy_and_back(word):
    """Each word means its policy, and what a policy is called means it too."""
    assert parse_policy(word) == MEANT[word]
    assert parse_policy(str(MEANT[word])) == MEANT[word]


REFUSED = {
    "": "there is no policy ''",
    "trees:8": "there is no policy 'trees'",
    "tree": "is no policy",
    "tree:": "is no policy",
    "tree:-1": "is no policy",
    "tree:8:1:2:3": "is no policy",
    "tree:1024": "'1024' nodes is outside 0 to 1023",
    "tree:99999999999999999999": "nodes is outside",
    "tree:8:65": "'65' positions is outside 0 to 64",
    "tree:8:0:0": "'0' ranks is outside 1 to 64",
    "confident:8:0:8": "is no policy",
    "confident:8:0:8:0.1:2": "is no policy",
    "confident:8:0:8:nan": "'nan' is no probability",
    "confident:8:0:8:2": "'2' is no probability",
    "length:0:4": "the shortest chain is from 1 to the longest",
    "length:5:4": "the shortest chain is from 1 to the longest",
    "shared:8:0": "'0' requests is outside 1 to 4096",
    "levels:1": "is no policy",
    "levels:1:0.9": "there is no policy ''",
    "levels:9:0.9:chain": "'9' cheap passes is outside 0 to 8",
    "levels:1:recorded/0.9:chain": "is no policy",
    "levels:1:0.9/:chain": "is no policy",
    "levels:1:0.9:length:1:2": "drafts of several levels are chains or trees",
    "chain:٣": "is no policy",
    "chain:08": "is no policy",
    "tree:0000000000099999:0:32": "is no policy",
    "tree:00": "is no policy",
    "shared:0000000000999999:2:0:32": "is no policy",
    "levels:00000000099999:0.9:chain": "is no policy",
    "tree:1000000000": "'1000000000' nodes is outside",
    "levels:1:0.9:levels:1:0.9:chain": "several levels do not stand within each other",
}


@pytest.mark.parametrize("word", REFUSED)
def test_a_word_that_means_nothing_is_refused(word):
    """The user's own word is named, with how it goes."""
    with pytest.raises(Usage, match=REFUSED[word]) as caught:
        parse_policy(word)
    assert f"'{word}'" in caught.value.message or caught.value.message.startswith("'': ")


@pytest.mark.parametrize(
    "word", ["levels:1:0.9:" * 800 + "chain", "tree:" + "0" * 5000, "tree:" + "9" * 5000, "x" * 101]
)
def test_a_long_word_is_no_policy(word):
    """However long a word is, it is refused before it is read, in a short line."""
    with pytest.raises(Usage, match=rf"is no policy: it has {len(word)} characters, of at most 100") as caught:
        parse_policy(word)
    assert len(caught.value.message) < 100


def declared(path):
    return {name: each["default"] for name, each in tomllib.loads((ROOT / path).read_text()).items()}


def test_options_name_the_policy_that_ran():
    """A system's options say what it drafts, with the defaults that stock and the entries declare."""
    defaults = declared("stock/options/stock.toml")
    for entry in ("best-first-tree", "confident-budget"):
        defaults |= declared(f"entries/{entry}/tree/stock/options/{entry}.toml")
    assert running_policy({}) == running_policy(defaults) == Chain(0)
    tree = {"select": "best_first"}
    assert running_policy(tree) == running_policy(defaults | tree) == Tree(32, 0, 8)
    confident = {"select": "confident", "confident_floor": 0.02, "best_first_nodes": 31}
    assert running_policy(confident) == Confident(31, 0, 8, 0.02)
    assert running_policy(defaults | {"select": "confident"}) == running_policy({"select": "confident"})
    assert running_policy({"chain_positions": 8}) == Chain(8)
    assert running_policy(tree | {"best_first_nodes": "15", "best_first_width": "4"}) == Tree(15, 0, 4)
    with pytest.raises(Usage, match="are no policy"):
        running_policy({"best_first_nodes": "many"})
    assert running_policy({"draft": "none", "select": "best_first"}) == Tree(0)
    with pytest.raises(Usage, match="no policy is known for the selection 'sideways'"):
        running_policy({"select": "sideways"})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("best_first_nodes", value) for value in (10**18, "1024", -1, "-1", 3.7, True, None, [], "0" * 20, "9" * 9)),
        *(("best_first_width", value) for value in (0, 65)),
        ("chain_positions", 65),
        *(("confident_floor", value) for value in (-1, 2, "nan", "much", [])),
    ],
)
def test_options_have_the_limits_of_words(name, value):
    """What a record says that ran is walked within the limits of a policy that a user names, or not at all."""
    with pytest.raises(Usage, match=name):
        running_policy({"select": "confident", name: value})


@pytest.mark.parametrize(
    ("word", "rows"),
    [
        ("chain", 15),
        ("chain:8", 8),
        ("chain:40", 15),
        ("tree:63:0:16", 63),
        ("tree:0", 0),
        ("confident:31:15:8:0.02", 31),
        ("length:2:15", None),
        ("shared:64:8", None),
        ("levels:1:0.98:chain", None),
    ],
)
def test_what_a_step_drafts(word, rows):
    """A chain drafts its positions, a tree its nodes, with or without a floor; else requests or passes decide."""
    assert budget(parse_policy(word), 15) == rows

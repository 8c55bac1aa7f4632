"""Draft policies that can be walked, and the words for them.

Policy
+-- Chain      chain[:POSITIONS]                               the best id of each position
+-- Tree       tree:NODES[:POSITIONS[:WIDTH]]                  the best paths of the lattice
+-- Confident  confident:NODES:POSITIONS:WIDTH:FLOOR           those above a path probability
+-- Length     length:SHORTEST:LONGEST                         chains, each request's as long as its last steps earned
+-- Shared     shared:NODES:REQUESTS[:POSITIONS[:WIDTH]]       the best paths over all requests of a step
+-- Levels     levels:PASSES:AGREEMENT[/BONUS]:POLICY          several drafts an exact pass, a cheap pass behind each

POSITIONS 0 stands for all that the drafter proposes.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spt.errors import Usage

__all__ = [
    "Chain",
    "Confident",
    "Length",
    "Levels",
    "Policy",
    "Shared",
    "Tree",
    "budget",
    "parse_policy",
    "running_policy",
]

MOST_NODES, MOST_POSITIONS, MOST_WIDTH = 1023, 64, 64
_MOST_CHARACTERS = 100
_NUMBER = re.compile("0|[1-9][0-9]*")
WIDTH = 8  # as the entry best-first-tree has it


@dataclass(frozen=True)
class Chain:
    """The drafter's best id of each of `positions` positions."""

    positions: int = 0

    def __str__(self) -> str:
        return f"chain:{self.positions}"


@dataclass(frozen=True)
class Tree:
    """The `nodes` best paths within `positions` positions and `width` ranks, as the entry best-first-tree has them."""

    nodes: int
    positions: int = 0
    width: int = WIDTH

    def __str__(self) -> str:
        return f"tree:{self.nodes}:{self.positions}:{self.width}"


@dataclass(frozen=True)
class Confident:
    """The nodes of a tree whose path probability reaches `floor`: what the entry confident-budget verifies."""

    nodes: int
    positions: int
    width: int
    floor: float

    @property
    def tree(self) -> Tree:
        return Tree(self.nodes, self.positions, self.width)

    def __str__(self) -> str:
        return f"confident:{self.nodes}:{self.positions}:{self.width}:{self.floor!r}"


@dataclass(frozen=True)
class Length:
    """Chains of a length that each request finds for itself.

    It starts at `longest`; a step that accepts its whole chain makes the next two longer, any other one shorter.
    """

    shortest: int
    longest: int

    def __str__(self) -> str:
        return f"length:{self.shortest}:{self.longest}"


@dataclass(frozen=True)
class Shared:
    """The `nodes` best paths over all of the `requests` that a step serves; ties go to the earlier request.

    A request that ends makes room for the next; one may get no node, and then emits one token.
    """

    nodes: int
    requests: int
    positions: int = 0
    width: int = WIDTH

    @property
    def tree(self) -> Tree:
        """What one request would get of it alone."""
        return Tree(self.nodes, self.positions, self.width)

    def __str__(self) -> str:
        return f"shared:{self.nodes}:{self.requests}:{self.positions}:{self.width}"


@dataclass(frozen=True)
class Levels:
    """Two-level verification: `passes` cheap passes, each over a draft of its own, then one exact pass over all.

    A cheap pass says what the exact one says with probability `agreement` on a drafted token and `bonus` on the token
    behind them; both None where it is recorded position by position.
    """

    passes: int
    agreement: float | None
    bonus: float | None
    draft: Chain | Tree

    def __str__(self) -> str:
        if self.agreement is None:
            word = "recorded"
        elif self.bonus == self.agreement:
            word = repr(self.agreement)
        else:
            word = f"{self.agreement!r}/{self.bonus!r}"
        return f"levels:{self.passes}:{word}:{self.draft}"


Policy = Chain | Tree | Confident | Length | Shared | Levels


def parse_policy(word: str) -> Policy:
    """The policy that a word such as `tree:63:15:16` names; raises Usage in the user's words."""
    if len(word) > _MOST_CHARACTERS:
        raise Usage(f"'{word[:20]}...' is no policy: it has {len(word)} characters, of at most {_MOST_CHARACTERS}")
    kind, *numbers = word.split(":")
    if kind not in _GRAMMAR:
        raise Usage(f"'{word}': there is no policy '{kind}'", f"policies are {', '.join(_GRAMMAR)}")
    usage, read = _GRAMMAR[kind]
    try:
        return read(word, numbers)
    except (IndexError, _Odd):
        raise Usage(f"'{word}' is no policy", f"it goes `{usage}`, for instance `{_EXAMPLES[kind]}`") from None


def running_policy(options: Mapping[str, Any]) -> Policy:
    """What a system with these options, which may be words, drafts and selects; Usage where that cannot be walked."""
    get = {**_DEFAULTS, **options}.__getitem__
    if get("draft") == "none":
        return Tree(0)
    try:
        tree = (("best_first_nodes", _nodes), ("best_first_positions", _positions), ("best_first_width", _width))
        nodes, positions, width, chain = (
            _option(name, get(name), limits) for name, limits in (*tree, ("chain_positions", _positions))
        )
        floor = _share("confident_floor", str(get("confident_floor")))
    except _Odd:
        raise Usage("the options of the system that ran are no policy: 'confident_floor' is no number") from None
    policies: dict[str, Policy] = {
        "chain": Chain(chain),
        "best_first": Tree(nodes, positions, width),
        "confident": Confident(nodes, positions, width, floor),
    }
    if get("select") not in policies:
        raise Usage(f"no policy is known for the selection '{get('select')}'", "name one with --policy")
    return policies[get("select")]


def _option(name: str, value: Any, limits: tuple[int, int, str]) -> int:
    """A whole number, or the word for one, within its limits."""
    least, most, what = limits
    text = str(value)
    if isinstance(value, bool) or not _NUMBER.fullmatch(text):
        raise Usage(f"the options of the system that ran are no policy: {name} is '{text[:20]}'")
    if len(text) > 9 or not least <= int(text) <= most:
        raise Usage(f"the options of the system that ran: {name} is '{text[:20]}', outside {least} to {most} {what}")
    return int(text)


def budget(policy: Policy, depths: int) -> int | None:
    """Rows that a request's step drafts at the most, of a drafter of `depths` positions; None where they are shared."""
    if isinstance(policy, Chain):
        return min(policy.positions or depths, depths)
    return policy.nodes if isinstance(policy, Tree | Confident) else None


# As stock and the entries declare them.
_DEFAULTS: Mapping[str, Any] = {
    "draft": "dflash",
    "select": "chain",
    "chain_positions": 0,
    "best_first_nodes": 32,
    "best_first_positions": 0,
    "best_first_width": WIDTH,
    "confident_floor": 0.0,
}


class _Odd(Exception):
    """A word that its grammar does not have."""


def _chain(word: str, numbers: Sequence[str]) -> Policy:
    (positions,) = _whole(word, numbers, (0,), (_positions,))
    return Chain(positions)


def _tree(word: str, numbers: Sequence[str]) -> Policy:
    nodes, positions, width = _whole(word, numbers, (None, 0, WIDTH), (_nodes, _positions, _width))
    return Tree(nodes, positions, width)


def _confident(word: str, numbers: Sequence[str]) -> Policy:
    nodes, positions, width = _whole(word, numbers[:3], (None, None, None), (_nodes, _positions, _width))
    return Confident(nodes, positions, width, _share(word, _only(numbers[3:])))


def _length(word: str, numbers: Sequence[str]) -> Policy:
    shortest, longest = _whole(word, numbers, (None, None), (_positions, _positions))
    if not 1 <= shortest <= longest:
        raise Usage(f"'{word}': the shortest chain is from 1 to the longest", f"for instance `{_EXAMPLES['length']}`")
    return Length(shortest, longest)


def _shared(word: str, numbers: Sequence[str]) -> Policy:
    limits = (_nodes, (1, 4096, "requests"), _positions, _width)
    nodes, requests, positions, width = _whole(word, numbers, (None, None, 0, WIDTH), limits)
    return Shared(nodes, requests, positions, width)


def _levels(word: str, numbers: Sequence[str]) -> Policy:
    (passes,) = _whole(word, numbers[:1], (None,), ((0, 8, "cheap passes"),))
    drafted, _, bonus = numbers[1].partition("/")
    if numbers[2:3] == ["levels"]:
        raise Usage(f"'{word}': several levels do not stand within each other", f"for instance `{_EXAMPLES['levels']}`")
    draft = parse_policy(":".join(numbers[2:]))
    if not isinstance(draft, Chain | Tree):
        raise Usage(f"'{word}': drafts of several levels are chains or trees", f"for instance `{_EXAMPLES['levels']}`")
    if drafted == "recorded" and "/" not in numbers[1]:
        return Levels(passes, None, None, draft)
    agreement = _share(word, drafted)
    return Levels(passes, agreement, _share(word, bonus) if "/" in numbers[1] else agreement, draft)


_nodes = (0, MOST_NODES, "nodes")
_positions = (0, MOST_POSITIONS, "positions")
_width = (1, MOST_WIDTH, "ranks")
_GRAMMAR: dict[str, tuple[str, Callable[[str, Sequence[str]], Policy]]] = {
    "chain": ("chain[:POSITIONS]", _chain),
    "tree": ("tree:NODES[:POSITIONS[:WIDTH]]", _tree),
    "confident": ("confident:NODES:POSITIONS:WIDTH:FLOOR", _confident),
    "length": ("length:SHORTEST:LONGEST", _length),
    "shared": ("shared:NODES:REQUESTS[:POSITIONS[:WIDTH]]", _shared),
    "levels": ("levels:PASSES:AGREEMENT[/BONUS]:POLICY", _levels),
}
_EXAMPLES = {
    "chain": "chain:8",
    "tree": "tree:63:15:16",
    "confident": "confident:31:15:8:0.02",
    "length": "length:2:15",
    "shared": "shared:64:8:15:8",
    "levels": "levels:1:0.98:tree:31:15:8",
}


def _whole(
    word: str, given: Sequence[str], defaults: Sequence[int | None], limits: Sequence[tuple[int, int, str]]
) -> list[int]:
    """The numbers of a word, within their limits; those that are left out at the end have a default."""
    if len(given) > len(defaults):
        raise _Odd
    numbers = []
    for text, default, (least, most, what) in zip(
        [*given, *[None] * (len(defaults) - len(given))], defaults, limits, strict=True
    ):
        if text is None and default is not None:
            numbers.append(default)
            continue
        if text is None or not _NUMBER.fullmatch(text):
            raise _Odd
        if len(text) > 9 or not least <= int(text) <= most:
            raise Usage(f"'{word}': '{text}' {what} is outside {least} to {most}")
        numbers.append(int(text))
    return numbers


def _only(words: Sequence[str]) -> str:
    if len(words) != 1:
        raise _Odd
    return words[0]


def _share(word: str, text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        raise _Odd from None
    if not 0 <= share <= 1:
        raise Usage(f"'{word}': '{text}' is no probability from 0 to 1")
    return share

"""What an agent is told: its task, and how its work leaves the sandbox; the same words for every agent."""

from collections.abc import Mapping

from spt.round.direction import Direction, Verdict
from spt.round.enclosure import WORK_TREE
from spt.round.scope import FIXED, LITERAL_BYTES
from spt.system import FOLDERS, SUFFIXES

__all__ = ["MOST_DIRECTIONS", "TOOLS", "direction_brief", "proposing_brief"]

# What an agent may call, and what each answers; `tool NAME KEY=VALUE...` in a shell, or the tool of that name.
TOOLS: Mapping[str, str] = {
    "offer": "take the work as it is now for a candidate: {number}",
    "measure_quick": "number=N: candidate and base on a few fresh requests: {ratio, tau, base_tau, same}; advice alone",
    "try_patch": "number=N: the gates that need no timing, on fresh prompts: {passed, gate, reason}",
    "walk": "policy=WORD: what a draft policy would accept on recorded ranks: {policy, tau, nodes}",
    "ceiling": "the factors that separate the base from its ceiling",
    "search_memory": "words=TEXT: entries and declined ideas that hold the words",
}
_FILES = f"""Your working tree is {WORK_TREE}, a clone of the base on the branch `work`.
Edit and commit with ordinary git; what you leave uncommitted is committed for you when you end.
Allowed are plain text files ({", ".join(SUFFIXES)}) in {", ".join(f"{folder}/" for folder in FOLDERS)}, but not
{", ".join(sorted(FIXED))}; no links, no submodules, no executables, no literal above {LITERAL_BYTES // 1024} KiB.
A mechanism stands behind an option of its own in stock/options/NAME.toml, whose default is stock.
The option values that switch your work on are trailers of a commit, one a line: `Spt-Option: NAME=VALUE`;
or lines NAME=VALUE in /spt/room/options.
"""


MOST_DIRECTIONS = 16  # of one proposal


def proposing_brief(text: str, slots: int) -> str:
    """The task of proposing directions."""
    asked = 'tool direction title="..." hypothesis="..." predicted_gain=1.05 low=1.02 high=1.08'
    return (
        f"{text}\nPropose directions, the most promising first, one idea each, at most {MOST_DIRECTIONS}: {asked}\n"
        f"Devices: {slots}; each direction has one of them to itself.\n"
        "A gain is a ratio: 1.05 is 5 % faster.  Nothing that you write here is kept.\n"
    )


def direction_brief(direction: Direction, verdict: Verdict | None = None) -> str:
    """The task of working on a direction; `verdict` is what a gate said of the work that is there already."""
    lines = [
        f"Direction {direction.id} ({direction.phase}): {direction.title}",
        direction.hypothesis,
        f"The base is the system tree {direction.base.tree}, options {dict(direction.base.options) or 'at defaults'}.",
        "",
        _FILES,
        "Tools, each `tool NAME KEY=VALUE...`, which answer JSON:",
        *(f"- {name}: {words}" for name, words in TOOLS.items()),
        "What counts is your work as it is when you end.",
    ]
    if verdict is not None:
        lines += [
            "",
            f"The gate {verdict.gate} declined your work: {verdict.reason}",
            "Mend it, or end without a change.",
        ]
    return "\n".join(lines) + "\n"

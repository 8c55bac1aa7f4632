"""tau: tokens a step, counted from the wire, with loops apart.

Greedy text of a small model repeats itself, and a drafter guesses repetitions for free.
So a token is *looped* when it lies in a run of 24 tokens that stood in the same answer before.
A step whose first token is looped leaves tau whole, with all its tokens.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["RUN_TOK", "Tally", "looped", "tally", "tally_of"]

RUN_TOK = 24


@dataclass(frozen=True)
class Tally:
    """Counts of one answer or of several; prefill's token belongs to no step."""

    answers: int = 0
    tokens: int = 0  # all that were emitted
    looped_tokens: int = 0  # of those
    steps: int = 0  # exact passes after prefill
    step_tokens: int = 0  # emitted by them
    kept_steps: int = 0  # the steps that are not looped
    kept_tokens: int = 0  # emitted by those

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(*(getattr(self, name) + getattr(other, name) for name in Tally.__dataclass_fields__))

    @property
    def tau(self) -> float | None:
        """Tokens a step without loops, micro average; None where no step is left."""
        return self.kept_tokens / self.kept_steps if self.kept_steps else None

    @property
    def tau_all(self) -> float | None:
        """Tokens a step, loops included; None where there was no step."""
        return self.step_tokens / self.steps if self.steps else None


def looped(ids: Sequence[int], run_tok: int = RUN_TOK) -> list[bool]:
    """For each token whether it lies in a run of `run_tok` tokens that began earlier in `ids` too."""
    seen: set[tuple[int, ...]] = set()
    marks = [False] * len(ids)
    for start in range(len(ids) - run_tok + 1):
        run = tuple(ids[start : start + run_tok])
        if run in seen:
            marks[start : start + run_tok] = [True] * run_tok
        seen.add(run)
    return marks


def tally(ids: Sequence[int], lines: Sequence[int]) -> Tally:
    """Counts of one answer: its `ids`, and how many of them each line of the wire held, prefill's first."""
    if sum(lines) != len(ids):
        raise ValueError(f"{len(ids)} ids in lines of {sum(lines)}")
    marks = looped(ids)
    steps = lines[1:]
    firsts = itertools.accumulate(lines[:-1])
    kept = [count for first, count in zip(firsts, steps, strict=True) if not marks[first]]
    return Tally(1, len(ids), sum(marks), len(steps), sum(steps), len(kept), sum(kept))


def tally_of(answers: Iterable[Mapping[str, Any]]) -> Tally:
    """Counts of several answers, as records with `ids` and `lines`."""
    return sum((tally(answer["ids"], answer["lines"]) for answer in answers), Tally())

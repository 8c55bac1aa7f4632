"""Acceptance curves, counted from the wire: the share of steps that emitted at least so many tokens.

They come from answers that lie on this machine: a measurement's, or the raw samples of a verdict.  Steps whose first
token is looped are left out, as they are of tau (docs/records.md).
"""

import contextlib
import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spt.errors import SptError, Usage
from spt.formats import read_file
from spt.lattice import looped
from spt.report.story import Source, Story
from spt.verdicts import Ledger

__all__ = ["Curve", "curves"]

_MOST_BYTES = 256 << 20
_MOST_TOK = 64  # a step of more is counted as one of so many
_TYPE = b'"type": "answer"', b'"type":"answer"'


@dataclass(frozen=True)
class Curve:
    """One system's curve: `shares[k]` of `steps` emitted more than k tokens; tau is their mean."""

    name: str
    shares: tuple[float, ...]
    steps: int
    tau: float
    file: Path
    source: Source


def curves(story: Story, ledger: Ledger) -> list[Curve]:
    """The curves of a round's start and of what came of it, as far as their answers are on this machine."""
    found = []
    for name, answers, file, source in _answers(story, ledger):
        with contextlib.suppress(SptError, OSError):  # samples may be gone, cut or changed: then there is no curve
            if (curve := _curve(name, answers, file, source)) is not None:
                found.append(curve)
    return found


def _answers(story: Story, ledger: Ledger) -> Iterator[tuple[str, Iterable[Mapping[str, Any]], Path, Source]]:
    """(name, answers, file, source) of each system whose answers may be here."""
    for number, ceiling in enumerate(story.ceilings):
        if (file := _measured(ceiling.folder, ledger)) is not None:
            yield f"measured {number + 1}", _lines(file, None, None), file, ceiling.source
    last = story.promotions[-1] if story.promotions else None
    if last is not None and last.source.raw is not None:
        file = ledger.raw(last.source.raw)
        if file.is_file():
            yield "last promotion, before", _lines(file, "b", "confirm"), file, last.source
            yield "last promotion, after", _lines(file, "a", "confirm"), file, last.source
    if story.final is not None and story.final.source.raw is not None:
        file = ledger.raw(story.final.source.raw)
        if file.is_file():
            yield "final, stock", _lines(file, "b", "stock"), file, story.final.source
            yield "final, system", _lines(file, "a", "stock"), file, story.final.source


def _measured(folder: str, ledger: Ledger) -> Path | None:
    """The answers of a measurement below the repository's own `spt/`; a journal is not followed anywhere else."""
    if not folder or "\0" in folder:
        return None
    state = ledger.store.state.resolve()
    path = (state.parent / folder / "answers.jsonl").resolve()
    return path if path.is_relative_to(state) and path.is_file() else None


def _lines(file: Path, arm: str | None, phase: str | None) -> Iterator[Mapping[str, Any]]:
    """The answers in a file: all of a measurement's, those of one arm and phase of samples.

    Usage for samples that are not what their name says.
    """
    data = read_file(file, _MOST_BYTES)
    if arm is not None and hashlib.sha256(data).hexdigest() != file.name.partition(".")[0]:
        raise Usage(f"the samples '{file}' are not those that were measured")
    for line in data.splitlines():
        if arm is not None and not any(mark in line for mark in _TYPE):
            continue
        with contextlib.suppress(ValueError, RecursionError):  # half a last line
            answer = json.loads(line)
            if isinstance(answer, dict) and (arm is None or (answer.get("arm"), answer.get("phase")) == (arm, phase)):
                yield answer


def _curve(name: str, answers: Iterable[Mapping[str, Any]], file: Path, source: Source) -> Curve | None:
    counts: Counter[int] = Counter()
    for answer in answers:
        ids, lines = answer.get("ids"), answer.get("lines")
        if isinstance(ids, list) and isinstance(lines, list) and all(type(one) is int for one in lines):
            counts.update(_steps(ids, lines))
    steps = sum(counts.values())
    if not steps:
        return None
    most = min(max(counts), _MOST_TOK)
    shares = tuple(sum(many for tokens, many in counts.items() if tokens > k) / steps for k in range(most))
    return Curve(name, shares, steps, sum(tokens * many for tokens, many in counts.items()) / steps, file, source)


def _steps(ids: list[int], lines: list[int]) -> Iterator[int]:
    """Tokens of each step of an answer that is not looped; prefill's line is no step."""
    if not lines or sum(lines) != len(ids):
        return
    marks, at = looped(ids), lines[0]
    for count in lines[1:]:
        if not marks[at]:
            yield count
        at += count

"""Answers that one pass scores together: each prompt begins with all that was asked and said before it.

A session asks its whole context anew at every turn, so that scoring turn by turn costs a square of its length.
"""

from collections.abc import Iterable, Iterator, Sequence

from harness.client import Engine
from harness.samples import Line
from harness.wire import Sampling, Scores

__all__ = ["chained", "score_chain"]

Chain = list[Line]  # `answer` lines of one session


def chained(answers: Iterable[Line]) -> Iterator[Chain]:
    """The answers in their order, cut where a prompt does not go on from the answer before it.

    Another session, another sampling, and a turn whose text became other tokens when it was written into the context
    begin a chain of their own.
    """
    chain: Chain = []
    for said in answers:
        if chain and not _goes_on(chain[-1], said):
            yield chain
            chain = []
        chain.append(said)
    if chain:
        yield chain


def _goes_on(before: Line, said: Line) -> bool:
    if (before["session"], before["sampling"]) != (said["session"], said["sampling"]):
        return False
    so_far = before["prompt"] + before["ids"]
    return bool(said["prompt"][: len(so_far)] == so_far)


def score_chain(verifier: Engine, chain: Sequence[Line]) -> list[Scores]:
    """The scores of each answer's own tokens, from one question to the verifier; none where nothing was said."""
    first, last = len(chain[0]["prompt"]), chain[-1]
    if not any(said["ids"] for said in chain):
        return [Scores(len(said["prompt"]), [], [], [], [], []) for said in chain]
    whole = verifier.score(last["prompt"] + last["ids"], first, Sampling(**last["sampling"]))
    return [_part(whole, len(said["prompt"]), len(said["ids"])) for said in chain]


def _part(whole: Scores, start: int, count: int) -> Scores:
    at = slice(start - whole.start, start - whole.start + count)
    return Scores(start, whole.argmax[at], whole.margin[at], whole.rank[at], whole.logit[at], whole.kept[at])

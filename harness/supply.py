"""Fresh requests for timing: every prompt is asked once in a campaign, of both arms, and of no process twice."""

from collections.abc import Iterable, Sequence

from harness.conversation import ANSWER_TOK, Conversation, question, stop_ids_of, wire_id
from harness.errors import HarnessError, Usage
from harness.request import Request
from harness.text import Text
from harness.wire import Generate, Ready, Sampling

__all__ = ["Supply"]


class Supply:
    """The requests of a campaign in the order of their file, without those whose prompt was asked before.

    `seen` are the ids of requests that the campaign's samples name, in units that count or not.  What counts is the
    prompt: under two ids it would be an answer that an engine has kept.  No answer is longer than `answer_tok`.
    """

    def __init__(
        self, requests: Sequence[Request], seen: Iterable[str], text: Text | None, answer_tok: int = ANSWER_TOK
    ) -> None:
        for request in requests:
            if request.session or len(request.turns) > 1:
                raise Usage(f"request '{request.id}' has several turns: what is timed is single prompts")
        self._left = _fresh(requests, set(seen))[::-1]
        self._text = text
        self._answer_tok = answer_tok
        self._given: dict[str, Request] = {}

    def __len__(self) -> int:
        return len(self._left)

    def take(self, count: int, ready: Ready, sampling: Sampling) -> list[Generate]:
        """The next `count` requests as they go over the wire; those that do not fit the context are passed over.

        Raises `HarnessError` when there are no more.
        """
        taken: list[Generate] = []
        while len(taken) < count:
            if not self._left:
                raise HarnessError(
                    "the requests are used up: every prompt is asked only once",
                    "start a campaign with a longer file of requests",
                )
            request = self._left.pop()
            prompt = Conversation(request).prompt(self._text)
            wanted = min(request.max_tokens or self._answer_tok, self._answer_tok)
            if len(prompt) + wanted <= ready.context:
                stop_ids = stop_ids_of(ready, self._text)
                taken.append(question(request, wire_id(request, 0), prompt, wanted, sampling, stop_ids))
                self._given[taken[-1].id] = request
        return taken

    def request(self, asked: Generate) -> Request:
        """Where a question that was taken comes from."""
        return self._given[asked.id]


def _fresh(requests: Sequence[Request], seen: set[str]) -> list[Request]:
    """The first request of each prompt that no request in `seen` has."""
    asked = {(request.turns, request.ids) for request in requests if request.id in seen}
    fresh: dict[tuple[tuple[str, ...], tuple[int, ...]], Request] = {}
    for request in requests:
        if (prompt := (request.turns, request.ids)) not in asked:
            fresh.setdefault(prompt, request)
    return list(fresh.values())

"""One request after the other, turn by turn: what is asked next, and how an answer becomes context."""

from collections.abc import Iterator
from dataclasses import replace

from harness.answer import Answer
from harness.client import Engine
from harness.errors import Usage
from harness.request import Request, request_seed
from harness.text import Text
from harness.wire import Generate, Ready, Sampling

__all__ = ["converse"]


def converse(
    engine: Engine,
    ready: Ready,
    text: Text | None,
    request: Request,
    sampling: Sampling,
    stop_ids: list[int],
    longest_tok: int,
) -> Iterator[tuple[Generate, Answer]]:
    """Asks all turns of a request, each with the answers before it in its context; questions and answers as they come.

    Wire ids are `request#turn`.  An answer has at most what the request says, else `longest_tok`.  A session ends by
    itself when its next turn does not fit; any other request that does not fit is `Usage`.
    """
    said: list[str] = []
    context = min(ready.context, request.context_tok or ready.context)
    for turn in range(request.answers):
        prompt = list(request.ids)
        if not prompt:
            assert text is not None
            prompt = text.chat(request.turns[: turn + 1], said)
        wanted = request.max_tokens or longest_tok
        if len(prompt) + wanted > context:
            if request.session:
                return
            raise Usage(f"request '{request.id}' does not fit the context of {context}")
        drawn = request.sampling or sampling
        asked = Generate(
            id=f"{request.id}#{turn}",
            prompt=prompt,
            max_tokens=wanted,
            stop_ids=stop_ids,
            ignore_eos=request.ignore_eos,
            sampling=replace(drawn, seed=request_seed(drawn.seed, request.choice)),
        )
        answer = engine.generate(asked)
        yield asked, answer
        if text is not None:
            ended = not request.ignore_eos and answer.ids and answer.ids[-1] in stop_ids
            said.append(text.decode(answer.ids[:-1] if ended else answer.ids))

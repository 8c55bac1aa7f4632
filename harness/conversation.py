"""What a request asks next, and how an answer becomes context: the same for every command that asks."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from harness.answer import Answer
from harness.client import Engine
from harness.errors import Usage
from harness.request import Request, request_seed
from harness.text import Text
from harness.wire import Generate, Ready, Sampling

__all__ = ["ANSWER_TOK", "Conversation", "converse", "question", "spoken", "stop_ids_of", "wire_id"]

ANSWER_TOK = 128  # the longest answer that is timed, and that is forced where a request says nothing else


def wire_id(request: Request, turn: int) -> str:
    """What a question is called on the wire: the same form whatever it is asked for."""
    return f"{request.id}#{turn}"


def stop_ids_of(ready: Ready, text: Text | None) -> list[int]:
    """What ends an answer: the model's stop ids and its text's, of which a file may name more than the model has."""
    named = {*ready.stop_ids, *(text.stop_ids if text else ())}
    return sorted(each for each in named if each < ready.vocabulary)


def question(
    request: Request, name: str, prompt: list[int], max_tokens: int, sampling: Sampling, stop_ids: list[int]
) -> Generate:
    """A prompt of the request as it goes over the wire; `sampling` holds the user's seed where the request has none."""
    drawn = request.sampling or sampling
    return Generate(
        id=name,
        prompt=prompt,
        max_tokens=max_tokens,
        stop_ids=stop_ids,
        ignore_eos=request.ignore_eos,
        sampling=replace(drawn, seed=request_seed(drawn.seed, request.choice)),
    )


def spoken(asked: Generate, ids: Sequence[int]) -> list[int]:
    """`ids` without the stop id at their end: it ends the answer and is no part of the text."""
    ended = bool(ids) and not asked.ignore_eos and ids[-1] in asked.stop_ids
    return list(ids[:-1] if ended else ids)


@dataclass
class Conversation:
    """A request and the texts of the answers that it has; empty ones where there is no tokenizer."""

    request: Request
    said: list[str] = field(default_factory=list)
    full: bool = False  # a session whose next turn does not fit any more

    @property
    def done(self) -> bool:
        return self.full or len(self.said) == self.request.answers

    def prompt(self, text: Text | None) -> list[int]:
        """The ids before the next answer: all turns so far, with the answers that they got."""
        if self.request.ids:
            return list(self.request.ids)
        assert text is not None  # whoever asks turns has loaded a tokenizer
        return text.chat(self.request.turns[: len(self.said) + 1], self.said)

    def ask(self, ready: Ready, text: Text | None, sampling: Sampling, longest_tok: int | None) -> Generate | None:
        """The next question, `request#turn` on the wire; None where a session's next turn does not fit.

        An answer has at most what the request says, else `longest_tok`, else what the context holds.
        Raises `Usage` for any other request that does not fit.
        """
        request, prompt = self.request, self.prompt(text)
        context = min(ready.context, request.context_tok or ready.context)
        room = context - len(prompt)
        wanted = request.max_tokens or longest_tok or max(1, room)
        if wanted > room:
            if request.session:
                self.full = True
                return None
            raise Usage(
                f"request '{request.id}' does not fit: {len(prompt)} prompt tokens and {wanted} new ones"
                f" exceed the context of {context}",
                "ask for fewer tokens, or raise 'context' in the deployment",
            )
        return question(request, wire_id(request, len(self.said)), prompt, wanted, sampling, stop_ids_of(ready, text))

    def hear(self, asked: Generate, answer: Answer, text: Text | None) -> None:
        """Takes the answer into the context."""
        self.said.append("" if text is None else text.decode(spoken(asked, answer.ids)))


def converse(
    engine: Engine, ready: Ready, text: Text | None, request: Request, sampling: Sampling, longest_tok: int
) -> Iterator[tuple[Generate, Answer]]:
    """All turns of a request, one after the other; questions and answers as they come."""
    conversation = Conversation(request)
    while not conversation.done and (asked := conversation.ask(ready, text, sampling, longest_tok)) is not None:
        answer = engine.generate(asked)
        yield asked, answer
        conversation.hear(asked, answer, text)

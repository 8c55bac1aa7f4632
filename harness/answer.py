"""An answer in the making: it takes an engine's lines, and holds them to what was asked."""

from dataclasses import dataclass, field
from typing import Any

from harness.shape import Mismatch
from harness.wire import Generate

__all__ = ["Answer", "OpenRequest"]


@dataclass
class Answer:
    """What came back for one request, with times of the harness's own clock."""

    id: str
    prompt_tok: int
    ids: list[int] = field(default_factory=list)
    reason: str = ""
    lines: list[int] = field(default_factory=list)  # ids a line: prefill's one, then one line an exact pass
    logprobs: list[float] | None = None
    logits_sha256: str | None = None
    written_ns: int = 0  # just before the request was written
    read_ns: list[int] = field(default_factory=list)  # when each line was read
    done_ns: int = 0  # when `done` was read

    @property
    def took_s(self) -> float:
        """From the request written to `done` read."""
        return (self.done_ns - self.written_ns) / 1e9

    @property
    def prefill_s(self) -> float:
        """From the request written to the first token read; to `done` read where none came."""
        return ((self.read_ns[0] if self.read_ns else self.done_ns) - self.written_ns) / 1e9

    @property
    def decode_s(self) -> float:
        """From the first token read to `done` read."""
        return (self.done_ns - self.read_ns[0]) / 1e9 if self.read_ns else 0.0


class OpenRequest:
    """A request that is not done; a line that contradicts it raises `Mismatch`."""

    def __init__(self, request: Generate, written_ns: int) -> None:
        self.request = request
        self.cancelled = False
        self.answer = Answer(request.id, len(request.prompt), written_ns=written_ns)
        if request.logprobs:
            self.answer.logprobs = []

    def take_tokens(self, reply: dict[str, Any], read_ns: int) -> None:
        """Adds the ids of a `tokens` line."""
        request, answer, ids = self.request, self.answer, reply["ids"]
        if not answer.lines and len(ids) != 1:
            raise Mismatch(f"the first line of '{request.id}' holds {len(ids)} tokens, not prefill's alone")
        if len(answer.ids) + len(ids) > request.max_tokens:
            raise Mismatch(f"'{request.id}' got more than {request.max_tokens} tokens")
        if not request.ignore_eos and {*answer.ids[-1:], *ids[:-1]} & set(request.stop_ids):
            raise Mismatch(f"'{request.id}' got tokens after a stop id")
        if ("logprobs" in reply) != request.logprobs or len(reply.get("logprobs", ids)) != len(ids):
            raise Mismatch(f"'{request.id}' got log-probabilities that were not asked for, or lacks some")
        answer.ids += ids
        answer.lines.append(len(ids))
        answer.read_ns.append(read_ns)
        if answer.logprobs is not None:
            answer.logprobs += reply["logprobs"]

    def take_done(self, reply: dict[str, Any], read_ns: int) -> Answer:
        """The finished answer, once a `done` line agrees with what came before it."""
        name, answer = self.request.id, self.answer
        counted = {
            "prompt_tok": answer.prompt_tok,
            "completion_tok": len(answer.ids),
            "steps": max(0, len(answer.lines) - 1),
        }
        if reply["usage"] != counted:
            raise Mismatch(f"'{name}' is done with usage {reply['usage']}, but its lines add up to {counted}")
        if reply["reason"] != self._reason() and not (reply["reason"] == "cancelled" and self.cancelled):
            raise Mismatch(f"'{name}' is done with reason '{reply['reason']}', but its tokens say {self._reason()!r}")
        if ("logits_sha256" in reply) != self.request.digest:
            raise Mismatch(f"'{name}' has a digest that was not asked for, or lacks one")
        answer.reason, answer.done_ns, answer.logits_sha256 = reply["reason"], read_ns, reply.get("logits_sha256")
        return answer

    def _reason(self) -> str | None:
        """Why an answer with these tokens is over; None where it is not."""
        request, ids = self.request, self.answer.ids
        if ids and not request.ignore_eos and ids[-1] in request.stop_ids:
            return "stop"
        return "length" if len(ids) == request.max_tokens else None

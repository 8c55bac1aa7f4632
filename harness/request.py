"""Requests as users and generators write them: JSON lines of turns or of token ids (docs/records.md)."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import shape
from harness.errors import Missing, Usage
from harness.shape import boolean, constant, integer, items, number, record, text
from harness.wire import Sampling

__all__ = ["SAMPLING", "Request", "read_requests", "request_seed"]

MAX_SEED = 2**64 - 1


def _positive(value: Any, where: str) -> None:
    number(0, 1)(value, where)
    if value == 0:
        raise shape.Mismatch(f"{where} is not above 0")


def _temperature(value: Any, where: str) -> None:
    number(0)(value, where)
    if value != 0:
        number(1e-5, 1e5)(value, where)


SAMPLING = record({"temperature": _temperature, "top_p": _positive, "top_k": integer(), "seed": integer(0, MAX_SEED)})
_COMMON = {"v": constant(1), "kind": constant("request"), "category": text, "max_tokens": integer(1)}
_ALLOWED = {**_COMMON, "ignore_eos": boolean, "sampling": SAMPLING, "choice": integer()}
_TURNS = record({"id": text, "turns": items(text, least=1)}, _ALLOWED)
_IDS = record({"id": text, "ids": items(integer(), least=1)}, _ALLOWED)
_SESSION = record(
    {
        "v": constant(1),
        "kind": constant("session"),
        "id": text,
        "turns": items(text, least=1),
        "family": text,
        "cap_tok": integer(1),
        "context_tok": integer(1),
    }
)


@dataclass(frozen=True)
class Request:
    """User turns whose answers stay in the context, or one prompt of ids."""

    id: str
    turns: tuple[str, ...] = ()
    ids: tuple[int, ...] = ()
    max_tokens: int | None = None  # each answer
    ignore_eos: bool = False
    sampling: Sampling | None = None  # with the user's seed
    choice: int = 0
    context_tok: int | None = None
    session: bool = False  # ends by itself when its context is full
    family: str | None = None  # of templates, or the user's category

    @property
    def answers(self) -> int:
        """How many answers it asks for."""
        return len(self.turns) or 1


SHAPE = 'a line is {"id": TEXT, "turns": [TEXT, ...]}, or has `ids` for `turns` (docs/records.md)'


def read_requests(path: Path) -> list[Request]:
    """All requests of a file, in order; ids are unique.  Errors name the line."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise Missing(f"the requests '{path}' cannot be read: {error.strerror}") from None
    requests: dict[str, Request] = {}
    for number_, line in enumerate(lines, start=1):
        if line.strip():
            try:
                request = _request(shape.loads(line))
            except shape.Mismatch as error:
                raise Usage(f"{path}:{number_}: {error}", SHAPE) from None
            if request.id in requests:
                raise Usage(f"{path}:{number_}: the id '{request.id}' stands twice")
            requests[request.id] = request
    if not requests:
        raise Usage(f"the requests '{path}' are empty", SHAPE)
    return list(requests.values())


def _request(value: Any) -> Request:
    if isinstance(value, dict) and value.get("kind") == "session":
        _SESSION(value, "the session")
        turns = tuple(value["turns"])
        return Request(
            value["id"],
            turns,
            max_tokens=value["cap_tok"],
            context_tok=value["context_tok"],
            session=True,
            family=value["family"],
        )
    (_IDS if isinstance(value, dict) and "ids" in value else _TURNS)(value, "the request")
    sampling = value.get("sampling")
    return Request(
        value["id"],
        turns=tuple(value.get("turns", ())),
        ids=tuple(value.get("ids", ())),
        max_tokens=value.get("max_tokens"),
        ignore_eos=value.get("ignore_eos", False),
        sampling=None if sampling is None else Sampling(**sampling),
        choice=value.get("choice", 0),
        family=value.get("category"),
    )


def request_seed(seed: int, choice: int) -> int:
    """The uint64 on the wire for a user's seed and the index among several answers to one prompt."""
    return int.from_bytes(hashlib.sha256(f"{seed}:{choice}".encode()).digest()[:8], "little")

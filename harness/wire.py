"""What crosses the wire between harness and engine, in types (docs/protocol.md is the authority).

Replies are checked against `REPLIES` before anything reads them.
"""

from dataclasses import asdict, dataclass, field
from typing import Any

from harness import shape
from harness.shape import (
    Check,
    boolean,
    constant,
    hexadecimal,
    integer,
    items,
    mapping,
    number,
    one_of,
    record,
    scalar,
    text,
)

__all__ = [
    "MAX_LINE",
    "REPLIES",
    "Generate",
    "Hello",
    "Option",
    "Prepared",
    "Ready",
    "Sampling",
    "Scores",
    "Settings",
    "Target",
    "check_reply",
]

MAX_LINE = 16 << 20  # bytes, newline included

ERROR_CODES = (
    "malformed", "unknown_op", "unsupported", "not_loaded", "bad_option", "bad_model", "bad_request", "too_long",
    "busy", "duplicate_id", "unknown_id", "no_device", "out_of_memory", "record_ended", "internal",
)  # fmt: skip

_count = integer()
_ids = items(_count)


def _reply(operation: str, required: dict[str, Check], allowed: dict[str, Check] | None = None) -> Check:
    return record({"v": constant(1), "op": constant(operation), **required}, allowed)


_OPTION = record(
    {"type": one_of("int", "float", "bool", "string"), "default": scalar, "owner": text, "meaning": text},
    {"values": items(scalar), "range": items(number(), 2, 2)},
)
_USAGE = record({"prompt_tok": integer(1), "completion_tok": _count, "steps": _count})

REPLIES: dict[str, Check] = {
    "hello": _reply("hello", {"engine": text, "version": text, "options": mapping(_OPTION)}),
    "ready": _reply(
        "ready",
        {"load_s": number(0), "bytes": _count, "vocabulary": integer(1), "stop_ids": _ids, "context": integer(1)},
    ),
    "prepared": _reply("prepared", {"files": _count, "bytes": _count, "digest": hexadecimal(64)}),
    "tokens": _reply("tokens", {"id": text, "ids": items(_count, least=1)}, {"logprobs": items(number())}),
    "done": _reply(
        "done",
        {"id": text, "reason": one_of("stop", "length", "cancelled"), "usage": _USAGE},
        {"logits_sha256": hexadecimal(64)},
    ),
    "scores": _reply(
        "scores",
        {
            "id": text,
            "start": integer(1),
            "argmax": _ids,
            "margin": items(number(0)),
            "rank": _ids,
            "logit": items(number()),
            "kept": items(boolean),
        },
    ),
    "lattice": _reply("lattice", {"id": text, "file": text, "parts": integer(1), "digest": hexadecimal(64)}),
    "ok": _reply("ok", {"to": one_of("record", "profile", "shutdown")}),
    "stats": _reply("stats", {"counters": mapping(number(0))}),
    "error": _reply("error", {"id": shape.optional(text), "code": one_of(*ERROR_CODES), "message": text}),
}


def check_reply(line: bytes) -> dict[str, Any]:
    """The reply in `line`, or `Mismatch` with what is wrong with it."""
    value = shape.loads(line)
    operation = value.get("op") if isinstance(value, dict) else None
    if not isinstance(operation, str) or operation not in REPLIES:
        raise shape.Mismatch(f"the reply has no known 'op' ({operation!r})")
    REPLIES[operation](value, f"the reply '{operation}'")
    assert isinstance(value, dict)
    return value


@dataclass(frozen=True)
class Target:
    """A checkpoint, perhaps widened by a power of two and jittered."""

    path: str
    widen: int = 1
    jitter: int = 0


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen: temperature 0 is greedy, top_p 1 and top_k 0 keep all; `seed` as on the wire."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0


@dataclass(frozen=True)
class Settings:
    """The fields of `load` and `prepare`."""

    target: Target
    drafter: str | None = None  # a path
    dtype: str = "bfloat16"
    device: str = "cpu"
    mode: str = "fast"
    head: str = "model"
    options: dict[str, str | float | bool] = field(default_factory=dict)
    prepared: str | None = None
    context: int = 8192
    requests: int = 1

    def fields(self) -> dict[str, Any]:
        """As on the wire."""
        drafter = None if self.drafter is None else {"path": self.drafter}
        limits = {"context": self.context, "requests": self.requests}
        plain = {key: getattr(self, key) for key in ("dtype", "device", "mode", "head", "options", "prepared")}
        return {"target": asdict(self.target), "drafter": drafter, **plain, "limits": limits}


@dataclass(frozen=True)
class Generate:
    """One request for tokens."""

    id: str
    prompt: list[int]
    max_tokens: int
    stop_ids: list[int]
    ignore_eos: bool = False
    sampling: Sampling = field(default_factory=Sampling)
    logprobs: bool = False
    digest: bool = False


@dataclass(frozen=True)
class Option:
    """A setting that an engine declares in `hello`."""

    type: str
    default: str | float | bool
    owner: str
    meaning: str
    values: list[str | float | bool] | None = None
    range: list[float] | None = None


@dataclass(frozen=True)
class Hello:
    """What an engine says of itself before it loads anything."""

    engine: str
    version: str
    options: dict[str, Option]


@dataclass(frozen=True)
class Ready:
    """What an engine says of the model that it loaded."""

    load_s: float
    bytes: int
    vocabulary: int
    stop_ids: list[int]
    context: int

    def same_model(self, other: "Ready") -> bool:
        """Whether both engines tell the same of what they loaded; bytes and time may differ."""
        mine, theirs = ((each.vocabulary, set(each.stop_ids), each.context) for each in (self, other))
        return mine == theirs


@dataclass(frozen=True)
class Prepared:
    """What `prepare` left behind."""

    files: int
    bytes: int
    digest: str


@dataclass(frozen=True)
class Scores:
    """The engine's judgement of given tokens, one item a position from `start`."""

    start: int
    argmax: list[int]
    margin: list[float]
    rank: list[int]
    logit: list[float]
    kept: list[bool]

"""The file of samples: one writer, one line a fact, complete units only (docs/judge.md).

What a verdict reads goes through `read`: it checks every line, and keeps what counts.
"""

import gzip
import hashlib
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from harness import shape
from harness.answer import Answer
from harness.errors import Missing, Usage
from harness.journal import Journal
from harness.machine import COMPARED
from harness.request import SAMPLING
from harness.shape import (
    Check,
    Mismatch,
    boolean,
    constant,
    hexadecimal,
    integer,
    items,
    mapping,
    number,
    one_of,
    optional,
    record,
)
from harness.wire import Generate

__all__ = [
    "Line",
    "Samples",
    "Unit",
    "Void",
    "Writer",
    "answer_line",
    "check",
    "comparable",
    "fold",
    "fold_lines",
    "read",
    "whole_lines",
]

Line = dict[str, Any]

PHASES = ("calibrate", "screen", "confirm", "stock", "ar", "force", "reference")
UNTIMED = ("force", "reference")  # nothing in them is timed, so a run that was killed goes on inside a unit


_SYSTEM = record({"tree": hexadecimal(40), "options": mapping(shape.scalar)})
_CARD = record(
    {
        **dict.fromkeys(("gpu", "driver", "torch", "triton", "cuda"), optional(shape.text)),
        "harness": shape.text,
        "power_cap_w": optional(number(0)),
    },
    {
        "uuid": optional(shape.text),
        "host": shape.text,
        "clocks_mhz": optional(mapping(number(0))),
        "cpu": shape.text,
        "cores": integer(1),
        "sandbox": shape.text,
        "date": shape.text,
    },
)
_UNIT = {"phase": one_of(*PHASES), "unit": integer()}
_HALF = {**_UNIT, "half": one_of(0, 1)}
_ANY_ARM, _PAIR_ARM = one_of("a", "b", "stock"), one_of("a", "b")
_COUNTS = items(integer())
_FIELDS: dict[str, dict[str, Check]] = {
    "campaign": {
        "arms": record(dict.fromkeys(("a", "b", "stock"), _SYSTEM)),
        "deployment": hexadecimal(64),
        "rule": shape.text,
        "seed": integer(),
        "requests": hexadecimal(64),
    },
    "card": {"card": _CARD},
    "final": {
        "commitment": hexadecimal(64),
        **dict.fromkeys(("stock_units", "ar_units", "force_units", "reference_units"), integer()),
        "full": boolean,
    },
    "load": {**_HALF, "arm": _ANY_ARM, "load_s": number(0), "prepared": optional(hexadecimal(64))},
    "group": {
        **_HALF,
        "quartet": integer(),
        "slot": one_of(0, 1, 2, 3),
        "arm": _PAIR_ARM,
        "group": integer(),
        "requests": items(shape.text, least=1),
        "seconds": items(number(0)),
        "decode_seconds": items(number(0)),
        "tokens": _COUNTS,
        "clocks_mhz": optional(number(0)),
        "throttle": optional(shape.text),
    },
    "answer": {
        **_HALF,
        "arm": _ANY_ARM,
        "request": shape.text,
        "session": shape.text,
        "prompt": items(integer(), least=1),
        "ids": _COUNTS,
        "reason": one_of("stop", "length", "cancelled"),
        "lines": items(integer(1)),
        "max_tokens": integer(1),
        "stop_ids": _COUNTS,
        "ignore_eos": boolean,
        "sampling": SAMPLING,
    },
    "redraw": {**_HALF, "quartet": integer(), "groups": _COUNTS},
    "unit": {
        **_UNIT,
        "first": items(_ANY_ARM, least=1, most=2),
        "leads": items(items(_PAIR_ARM), least=1, most=2),
    },
    "void": {
        **_UNIT,
        "arm": optional(_PAIR_ARM),
        "cause": one_of("busy", "throttle", "crash", "hang", "violation", "load", "card"),
        "reason": shape.text,
    },
    "forced": {
        **_UNIT,
        "arm": _ANY_ARM,
        "request": shape.text,
        "session": shape.text,
        "head": one_of("fp32", "model"),
        "start": integer(1),
        "argmax": _COUNTS,
        "margin": items(number(0)),
        "rank": _COUNTS,
        "kept": items(boolean),
    },
    "recheck": {"arm": _ANY_ARM, "request": shape.text, "at": integer(), "stock": integer(), "shape": integer()},
    "look": {"what": constant("forcing")},
    "timed": {"samples": hexadecimal(64), "tokens": integer(1)},
}
_ALLOWED: dict[str, dict[str, Check]] = {"answer": {"family": shape.text}}
_CHECKS = {
    kind: record(
        {"v": constant(1), "kind": constant("samples"), "type": constant(kind), **fields}, _ALLOWED.get(kind, {})
    )
    for kind, fields in _FIELDS.items()
}
_MOST = 2**31 - 1
# Lists of one line that run beside one another.
_BESIDE = {"group": ("requests", "seconds", "decode_seconds", "tokens"), "forced": ("argmax", "margin", "rank", "kept")}


def check(value: Any) -> None:
    """Holds one line to the schema; raises `Mismatch`."""
    mapping(shape.anything)(value, "the line")
    one_of(*_CHECKS)(value.get("type"), "the line 'type'")
    _CHECKS[value["type"]](value, "the line")


def _check_sense(line: Line) -> None:
    """What a schema cannot say of one line."""
    for name, value in line.items():
        if name != "seed" and _largest(value) > _MOST:
            raise Mismatch(f"'{name}' holds a number beyond every vocabulary and every count")
    lists = _BESIDE.get(line["type"], ())
    if len({len(line[name]) for name in lists}) > 1:
        raise Mismatch(f"the lists {', '.join(map(repr, lists))} differ in length")
    if line["type"] == "answer" and sum(line["lines"]) != len(line["ids"]):
        raise Mismatch("the counts of 'lines' do not add up to 'ids'")


def _largest(value: Any) -> int:
    """Of a whole number or a list of them; 0 of anything else."""
    if isinstance(value, list):
        return max(value) if value and type(value[0]) is int else 0
    return value if type(value) is int else 0


@dataclass(frozen=True)
class Unit:
    """A complete unit: the groups and answers that count, and its line."""

    phase: str
    number: int
    at: int  # which line of the file completed it
    leads: tuple[tuple[str, ...], ...]  # [half][quartet]
    groups: tuple[Line, ...]
    answers: tuple[Line, ...]
    loads: tuple[Line, ...]

    @property
    def name(self) -> str:
        """In words."""
        return f"unit {self.number} of {self.phase}"

    def said(self, arm: str) -> list[Line]:
        """The answers of an arm."""
        return [answer for answer in self.answers if answer["arm"] == arm]


@dataclass(frozen=True)
class Void:
    """A unit that does not count: whose fault it is, and why."""

    phase: str
    unit: int
    arm: str | None
    cause: str
    reason: str


@dataclass(frozen=True)
class Samples:
    """What counts of one file."""

    campaign: Line
    cards: tuple[Line, ...]
    final: Line | None  # how much a final measures, and which seal drew it
    units: tuple[Unit, ...]  # in the order in which they were completed
    voids: tuple[Void, ...]
    forced: dict[tuple[str, int, str, str, str], Line]  # by phase, unit, arm, request, head
    rechecks: dict[tuple[str, str, int], Line]  # by arm, request, index in the answer
    looks: tuple[int, ...]  # lines at which the forcing decision was read
    digest: str  # sha256 of the lines, uncompressed
    timed: Line | None = None  # where what was timed is forced: the line that says so

    def of(self, *phases: str) -> list[Unit]:
        """The units of these phases, in order of completion."""
        return [unit for unit in self.units if unit.phase in phases]


def read(path: Path) -> Samples:
    """What counts of the samples in the file `path`, compressed where its name ends in `.gz`.

    Half a last line is left out: a run may be writing it.
    Raises `Missing` where there is no such file, `Usage` with the line's number where one does not have its shape.
    """
    return fold_lines(whole_lines(path), path)


def whole_lines(path: Path) -> bytes:
    """The lines of the file `path`, unread; raises as `read` does."""
    try:
        data = path.read_bytes()
        if path.suffix == ".gz":
            data = gzip.decompress(data)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise Usage(f"the samples '{path}' are not whole: {error}") from None
    except OSError as error:
        raise Missing(f"the samples '{path}' cannot be read: {error.strerror}") from None
    return data[: data.rfind(b"\n") + 1]


def fold_lines(whole: bytes, path: Path) -> Samples:
    """What counts of whole lines; `path` names them in errors."""
    return fold(_lines(whole, path), path, hashlib.sha256(whole).hexdigest())


def _lines(whole: bytes, path: Path) -> Iterator[Line]:
    for number_, text in enumerate(whole.split(b"\n")[:-1], start=1):
        try:
            line = shape.loads(text)
            check(line)
            _check_sense(line)
        except Mismatch as error:
            raise Usage(f"{path}:{number_}: {error}") from None
        yield line


def fold(lines: Iterable[Line], path: Path, digest: str) -> Samples:
    """What counts of checked lines; `path` names them in errors."""
    folder = _Folder()
    for line in lines:
        try:
            folder.take(line)
        except Mismatch as error:
            raise Usage(f"{path}:{folder.lines}: {error}") from None
    return folder.samples(path, digest)


_Key = tuple[str, int]


@dataclass
class _Folder:
    """Lines in, what counts out."""

    lines: int = 0  # taken so far
    campaign: Line | None = None
    cards: list[Line] = field(default_factory=list)
    final: Line | None = None
    units: dict[_Key, Unit] = field(default_factory=dict)
    voids: list[Void] = field(default_factory=list)
    forced: dict[tuple[str, int, str, str, str], Line] = field(default_factory=dict)
    rechecks: dict[tuple[str, str, int], Line] = field(default_factory=dict)
    looks: list[int] = field(default_factory=list)
    timed: Line | None = None
    _open: dict[_Key, list[Line]] = field(default_factory=dict)

    def take(self, line: Line) -> None:
        self.lines += 1
        kind, at = line["type"], self.lines
        if (kind == "campaign") != (at == 1):
            raise Mismatch("a campaign stands in the first line, and nowhere else")
        if kind == "campaign":
            self.campaign = line
        elif kind == "card":
            self._begin(line["card"])
        elif kind == "final":
            self._plan(line)
        elif kind == "unit":
            self._complete(line, at)
        elif kind == "void":
            self._void(line)
        elif kind == "forced":
            self._put(self.forced, (*_key(line), line["arm"], line["request"], line["head"]), line)
        elif kind == "recheck":
            self._put(self.rechecks, (line["arm"], line["request"], line["at"]), line)
        elif kind == "look":
            self.looks.append(at)
        elif kind == "timed":
            self._begin_with_timed(line)
        elif _key(line) in self.units:
            raise Mismatch(f"unit {line['unit']} of {line['phase']} was complete before this line")
        else:
            self._open.setdefault(_key(line), []).append(line)

    def samples(self, path: Path, digest: str) -> Samples:
        if self.campaign is None or not self.cards:
            raise Usage(f"the samples '{path}' do not begin with a campaign and a card")
        return Samples(
            campaign=self.campaign,
            cards=tuple(self.cards),
            final=self.final,
            units=tuple(self.units.values()),
            voids=tuple(self.voids),
            forced=dict(self.forced),
            rechecks=dict(self.rechecks),
            looks=tuple(self.looks),
            digest=digest,
            timed=self.timed,
        )

    def _begin_with_timed(self, line: Line) -> None:
        if self.timed or self.units or self._open or self.voids:
            raise Mismatch("the answers that were timed stand before all others, and once")
        self.timed = line

    def _put(self, lines: dict[Any, Line], key: Any, line: Line) -> None:
        if key in lines:
            raise Mismatch(f"request '{line['request']}' was scored before")
        lines[key] = line

    def _begin(self, card: Line) -> None:
        """A process goes on: it starts anew what its predecessor left unfinished, unless nothing there is timed."""
        self.cards.append(card)
        self._open = {key: lines for key, lines in self._open.items() if key[0] in UNTIMED}

    def _plan(self, line: Line) -> None:
        if self.final is not None or self.units or self.voids:
            raise Mismatch("how much a final measures is said once, before anything is measured")
        self.final = line

    def _void(self, line: Line) -> None:
        key = _key(line)
        self.voids.append(Void(*key, line["arm"], line["cause"], line["reason"]))
        self._open.pop(key, None)
        self.units.pop(key, None)
        self.forced = {scored: value for scored, value in self.forced.items() if scored[:2] != key}

    def _complete(self, line: Line, at: int) -> None:
        key = _key(line)
        if key in self.units:
            raise Mismatch(f"unit {line['unit']} of {line['phase']} is complete already")
        lines = self._open.pop(key, [])
        groups = _counting_groups(lines)
        # What was timed stands here without the groups that it was timed in: only what counts was taken over.
        timed = line["phase"] not in UNTIMED and self.timed is None
        answers = _counting_answers(lines, groups, timed)
        _check_groups(groups, answers)
        self.units[key] = Unit(
            *key,
            at=at,
            leads=tuple(tuple(half) for half in line["leads"]),
            groups=tuple(groups),
            answers=tuple(answers.values()),
            loads=tuple(each for each in lines if each["type"] == "load"),
        )


def _key(line: Line) -> _Key:
    return line["phase"], line["unit"]


def _counting_groups(lines: list[Line]) -> list[Line]:
    """The groups of a unit, without those that were drawn again."""
    gone = {(line["half"], number) for line in lines if line["type"] == "redraw" for number in line["groups"]}
    return [line for line in lines if line["type"] == "group" and (line["half"], line["group"]) not in gone]


def _counting_answers(lines: list[Line], groups: list[Line], timed: bool) -> dict[tuple[str, str], Line]:
    """By arm and request; of a timed unit those in a counting group, so neither warm-up nor what was redrawn."""
    held = {(group["half"], group["arm"], request) for group in groups for request in group["requests"]}
    answers: dict[tuple[str, str], Line] = {}
    for line in lines:
        if line["type"] != "answer" or (timed and (line["half"], line["arm"], line["request"]) not in held):
            continue
        key = line["arm"], line["request"]
        if key in answers:
            raise Mismatch(f"request '{line['request']}' was answered twice by arm {line['arm']} in one unit")
        answers[key] = line
    return answers


def _check_groups(groups: list[Line], answers: dict[tuple[str, str], Line]) -> None:
    for group in groups:
        for request, tokens in zip(group["requests"], group["tokens"], strict=True):
            answer = answers.get((group["arm"], request))
            if answer is None or len(answer["ids"]) != tokens:
                raise Mismatch(
                    f"request '{request}' was timed in arm {group['arm']} without an answer of {tokens} tokens"
                )


def answer_line(
    asked: Generate, answer: Answer, arm: str, *, session: str, half: int = 0, family: str | None = None
) -> Line:
    """The `answer` line of what arm `arm` said, its unit left to add; `session` is the request that asked it."""
    return {
        "type": "answer",
        "half": half,
        "arm": arm,
        "request": asked.id,
        "session": session,
        "prompt": asked.prompt,
        "ids": answer.ids,
        "reason": answer.reason,
        "lines": answer.lines,
        "max_tokens": asked.max_tokens,
        "stop_ids": asked.stop_ids,
        "ignore_eos": asked.ignore_eos,
        "sampling": asdict(asked.sampling),
        **({"family": family} if family else {}),
    }


def comparable(one: Line, other: Line) -> bool:
    """Whether two machine cards may stand in one comparison."""
    return all(one[name] == other[name] for name in COMPARED)


class Writer:
    """The one writer of a file of samples; since no other writes, it reads what was there once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._journal = Journal(path, "judge")
        self._folder: _Folder | None = None
        self._digest = hashlib.sha256()

    def __enter__(self) -> "Writer":
        self._journal.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._journal.__exit__()

    def add(self, kind: str, **fields: Any) -> None:
        """Appends one line; raises `Mismatch` where it has not its shape."""
        self.add_all([{"type": kind, **fields}])

    def add_all(self, lines: Iterable[Line]) -> None:
        """Appends lines that belong together, all or none."""
        whole = [{"v": 1, "kind": "samples", **fields} for fields in lines]
        for line in whole:
            check(line)
            _check_sense(line)
        data = self._journal.append(whole)
        if self._folder is not None:
            self._take(whole, data)

    def read(self) -> Samples:
        """What counts of the lines so far."""
        if self._folder is None:
            data = self.path.read_bytes()
            self._folder = _Folder()
            self._take(_lines(data, self.path), data)
        return self._folder.samples(self.path, self._digest.hexdigest())

    def _take(self, lines: Iterable[Line], data: bytes) -> None:
        assert self._folder is not None
        self._digest.update(data)
        for line in lines:
            try:
                self._folder.take(line)
            except Mismatch as error:
                raise Usage(f"{self.path}:{self._folder.lines}: {error}") from None

"""Lattice files: the drafter's top ranks at every position of finished answers (docs/records.md, lattice).

A file holds one request, perhaps in parts; a folder that `spt measure` wrote holds many, and their steps.  Numbers stay
in the files until they are read: arrays are mapped, and only the log-probabilities are ever widened.
"""

import functools
import hashlib
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spt.errors import Missing, Usage
from spt.formats import check, read_file, read_json, read_jsonl
from spt.steps import Steps, read_steps

__all__ = [
    "LATTICES",
    "MAX_PART_BYTES",
    "RUN_TOK",
    "SUMMARY",
    "Lattice",
    "Origin",
    "RequestLattice",
    "looped",
    "read_lattice",
]

MAGIC = b"spt-lattice 1\n"
SUFFIX = ".lattice"
SUMMARY = "measurement.json"
LATTICES = "lattices"  # the folder of lattice files below that of a measurement
MAX_PART_BYTES = 16 << 20
DIGEST_BYTES = 32
RUN_TOK = 24
_MAX_HEADER_BYTES = 64 << 10
_PART = re.compile(r"(.+)\.([1-9][0-9]*)\.lattice")


@dataclass(frozen=True)
class Origin:
    """Which models a lattice is of: content digests, and how the target was widened and jittered."""

    target: str
    widen: int
    jitter: int
    drafter: str


@dataclass(frozen=True, eq=False)
class RequestLattice:
    """One answer of one request, with the drafter's ranks at each of its positions.

    request: `REQUEST#TURN`, the id that the engine was asked under.  category: of the request, where it has one.
    tokens: int64 [length], prompt and answer.  start: the index of the answer's first token.
    ids: uint16 or uint32 [position, depth, rank].  Position p has the token at start + p as its anchor, and depth d
    drafts the token at start + p + d + 1; the last positions draft past the end.
    half: float16 [position, depth, rank], the log-probabilities as stored, best first; equal ones keep their order.
    lines: int64, tokens a line of the wire, prefill's first; None where only the file is there.  steps: likewise.
    """

    request: str
    category: str | None
    sampling: Mapping[str, float]
    tokens: NDArray[np.int64]
    start: int
    ids: NDArray[np.unsignedinteger[Any]]
    half: NDArray[np.float16]
    lines: NDArray[np.int64] | None = None
    steps: Steps | None = None

    @property
    def positions(self) -> int:
        """How many tokens the answer has."""
        return len(self.ids)

    @functools.cached_property
    def logprobs(self) -> NDArray[np.float32]:
        """float32 [position, depth, rank]: the very numbers that the engine built its trees from."""
        return self.half.astype(np.float32)

    @functools.cached_property
    def looped(self) -> NDArray[np.bool_]:
        """bool [position]: which tokens of the answer are looped."""
        return looped(self.tokens[self.start :].tolist())


@dataclass(frozen=True, eq=False)
class Lattice:
    """The lattices of some requests, all of the same models, mode and shape.

    block: rows of a drafter pass.  vocabulary: the target's.
    """

    origin: Origin
    mode: str
    dtype: str
    block: int
    vocabulary: int
    depths: int
    ranks: int
    requests: tuple[RequestLattice, ...]


def looped(tokens: Sequence[int], run_tok: int = RUN_TOK) -> NDArray[np.bool_]:
    """For each token of an answer whether it lies in a run of `run_tok` tokens that began earlier in it too."""
    seen: set[tuple[int, ...]] = set()
    marks = np.zeros(len(tokens), np.bool_)
    for first in range(len(tokens) - run_tok + 1):
        run = tuple(tokens[first : first + run_tok])
        if run in seen:
            marks[first : first + run_tok] = True
        seen.add(run)
    return marks


def read_lattice(path: Path, origin: Origin | None = None) -> Lattice:
    """The lattice in a file, which stands for all its parts, or in the folder of a finished measurement.

    Every byte is checked against the digest that ends its file.  Raises Missing where something is not there, and Usage
    for a file that is cut, changed, of another form, or of other models than `origin` or its neighbours are.
    """
    if not path.exists():
        raise Missing(f"no lattice at '{path}'", "`spt measure` writes one")
    if not path.is_dir():
        if not path.is_file():
            raise Usage(f"'{path}' is no regular file", "a lattice is a file, or lies in a folder of `spt measure`")
        return _joined([_read_request(path)], origin)
    read = list(_read_folder(path))
    if not read:
        raise Usage(f"'{path}' holds no answer", "measure again, with requests")
    return _joined(read, origin)


# --- a folder ---


def _read_folder(folder: Path) -> Iterator["_Read"]:
    """Each answer of a measurement, in the order of `answers.jsonl`."""
    summary = _finished(folder)
    answers = read_jsonl(read_file(folder / "answers.jsonl"), str(folder / "answers.jsonl"), "answer")
    steps = read_steps(folder / "steps.jsonl")
    files = (path for path in sorted((folder / LATTICES).glob(f"*{SUFFIX}")) if not _PART.fullmatch(path.name))
    found = {one.lattice.request: one for one in map(_read_request, files)}
    for answer in answers:
        name = f"{answer['request']}#{answer['turn']}"
        if name not in found:
            raise Missing(f"'{folder}' holds no lattice of '{name}'", "`spt measure`, called again, finishes it")
        own = found.pop(name)
        _refuse_foreign(own, summary)
        yield _with_answer(own, answer, steps.pop(name, None))
    for left, what in ((found, LATTICES), (steps, "steps.jsonl")):
        if left:
            raise Usage(f"'{folder / what}' holds '{next(iter(left))}', which was not answered")


def _finished(folder: Path) -> Mapping[str, Any]:
    """The summary; Missing where it is not there, Usage unless answers and steps are those that it was written for."""
    summary = folder / SUMMARY
    if not summary.is_file():
        raise Missing(f"'{folder}' holds no finished measurement", "`spt measure`, called again, goes on with it")
    value: dict[str, Any] = read_json(read_file(summary), f"'{summary}'")
    check(value, "measurement", f"'{summary}'")
    for name, digest in value["files"].items():
        file = folder / name
        if not file.is_file():
            raise Missing(f"'{file}' is not there, of which '{SUMMARY}' tells")
        if hashlib.sha256(read_file(file)).hexdigest() != digest:
            raise Usage(f"'{file}' was cut or changed after it was measured", "measure it again")
    return value


def _refuse_foreign(read: "_Read", summary: Mapping[str, Any]) -> None:
    """Usage for a lattice of other models, mode or type than its folder says that it measured."""
    of, deployment = summary["target"], summary["deployment"]
    _refuse_other(read, Origin(of["digest"], of["widen"], of["jitter"], summary["drafter"]))
    for name in ("mode", "dtype"):
        if deployment.get(name, read.header[name]) != read.header[name]:
            said = f"has {name} {read.header[name]}, and its folder's '{SUMMARY}' {deployment[name]}"
            raise Usage(f"'{read.path}' {said}", "measure it again")


def _with_answer(read: "_Read", answer: Mapping[str, Any], steps: Steps | None) -> "_Read":
    lattice = read.lattice
    tokens = lattice.tokens[lattice.start :].tolist()
    if lattice.start != answer["prompt_tok"] or tokens != answer["ids"]:
        raise Usage(f"'{read.path}' is of another answer than 'answers.jsonl' holds for '{lattice.request}'")
    lines = np.array(answer["lines"], np.int64)
    if lines.sum() != len(tokens):
        raise Usage(f"the answer '{lattice.request}' has {len(tokens)} tokens, and {lines.sum()} in its lines")
    if len(lines) > 1 or steps is not None:
        steps = _checked(steps, lattice, lines, read.path.parents[1] / "steps.jsonl")
    return replace(read, lattice=replace(lattice, category=answer.get("category"), lines=lines, steps=steps))


def _checked(steps: Steps | None, lattice: RequestLattice, lines: NDArray[np.int64], file: Path) -> Steps:
    """The steps, if they are those of the wire's lines; Usage else."""
    count = 0 if steps is None else len(steps.start)
    if steps is None or count != len(lines) - 1:
        raise Usage(f"'{file}' holds {count} steps of '{lattice.request}', and the wire had {len(lines) - 1}")
    starts = lattice.start - 1 + np.cumsum(lines[:-1])
    for number, (first, tokens) in enumerate(zip(starts.tolist(), steps.tokens, strict=True)):
        wanted = lattice.tokens[first : first + 1 + int(lines[number + 1])].tolist()
        if steps.start[number] != first or [int(steps.anchor[number]), *tokens] != wanted:
            raise Usage(f"'{file}': step {number} of '{lattice.request}' is not what the wire had")
    return steps


# --- a file ---


@dataclass(frozen=True)
class _Read:
    """A request's lattice, where it was read and the header of its first part."""

    path: Path
    header: Mapping[str, Any]
    lattice: RequestLattice


@dataclass(frozen=True)
class _Part:
    header: Mapping[str, Any]
    tokens: NDArray[np.unsignedinteger[Any]]
    records: NDArray[np.void]


def _joined(read: Sequence[_Read], origin: Origin | None) -> Lattice:
    """One lattice of them; Usage for one that is of other models, mode or shape than the first, or than `origin`."""
    first = read[0].header
    expected = origin or _origin(first)
    for one in read:
        _refuse_other(one, expected)
        for name in ("mode", "dtype", "block", "vocabulary", "depths", "ranks"):
            if one.header[name] != first[name]:
                raise Usage(f"'{one.path}' has {name} {one.header[name]}, and '{read[0].path}' {first[name]}")
    shape = {name: first[name] for name in ("mode", "dtype", "block", "vocabulary", "depths", "ranks")}
    return Lattice(expected, **shape, requests=tuple(one.lattice for one in read))


def _origin(header: Mapping[str, Any]) -> Origin:
    target = header["target"]
    return Origin(target["digest"], target["widen"], target["jitter"], header["drafter"])


def _refuse_other(one: _Read, expected: Origin) -> None:
    found = _origin(one.header)
    for name, what in (("target", "target"), ("widen", "widening"), ("jitter", "jitter"), ("drafter", "drafter")):
        mine, wanted = getattr(found, name), getattr(expected, name)
        if mine != wanted:
            said = f"{str(mine)[:12]}, not {str(wanted)[:12]}"
            raise Usage(f"'{one.path}' is a lattice of another {what}: {said}", "measure it again on this deployment")


def _read_request(path: Path) -> _Read:
    """All parts of the request whose first part lies at `path`."""
    if match := _PART.fullmatch(path.name):
        raise Usage(f"'{path}' is a part of '{match[1]}{SUFFIX}'", "name that one: it stands for all of them")
    parts = [_read_part(path)]
    header = parts[0].header
    for number in range(1, header["parts"]):
        name = path.with_name(f"{path.name.removesuffix(SUFFIX)}.{number}{SUFFIX}")
        if not name.is_file():
            raise Missing(f"'{name}' is not there, which is part {number + 1} of {header['parts']} of '{path}'")
        parts.append(_read_part(name))
        _check_follows(name, parts[-2], parts[-1])
    if header["part"] != 0 or header["first"] != header["start"]:
        raise Usage(f"'{path}' is part {header['part'] + 1} of a lattice, under the name of the first")
    records = parts[0].records if len(parts) == 1 else np.concatenate([part.records for part in parts])
    if len(records) != header["tokens"] - header["start"]:
        raise Usage(f"'{path}' holds {len(records)} positions of {header['tokens'] - header['start']}")
    tokens = parts[0].tokens.astype(np.int64)
    return _Read(
        path,
        header,
        RequestLattice(
            header["request"],
            None,
            header["sampling"],
            tokens,
            header["start"],
            records["ids"],
            records["logprobs"],
        ),
    )


def _check_follows(path: Path, before: _Part, part: _Part) -> None:
    """Usage unless `part` goes on where `before` ends, in the same lattice."""
    own = ("part", "first", "positions")
    mine, theirs = ({k: v for k, v in each.header.items() if k not in own} for each in (part, before))
    follows = part.header["part"] == before.header["part"] + 1
    follows &= part.header["first"] == before.header["first"] + before.header["positions"]
    if mine != theirs or not follows or not np.array_equal(part.tokens, before.tokens):
        raise Usage(f"'{path}' is a part of another lattice than the one before it")


def _read_part(path: Path) -> _Part:
    if not path.is_file():
        raise Usage(f"'{path}' is no regular file")
    header, offset = _read_header(path)
    # Counted before anything is made of it: a header may say any size.
    record = header["depths"] * header["ranks"] * (header["id_bytes"] + 2)
    body = header["positions"] * record
    expected = offset + body + header["tokens"] * header["id_bytes"] + DIGEST_BYTES
    size = path.stat().st_size
    if size < expected:
        raise Usage(f"'{path}' is cut: {size} bytes of {expected}", "`spt measure`, called again, makes it anew")
    if size > expected or size >= MAX_PART_BYTES:
        raise Usage(f"'{path}' has {size} bytes, where its header says {expected}, of less than {MAX_PART_BYTES}")
    _check_digest(path, size - DIGEST_BYTES)
    records = np.memmap(path, _record_dtype(header), "r", offset, (header["positions"],))
    tokens = np.memmap(path, f"<u{header['id_bytes']}", "r", offset + body, (header["tokens"],))
    _check_values(path, header, records, tokens)
    return _Part(header, np.asarray(tokens), records)


def _read_header(path: Path) -> tuple[dict[str, Any], int]:
    """The header of a file, and where what follows it begins."""
    with path.open("rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            raise Usage(f"'{path}' is no lattice file, or one of a version that is not known here")
        line = file.readline(_MAX_HEADER_BYTES)
    if not line.endswith(b"\n"):
        raise Usage(f"'{path}' is cut within its header")
    header = read_json(line, f"'{path}'")
    check(header, "lattice", f"'{path}'")
    if not header["start"] < header["tokens"] or header["start"] > header["first"]:
        raise Usage(f"'{path}' starts at {header['start']} of {header['tokens']} tokens, its part at {header['first']}")
    return header, len(MAGIC) + len(line)


def _record_dtype(header: Mapping[str, Any]) -> np.dtype[np.void]:
    shape = (header["depths"], header["ranks"])
    return np.dtype([("ids", f"<u{header['id_bytes']}", shape), ("logprobs", "<f2", shape)])


def _check_digest(path: Path, size: int) -> None:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for at in itertools.count(0, 1 << 20):
            piece = file.read(min(1 << 20, size - at))
            digest.update(piece)
            if at + len(piece) >= size:
                break
        if file.read() != digest.digest():
            raise Usage(f"'{path}' was changed: its digest is not that of its bytes", "measure it again")


def _check_values(
    path: Path, header: Mapping[str, Any], records: NDArray[np.void], tokens: NDArray[np.unsignedinteger[Any]]
) -> None:
    """Usage for an id outside the vocabulary and for ranks that are not in order, NaN among them."""
    highest = max(int(records["ids"].max()), int(tokens.max()))
    if highest >= header["vocabulary"]:
        raise Usage(f"'{path}' holds id {highest}, and the vocabulary has {header['vocabulary']}")
    logprobs = records["logprobs"]
    ordered = (logprobs[..., 1:] <= logprobs[..., :-1]).all() and (logprobs[..., 0] <= 0).all()
    if not ordered:
        raise Usage(f"'{path}' holds log-probabilities that are not in order")

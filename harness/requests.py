"""`python -m harness requests` and `seal`: files of generated requests, shares of a user's own, and secrets."""

import datetime
import hashlib
import json
import math
import os
import secrets
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.errors import HarnessError, Usage
from harness.generator import FINAL, SETS, Set, digest
from harness.request import Request
from harness.seal import MAX_SEED, SALT_BYTES, Seal, create, read, spend

__all__ = ["Wanted", "check_generator", "check_seal", "make_seal", "share_of", "write_requests"]


@dataclass(frozen=True)
class Wanted:
    """Which requests: `count` of a set from the index `first` on.

    fixed_tok: answers of exactly so many tokens, EOS ignored.  temperature: of each request, else the deployment's.
    """

    set: str
    seed: int | None
    count: int
    first: int = 0
    sessions: bool = False
    context_tok: int | None = None
    fixed_tok: int | None = None
    temperature: float | None = None
    longest_tok: int | None = None
    families: Sequence[str] = ()


def write_requests(
    parts: Sequence[Wanted], out: Path, seal: Path | None, job: str | None, now: datetime.datetime
) -> None:
    """Writes the requests of all parts to the file `out`, whole or not at all.

    A final is drawn by its seal, which is marked as used by `job` before the first request exists.
    """
    for wanted in parts:
        _check(wanted, seal, job)
    secret = None if seal is None or job is None else _opened(seal, job, now)
    _write(out, (request for wanted in parts for request in _drawn(wanted, _source(wanted, secret))))


def _check(wanted: Wanted, seal: Path | None, job: str | None) -> None:
    """All that can be off is said before a seal is spent."""
    final = wanted.set == FINAL
    if final and (seal is None or job is None):
        raise Usage("a final wants the file of its seal and the key of its job", "--seal FILE --job-key KEY")
    if final and wanted.seed is not None:
        raise Usage("a final's seed lies in its seal", "leave out --seed")
    if not final and (seal is not None or job is not None):
        raise Usage(f"the set '{wanted.set}' has no seal", "leave out --seal and --job-key")
    if not final and wanted.seed is None:
        raise Usage(f"the set '{wanted.set}' wants a seed", "--seed N")
    if wanted.count < 1 or wanted.first < 0:
        raise Usage(f"no requests: {wanted.count} from index {wanted.first} on")
    if wanted.sessions and (wanted.fixed_tok is not None or wanted.temperature is not None):
        raise Usage("answers of a session end by themselves and are sampled as the deployment says")
    if wanted.fixed_tok is not None and wanted.fixed_tok < 1:
        raise Usage(f"answers of {wanted.fixed_tok} tokens are none")
    if wanted.temperature is not None and not 0 <= wanted.temperature < math.inf:
        raise Usage(f"the temperature {wanted.temperature:g} is not from 0 on")
    if wanted.context_tok is not None and not wanted.sessions:
        raise Usage("only sessions have a context to fill")
    _set(wanted, 0, bytes(1) if final else b"")


def _set(wanted: Wanted, seed: int, salt: bytes = b"") -> Set:
    longest = {} if wanted.longest_tok is None else {"longest_tok": wanted.longest_tok}
    return Set(wanted.set, seed, salt, tuple(wanted.families), **longest)


def _opened(path: Path, job: str, now: datetime.datetime) -> Seal:
    check_generator(read(path))
    return spend(path, job, now)


def _source(wanted: Wanted, secret: Seal | None) -> Set:
    if secret is not None:
        return _set(wanted, secret.seed, secret.salt)
    assert wanted.seed is not None  # `_check` has seen to it
    return _set(wanted, wanted.seed)


def check_generator(seal: Seal) -> None:
    """Refuses a seal that committed to another generator than the one that runs."""
    if (here := digest()) != seal.generator:
        raise HarnessError(
            f"the generator is not the one that was sealed: {here[:12]}, not {seal.generator[:12]}",
            "draw the final with the version of the harness that made the seal",
        )


def _drawn(wanted: Wanted, source: Set) -> Iterator[dict[str, Any]]:
    for index in range(wanted.first, wanted.first + wanted.count):
        if wanted.sessions:
            context = {} if wanted.context_tok is None else {"context_tok": wanted.context_tok}
            yield source.session(index, **context)
        else:
            yield source.single(index, **_fields(wanted, index))


def _fields(wanted: Wanted, index: int) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if wanted.fixed_tok is not None:
        fields |= {"max_tokens": wanted.fixed_tok, "ignore_eos": True}
    if wanted.temperature is not None:
        fields["sampling"] = {"temperature": wanted.temperature, "top_p": 1, "top_k": 0, "seed": index}
    return fields


def _write(out: Path, requests: Iterator[dict[str, Any]]) -> None:
    """The file gets mode 0600: a final's requests are a secret too until the last promotion."""
    if not out.name or (out.exists() and not out.is_file()):
        raise Usage(f"cannot write '{out}': it is no plain file", "give the name of a file")
    try:
        handle, name = tempfile.mkstemp(dir=out.parent, prefix=f".{out.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                for request in requests:
                    file.write(json.dumps(request, ensure_ascii=False).encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
            Path(name).replace(out)
        except BaseException:
            Path(name).unlink()
            raise
    except OSError as error:
        raise Usage(f"cannot write '{out}': {error.strerror}") from None


def make_seal(path: Path, seed: int | None) -> str:
    """Seals a new final in the file `path`; returns the commitment, to be published now."""
    if seed is not None and not 0 <= seed <= MAX_SEED:
        raise Usage(f"the seed {seed} is not from 0 to {MAX_SEED}", "without --seed it is drawn")
    seal = Seal(secrets.token_bytes(SALT_BYTES), secrets.randbits(64) if seed is None else seed, digest())
    create(path, seal)
    return seal.commitment


def check_seal(path: Path, commitment: str) -> Seal:
    """The secret that was committed to; refuses any other."""
    seal = read(path)
    if seal.commitment != commitment:
        raise HarnessError(f"'{path}' is not what was committed to: its commitment is {seal.commitment[:12]}")
    return seal


def share_of(requests: Sequence[Request], name: str, needed: int) -> list[Request]:
    """Those of a user's requests that belong to the set `name`, in their order.

    What a request asks, not its id or its place, decides where it belongs; so sets stay disjoint when a file grows.
    Raises Usage where there are fewer than `needed`.
    """
    if name not in SETS:
        raise Usage(f"no set is called '{name}'", f"the sets are {', '.join(SETS)}")
    mine = [request for request in requests if _belongs(request) == name]
    if len(mine) < needed:
        raise Usage(
            f"the set '{name}' needs {needed} requests and has {len(mine)} of the file's {len(requests)}",
            f"about {len(SETS) * needed} requests that differ are needed, or use the generator",
        )
    return mine


def _belongs(request: Request) -> str:
    asked = json.dumps([request.turns, request.ids], ensure_ascii=False).encode()
    return SETS[int.from_bytes(hashlib.sha256(asked).digest()[:8], "little") % len(SETS)]

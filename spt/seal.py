"""Seals of finals: a secret below the git common directory, and what the ledger says of it, a commit a step.

It is made (its commitment stands in the ledger, dated, before anything is drawn), drawn by one job, and revealed with
the verdict.  The file of the secret is the harness's to write and to read (docs/requests.md).
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from spt.campaign import ask_harness
from spt.deployment import Deployment
from spt.entry import check_name
from spt.errors import Differs, Missing, Usage
from spt.formats import check, read_json
from spt.verdicts import FINAL, SEALS, Held, Ledger, now

__all__ = ["Sealed", "all_seals", "check_commitment", "commitment_of", "draw", "make_seal", "reveal", "seal_named"]


@dataclass(frozen=True)
class Sealed:
    """What the ledger says of a seal."""

    name: str
    commitment: str
    date: str
    drawn: dict[str, Any] | None = None  # job, a, deployment, requests, date, again
    revealed: dict[str, Any] | None = None  # key, salt, seed, generator

    @property
    def path(self) -> str:
        return f"{SEALS}/{self.name}.json"

    def record(self) -> dict[str, Any]:
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {"v": 1, "kind": "commitment", **fields}

    def file(self, ledger: Ledger) -> Path:
        """Where the secret lies."""
        return ledger.store.state / SEALS / self.name


def commitment_of(secret: Mapping[str, Any]) -> str:
    """sha256 over salt, seed (8 bytes, little-endian) and the generator's digest (docs/requests.md)."""
    seed = int(secret["seed"]).to_bytes(8, "little")
    return hashlib.sha256(bytes.fromhex(secret["salt"]) + seed + bytes.fromhex(secret["generator"])).hexdigest()


def check_commitment(sealed: Sealed) -> None:
    """Differs where the secret that was revealed is not the one that was committed to."""
    if sealed.revealed is not None and commitment_of(sealed.revealed) != sealed.commitment:
        raise Differs(
            f"the secret of the seal '{sealed.name}' is not what was committed to on {sealed.date}",
            "this final was not drawn as the ledger says; `git log refs/spt/verdicts` shows who wrote it",
        )


def seal_named(ledger: Ledger, name: str) -> Sealed:
    """The seal; Missing where none is called so."""
    if (found := _found(ledger, check_name(name))) is None:
        raise Missing(f"no seal is called '{name}'", "`spt seal NAME` makes one, before the round whose final it draws")
    return found


def all_seals(ledger: Ledger) -> list[Sealed]:
    """All seals that the ledger names."""
    names = [path.removeprefix(f"{SEALS}/").removesuffix(".json") for path in ledger.paths(SEALS)]
    return [found for name in names if (found := _found(ledger, name)) is not None]


def _found(ledger: Ledger, name: str) -> Sealed | None:
    value = ledger.record(f"{SEALS}/{name}.json", "commitment")
    if value is None:
        return None
    return Sealed(**{field: value[field] for field in Sealed.__dataclass_fields__})


def make_seal(ledger: Ledger, deployment: Deployment, name: str) -> Sealed:
    """Makes the secret and puts its commitment into the ledger; a name is used once."""
    if check_name(name).endswith(".used"):
        raise Usage(f"'{name}' cannot be a name", "what ends in '.used' says that a seal was used")
    with ledger.store.locked():
        if (old := _found(ledger, name)) is not None:
            raise Usage(f"the seal '{name}' was made on {old.date}", "a name is used once: give another")
        folder = ledger.store.state / SEALS
        folder.mkdir(mode=0o700, exist_ok=True)
        if (folder / name).exists():  # made by a command that was killed before it could say so
            commitment = commitment_of(_secret(folder / name))
            ask_harness(deployment, "seal", "--seal", folder / name, "--check", commitment)
        else:
            [told] = ask_harness(deployment, "seal", "--seal", folder / name)
            commitment = told["commitment"]
        sealed = Sealed(name, commitment, now())
        ledger.commit({sealed.path: sealed.record()}, f"seal: {name} made\n\nSpt-Commitment: {commitment}\n")
        return sealed


def draw(ledger: Ledger, sealed: Sealed, drawn: Mapping[str, Any]) -> Sealed:
    """Says in the ledger which job drew by the seal, once; the same job may say so again."""
    with ledger.store.locked():
        held = seal_named(ledger, sealed.name)
        if held.drawn is not None:
            refuse_other(held, drawn["job"])
            if held.drawn["requests"] != drawn["requests"]:
                raise Differs(f"the seal '{held.name}' draws other requests than on {held.drawn['date']}")
            return held
        made = replace(held, drawn={**drawn, "date": now()})
        message = f"seal: {held.name} drawn\n\nSpt-Commitment: {held.commitment}\n"
        ledger.commit({made.path: made.record()}, message)
        return made


def refuse_other(sealed: Sealed, job: str) -> None:
    """Usage where the seal was drawn by another job."""
    if sealed.drawn is not None and sealed.drawn["job"] != job:
        raise Usage(
            f"the seal '{sealed.name}' was drawn on {sealed.drawn['date']} by another final, of the system "
            f"'{sealed.drawn['a']['tree'][:12]}'",
            "a seal is used once: `spt seal NAME` makes another, before the next round",
        )


def reveal(ledger: Ledger, verdict: Mapping[str, Any]) -> Held:
    """Puts the verdict of a final into the ledger, and the secret beside it, in one commit; an old one stays.

    Usage where the verdict is of no seal here, or not of the requests that the seal drew.
    """
    sealed = _seal_of(ledger, verdict)
    with ledger.store.locked():
        sealed = seal_named(ledger, sealed.name)
        assert sealed.drawn is not None  # `_seal_of` has seen to it
        if sealed.revealed is not None:
            held = ledger.held(FINAL, sealed.revealed["key"])
            if held.key != verdict["key"]:
                raise Usage(f"the seal '{sealed.name}' has its verdict, '{held.key[:12]}'", "a final is measured once")
            return held
        secret = _secret(sealed.file(ledger))
        made = replace(sealed, revealed={"key": verdict["key"], **secret})
        check_commitment(made)
        held = Held(FINAL, verdict["key"], (), dict(verdict), sealed.name, sealed.drawn["again"])
        message = f"final: {verdict['answer']}\n\nSpt-Key: {held.key}\nSpt-Commitment: {sealed.commitment}\n"
        ledger.commit({held.path: held.record(), made.path: made.record()}, message)
        return held


def _seal_of(ledger: Ledger, verdict: Mapping[str, Any]) -> Sealed:
    """The seal that drew what a final's verdict is of."""
    of = verdict["of"]
    for sealed in all_seals(ledger):
        if sealed.commitment == of["seal"]:
            drawn = sealed.drawn
            if drawn is None or (drawn["requests"], drawn["a"]) != (of["requests"], of["a"]):
                raise Usage(
                    f"these samples are not of the final that the seal '{sealed.name}' drew",
                    "the seal names one system and one file of requests",
                )
            return sealed
    raise Missing(
        f"no seal here has the commitment '{of['seal'][:12]}'", "the repository that made the seal takes it in"
    )


def _secret(path: Path) -> dict[str, Any]:
    try:
        value = read_json(path.read_bytes(), str(path))
    except OSError as error:
        raise Missing(f"the secret '{path}' cannot be read: {error.strerror}") from None
    check(value, "seal", str(path))
    return {name: value[name] for name in ("salt", "seed", "generator")}

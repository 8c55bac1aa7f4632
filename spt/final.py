"""`spt final`: the last word on a system, on requests that nobody has seen, drawn by a seal that is used once.

Everything that can fail is tried before the seal is spent: the secret and its commitment, earlier finals of the same
system, the deployment's context, and whether every arm loads.  After that the same command goes on wherever it ended.
"""

import hashlib
import json
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from spt.arms import export_arms
from spt.campaign import (
    Emit,
    Kind,
    Plan,
    appear,
    ask_harness,
    digest_of,
    judged,
    measure,
    sweep,
    write_job,
)
from spt.deployment import Deployment
from spt.errors import Usage
from spt.formats import read_json
from spt.judge import Limits
from spt.seal import Sealed, all_seals, draw, refuse_other, reveal, seal_named
from spt.verdicts import FINAL, NO, OPEN, Held, Ledger, named

__all__ = [
    "KIND",
    "Asked",
    "asked_again",
    "earlier_finals",
    "final_system",
    "finish_final",
    "known_final",
    "make_final",
]

KIND = Kind("final", "final", "-final")


@dataclass(frozen=True)
class Asked:
    """What a user says of a final: its seal, why it is another one of this system, and whether it is a small one."""

    seal: str
    again: str | None = None
    smoke: bool = False

    @property
    def sizes(self) -> str:
        return "smoke" if self.smoke else "full"


def final_system(plan: Plan, asked: Asked, limits: Limits, emit: Emit) -> Held:
    """The final of arm a, old or new; `emit` gets the events of the harness as they come."""
    devices = max(1, len(limits.devices))
    sealed, job = _allowed(plan, asked, devices)
    folder = KIND.folder(plan.ledger, job)
    if sealed.revealed is not None:
        sweep(folder)
        return plan.ledger.held(FINAL, sealed.revealed["key"])
    appear(folder, lambda part: _make(plan, sealed, asked, part))
    held = read_json((folder / "job.json").read_bytes(), str(folder / "job.json"))
    write_job(folder, _job(plan, sealed, asked, held["seed"], held["arms"]))
    if not (folder / "requests.jsonl").stat().st_size:
        enclosed = [] if limits.sandbox else ["--no-sandbox"]
        measure(plan.deployment, folder, ["rehearse", *limits.places(), *enclosed], emit)
    _draw(plan, sealed, asked, job, devices, folder)
    measure(plan.deployment, folder, ["final", "--stream", *limits.places(), *limits.words()], emit)
    found = finish_final(plan.ledger, plan.deployment, folder / "out" / "samples.jsonl")
    sweep(folder)
    return found


def make_final(plan: Plan, asked: Asked, devices: int, to: Path) -> None:
    """Writes the job of a final into the new folder `to`, to be measured elsewhere; this spends its seal."""
    sealed, job = _allowed(plan, asked, devices)
    if sealed.revealed is not None:
        raise Usage(f"the final that the seal '{sealed.name}' drew has its verdict", "`spt verdict list` shows it")

    def make(part: Path) -> None:
        _make(plan, sealed, asked, part)
        _draw(plan, sealed, asked, job, devices, part)

    appear(to, make)


def known_final(plan: Plan, asked: Asked, devices: int) -> Held | None:
    """The verdict of this final where it has one; Usage where its seal was drawn for another system."""
    sealed = seal_named(plan.ledger, asked.seal)
    refuse_other(sealed, _key(plan, sealed, asked, devices))
    return None if sealed.revealed is None else plan.ledger.held(FINAL, sealed.revealed["key"])


def finish_final(ledger: Ledger, deployment: Deployment, samples: Path) -> Held:
    """What the samples of a final come to, in the ledger, with the secret of its seal."""
    return reveal(ledger, judged(ledger, deployment, FINAL, None, samples))


def earlier_finals(ledger: Ledger, a: Mapping[str, Any], deployment: str, but: str) -> list[str]:
    """In words, the finals of a system on a deployment that were begun by other seals than the one called `but`.

    Small ones, which accept nothing, do not count.
    """
    found = []
    for sealed, date, held in _earlier(ledger, a, deployment, but):
        if held is None:
            found.append(f"begun with the seal '{sealed.name}' on {date}, no verdict")
        elif held.verdict is not None:
            found.append(f"{held.verdict['answer']} with the seal '{sealed.name}' on {date}")
    return found


def _earlier(
    ledger: Ledger, a: Mapping[str, Any], deployment: str, but: str
) -> Iterator[tuple[Sealed, str, Held | None]]:
    """Seals that drew the finals of `earlier_finals`, oldest first: when, and the verdict, None where there is none."""
    for sealed in sorted(all_seals(ledger), key=lambda each: each.drawn["date"] if each.drawn else ""):
        drawn = sealed.drawn
        if sealed.name == but or drawn is None or (drawn["a"], drawn["deployment"]) != (a, deployment):
            continue
        held = None if sealed.revealed is None else ledger.held(FINAL, sealed.revealed["key"])
        if held is None or (held.verdict is not None and held.verdict["answer"] not in OPEN):
            yield sealed, drawn["date"], held


def asked_again(plan: Plan, asked: Asked, why: str) -> Asked | Held:
    """What is asked where nobody is there to give a reason, as in a round that comes to a system of an earlier one.

    A rejection stands, and is returned; after any other verdict the system is measured once more, and the ledger says
    `why`.  Usage where an earlier final was begun and has no verdict: who sees it go badly could leave it.
    """
    sealed, digest = seal_named(plan.ledger, asked.seal), digest_of(plan.ledger, plan.deployment)
    before = list(_earlier(plan.ledger, plan.arms["a"].system, digest, asked.seal))
    if sealed.drawn is not None or not before:
        return asked
    for other, date, held in before:
        if held is None:
            raise Usage(
                f"this system had a final before: begun with the seal '{other.name}' on {date}, no verdict",
                "it ends where it was begun: `spt round list` and `spt seal` show what is open",
            )
        if held.verdict is not None and held.verdict["answer"] in NO:
            return held
    return replace(asked, again=why)


# --- before the seal is spent ---


def _allowed(plan: Plan, asked: Asked, devices: int) -> tuple[Sealed, str]:
    """The seal, and the key of the job that draws by it; an error where this job may not."""
    if asked.again is not None and not asked.again.strip():
        raise Usage(f"--again '{asked.again}' gives no reason", "the ledger keeps why a system is measured once more")
    ledger, sealed = plan.ledger, seal_named(plan.ledger, asked.seal)
    job = _key(plan, sealed, asked, devices)
    refuse_other(sealed, job)
    if sealed.revealed is not None:
        return sealed, job
    ask_harness(plan.deployment, "seal", "--seal", sealed.file(ledger), "--check", sealed.commitment)
    if sealed.drawn is None:
        before = earlier_finals(ledger, plan.arms["a"].system, digest_of(ledger, plan.deployment), sealed.name)
        if before and asked.again is None:
            raise Usage(
                f"this system had a final before: {before[-1]}",
                "--again REASON measures it once more, and every print of the verdict will say so",
            )
        if asked.again is not None and not before:
            raise Usage(f"--again '{asked.again}': this system had no final before", "leave it out")
    return sealed, job


def _key(plan: Plan, sealed: Sealed, asked: Asked, devices: int) -> str:
    """What names a final before it is drawn: all that decides which requests are drawn, and for what."""
    of = {
        "arms": {name: arm.system for name, arm in plan.arms.items()},
        "deployment": digest_of(plan.ledger, plan.deployment),
        "rule": plan.rule,
        "seal": sealed.commitment,
        "sizes": asked.sizes,
        "devices": devices,
    }
    return named(of)


def _make(plan: Plan, sealed: Sealed, asked: Asked, folder: Path) -> None:
    """Makes the folder of a final whose requests are not drawn."""
    folder.mkdir()
    (folder / "requests.jsonl").touch()
    arms = export_arms(plan.arms, folder)
    seed = secrets.randbits(32) if plan.seed is None else plan.seed
    (folder / "job.json").write_text(json.dumps(_job(plan, sealed, asked, seed, arms), indent=1))


def _job(plan: Plan, sealed: Sealed, asked: Asked, seed: int, arms: Mapping[str, Any]) -> dict[str, Any]:
    return {**plan.job(KIND, seed, 0, arms), "commitment": sealed.commitment, "sizes": asked.sizes}


def _draw(plan: Plan, sealed: Sealed, asked: Asked, job: str, devices: int, folder: Path) -> None:
    """Spends the seal on the requests where they are not there, and says so in the ledger."""
    file = folder / "requests.jsonl"
    if not file.stat().st_size:
        words: list[object] = ["--seal", sealed.file(plan.ledger), "--job-key", job, "--devices", devices]
        if families := plan.deployment.requests.get("families"):
            words += ["--families", *families]
        ask_harness(plan.deployment, "draw", "--job", folder / "job.json", *words)
    drawn = {
        "job": job,
        "a": plan.arms["a"].system,
        "deployment": digest_of(plan.ledger, plan.deployment),
        "requests": hashlib.sha256(file.read_bytes()).hexdigest(),
        "again": asked.again,
    }
    draw(plan.ledger, sealed, drawn)

"""`spt time` and `spt force`: what is faster, and what still says what stock says, judged once a key.

The same key gets its old verdict without measuring again.  What was looked at and has lost its samples is not measured
anew either: a look counts whatever came of it.
"""

import json
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from spt.campaign import (
    DEMO,
    Emit,
    Kind,
    Plan,
    Requests,
    appear,
    ask_harness,
    finish,
    key_of,
    make_folder,
    measure,
    naming,
    open_folder,
    session_tok,
    sweep,
    write_job,
)
from spt.errors import Missing
from spt.formats import read_json
from spt.pack import TIMED
from spt.served import refuse_forcing, refuse_timing
from spt.verdicts import now, read_samples

__all__ = [
    "CALIBRATE",
    "COMMANDS",
    "FORCE",
    "TIME",
    "Limits",
    "calibration_requests",
    "force_quickly",
    "force_requests",
    "force_system",
    "make_job",
    "of_stock",
    "time_requests",
    "time_systems",
    "timed_samples",
]

TIME = Kind("time", "screen")
FORCE = Kind("force", "force", "-force")
_CALIBRATING = threading.Lock()
CALIBRATE = Kind("calibrate", "calibrate", room="calibrations")
COMMANDS = tuple(kind.command for kind in (TIME, FORCE, CALIBRATE))

# A unit asks 56 requests of a half: a warm-up and six groups, each of eight.  The longest campaign has 8 + 5 + 20
# units; half as much again is for what is void or repeats itself.
HALF_REQUESTS, UNITS, RESERVE = 56, 33, 1.5
# Sessions: each look at a system takes one share of two, and stock's own calibration is larger (docs/judge.md).
LOOK_TOK, CALIBRATION_TOK = 50_000, 120_000
LOOK_SESSIONS, LOOKS, CALIBRATION_SESSIONS = 100, 2, 60
SAID_SHARE = 0.4  # of a session's context that is answers
SINGLE_TOK = 100  # said to a single request, of at most 128
# By the rule `demo` a unit asks 3 requests of a half, and forcing is the real code on a handful of single requests.
DEMO_HALF_REQUESTS, DEMO_UNITS, DEMO_FORCED, DEMO_CALIBRATED = 3, 8, 1, 4


@dataclass(frozen=True)
class Limits:
    """How a campaign is run: `deadline_s` on the monotonic clock, or None."""

    deadline_s: float | None
    sandbox: bool
    devices: tuple[str, ...] = ()

    @classmethod
    def of(cls, minutes: float | None, *, sandbox: bool, devices: tuple[str, ...]) -> "Limits":
        """Limits from now on."""
        return cls(None if minutes is None else time.monotonic() + 60 * minutes, sandbox, devices)

    def places(self) -> list[str]:
        """What the harness is told of the devices, where the user named some."""
        return ["--devices", ",".join(self.devices)] if self.devices else []

    def words(self) -> list[str]:
        """What the harness is told of the rest."""
        words = [] if self.sandbox else ["--no-sandbox"]
        if self.deadline_s is not None:
            words += ["--max-minutes", f"{max(0.0, self.deadline_s - time.monotonic()) / 60:.3f}"]
        return words


def time_systems(plan: Plan, file: Path | None, limits: Limits, emit: Emit) -> dict[str, Any]:
    """The verdict on arm a against arm b, old or new; `emit` gets the events of the harness as they come."""
    refuse_timing(plan.deployment)
    key = key_of(plan, TIME)
    if (old := _old(plan, TIME, "timing", key)) is not None:
        return old
    folder = open_folder(plan, TIME, key, time_requests(plan, file, max(1, len(limits.devices))))
    _measure(plan, TIME, folder, [*limits.places(), *limits.words()], _noting(plan, "timing", key, emit), file)
    return _end(plan, "timing", key, folder)


def force_system(plan: Plan, file: Path | None, limits: Limits, emit: Emit) -> dict[str, Any]:
    """The forcing verdict on arm a, old or new; stock is calibrated first where it is not yet.

    What was timed of arm a against arm b is forced first, where the ledger has its confirmation and the samples.
    """
    refuse_forcing(plan.deployment, plan.arms["a"], sandbox=limits.sandbox)
    timed = timed_samples(plan)
    key = key_of(plan, FORCE, timed)
    if (old := _old(plan, FORCE, "forcing", key)) is not None:
        return old
    reference = _calibrated(plan, limits, emit)
    folder = open_folder(plan, FORCE, key, force_requests(plan, file))
    words = ["--reference", str(reference), *limits.words()]
    if timed is not None:
        words += ["--timed", str(timed)]
    _measure(plan, FORCE, folder, words, _noting(plan, "forcing", key, emit), file)
    return _end(plan, "forcing", key, folder, reference)


def force_quickly(plan: Plan, requests: Path, room: Path, limits: Limits, emit: Emit) -> dict[str, Any]:
    """What forcing says of arm a on a few development requests: no verdict that the ledger keeps.

    room: the folder in which the work lies, and goes on; stock is calibrated first where it is not yet.
    """
    refuse_forcing(plan.deployment, plan.arms["a"], sandbox=limits.sandbox)
    key = key_of(plan, FORCE)
    reference, folder = _calibrated(plan, limits, emit), room / key[:12]
    appear(folder, lambda part: make_folder(plan, FORCE, part, Requests(requests, "development", 0)))
    old = read_json((folder / "job.json").read_bytes(), str(folder / "job.json"))
    write_job(folder, plan.job(FORCE, old["seed"], old["units"], old["arms"]))  # on the device of now
    words = [FORCE.command, "--stream", "--reference", str(reference), *limits.words()]
    measure(plan.deployment, folder, words, emit)
    samples = folder / "out" / "samples.jsonl"
    [verdict] = ask_harness(plan.deployment, "verdict", samples, "--what", "forcing", "--reference", reference)
    return verdict


def timed_samples(plan: Plan) -> Path | None:
    """The kept samples of the timing of this pair on this machine, where it was confirmed."""
    verdict = plan.ledger.held("timing", key_of(plan, TIME)).verdict
    if verdict is None or not verdict.get("look") or verdict["stock"] != plan.arms["stock"].system:
        return None
    kept = plan.ledger.raw(verdict["samples"])
    return kept if kept.is_file() else None


def make_job(plan: Plan, command: str, file: Path | None, devices: int, to: Path, timed: Path | None = None) -> None:
    """Writes the job of a harness command (time, force, calibrate), to be run elsewhere, into the new folder `to`.

    The folder appears whole.

    timed: samples whose tokens are forced first; they go along as `timed.jsonl`.
    """
    kind = next(kind for kind in (TIME, FORCE, CALIBRATE) if kind.command == command)
    if kind is TIME:
        refuse_timing(plan.deployment)
    elif kind is FORCE:
        refuse_forcing(plan.deployment, plan.arms["a"], sandbox=False)  # who runs the job says how
    wanted = {
        TIME: lambda: time_requests(plan, file, devices),
        FORCE: lambda: force_requests(plan, file),
        CALIBRATE: lambda: calibration_requests(plan, file),
    }
    said = None if timed is None else read_samples(timed)
    chosen, asked = of_stock(plan) if kind is CALIBRATE else plan, wanted[kind]()

    def make(part: Path) -> None:
        make_folder(chosen, kind, part, asked)
        if said is not None:
            (part / TIMED).write_bytes(said)

    appear(to, make)


def time_requests(plan: Plan, file: Path | None, devices: int) -> Requests:
    """Single requests for the longest campaign on so many devices."""
    half, units = (DEMO_HALF_REQUESTS, DEMO_UNITS) if plan.rule == DEMO else (HALF_REQUESTS, UNITS)
    return Requests(file, "confirmation", devices * round(RESERVE * units * half))


def force_requests(plan: Plan, file: Path | None) -> Requests:
    """Sessions for both looks."""
    if plan.rule == DEMO:
        return Requests(file, "force", DEMO_FORCED)
    return Requests(file, "force", LOOKS * _sessions(plan, LOOK_TOK), sessions=True, looks=LOOKS)


def calibration_requests(plan: Plan, file: Path | None) -> Requests:
    """What stock answers itself: half the tokens in sessions, half in single requests like those that are timed."""
    if plan.rule == DEMO:
        return Requests(file, "development", DEMO_CALIBRATED)
    said_tok = SAID_SHARE * session_tok(plan.deployment)
    sessions = max(CALIBRATION_SESSIONS, round(CALIBRATION_TOK / 2 / said_tok))
    return Requests(file, "development", sessions, sessions=True, singles=round(sessions * said_tok / SINGLE_TOK))


def of_stock(plan: Plan) -> Plan:
    """The plan of stock against itself."""
    return replace(plan, arms=dict.fromkeys(("a", "b", "stock"), plan.arms["stock"]))


def _sessions(plan: Plan, tokens: int) -> int:
    """How many sessions say so many tokens, and enough to tell between sessions."""
    return max(LOOK_SESSIONS, round(tokens / (SAID_SHARE * session_tok(plan.deployment))))


def _old(plan: Plan, kind: Kind, what: str, key: str) -> dict[str, Any] | None:
    """The verdict that a key has for good; Missing where looks were taken whose samples are gone."""
    with plan.ledger.store.locked():  # as it is now, whoever wrote to it meanwhile
        held, folder = plan.ledger.held(what, key), kind.folder(plan.ledger, key)
    if held.verdict is not None and held.closed:
        sweep(folder)
        return held.verdict
    looked = held.looks and held.verdict is None
    if looked and not (folder / "out" / "samples.jsonl").is_file():
        raise Missing(
            f"the {what} of this pair was looked at before, and its samples are not in '{folder}'",
            "a look counts whatever came of it: bring the samples back, or change the system",
        )
    return None


def _noting(plan: Plan, what: str, key: str, emit: Emit) -> Emit:
    """Puts looks into the ledger before they are shown."""

    def note(event: dict[str, Any]) -> None:
        if event.get("look"):
            phase = event.get("phase", "force")
            look = {"phase": phase, "look": event["look"], "units": event.get("units", 0), "date": now()}
            plan.ledger.add_look(what, key, look)
        emit(event)

    return note


def _measure(plan: Plan, kind: Kind, folder: Path, words: list[str], emit: Emit, file: Path | None) -> None:
    """Runs the harness; what it says of the requests names the user's `file`."""
    with naming(file, folder / "requests.jsonl"):
        measure(plan.deployment, folder, [kind.command, "--stream", *words], emit)


def _end(plan: Plan, what: str, key: str, folder: Path, reference: Path | None = None) -> dict[str, Any]:
    verdict = finish(plan.ledger, plan.deployment, what, key, folder / "out" / "samples.jsonl", reference)
    sweep(folder)
    return verdict


def _calibrated(plan: Plan, limits: Limits, emit: Emit) -> Path:
    """The samples of stock's calibration for this deployment, stock, card and harness, measured now or before.

    Of several threads that ask, one measures, and the others wait.
    """
    with _CALIBRATING:
        return _calibrate(plan, limits, emit)


def _calibrate(plan: Plan, limits: Limits, emit: Emit) -> Path:
    own = replace(of_stock(plan), seed=None)
    key = key_of(own, CALIBRATE)
    done = CALIBRATE.folder(plan.ledger, key) / "calibration.json"
    if not done.is_file():
        file = plan.deployment.requests.get("file")
        path = None if file is None else plan.deployment.folder / file
        folder = open_folder(own, CALIBRATE, key, calibration_requests(plan, path))
        _measure(plan, CALIBRATE, folder, limits.words(), emit, path)
        kept = plan.ledger.keep_raw(folder / "out" / "samples.jsonl")
        part = done.with_name(".calibration.json")
        part.write_text(json.dumps({"v": 1, "kind": "calibration", "key": key, "samples": kept.name.partition(".")[0]}))
        part.replace(done)
        sweep(folder / "out")
    held = read_json(done.read_bytes(), str(done))
    kept = plan.ledger.raw(held["samples"])
    if not kept.is_file():
        raise Missing(
            f"the samples of stock's calibration are not at '{kept}'", f"without '{done}' it is measured anew"
        )
    return kept

"""Campaigns: from systems and a deployment to a verdict in the ledger, through a folder in which work goes on.

A folder holds the job, its requests, the exported trees and, below `out`, what the harness measured; it lies below the
git common directory under the first digits of the verdict's key, appears whole, and is removed once the samples are
kept and the verdict stands in the ledger.  The same command goes on wherever it ended.
"""

import contextlib
import hashlib
import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from spt.arms import Arm, export_arms
from spt.deployment import Deployment
from spt.errors import Missing, SptError, Usage
from spt.formats import read_json
from spt.job import run_harness
from spt.verdicts import Ledger

__all__ = [
    "DEMO",
    "RULE",
    "SESSION_TOK",
    "Emit",
    "Kind",
    "Plan",
    "Requests",
    "appear",
    "ask_harness",
    "digest_of",
    "finish",
    "judged",
    "key_of",
    "make_folder",
    "measure",
    "naming",
    "open_folder",
    "scratch",
    "session_tok",
    "sweep",
    "sweep_parts",
    "write_job",
    "write_requests",
]

RULE, DEMO = "paired-1", "demo"  # of the judge (docs/judge.md); what `demo` promotes is a raw ratio
DIGITS = 12  # of a key, in a folder's name

Emit = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class Kind:
    """A judging command of the harness, the phase that its job names, and where its folders lie."""

    command: str
    phase: str
    suffix: str = ""  # of a folder's name
    room: str = "campaigns"

    def folder(self, ledger: Ledger, key: str) -> Path:
        """The folder of the campaign with this key."""
        return ledger.store.state / self.room / f"{key[:DIGITS]}{self.suffix}"


@dataclass(frozen=True)
class Requests:
    """Where requests come from: a file of the user's, or a set of the generator, sessions perhaps with `singles` too.

    `looks` is how many looks share them: the job's `units` is one look's share.
    """

    file: Path | None
    set: str
    count: int
    sessions: bool = False
    looks: int = 0
    singles: int = 0


@dataclass(frozen=True)
class Plan:
    """All that a campaign is made of."""

    ledger: Ledger
    deployment: Deployment
    arms: Mapping[str, Arm]  # a, b and stock
    device: str
    seed: int | None  # drawn where None
    rule: str = RULE

    def job(self, kind: Kind, seed: int, units: int, arms: Mapping[str, Any]) -> dict[str, Any]:
        """The job, with the deployment as it is on this machine."""
        return {
            "v": 1,
            "kind": "job",
            "arms": dict(arms),
            "deployment": {**self.deployment.record(), "device": self.device},
            "deployment_digest": digest_of(self.ledger, self.deployment),
            "requests": "requests.jsonl",
            "seed": seed,
            "rule": self.rule,
            "phase": kind.phase,
            "units": units,
        }


def digest_of(ledger: Ledger, deployment: Deployment) -> str:
    """The deployment's digest; the repository remembers those of models."""
    folder = ledger.store.state / "cache"
    folder.mkdir(parents=True, exist_ok=True)
    return deployment.digest(folder / "models.json")


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """A folder for what a child of ours leaves about."""
    with tempfile.TemporaryDirectory(prefix="spt-") as folder:
        yield Path(folder)


def ask_harness(deployment: Deployment, *arguments: object) -> list[dict[str, Any]]:
    """The JSON lines that a command of the harness prints."""
    with scratch() as folder, run_harness(deployment, [str(one) for one in arguments], folder) as events:
        return list(events)


def key_of(plan: Plan, kind: Kind, timed: Path | None = None) -> str:
    """The key that a verdict would have on this machine; nothing is started for it but the harness.

    timed: the samples whose tokens would be forced first.
    """
    with scratch() as folder:
        (folder / "requests.jsonl").touch()
        arms = {name: arm.record(name) for name, arm in plan.arms.items()}
        (folder / "job.json").write_text(json.dumps(plan.job(kind, 0, 0, arms)))
        words = [] if timed is None else ["--timed", timed]
        [found] = ask_harness(plan.deployment, "key", "--job", folder / "job.json", *words)
    return str(found["key"])


# --- folders ---


def open_folder(plan: Plan, kind: Kind, key: str, wanted: Requests) -> Path:
    """The folder of a campaign, made now or found with work in it; its job is brought up to date.

    It keeps the seed and the requests that it began with, once anything was measured: others are Usage then.
    """
    folder = kind.folder(plan.ledger, key)
    if (folder / "job.json").is_file() and not _is_measured(folder):
        try:
            _refuse_other(plan, folder, _job_in(folder), wanted)
        except Usage:
            sweep(folder)  # nothing was asked, so this is no second draw
    appear(folder, lambda part: make_folder(plan, kind, part, wanted))
    old = _job_in(folder)
    _refuse_other(plan, folder, old, wanted)
    write_job(folder, plan.job(kind, old["seed"], old["units"], old["arms"]))
    return folder


def _job_in(folder: Path) -> dict[str, Any]:
    job: dict[str, Any] = read_json((folder / "job.json").read_bytes(), str(folder / "job.json"))
    return job


def _is_measured(folder: Path) -> bool:
    samples = folder / "out" / "samples.jsonl"
    return samples.is_file() and samples.stat().st_size > 0


def appear(folder: Path, make: Callable[[Path], None]) -> None:
    """Lets `make` make the folder of a job beside its place, and moves it there whole; one that is there stays."""
    if (folder / "job.json").is_file():
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    sweep_parts(folder.parent)
    with tempfile.TemporaryDirectory(prefix=f".new-{os.getpid()}-", dir=folder.parent) as name:
        part = Path(name) / "folder"
        make(part)
        with contextlib.suppress(FileExistsError, OSError):
            part.rename(folder)  # a folder that was made meanwhile is as good
    if not (folder / "job.json").is_file():
        raise Usage(f"'{folder}' is in the way", "it holds no job: move it aside")


def sweep_parts(room: Path) -> None:
    """Removes the half-made folders of a room whose makers were killed: each is named after its process."""
    for part in room.glob(".new-*"):
        owner = part.name.split("-")[1]
        if not (owner.isdecimal() and Path(f"/proc/{owner}").exists()):
            shutil.rmtree(part, ignore_errors=True)


def write_job(folder: Path, job: Mapping[str, Any]) -> None:
    """Puts the job into its folder, whole."""
    part = folder / ".job.json"
    part.write_text(json.dumps(job, indent=1))
    part.replace(folder / "job.json")


def make_folder(plan: Plan, kind: Kind, folder: Path, wanted: Requests) -> None:
    """Makes the folder of a new campaign: trees, requests, job."""
    folder.mkdir()
    seed = secrets.randbits(32) if plan.seed is None else plan.seed
    write_requests(plan.deployment, wanted, seed, folder / "requests.jsonl")
    arms = export_arms(plan.arms, folder)
    count = len((folder / "requests.jsonl").read_bytes().splitlines())
    units = -(-count // wanted.looks) if wanted.looks else 0
    (folder / "job.json").write_text(json.dumps(plan.job(kind, seed, units, arms), indent=1))


def _refuse_other(plan: Plan, folder: Path, job: Mapping[str, Any], wanted: Requests) -> None:
    """A campaign keeps what it began with: another seed or other requests would be another draw."""
    hint = f"it lies in '{folder}' and goes on without that flag"
    if plan.seed is not None and plan.seed != job["seed"]:
        raise Usage(f"--seed {plan.seed}: this campaign began with the seed {job['seed']}", hint)
    if wanted.file is not None and _digest(wanted.file) != _digest(folder / "requests.jsonl"):
        raise Usage(f"'{wanted.file}': this campaign began with other requests", hint)


def write_requests(deployment: Deployment, wanted: Requests, seed: int, to: Path) -> None:
    """Writes the user's file, or what the generator draws by `seed`."""
    if wanted.file is not None:
        to.write_bytes(_read(wanted.file))
        return
    _generate(deployment, wanted, seed, to)
    if wanted.singles:
        beside = to.with_suffix(".singles")
        _generate(deployment, replace(wanted, count=wanted.singles, sessions=False), seed, beside)
        with to.open("ab") as file:
            file.write(beside.read_bytes())
        beside.unlink()


@contextlib.contextmanager
def naming(file: Path | None, copy: Path) -> Iterator[None]:
    """Lets errors about the copy that is asked name the user's file, the one that can be mended."""
    try:
        yield
    except SptError as error:
        if file is not None:
            error.message = error.message.replace(str(copy), str(file))
        raise


def _generate(deployment: Deployment, wanted: Requests, seed: int, to: Path) -> None:
    words: list[object] = ["--set", wanted.set, "--seed", seed, "--count", wanted.count]
    if wanted.sessions:
        words += ["--sessions", "--context-tok", session_tok(deployment)]
    else:
        words += ["--longest-tok", max(SHORTEST_TOK, min(LONGEST_TOK, deployment.context_tok() - ANSWER_TOK))]
    if families := deployment.requests.get("families"):
        words += ["--families", *families]
    ask_harness(deployment, "requests", *words, "--out", to)


# What the generator takes (docs/requests.md): the context of a session, and the prompts of single requests.
SESSION_TOK = 5120
LONGEST_TOK, SHORTEST_TOK = 1500, 15
ANSWER_TOK = 256  # kept free for an answer, and for the words around a prompt


def session_tok(deployment: Deployment) -> int:
    """The context that a generated session fills."""
    return min(deployment.context_tok(), SESSION_TOK)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise Missing(f"the requests '{path}' cannot be read: {error.strerror}") from None


def _digest(path: Path) -> str:
    return hashlib.sha256(_read(path)).hexdigest()


def measure(deployment: Deployment, folder: Path, words: Sequence[str], emit: Emit) -> None:
    """Runs a command of the harness, with its words, on the job in a folder; `emit` gets its events as they come."""
    command = [words[0], "--job", str(folder / "job.json"), "--out", str(folder / "out"), *words[1:]]
    with scratch() as passing, run_harness(deployment, command, passing) as events:
        for event in events:
            emit(event)


# --- the end ---


def judged(
    ledger: Ledger, deployment: Deployment, what: str, key: str | None, samples: Path, reference: Path | None = None
) -> dict[str, Any]:
    """Lets the harness say what samples come to, and keeps them.

    What the ledger says is never more than what the kept samples do: they are named by the verdict's own digest.
    """
    words: list[object] = ["verdict", samples.absolute(), "--what", what]
    if what != "timing":
        words += ["--text", deployment.models.target]
    if reference is not None:
        words += ["--reference", reference.absolute()]
    [verdict] = ask_harness(deployment, *words)
    if verdict["of"]["deployment"] != digest_of(ledger, deployment):
        raise Usage(f"the samples '{samples}' are of another deployment", "--deployment FILE names it")
    if key is not None and verdict["key"] != key:
        raise SptError(f"what was measured is of the key '{verdict['key'][:DIGITS]}', not '{key[:DIGITS]}'")
    for path, named in ((samples, "samples"), (reference, "reference")):
        if path is not None and ledger.keep_raw(path) != ledger.raw(verdict[named]):
            raise SptError(f"the samples '{path}' changed while they were judged", "run the command again")
    return dict(verdict)


def finish(
    ledger: Ledger, deployment: Deployment, what: str, key: str | None, samples: Path, reference: Path | None = None
) -> dict[str, Any]:
    """What samples come to, appended to the ledger."""
    return ledger.add(judged(ledger, deployment, what, key, samples, reference if what == "forcing" else None))


def sweep(folder: Path) -> None:
    """Removes the folder of a campaign whose verdict stands in the ledger."""
    shutil.rmtree(folder, ignore_errors=True)

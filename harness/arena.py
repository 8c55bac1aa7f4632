"""What every measuring command sets up: the job, its devices, locks, sandbox and file of samples."""

import datetime
import hashlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from harness import shape
from harness.client import Engine, Start
from harness.device import Device, locked, open_device
from harness.errors import Usage
from harness.job import Job, read_job
from harness.launch import launch, settings_of
from harness.machine import card
from harness.prepared import Store, model_paths, stored
from harness.probe import check_sandbox
from harness.request import Request, read_requests
from harness.samples import Writer
from harness.sandbox import Enclosure, find_bubblewrap
from harness.text import Text, load_text_for
from harness.wire import Ready

__all__ = ["Arena", "Grounds", "check_arms", "open_arena", "open_grounds"]


@dataclass
class Grounds:
    """A job on its devices, each of them ours alone, in the sandbox."""

    job: Job
    devices: list[Device]
    enclosures: list[Enclosure]  # one a device
    start: Start
    out: Path
    _stores: dict[str, Store] = field(default_factory=dict, init=False)

    def store(self, name: str) -> Store:
        """What arm `name` prepared, now or before; requests of this run do not reach it."""
        if name not in self._stores:
            folder = self.out / "prepared" / name
            arm = self.job.arms[name]
            self._stores[name] = stored(arm, self.job.deployment, folder, self.enclosures[0], self.start)
        return self._stores[name]

    @contextmanager
    def engine(self, name: str, **changed: object) -> Iterator[tuple[Engine, Ready]]:
        """Arm `name` started and loaded on the first device; `changed` are fields of `Settings`, and options in it."""
        store = self.store(name)
        store.check()
        enclosure = store.enclosure(self.enclosures[0])
        arm, deployment = self.job.arms[name], self.job.deployment
        with launch(deployment, arm, self.start, enclosure=enclosure) as engine:
            settings = settings_of(deployment, arm, engine, **_options(changed))
            settings = replace(settings, **changed)  # type: ignore[arg-type]
            yield engine, engine.load(enclosure.settings(settings))
        store.check()

    def ready(self, name: str) -> Ready:
        """What arm `name` tells of the model once it is loaded."""
        with self.engine(name) as (_, ready):
            return ready


@dataclass
class Arena(Grounds):
    """What is measured there: the requests, and the one writer of samples, with this process's card written already."""

    requests: list[Request]
    text: Text | None  # None where all requests are ids and the target has no tokenizer
    writer: Writer

    def asked(self, phase: str | None = None) -> set[str]:
        """The requests of the job that were ever asked (in `phase`), in units that count or not."""
        found = set()
        for text in self.writer.path.read_bytes().split(b"\n")[:-1]:
            line = shape.loads(text)
            if line["type"] == "answer" and phase in (None, line["phase"]):
                found.add(line["session"])
        return found


def _options(changed: dict[str, object]) -> dict[str, str | float | bool]:
    options = changed.pop("options", {})
    assert isinstance(options, dict)
    return options


@contextmanager
def open_grounds(job: Job, out: Path, *, sandbox: bool, devices: Sequence[str] = (), start: Start) -> Iterator[Grounds]:
    """The job's devices (its deployment's own when left out), locked, and a sandbox that was seen to hold."""
    with ExitStack() as stack:
        places = [stack.enter_context(open_device(name)) for name in devices or (job.deployment.device,)]
        for device in places:
            stack.enter_context(locked(device.uuid))
        enclosures = [_enclosure(job, device, sandbox) for device in places]
        if sandbox:
            check_sandbox(enclosures[0])
        yield Grounds(job, places, enclosures, start, out.absolute())


@contextmanager
def open_arena(
    job_file: Path, out: Path, arms: Sequence[str], *, sandbox: bool, devices: Sequence[str] = (), start: Start
) -> Iterator[Arena]:
    """The arena of a job that names these arms; a folder with samples of another campaign is refused."""
    job = read_job(job_file)
    check_arms(job, arms)
    requests = read_requests(job.requests)
    text = load_text_for(Path(job.deployment.target.path), requests)
    with (
        Writer(out / "samples.jsonl") as writer,
        open_grounds(job, out, sandbox=sandbox, devices=devices, start=start) as grounds,
    ):
        _begin(writer, job, grounds.enclosures[0].word)
        yield Arena(job, grounds.devices, grounds.enclosures, start, grounds.out, requests, text, writer)


def check_arms(job: Job, arms: Sequence[str]) -> None:
    """Refuses a job that does not name all these arms."""
    if missing := [arm for arm in arms if arm not in job.arms]:
        raise Usage(f"the job names no arm '{missing[0]}'", f"it needs {', '.join(arms)}")


def _enclosure(job: Job, device: Device, sandbox: bool) -> Enclosure:
    return Enclosure(
        find_bubblewrap() if sandbox else None,
        device=device.name,
        nodes=device.nodes,
        reads=model_paths(job.deployment),
    )


def _begin(writer: Writer, job: Job, sandbox: str) -> None:
    """Writes what the campaign is of, or finds it there; then this process's card."""
    told = {
        "arms": {name: arm.system for name, arm in job.arms.items()},
        "deployment": job.digest,
        "rule": job.rule,
        "seed": job.seed,
        "requests": hashlib.sha256(job.requests.read_bytes()).hexdigest(),
    }
    if writer.path.stat().st_size:
        found = writer.read().campaign
        for name, value in told.items():
            if found[name] != value:
                raise Usage(f"'{writer.path}' holds another campaign: its '{name}' differs", "give another folder")
    else:
        writer.add("campaign", **told)
    writer.add("card", card=card(job.deployment.device, datetime.datetime.now(datetime.UTC), sandbox=sandbox))

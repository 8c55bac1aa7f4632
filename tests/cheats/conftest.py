"""Fixtures of the cheats: one tiny model, stock as it stands, and judges that are naive or real.

Collected only where bubblewrap works: without it agents' patches are never judged.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from benchmarks import perturbed
from benchmarks.perturbed import Change, Files
from harness import cgroup, process
from harness.answer import Answer
from harness.client import Engine, stock_command
from harness.errors import HarnessError
from harness.prepared import Store
from harness.request import Request
from harness.sandbox import Enclosure, find_bubblewrap
from harness.supply import Supply
from harness.wire import Generate, Sampling
from tests.cheats import system, worlds
from tests.cheats.worlds import World
from tests.harness.enclosures import ways

collect_ignore: list[str] = []
try:
    find_bubblewrap()
except HarnessError:
    collect_ignore = [path.name for path in Path(__file__).parent.glob("test_*.py")]

WAYS = ways()


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    """One thread an engine."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.fixture(params=WAYS)
def way(request, monkeypatch):
    """Each way of freezing that this machine has."""
    make, only = cgroup.Group.make, WAYS[request.param]
    monkeypatch.setattr(process.Group, "make", lambda memory, pids, found=only: make(memory, pids, found))
    return request.param


@pytest.fixture(scope="session", params=["tiny"])
def world(request, tmp_path_factory) -> World:
    """The tiny models, unless a test asks for the real ones."""
    make = {"tiny": worlds.tiny, "smollm2": worlds.smollm2}[request.param]
    return make(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="session")
def models(world) -> tuple[Path, Path]:
    return world.models


@pytest.fixture(scope="session")
def files() -> Files:
    return perturbed.shipped()


@pytest.fixture(scope="session")
def stock(tmp_path_factory, files) -> Path:
    """The folder of stock."""
    folder = tmp_path_factory.mktemp("stock") / "system"
    perturbed.write(files, folder)
    return folder


@pytest.fixture
def cheating(tmp_path, files):
    """The folder of the system that a cheat makes of stock."""

    def make(cheat: Change, base: Files | None = None) -> Path:
        folder = tmp_path / "candidate"
        changed = cheat(files if base is None else base)
        assert changed != files
        perturbed.write(changed, folder)
        return folder

    return make


@dataclass(frozen=True)
class Runner:
    """Starts loaded engines: in the open, as a naive judge does, or enclosed, as ours does."""

    models: tuple[Path, Path | None]

    @contextmanager
    def open(self, folder: Path, **changes: object) -> Iterator[Engine]:
        with Engine.start(stock_command(), folder) as engine:
            engine.load(system.settings(self.models, **changes))
            yield engine

    @contextmanager
    def enclosed(self, folder: Path, store: Store | None = None, **changes: object) -> Iterator[Engine]:
        box: Enclosure = system.enclosure(self.models)
        box = box if store is None else store.enclosure(box)
        with Engine.start(stock_command(), folder, enclosure=box) as engine:
            engine.load(box.settings(system.settings(self.models, **changes)))
            yield engine

    def judged(self, engine: Engine, requests: list[Request], seen: set[str] = frozenset()) -> list[Answer]:
        """What our judge asks of an engine: every prompt of the supply, once."""
        supply = Supply(requests, seen, None)
        asked = supply.take(len(supply), engine.ready, Sampling(1.0))
        return [engine.generate(replace(each, stop_ids=[system.EOS], ignore_eos=True)) for each in asked]


@pytest.fixture(scope="session")
def runner(models) -> Runner:
    return Runner(models)


@pytest.fixture(scope="session")
def known(runner, stock, world) -> tuple[list[Generate], list[list[int]]]:
    """The requests that an author has seen, and what stock says to them."""
    asked = [system.generate(prompt, f"dev-{number}") for number, prompt in enumerate(world.known)]
    with runner.open(stock) as engine:
        return asked, [engine.generate(each).ids for each in asked]


def fresh(seed: int, count: int, tokens: int = 24) -> list[Request]:
    """Requests that nobody has seen."""
    found = system.prompts(1000 + seed, count)
    return [Request(f"f{seed}-{at}", ids=tuple(ids), max_tokens=tokens) for at, ids in enumerate(found)]

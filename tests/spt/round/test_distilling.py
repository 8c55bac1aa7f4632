"""What a round leaves to the memory, by the judge's own rule."""

import json
from types import SimpleNamespace

import pytest

from spt.apply import apply
from spt.deployment import read
from spt.evidence import evidence_of
from spt.git.store import Store
from spt.memory import STOCK, Memory
from spt.round.direction import Direction, SystemOf
from spt.round.distilling import distil
from spt.round.state import Course
from spt.verdicts import Ledger
from tests.spt.judged import made_up_samples
from tests.spt.round.toys import CANARY, DRUM, NOOP, copied, make_round_deployment, verified
from tests.spt.toys import spt


@pytest.fixture(scope="module")
def pristine(tmp_path_factory):
    """A deployment with three entries that require nothing of one another."""
    folder = make_round_deployment(tmp_path_factory.mktemp("distil"), [CANARY, DRUM, NOOP])
    (folder / "few.jsonl").write_text((folder / "some.jsonl").read_text())
    (folder / "on.yaml").write_text(json.dumps({**CANARY[1], **DRUM[1]}))
    return folder


@pytest.mark.parametrize("below", [[], ["canary"], ["canary", "noop"]])
def test_an_entry_is_backed_on_whatever_it_was_promoted(pristine, tmp_path, below):
    """Its verdict becomes a line of its evidence, once, whatever other entries the system holds."""
    folder = copied(pristine, tmp_path / "deployment")
    names = [*below, "drum"]
    judged = made_up_samples(folder, tmp_path / "samples.jsonl", 0.1, f"{'+'.join(names)}@on.yaml")
    added = spt("verdict", "add", judged, cwd=folder)
    assert added.code == 0, added.err
    [held] = Ledger.find(folder).all()
    memory = Memory.of(Store.find(folder))
    with memory.store.locked():
        stock = memory.store.reference(f"{STOCK}{memory.stock[:12]}")
        base = apply(memory, below, stock).commit if below else stock
        tip = apply(memory, ["drum"], base).commit
        memory.store.stage("refs/spt/tmp/tip", tip)
        memory.store.publish("a round")
    direction = Direction("memory-drum", "explore", "memory", "t", "h", SystemOf(memory.stock), base)
    course = Course(direction, outcome="promoted", end={"commit": tip, "timing": held.key})
    settings = SimpleNamespace(rule="paired-1", round="r")
    bench = SimpleNamespace(store=Store.find(folder), settings=settings, deployment=read(folder / "deployment.yaml"))
    for _ in range(2):
        [found] = distil(bench, course, tip)
        assert (found.name, found.evidence, found.discovery, found.note) == ("drum", held.key, False, "")
    [line] = evidence_of(Memory.of(Store.find(folder)), "drum")
    assert line.line["verdict"]["key"] == held.key
    assert sorted(pin.partition("@")[0] for pin in line.line["entries"]) == sorted(names)
    assert verified(folder) == dict.fromkeys(("canary", "drum", "noop"), ("ok", "ok"))

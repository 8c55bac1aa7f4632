"""Times of a step's phases: they sum to the step, on a device too, where two clocks are read."""

import itertools
import json
import time

import pytest
import torch

from stock.engine import Request
from stock.record import StepRecorder, StepTimes
from stock.sampling import Sampling
from tests.stock.drive import load
from tests.stock.tiny import drafter_config, target_config, write_drafter, write_target

PHASES = ("draft", "verify", "accept")


class Mark:
    """An event of a device whose clock is not the host's: every two marks are 1,000 us apart."""

    count = itertools.count()

    def __init__(self):
        self.at_us = 7e9 + 1000 * next(self.count)

    def us_until(self, later):
        return later.at_us - self.at_us


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    """A tiny engine that drafts."""
    folder = tmp_path_factory.mktemp("record")
    config = target_config("llama")
    target, drafter = write_target(folder / "t", config), write_drafter(folder / "d", drafter_config(config))
    return load(target, drafter, mode="fast")


@pytest.mark.parametrize(("wall_s", "host_us"), [(0.0045, 1500.0), (0.003, 0.0), (0.0029, 0.0)])
def test_host_is_what_the_device_leaves_of_the_step(wall_s, host_us):
    """The wait for the device is the device's time alone; host is never negative."""
    clock_s = iter((100.0, 100.0 + wall_s))
    times = StepTimes(torch.device("cpu"), Mark, lambda: next(clock_s))
    times.on = True
    times.start()
    for name in PHASES:
        with times.phase(name):
            pass
    taken = times.take(times.launched())

    assert [taken[f"{name}_us"] for name in PHASES] == [1000.0] * 3
    assert taken["host_us"] == pytest.approx(host_us, abs=1e-3)


def test_marks_of_a_step_that_was_never_taken_are_forgotten():
    """A step that nobody asked about adds nothing to the next."""
    times = StepTimes(torch.device("cpu"), Mark, lambda: 0.0)
    times.on = True
    for _ in range(2):
        times.start()
        with times.phase("verify"):
            pass

    assert times.take(times.launched()) == {"draft_us": 0.0, "verify_us": 1000.0, "accept_us": 0.0, "host_us": 0.0}


def test_a_step_that_was_asked_for_ahead_begins_where_the_last_ended():
    """Running ahead, no moment counts for two steps, and what the device idles between them is the host's."""
    clock_s = iter((100.0, 100.004, 100.0075))
    times = StepTimes(torch.device("cpu"), Mark, lambda: next(clock_s))
    times.on = True
    times.start()
    passes = []
    for _ in range(2):
        for name in PHASES:
            with times.phase(name):
                pass
        passes.append(times.launched())
    hosts = [times.take(each)["host_us"] for each in passes]

    assert hosts == pytest.approx([1000.0, 500.0], abs=1e-3)


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(1.3, seed=5)], ids=["greedy", "sampled"])
def test_records_of_an_engine_that_runs_ahead_are_those_of_one_that_waits(sampling, engine, tmp_path):
    """All but the times, with a stop id in the middle of what was asked for ahead and requests one after another."""
    texts = []
    for runs_ahead in (False, True):
        engine.runs_ahead, engine.times.on = runs_ahead, True
        engine.on_step = StepRecorder(tmp_path / f"{runs_ahead}.jsonl")
        for name, stop in (("a", ()), ("b", (7, 11)), ("c", ())):
            engine.open(Request(name, [3, 1, 4], 24, frozenset(stop), not stop, sampling))
            while engine.requests:
                engine.step()
        engine.on_step.close()
        engine.on_step, engine.times.on, engine.runs_ahead = None, False, False
        texts.append([json.loads(line) for line in (tmp_path / f"{runs_ahead}.jsonl").read_text().splitlines()])
    told = [[{k: v for k, v in row.items() if not k.endswith("_us")} for row in text] for text in texts]

    assert told[0] == told[1]
    assert {row["request"] for row in told[0]} == {"a", "b", "c"}


def test_recording_does_not_keep_an_engine_from_running_ahead(engine):
    """A live run that is recorded stays what it is: passes are asked for before the last is read."""
    asked, launch = [], engine._launch
    engine._launch = lambda requests: asked.append(len(requests)) or launch(requests)
    engine.runs_ahead, engine.times.on, engine.on_step = True, True, lambda *step: asked.append(0)
    engine.open(Request("one", [3, 1, 4], 24, frozenset(), True, Sampling()))
    while engine.requests:
        engine.step()
    del engine._launch
    engine.on_step, engine.times.on, engine.runs_ahead = None, False, False

    assert asked[:3] == [1, 1, 0]


def test_a_pass_that_was_asked_for_before_the_record_is_left_out(engine):
    """Recording that begins in the middle begins with the next pass that it can tell of whole."""
    engine.runs_ahead, seen = True, []
    engine.open(Request("one", [3, 1, 4], 40, frozenset(), True, Sampling()))
    engine.step()
    engine.step()
    engine.times.on, engine.on_step = True, lambda progress, *_: seen.append(progress[0].request.steps)
    while engine.requests:
        engine.step()
    engine.on_step, engine.times.on, engine.runs_ahead = None, False, False

    assert seen[0] == 3


def test_phases_sum_to_the_step(engine):
    """Decoding for real, the phases of a step are all of its wall clock and no more."""
    taken = []
    engine.times.on, engine.on_step = True, lambda *step: taken.append(sum(step[-1].values()))
    engine.open(Request("one", [3, 1, 4], 24, frozenset(), True, Sampling()))
    engine.step()  # prefill is no step
    assert not taken
    walls_us = []
    while engine.requests:
        begin_s = time.perf_counter()
        engine.step()
        walls_us.append(1e6 * (time.perf_counter() - begin_s))

    assert len(taken) == len(walls_us) > 3
    assert all(part <= wall for part, wall in zip(taken, walls_us, strict=True))
    assert min(wall - part for part, wall in zip(taken, walls_us, strict=True)) < 300

"""Time that is told wrongly, moved to where nobody looks, or taken from the other arm.

Nothing here rests on a measured percentage: work has a known length, and what must stand still uses no CPU time.
"""

import json
import math
import os
import signal
import time
from pathlib import Path

from benchmarks import perturbed
from harness.client import Engine, stock_command
from harness.job import Arm
from harness.prepared import fill
from harness.promotion import next_step
from harness.tree import tree_id
from harness.units import reading, valid_units
from tests.cheats import catalogue, system
from tests.cheats.worlds import in_both_worlds
from tests.harness.campaigns import folded, timed_campaign, unit
from tests.stock.talk import Worker, generate, load

STEP_S = 0.004
BURN_S = 0.2
LOAD_S = 4.0


def named(name: str) -> list[int]:
    """Processes of that name, zombies not counted."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            head, _, rest = path.read_text().rpartition(")")
        except OSError:
            continue
        if head.partition("(")[2] == name and rest.split()[0] not in "ZX":
            found.append(int(path.parent.name))
    return found


def burnt_ticks(name: str) -> int:
    """CPU time of the processes of that name."""
    words = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in named(name)]
    return sum(int(each[11]) + int(each[12]) for each in words)


def goes_on(name: str, patience_s: float = 20.0) -> bool:
    """Whether they use any CPU time, however busy the machine is."""
    before, deadline = burnt_ticks(name), time.monotonic() + patience_s
    while burnt_ticks(name) == before and time.monotonic() < deadline:
        time.sleep(0.02)
    return burnt_ticks(name) > before


def ended(name: str, patience_s: float = 5.0) -> bool:
    """Whether they are gone; the kernel ends a namespace in its own time."""
    deadline = time.monotonic() + patience_s
    while named(name) and time.monotonic() < deadline:
        time.sleep(0.01)
    return not named(name)


def own_record_s(folder, models, file):
    """What an engine records of its own steps, in all."""
    with Worker(system=folder, room=file.parent) as worker:
        worker.ask(load(*models, mode="fast"))
        worker.ask({"op": "record", "on": True, "file": str(file)})
        worker.ask(generate(max_tokens=24))
        worker.ask({"op": "record", "on": False, "file": None})
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    return sum(value for row in rows for key, value in row.items() if key.endswith("_us")) / 1e6


@in_both_worlds
def test_patched_clock(cheating, files, runner, models, tmp_path):
    """By its own record the engine is several times faster; our clock, in another process, sees every wait."""
    slow = catalogue.slow_step(files, STEP_S)
    perturbed.write(slow, tmp_path / "slow")
    patched = cheating(catalogue.patched_clock, slow)
    honest_s, told_s = (own_record_s(path, models, tmp_path / "steps") for path in (tmp_path / "slow", patched))
    assert told_s < honest_s / 3

    with runner.enclosed(patched) as engine:
        answer = engine.generate(system.generate([5, 6, 7], "a"))
    assert answer.done_ns - answer.written_ns >= STEP_S * 1e9 * (len(answer.lines) - 1)


def test_work_after_the_answer(cheating, files, runner, tmp_path):
    """Who pauses between requests does not see work behind `done`; we ask at once, and stop the engine in between."""
    perturbed.write(catalogue.burning(files, BURN_S, after=False), tmp_path / "honest")
    folder = cheating(lambda each: catalogue.burning(each, BURN_S, after=True))

    def request_s(engine, name):
        answer = engine.generate(system.generate([5, 6, 7], name, 4))
        return answer.took_s

    def paused(engine):
        times_s = [request_s(engine, f"p{number}") for number in range(3)]
        for number in range(2):
            time.sleep(4 * BURN_S)
            times_s.append(request_s(engine, f"q{number}"))
        return min(times_s)

    with runner.open(tmp_path / "honest") as engine:
        assert paused(engine) >= BURN_S
    with runner.enclosed(folder) as engine:
        assert paused(engine) < BURN_S  # the naive client's
        request_s(engine, "a")
        assert request_s(engine, "b") >= BURN_S
        engine.freeze()
        time.sleep(2 * BURN_S)
        engine.thaw()
        assert request_s(engine, "c") > BURN_S / 2


def test_load_hidden_in_the_first_answer(cheating, files, models, tmp_path):
    """Who waits for `ready` sees a quick load; ours counts the first answer to it (tests/harness/test_campaign.py)."""
    perturbed.write(catalogue.loading(files, LOAD_S, late=False), tmp_path / "honest")
    late = cheating(lambda each: catalogue.loading(each, LOAD_S, late=True))

    def start(folder):
        with Engine.start(stock_command(), folder) as engine:
            _ = engine.hello
            begin_s = time.perf_counter()
            engine.load(system.settings(models))
            loaded_s = time.perf_counter()
            engine.generate(system.generate([5, 6, 7], "a", 4))
            return loaded_s - begin_s, time.perf_counter() - begin_s

    (honest_load_s, _), (late_load_s, late_whole_s) = start(tmp_path / "honest"), start(late)
    assert late_load_s < honest_load_s
    assert min(honest_load_s, late_whole_s) >= LOAD_S


def test_left_running_by_a_naive_judge(cheating, runner):
    """Stopping the engine's process leaves its daemon at work."""
    name = f"left-{os.getpid()}"
    folder = cheating(catalogue.left_running(name))
    with runner.open(folder) as engine:
        os.kill(engine.pid, signal.SIGSTOP)
        assert goes_on(name)
        left = [pid for pid in named(name) if pid != engine.pid]
        os.kill(engine.pid, signal.SIGCONT)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert left


def test_left_running(cheating, runner, way):
    """Freezing an engine stops all of it, whichever way, and its end ends all of it."""
    name = f"left-{os.getpid()}"
    with runner.enclosed(cheating(catalogue.left_running(name))) as engine:
        assert goes_on(name)
        engine.freeze()
        before = burnt_ticks(name)
        time.sleep(0.3)
        assert burnt_ticks(name) == before
        assert len(named(name)) >= 2
        engine.thaw()
        assert goes_on(name)
    assert ended(name)


def test_daemon_that_slows_the_current_best(cheating, runner, models, tmp_path):
    """What `prepare` leaves behind survives a judge that ends processes one by one; ours ends the namespace."""
    name = f"slow-{os.getpid()}"
    folder = cheating(catalogue.daemon_of_prepare(name))
    (tmp_path / "naive").mkdir()
    with Engine.start(stock_command(), folder) as engine:
        engine.prepare(system.settings(models), tmp_path / "naive")
    left = named(name)
    assert left and goes_on(name)
    for pid in left:
        os.kill(pid, signal.SIGKILL)

    deployment = system.deployment_of(models)
    fill(Arm("a", folder, tree_id(folder), {}), deployment, tmp_path / "store", system.enclosure(models), 8 << 20)
    assert ended(name)


def test_slowed_current_best_is_void():
    """Five units in which the current best alone is slower read as a gain; the chart of its own pace voids them all."""
    gain = math.log(1.05)
    lines = timed_campaign(sigma=0.001)
    for number in range(5):
        lines += unit("screen", number, gain, slow=1.05)
    samples = folded(lines)

    assert min(reading(each).value for each in samples.of("screen")) > 0.04
    assert valid_units(samples, "screen") == ([], samples.of("screen"))
    assert next_step(samples).answer == "undecided"

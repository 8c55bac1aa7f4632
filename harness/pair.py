"""One unit: two fresh processes, the idle one frozen, and quartets A(g1) B(g1) B(g2) A(g2) (docs/judge.md).

Everything that is measured is written at once; a unit that goes wrong is void, and the reason is written too.
"""

import functools
import random
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from harness.answer import Answer
from harness.client import LOAD_S, Engine, Start
from harness.command import Emit, is_past
from harness.device import Device
from harness.errors import EngineError, HarnessError, Refused
from harness.job import Arm, Deployment
from harness.launch import launch, settings_of
from harness.prepared import Store
from harness.promotion import Measure
from harness.rules import PAIRED, Shape
from harness.samples import Line, Writer, answer_line
from harness.sandbox import Enclosure
from harness.supply import Supply
from harness.tau import looped
from harness.wire import Generate, Ready

__all__ = ["Contestant", "Pair", "Voided"]

LOOPED_SHARE = 0.1
REDRAWS = 8  # of one group; a file of requests that loops so often is the wrong one
LOAD_FACTOR, LOAD_SLACK_S = 1.5, 10.0
IDLE_S = 0.5  # how long a device may look busy after a freeze
FREE_S = 60.0  # how long the memory of a unit's processes may take to come back
SEVERE = ("hardware", "thermal", "power brake")  # reasons that hold clocks down below what the card's power cap does
ARMS = ("a", "b")


class Voided(Exception):
    """The unit does not count: whose fault, and why."""

    def __init__(self, arm: str | None, cause: str, reason: str) -> None:
        super().__init__(reason)
        self.arm, self.cause, self.reason = arm, cause, reason


@dataclass(frozen=True)
class Contestant:
    """A system as it is started: its files, its options, what it prepared, and how it is enclosed on one device."""

    arm: Arm
    store: Store
    enclosure: Enclosure


class Pair:
    """The two halves of a unit on two devices, or the one on one."""

    def __init__(
        self,
        deployment: Deployment,
        writer: Writer,
        supply: Supply,
        step: Measure,
        seed: int,
        start: Start = Engine.start,
        deadline_s: float | None = None,
        emit: Emit = lambda event: None,
        shape: Shape = PAIRED.shape,
    ) -> None:
        self.deployment, self.writer, self.supply, self.step, self.start = deployment, writer, supply, step, start
        self._deadline_s, self._emit, self._shape = deadline_s, emit, shape
        self._turns, self._halves = 0, 1
        self._random = random.Random(f"{seed} {step.phase} {step.unit}")
        self._groups = 0  # numbers given out

    def run(self, halves: Sequence[tuple[dict[str, Contestant], dict[str, Device]]]) -> None:
        """Measures the unit, and writes its last line; raises `Voided` after writing why it does not count.

        halves: for each, contestants and devices by arm.
        """
        first, leads = [], []
        self._halves = len(halves)
        try:
            for half, (contestants, devices) in enumerate(halves):
                order = self._random.sample(ARMS, 2)
                first.append(order[0])
                leads.append(self._half(half, order, contestants, devices))
        except Voided as void:
            self.write([{"type": "void", "arm": void.arm, "cause": void.cause, "reason": void.reason}])
            raise
        self.write([{"type": "unit", "first": first, "leads": leads}])

    def _half(
        self, half: int, order: Sequence[str], contestants: dict[str, Contestant], devices: dict[str, Device]
    ) -> list[str]:
        with ExitStack() as stack:
            sides: dict[str, _Side] = {}
            for arm in order:
                sides[arm] = side = _Side(arm, half, self, contestants[arm], devices[arm])
                stack.callback(side.close)
                side.start()
            for arm in order:  # one wakes up while the other loads
                sides[arm].load()
            if not sides["a"].ready.same_model(sides["b"].ready):
                raise Voided("a", "violation", "it tells another vocabulary, context or stop ids than the current best")
            warm = self._take(self._shape.warm_up, sides["b"])
            for arm in order:
                sides[arm].warm_up(warm)
            if self.step.phase != "ar":  # without a drafter less is loaded: what loads too long was seen against stock
                _check_load(sides["a"].start_s, sides["b"].start_s)
            leads = [self._random.choice(ARMS) for _ in range(self._shape.quartets)]
            for quartet, lead in enumerate(leads):
                self._quartet(half, quartet, lead, sides)
        for side in sides.values():
            side.check_after()
        return leads

    def _quartet(self, half: int, quartet: int, lead: str, sides: dict[str, "_Side"]) -> None:
        """Two groups, the second in the other order."""
        other = "b" if lead == "a" else "a"
        for slot, order in ((0, (lead, other)), (2, (other, lead))):
            self._group(half, quartet, slot, order, sides)

    def _group(self, half: int, quartet: int, slot: int, order: Sequence[str], sides: dict[str, "_Side"]) -> None:
        """One group in both arms, drawn again while it is too repetitive in arm b; no time is read for that."""
        for _ in range(REDRAWS):
            number, requests = self._number(), self._take(self._shape.group, sides["b"])
            for at, arm in enumerate(order):
                answers = sides[arm].timed(requests, quartet=quartet, slot=slot + at, group=number)
                if arm == "b" and _loops(answers):
                    break
            else:
                return
            self.write([{"type": "redraw", "half": half, "quartet": quartet, "groups": [number]}])
            self._turns -= at + 1
        raise Voided(None, "violation", f"{REDRAWS} draws of a group were too repetitive")

    def _take(self, count: int, side: "_Side") -> list[Generate]:
        return self.supply.take(count, side.ready, self.deployment.sampling)

    def _number(self) -> int:
        self._groups += 1
        return self._groups - 1

    def turned(self) -> None:
        """Tells that an arm had its turn; those of a group that is drawn again do not count."""
        self._turns += 1
        told = {
            "phase": self.step.phase,
            "unit": self.step.unit,
            "turns": self._turns,
            "of": self._shape.turns * self._halves,
        }
        self._emit({"event": "turn", **told})

    def watch(self) -> None:
        """Ends the unit when `time.monotonic()` has passed the deadline; it is measured anew another time."""
        if is_past(self._deadline_s):
            raise HarnessError(
                f"the time is up in the midst of unit {self.step.unit} of '{self.step.phase}'",
                "the same command measures this unit anew, and goes on: the time must hold a whole unit",
            )

    def write(self, lines: Iterable[Line]) -> None:
        """Lines of this unit, on the disk when it returns."""
        self.writer.add_all({"phase": self.step.phase, "unit": self.step.unit, **line} for line in lines)


def _check_load(mine_s: float, best_s: float) -> None:
    """Loading and warm-up count together: `ready` may come before the work is done, and then an answer waits for it."""
    if mine_s > LOAD_FACTOR * best_s + LOAD_SLACK_S:
        told = f"{mine_s:.1f} s to load and to warm up, where the current best takes {best_s:.1f} s"
        raise Voided("a", "load", told)


def _loops(answers: Sequence[Answer]) -> bool:
    marks = [mark for answer in answers for mark in looped(answer.ids)]
    return sum(marks) > LOOPED_SHARE * len(marks)


class _Side:
    """One arm of a half: a process that is frozen but for its turn."""

    def __init__(self, arm: str, half: int, pair: Pair, contestant: Contestant, device: Device) -> None:
        self.arm, self.half, self.pair, self.contestant, self.device = arm, half, pair, contestant, device
        self.start_s = 0.0  # to load and to warm up
        self.ready: Ready
        self._engine: Engine
        self._inside: Enclosure
        self._before_bytes: int | None = None
        self._asked = False

    def start(self) -> None:
        """Starts the process."""
        seen = self.device.reading()
        self._before_bytes = None if seen is None else seen.free_bytes
        pair, contestant = self.pair, self.contestant
        contestant.store.check()
        self._inside = contestant.store.enclosure(contestant.enclosure)
        self._engine = launch(pair.deployment, contestant.arm, pair.start, enclosure=self._inside)

    def load(self) -> None:
        """Loads, and stands still after."""
        pair, contestant = self.pair, self.contestant
        begun_s = time.monotonic()

        def load() -> Ready:
            settings = settings_of(pair.deployment, contestant.arm, self._engine)
            return self._engine.load(self._inside.settings(settings), LOAD_S)

        self.ready = self._blame(load)
        self.start_s = load_s = time.monotonic() - begun_s
        prepared = contestant.store.digest
        pair.write([{"type": "load", "half": self.half, "arm": self.arm, "load_s": load_s, "prepared": prepared}])
        self._stand_still()

    def answer(self, requests: Sequence[Generate]) -> list[Answer]:
        """Thaws, answers one request after the other, and stands still again; answers are written after the turn."""
        answers: list[Answer] = []
        self._asked = True
        self.pair.watch()
        self._blame(self._engine.thaw)
        for request in requests:
            answers.append(self._blame(functools.partial(self._engine.generate, request)))
        self._seen = self.device.reading()
        self._stand_still()
        self.pair.turned()
        return answers

    def warm_up(self, requests: Sequence[Generate]) -> None:
        """Answers that do not count; they are written, so that nobody meets their prompts again."""
        answers = self.answer(requests)
        self.start_s += sum(answer.took_s for answer in answers)
        self.pair.write(self._said(requests, answers))

    def timed(self, requests: Sequence[Generate], quartet: int, slot: int, group: int) -> list[Answer]:
        """`answer`, written with the group's times."""
        answers = self.answer(requests)
        throttle = None if self._seen is None else self._seen.throttle
        line = {
            "type": "group",
            "half": self.half,
            "quartet": quartet,
            "slot": slot,
            "arm": self.arm,
            "group": group,
            "requests": [request.id for request in requests],
            "seconds": [answer.took_s for answer in answers],
            "decode_seconds": [answer.decode_s for answer in answers],
            "tokens": [len(answer.ids) for answer in answers],
            "clocks_mhz": None if self._seen is None else float(self._seen.clock_mhz),
            "throttle": throttle,
        }
        self.pair.write([*self._said(requests, answers), line])
        if self.arm == "b" and throttle and any(word in throttle for word in SEVERE):
            raise Voided(None, "throttle", f"the device was throttled: {throttle}")
        return answers

    def close(self) -> None:
        if hasattr(self, "_engine"):
            self._engine.kill()  # frozen or not, with all that it started

    def check_after(self) -> None:
        """What it prepared is as it was, and the memory of its device has come back."""
        self._blame(self.contestant.store.check)
        if (
            self._before_bytes is not None
            and self.device.wait_until_free(self._before_bytes * 99 // 100, FREE_S) is False
        ):
            raise Voided(None, "busy", "the memory of the device did not come back")

    def _stand_still(self) -> None:
        self._blame(self._engine.freeze)
        if self.device.wait_until_idle(IDLE_S) is False:
            raise Voided(self.arm, "busy", f"the device was busy {IDLE_S:g} s after the arm stood still")

    def _said(self, requests: Sequence[Generate], answers: Sequence[Answer]) -> list[Line]:
        origins = [self.pair.supply.request(asked) for asked in requests]
        return [
            answer_line(asked, answer, self.arm, half=self.half, session=origin.id, family=origin.family)
            for asked, answer, origin in zip(requests, answers, origins, strict=True)
        ]

    def _blame(self, act: Callable[[], Any]) -> Any:
        """Whatever the engine does wrong is this arm's, but for options and models that its user chose wrongly.

        A candidate that was asked something has no such excuse: it could refuse in those units that go badly, which
        would then be measured anew and count nowhere.
        """
        try:
            return act()
        except Refused as error:
            if error.exit_code != 1 and not (self._asked and self.arm == "a" and self.pair.step.phase != "calibrate"):
                raise  # no unit will ever go better
            raise Voided(self.arm, error.cause, error.message) from None
        except EngineError as error:
            raise Voided(self.arm, error.cause, error.message) from None

"""Where a round's systems are judged: the ledger, the deployment, devices and time, behind a few questions."""

import functools
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

from spt.arms import Arm, refuse_untrusted
from spt.campaign import Emit, Plan, digest_of
from spt.deployment import Deployment
from spt.git.store import Store
from spt.job import HarnessFailed
from spt.judge import Limits, force_quickly, force_system, time_systems
from spt.round.budget import Budget, Stopped
from spt.round.direction import SystemOf
from spt.round.runs import Asked, Runs, write_development
from spt.round.settings import Settings
from spt.round.slots import Turns
from spt.system import check_options, options_of
from spt.verdicts import Held, Ledger

if TYPE_CHECKING:
    from spt.final import Asked as Final

__all__ = ["Bench", "room_of"]

Value = TypeVar("Value")
# What the harness says while another has the device, or that of a killed round has not seen that nobody listens.
_BUSY = ("another judge measures", "is writing")
_UP = "the time is up"
_POLL_S = 0.2


def room_of(store: Store, round_: str) -> Path:
    """The folder of a round's own files, below the git common directory."""
    return store.state / "rounds" / round_


@dataclass(frozen=True)
class Bench:
    """`emit` gets the events of the harness as they come, each with the name of its direction where several are worked
    on side by side."""

    store: Store
    settings: Settings
    budget: Budget
    emit: Emit = field(default=lambda event: None)
    slot: int = 0
    direction: str | None = None
    turns: Turns = field(default_factory=Turns)

    def apart(self, slot: int, direction: str) -> Self:
        """The bench of one direction: the same questions on the devices of its slot, with a handle on the repository
        and a meter of its own."""
        named = direction if self.settings.at_once > 1 else None
        return replace(self, store=self.store.again(), budget=self.budget.part(), slot=slot, direction=named)

    @functools.cached_property
    def ledger(self) -> Ledger:
        return Ledger(self.store)

    @functools.cached_property
    def deployment(self) -> Deployment:
        return self.settings.parsed()

    @functools.cached_property
    def digest(self) -> str:
        """The deployment's."""
        return digest_of(self.ledger, self.deployment)

    @property
    def room(self) -> Path:
        return room_of(self.store, self.settings.round)

    @property
    def devices(self) -> tuple[str, ...]:
        """Those that the user named for this slot, if any."""
        slots = self.settings.slots
        return slots[self.slot % len(slots)] if slots else ()

    @property
    def device(self) -> str:
        return self.devices[0] if self.devices else self.deployment.device

    @property
    def stock(self) -> SystemOf:
        return SystemOf(self.settings.stock)

    def arm(self, system: SystemOf) -> Arm:
        """The system as a verdict names it: options at their default are left out."""
        declared = options_of(self.store.objects, system.tree)
        values = check_options(declared, dict(system.options), "a round's system")
        options = {name: value for name, value in sorted(values.items()) if value != declared[name].default}
        return Arm(system.tree[:12], system.tree, options, self.store.objects)

    def plan(self, a: SystemOf, b: SystemOf) -> Plan:
        """The plan of judging `a` against `b`; without a sandbox only trusted code passes."""
        arms = {"a": self.arm(a), "b": self.arm(b), "stock": self.arm(self.stock)}
        if not self.settings.sandbox:
            refuse_untrusted(arms.values(), self.store)
        return Plan(self.ledger, self.deployment, arms, self.device, None, self.settings.rule)

    def limits(self, devices: int = 2) -> Limits:
        return Limits(self.budget.deadline_s, self.settings.sandbox, self.devices[:devices])

    # --- questions ---

    def answers(self, system: SystemOf, asked: Asked) -> list[dict[str, Any]]:
        """A system's answers to development requests."""
        arm = self.arm(system)
        if not self.settings.sandbox:
            refuse_untrusted([arm], self.store)
        runs = Runs(self.room / "runs", self.deployment, self.device, self.settings.sandbox)
        with self.turns.held([runs.folder_of(arm, asked).name], self.budget.check):
            return self._judged(lambda: runs.answers(arm, asked, self._emit))

    def both_answers(self, one: SystemOf, other: SystemOf, asked: Asked) -> tuple[list[Any], list[Any]]:
        """The answers of two systems to the same requests."""
        return self.answers(one, asked), self.answers(other, asked)

    def timed(self, a: SystemOf, b: SystemOf) -> dict[str, Any]:
        """The timing verdict on `a` against `b`, old or new."""
        plan = self.plan(a, b)
        with self.turns.held([f"time {a.folder} {b.folder}"], self.budget.check):
            return self._judged(lambda: time_systems(plan, self._file(), self.limits(), self._emit))

    def forced(self, a: SystemOf, b: SystemOf) -> dict[str, Any]:
        """The forcing verdict on the tokens that were timed, and on more where they are too few."""
        plan = self.plan(a, b)
        with self.turns.held([f"force {a.folder} {b.folder}"], self.budget.check):
            return self._judged(lambda: force_system(plan, self._file(), self.limits(1), self._emit))

    def forced_quickly(self, a: SystemOf, b: SystemOf) -> dict[str, Any]:
        """Forcing on a handful of development requests: it is kept nowhere, and can only reject."""
        plan, room = self.plan(a, b), self.room / "development"
        room.mkdir(parents=True, exist_ok=True)
        sizes = self.settings.sizes
        with tempfile.TemporaryDirectory(prefix=f".new-{os.getpid()}-", dir=room) as folder:
            requests = Path(folder) / "requests.jsonl"
            write_development(self.deployment, sizes.quick, self.settings.seed, requests, sizes.quick_tok)
            return self._judged(lambda: force_quickly(plan, requests, room, self.limits(1), self._emit))

    def final(self, a: SystemOf) -> Held:
        """The sealed final of `a` against stock."""
        from spt.final import final_system

        plan = self.plan(a, self.stock)
        asked = self._asked_final(plan)
        if isinstance(asked, Held):
            return asked
        return self._judged(lambda: final_system(plan, asked, self.limits(), self._emit))

    def _asked_final(self, plan: Plan) -> "Final | Held":
        """What is asked of a final, or the rejection that its system has for good."""
        from spt.final import Asked as Final
        from spt.final import asked_again

        why = f"the round '{self.settings.round}' came to this system too"
        return asked_again(plan, Final(self.settings.seal, None, self.settings.smoke), why)

    def measured(self, system: SystemOf) -> tuple[Path, dict[str, Any]]:
        """The folder of a measurement of the system on development requests, and its summary."""
        from spt.arms import export_arms
        from spt.campaign import Requests
        from spt.measure import SET, measure, write_measuring_job

        sizes, out = self.settings.sizes, self.room / "measured" / system.folder
        folder, arms = self.room / "measuring", {"a": self.arm(system), "stock": self.arm(self.stock)}
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        asked = folder / "asked.jsonl"
        write_development(self.deployment, sizes.measured, self.settings.seed, asked, sizes.measured_tok)
        wanted = Requests(asked, SET, sizes.measured)
        exported = export_arms(arms, folder)
        job = write_measuring_job(
            folder, self.deployment, exported, wanted, self.settings.seed, sizes.measured_tok, self.device
        )
        minutes = None if self.budget.deadline_s is None else self.budget.left_s() / 60
        summary = self._judged(lambda: measure(self.deployment, job, out, minutes, self._emit, profile=sizes.profile))
        shutil.rmtree(folder, ignore_errors=True)
        return out, summary or json.loads((out / "measurement.json").read_text())

    # --- how they are asked ---

    def _file(self) -> Path | None:
        file = self.deployment.requests.get("file")
        return None if file is None else self.deployment.folder / file

    def _emit(self, event: dict[str, Any]) -> None:
        self.emit(event if self.direction is None else {**event, "direction": self.direction})
        self.budget.check()

    def _judged(self, ask: Callable[[], Value]) -> Value:
        """Asks on the device, and waits while another has it: that says nothing of any candidate."""
        waits = False
        while True:
            self.budget.check()
            try:
                with self.turns.held(self.devices or (self.device,), self.budget.check), self.budget.device():
                    return ask()
            except HarnessFailed as error:
                self.budget.check()
                if error.message.startswith(_UP):  # it ends before a unit that would not fit
                    raise Stopped("the time is up", "`spt round resume` goes on with the round from there") from None
                if not any(words in error.message for words in _BUSY):
                    raise
                if not waits:
                    self.emit({"event": "waits", "reason": error.message})
                waits = True
            time.sleep(_POLL_S)

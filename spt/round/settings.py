"""What a round is started with: it stands in its journal, so that whoever resumes it needs nothing else."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from spt.campaign import DEMO, RULE
from spt.deployment import Deployment, parse
from spt.errors import Usage
from spt.git.objects import Oid
from spt.round.agents import Limits
from spt.round.direction import SystemOf

__all__ = ["SIZES", "Settings", "Sizes"]


@dataclass(frozen=True)
class Sizes:
    """How much is asked outside of campaigns: requests and new tokens a request."""

    quick: int = 8  # of measure_quick, and forced of it
    quick_tok: int = 128
    exact: int = 8
    exact_tok: int = 64
    measured: int = 64
    measured_tok: int = 256
    profile: bool = True  # of a measurement: where the time of a step goes
    beside: bool = False  # the base is asked anew beside each candidate, since the machine's pace drifts


SIZES = {
    RULE: Sizes(),
    DEMO: Sizes(
        quick=2,
        quick_tok=48,
        exact=1,
        exact_tok=16,
        measured=2,
        measured_tok=32,
        profile=False,
        beside=True,
    ),
}


@dataclass(frozen=True)
class Settings:
    """A round's settings.

    deployment: the words of its file; folder: where relative paths in them start.  start_commit: a commit whose system
    tree is that of `start`.  seed: of development requests.  slots: the devices of each, none for the deployment's own.
    at_once: directions that are worked on side by side.  explore_minutes: wall time after which no new direction is
    begun, or None.  directions: the most of one phase.  elsewhere: another machine measures.  executor: what brings
    jobs to other hosts, as the user named it.
    """

    round: str
    deployment: Mapping[str, Any]
    folder: str
    stock: Oid
    start: SystemOf
    start_commit: Oid
    seal: str
    seed: int
    agents: tuple[str, ...] = ("sweep", "memory")
    rule: str = RULE
    slots: tuple[tuple[str, ...], ...] = ()
    at_once: int = 1
    sandbox: bool = True
    cost_model: bool = True
    smoke: bool = False
    elsewhere: bool = False
    executor: str | None = None
    explore_minutes: float | None = None
    directions: int = 16
    limits: Limits = field(default_factory=Limits)

    @property
    def sizes(self) -> Sizes:
        return SIZES[self.rule]

    def parsed(self) -> Deployment:
        """The deployment as it was when the round was started."""
        return parse(dict(self.deployment), f"the deployment of round '{self.round}'", Path(self.folder))

    def record(self) -> dict[str, Any]:
        return {
            **{name: getattr(self, name) for name in self.__dataclass_fields__},
            "deployment": dict(self.deployment),
            "start": self.start.record(),
            "agents": list(self.agents),
            "slots": [list(devices) for devices in self.slots],
            "limits": asdict(self.limits),
        }

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> "Settings":
        """Settings from their record; Usage where they are not whole, or another version's."""
        try:
            slots = record["slots"] if "slots" in record else [record["devices"]]  # rounds of before had one
            return cls(
                **{
                    **{name: value for name, value in record.items() if name != "devices"},
                    "start": SystemOf.of(record["start"]),
                    "agents": tuple(record["agents"]),
                    "slots": tuple(tuple(devices) for devices in slots if devices),
                    "limits": Limits(**record["limits"]),
                }
            )
        except (KeyError, TypeError) as error:
            raise Usage(
                f"the settings of a round are damaged: {error}", "`git log` of refs/spt/round/ shows who wrote them"
            ) from None

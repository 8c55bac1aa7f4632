"""What agents and the controller say to one another: systems, directions, candidates and what gates say of them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from spt.formats import canonical
from spt.git.objects import Oid
from spt.system import Value

__all__ = ["Candidate", "Declined", "Direction", "Figure", "SystemOf", "Verdict"]


@dataclass(frozen=True)
class SystemOf:
    """A system as the journal names it: options that stand at their default are left out."""

    tree: Oid
    options: Mapping[str, Value] = field(default_factory=dict)

    @property
    def folder(self) -> str:
        """The name of what is kept of it in folders of its own."""
        return sha256(canonical(self.record()).encode()).hexdigest()[:12]

    def record(self) -> dict[str, Any]:
        return {"tree": self.tree, "options": dict(sorted(self.options.items()))}

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> "SystemOf":
        return cls(record["tree"], dict(record["options"]))


@dataclass(frozen=True)
class Direction:
    """One idea, on one device slot, from a base that does not move while it is worked on.

    base_commit: a commit whose system tree is `base.tree`; it is all that an agent outside the controller gets.
    predicted_gain and interval are ratios (1.05 is 5 % faster); None where nobody predicted one.
    """

    id: str
    phase: str  # explore, integrate or tune
    agent: str
    title: str
    hypothesis: str
    base: SystemOf
    base_commit: Oid
    predicted_gain: float | None = None
    interval: tuple[float, float] | None = None
    evidence: tuple[str, ...] = ()
    slot: int = 0
    stacks: str | None = None  # the direction whose work it puts on top of the others'

    def record(self) -> dict[str, Any]:
        """The data of the journal's event `direction`."""
        return {
            "agent": self.agent,
            "title": self.title,
            "hypothesis": self.hypothesis,
            "predicted_gain": self.predicted_gain,
            "interval": None if self.interval is None else list(self.interval),
            "evidence": list(self.evidence),
            "base": self.base.record(),
            "base_commit": self.base_commit,
            "slot": self.slot,
            "stacks": self.stacks,
        }

    @classmethod
    def of(cls, name: str, phase: str, data: Mapping[str, Any]) -> "Direction":
        """The direction that the journal recorded."""
        interval = data["interval"]
        return cls(
            id=name,
            phase=phase,
            agent=data["agent"],
            title=data["title"],
            hypothesis=data["hypothesis"],
            base=SystemOf.of(data["base"]),
            base_commit=data["base_commit"],
            predicted_gain=data["predicted_gain"],
            interval=None if interval is None else (interval[0], interval[1]),
            evidence=tuple(data["evidence"]),
            slot=data["slot"],
            stacks=data.get("stacks"),
        )


@dataclass(frozen=True)
class Candidate:
    """A patch: a commit on the direction's base, the system tree that it has, and option values that switch it on.

    `refs/spt/try/<round>/<direction>` keeps the commit before the journal names it.
    """

    system: SystemOf
    commit: Oid
    note: str = ""  # one line of the agent's

    def record(self) -> dict[str, Any]:
        return {"system": self.system.record(), "commit": self.commit, "note": self.note}

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> "Candidate":
        return cls(SystemOf.of(data["system"]), data["commit"], data["note"])


@dataclass(frozen=True)
class Declined:
    """An agent gave its direction up: why, and the reference that keeps its work, if there is any.

    failed: the agent broke down or was stopped, which says nothing about the idea.
    """

    reason: str
    rescue: str | None = None
    failed: bool = False


@dataclass(frozen=True)
class Figure:
    """What a gate measured; gain and bounds are ratios (1.23 is 23 % faster), noise the SD of a unit's ln-ratio."""

    gain: float | None = None
    low: float | None = None
    high: float | None = None
    noise: float | None = None

    def record(self) -> dict[str, Any]:
        return {"gain": self.gain, "low": self.low, "high": self.high, "noise": self.noise}


@dataclass(frozen=True)
class Verdict:
    """What a gate says of a candidate; `key` names the verdict of the judge that it stands on, if it stands on one."""

    gate: str
    passed: bool
    reason: str
    figure: Figure | None = None
    key: str | None = None

    def record(self) -> dict[str, Any]:
        """The data of the journal's event `gate`."""
        figure = None if self.figure is None else self.figure.record()
        return {"gate": self.gate, "passed": self.passed, "reason": self.reason, "figure": figure, "key": self.key}

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> "Verdict":
        figure = None if data["figure"] is None else Figure(**data["figure"])
        return cls(data["gate"], data["passed"], data["reason"], figure, data["key"])

"""One deployment's numbers put together: measurements, shapes, walks, cost model, ceilings, plan."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spt.ceiling import Ceiling, Models, Sweep, ceiling, rates_of, sweep
from spt.cost import CostModel, Estimate, Setting, fit
from spt.curve import NODES, Point, run_point, walk_points, walked_levels
from spt.deployment import content_digest
from spt.devices import Device, find_device
from spt.errors import Usage
from spt.gains import Gain, Outlook, plan
from spt.measured import Measured, Run, read_measured
from spt.shapes import read_decoder, read_drafter

if TYPE_CHECKING:
    from spt.lattice import Lattice

__all__ = [
    "ASSUMED_CONTEXT_TOK",
    "Study",
    "Subject",
    "lattices_of",
    "read_subject",
    "study",
]

ASSUMED_CONTEXT_TOK = 512.0  # where no source recorded a context


@dataclass(frozen=True)
class Subject:
    """What was measured: where target and drafter lie, and how wide the target is made."""

    target: Path
    drafter: Path | None
    widen: int

    @cached_property
    def digest(self) -> str:
        """Of the target's content, as folders name it."""
        return content_digest(self.target)

    @cached_property
    def names(self) -> dict[str, str]:
        """`digest` by every digest that a source may name the target by: rows name a file by its bytes."""
        if not self.target.is_file():
            return {self.digest: self.digest}
        with self.target.open("rb") as file:
            return {self.digest: self.digest, hashlib.file_digest(file, "sha256").hexdigest(): self.digest}

    @property
    def depths(self) -> int:
        """Positions that the drafter proposes; 0 without one."""
        return 0 if self.drafter is None else read_drafter(self.drafter).depths


@dataclass(frozen=True)
class Study:
    """Everything that `spt ceiling` shows.

    run: the current system.  context_tok: at which floors are counted; context_assumed: whether nobody recorded it.
    walked: whether points come from lattices, not from runs alone.
    """

    measured: Measured
    models: Models
    device: Device
    run: Run
    points: Sequence[Point]
    walked: bool
    cost: CostModel
    context_tok: float
    context_assumed: bool
    ceilings: Sequence[Ceiling]
    sensitivity: Sweep | None

    @property
    def now(self) -> Ceiling:
        """The ceiling that plans are made with: the calibrated one where there is one."""
        return self.ceilings[-1]

    @property
    def broken(self) -> bool:
        """Whether any ceiling is below a measured speed."""
        return any(each.broken for each in self.ceilings)

    @property
    def own(self) -> Point:
        """The current system as a point."""
        return run_point(self.run, self.models.drafter.depths if self.models.drafter else 0)

    def fastest(self) -> tuple[Point, Estimate] | None:
        """The policy of one exact pass that is fastest at the fitted cost: the largest tau(N) / c(N).

        None where the samples do not tell what a row costs.
        """
        if not self.cost.knows_rows:
            return None
        found = []
        for point in self.points:
            if point.kind in ("chain", "tree", "run") and point.nodes and point.batch == self.run.setting.batch:
                context_tok = None if self.context_assumed else self.context_tok
                at = Setting(point.policy, point.nodes, context_tok, point.batch)
                found.append((point, self.cost.predict(at)))
        return max(found, key=lambda each: each[0].tau / each[1].step_us, default=None)

    def plan(self) -> list[Gain]:
        """What each direction could gain."""
        return plan(Outlook(self.models, self.now, self.points, self.cost, self.context_tok, self.own))

    def as_json(self) -> dict[str, Any]:
        plain = self.measured.plain
        return {
            "v": 1,
            "target": self.measured.target.digest,
            "device": self.device.name,
            "device_source": self.device.source,
            "dtype": self.models.dtype,
            "current": self.run.setting.name,
            "tau": self.run.tau,
            "context_tok": self.context_tok,
            "context_assumed": self.context_assumed,
            "ar_tok_s": None if plain is None else plain.speed,
            "ceilings": [each.as_json() for each in self.ceilings],
            "sensitivity": None
            if self.sensitivity is None
            else {
                "stands": self.sensitivity.stands,
                "others": [
                    {"flop_share": flops, "byte_share": bytes_, "largest": name}
                    for (flops, bytes_), name in self.sensitivity.others.items()
                ],
                "tried": len(self.sensitivity.ceilings),
            },
            "cost": self.cost.as_json(),
            "fastest": None
            if (fastest := self.fastest()) is None
            else {
                "policy": fastest[0].policy,
                "tau": fastest[0].tau,
                "step_us": fastest[1].step_us,
                "interval_us": fastest[1].interval_us,
                "extrapolates": list(fastest[1].extrapolates),
            },
            "points_from": "walks" if self.walked else "runs",
            "points": [
                {"policy": each.policy, "nodes": each.nodes, "positions": each.positions, "tau": each.tau}
                for each in self.points
            ],
            "measurements": dict(self.measured.digests),
        }


def study(
    sources: Sequence[Path],
    subject: Subject,
    *,
    current: str | None = None,
    context_tok: float | None = None,
    gpu: str | None = None,
    nodes: Sequence[int] = NODES,
    lattices: Path | None = None,
) -> Study:
    """Reads, walks and counts; Usage, Missing or Unsupported says what is off.

    current: the run to explain; left out, the only one that drafts.  gpu: a device of the table in place of
    the card's.  lattices: a folder of `spt measure`, or a lattice file, to walk; left out, those of a source.
    """
    drafter = None if subject.drafter is None else read_drafter(subject.drafter)
    measured = read_subject(sources, subject)
    models = Models(read_decoder(subject.target).widened(subject.widen), drafter, measured.target.dtype)
    run = measured.run(current) if current is not None else _only_drafting(measured)
    if gpu is not None and measured.target.gpu is None:
        raise Usage(f"'{gpu}': this was measured on a processor", "its floors are those of this machine")
    device = find_device(gpu or measured.target.gpu)
    known_tok = run.profile.context_tok if run.profile is not None else run.setting.context_tok
    at_tok = next((each for each in (context_tok, known_tok) if each is not None), ASSUMED_CONTEXT_TOK)
    points, walked = _points(measured, run, models, nodes, lattices_of(measured, subject, lattices, run))
    ceilings = [
        ceiling(models, run, points, rates, at_tok) for rates in rates_of(device, models.dtype, measured.copy_bytes_s)
    ]
    return Study(
        measured=measured,
        models=models,
        device=device,
        run=run,
        points=points,
        walked=walked,
        cost=fit(measured.samples),
        context_tok=at_tok,
        context_assumed=context_tok is None and known_tok is None,
        ceilings=ceilings,
        sensitivity=sweep(models, run, points, device, at_tok, ceilings[0].largest),
    )


def read_subject(sources: Sequence[Path], subject: Subject) -> Measured:
    """The sources, which must be of the subject; Usage for a record of another target, and as `read_measured` does."""
    measured = read_measured(sources, subject.depths, subject.names)
    if measured.target.digest not in subject.names:
        raise Usage(
            f"the measurement is of another target than '{subject.target}'", "--target names the one that was measured"
        )
    if measured.target.widen != subject.widen:
        raise Usage(
            f"the measured target is widened {measured.target.widen} times, not {subject.widen}",
            "--widen says how wide",
        )
    return measured


def _only_drafting(measured: Measured) -> Run:
    drafting = [run for run in measured.runs.values() if run.setting.drafts]
    if len(drafting) == 1 or len(measured.runs) == 1:
        return (drafting or list(measured.runs.values()))[0]
    names = ", ".join(measured.runs)
    raise Usage("several settings were measured: which is the current one?", f"--current names one of {names}")


def lattices_of(
    measured: Measured, subject: Subject, folder: Path | None = None, first: Run | None = None
) -> "Lattice | None":
    """What is walked: the lattices of `folder`, else of a source, that of the run `first` before others; None for none.

    Usage for lattices of another target or drafter, or of a target that is widened or jittered otherwise.
    """
    from spt.lattice import LATTICES, read_lattice

    runs = [*([first] if first else []), *measured.runs.values()]
    own = [run.folder for run in runs if run.folder and (run.folder / LATTICES).is_dir()]
    if folder is None and not own:
        return None
    lattice = read_lattice(folder or own[0])
    origin, where = lattice.origin, f"the lattices of '{folder or own[0]}'"
    if (origin.target, origin.widen) != (subject.digest, subject.widen):
        hint = "--target and --widen name the one that was measured"
        raise Usage(f"{where} are of another target than '{subject.target}'", hint)
    if subject.drafter is None or origin.drafter != content_digest(subject.drafter):
        raise Usage(f"{where} are of another drafter than '{subject.drafter}'", "--drafter names it")
    if (jitter := measured.target.more.get("jitter")) not in (None, origin.jitter):
        raise Usage(f"{where} are of a target with the jitter {origin.jitter}, and {jitter} was measured")
    return lattice


def _points(
    measured: Measured, run: Run, models: Models, nodes: Sequence[int], lattice: "Lattice | None"
) -> tuple[list[Point], bool]:
    """Walked policies where there are lattices, beside what runs measured."""
    depths = models.drafter.depths if models.drafter else 0
    points = [run_point(each, depths) for each in measured.runs.values()]
    if lattice is None:
        return points, False
    drafted = int(run.setting.nodes) or lattice.depths
    return [*points, *walk_points(lattice, nodes, run.setting.batch), *walked_levels(lattice, drafted)], True

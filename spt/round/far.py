"""Judging elsewhere: every question becomes a job in a folder, and is answered by what came back of it.

The jobs of a round lie below its room, in the order in which they are to be run; `spt round pack` carries them to a
machine that needs no git, `python -m harness batch` runs them there, and `spt round unpack` brings samples back.
Verdicts are made here, from samples.
"""

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from spt.arms import export_arms, refuse_untrusted
from spt.campaign import Plan, Requests, appear, ask_harness, digest_of, finish, make_folder
from spt.final import finish_final, known_final, make_final
from spt.formats import canonical, read_file, read_json, read_jsonl
from spt.job import HarnessFailed
from spt.judge import CALIBRATE, FORCE, TIME, calibration_requests, force_requests, of_stock, time_requests
from spt.pack import ENDED, load_ended
from spt.round.bench import Bench
from spt.round.budget import Waiting
from spt.round.direction import SystemOf
from spt.round.runs import Asked, Runs, write_development
from spt.verdicts import Held

__all__ = ["BATCH", "FarBench", "jobs_of"]

BATCH = "batch.json"
_DIGITS = 12
_SAMPLES = "out/samples.jsonl"


def jobs_of(room: Path) -> Path:
    """The folder of a round's jobs."""
    return room / "jobs"


class FarBench(Bench):
    """A bench whose questions wait for another machine (Waiting), with all that is to be measured laid ready."""

    @property
    def jobs(self) -> Path:
        return jobs_of(self.room)

    def answers(self, system: SystemOf, asked: Asked) -> list[dict[str, Any]]:
        arm = self.arm(system)
        if not self.settings.sandbox:
            refuse_untrusted([arm], self.store)
        runs = Runs(self.jobs, self.deployment, self.device, self.settings.sandbox)
        words = [*(["--digest"] if asked.exact else []), *(["--sandbox"] if self.settings.sandbox else [])]
        of = {"system": arm.system, "asked": vars(asked)}
        name = self._job("run", "run", of, words, lambda part: runs.make(part, arm, asked))
        self._check(name)
        path = self.jobs / name / "out" / "answers.jsonl"
        return read_jsonl(read_file(path), str(path), "answer")

    def both_answers(self, one: SystemOf, other: SystemOf, asked: Asked) -> tuple[list[Any], list[Any]]:
        try:
            before = self.answers(one, asked)
        except Waiting:
            self.answers(other, asked)
            raise
        return before, self.answers(other, asked)

    def timed(self, a: SystemOf, b: SystemOf) -> dict[str, Any]:
        name = self._time(self.plan(a, b))
        self._check(name)
        return finish(self.ledger, self.deployment, "timing", None, self.jobs / name / _SAMPLES)

    def forced(self, a: SystemOf, b: SystemOf) -> dict[str, Any]:
        plan = self.plan(a, b)
        timed, reference = self._time(plan), self._calibration(plan)
        wanted = force_requests(plan, self._file())
        words = ["--reference", f"@{reference}/{_SAMPLES}", "--timed", f"@{timed}/{_SAMPLES}", *self._enclosed()]
        name = self._job("force", "force", _pair(plan), words, lambda part: make_folder(plan, FORCE, part, wanted))
        self._check(name)
        samples, stock = self.jobs / name / _SAMPLES, self.jobs / reference / _SAMPLES
        return finish(self.ledger, self.deployment, "forcing", None, samples, stock)

    def forced_quickly(self, a: SystemOf, b: SystemOf) -> dict[str, Any]:
        plan = self.plan(a, b)
        reference, sizes = self._calibration(plan), self.settings.sizes

        def make(part: Path) -> None:
            requests = self.jobs / f".{part.parent.name}.jsonl"
            write_development(self.deployment, sizes.quick, self.settings.seed, requests, sizes.quick_tok)
            make_folder(plan, FORCE, part, Requests(requests, "development", 0))
            requests.unlink()

        words = ["--reference", f"@{reference}/{_SAMPLES}", *self._enclosed()]
        name = self._job("development", "force", _pair(plan), words, make)
        self._check(name)
        samples, stock = self.jobs / name / _SAMPLES, self.jobs / reference / _SAMPLES
        [verdict] = ask_harness(self.deployment, "verdict", samples, "--what", "forcing", "--reference", stock)
        return verdict

    def final(self, a: SystemOf) -> Held:
        plan = self.plan(a, self.stock)
        asked = self._asked_final(plan)
        if isinstance(asked, Held):
            return asked
        devices = max(1, len(self.devices))
        if (held := known_final(plan, asked, devices)) is not None:
            return held
        name = self._name("final", _pair(plan))
        if not (self.jobs / name / "job.json").is_file():
            self.jobs.mkdir(parents=True, exist_ok=True)
            make_final(plan, asked, devices, self.jobs / name)
        self._add(name, "final", [*self.limits().places(), *self._enclosed()])
        self._check(name)
        return finish_final(self.ledger, self.deployment, self.jobs / name / _SAMPLES)

    def measured(self, system: SystemOf) -> tuple[Path, dict[str, Any]]:
        from spt.measure import SET, write_measuring_job

        sizes, arms = self.settings.sizes, {"a": self.arm(system), "stock": self.arm(self.stock)}

        def make(part: Path) -> None:
            part.mkdir()
            exported = export_arms(arms, part)
            most_tok, asked = sizes.measured_tok, self.jobs / f".{part.parent.name}.jsonl"
            write_development(self.deployment, sizes.measured, self.settings.seed, asked, most_tok)
            wanted = Requests(asked, SET, sizes.measured)
            write_measuring_job(part, self.deployment, exported, wanted, self.settings.seed, most_tok, self.device)
            asked.unlink()

        words = [] if sizes.profile else ["--no-profile"]
        name = self._job("measure", "measure", {"system": arms["a"].system}, words, make)
        self._check(name)
        out = self.jobs / name / "out"
        link = self.room / "measured" / system.folder  # where tools look for lattices
        if not link.exists():
            shutil.copytree(out, link)
        return out, dict(json.loads((out / "measurement.json").read_text()))

    # --- jobs ---

    def _time(self, plan: Plan) -> str:
        wanted = time_requests(plan, self._file(), max(1, len(self.devices)))
        words = [*self.limits().places(), *self._enclosed()]
        return self._job("time", "time", _pair(plan), words, lambda part: make_folder(plan, TIME, part, wanted))

    def _calibration(self, plan: Plan) -> str:
        own = of_stock(plan)
        wanted, of = calibration_requests(plan, self._file()), {"stock": plan.arms["stock"].system}
        words = self._enclosed()
        return self._job("calibrate", "calibrate", of, words, lambda part: make_folder(own, CALIBRATE, part, wanted))

    def _enclosed(self) -> list[str]:
        return [] if self.settings.sandbox else ["--no-sandbox"]

    def _name(self, kind: str, of: Mapping[str, Any]) -> str:
        told = {**of, "deployment": digest_of(self.ledger, self.deployment), "rule": self.settings.rule}
        return f"{kind}-{hashlib.sha256(canonical(told).encode()).hexdigest()[:_DIGITS]}"

    def _job(
        self, kind: str, command: str, of: Mapping[str, Any], words: Sequence[str], make: Callable[[Path], None]
    ) -> str:
        """The name of a job that lies ready, made now or before."""
        name = self._name(kind, of)
        appear(self.jobs / name, make)
        self._add(name, command, words)
        return name

    def _add(self, name: str, command: str, words: Sequence[str]) -> None:
        """Puts a job at the end of the batch, once."""
        file = self.jobs / BATCH
        with self.turns.held([BATCH], self.budget.check):
            batch: dict[str, Any] = {"v": 1, "kind": "batch", "jobs": []}
            if file.is_file():
                batch = read_json(file.read_bytes(), str(file))
            if all(job["name"] != name for job in batch["jobs"]):
                batch["jobs"].append({"name": name, "command": command, "words": list(words)})
                part = file.with_name(f".{BATCH}")
                part.write_text(json.dumps(batch, indent=1))
                part.replace(file)

    def _check(self, name: str) -> None:
        """Waiting unless a job has ended; HarnessFailed where it ended with an error."""
        file = self.jobs / name / ENDED
        if not file.is_file():
            raise Waiting(
                f"the round waits for what another machine measures, '{name}' first",
                f"`spt round pack {self.settings.round} -o FILE.tar` carries it",
            )
        status, error = load_ended(file, f"'{file}'")
        if status:
            raise HarnessFailed(status, [f"error: {error}"], [])


def _pair(plan: Plan) -> dict[str, Any]:
    return {"arms": {name: arm.system for name, arm in plan.arms.items()}}

"""One direction from its base to an outcome: a candidate, the gates, perhaps a revision, and promotion or not."""

import contextlib
import time
from collections.abc import Iterator, Mapping
from typing import Any

from spt.campaign import DEMO
from spt.errors import Differs, SptError, Usage
from spt.git.objects import GITLINK, Oid, Person
from spt.git.store import Store
from spt.round.agents import Agent, Spent
from spt.round.bench import Bench
from spt.round.best import mechanism_commit, record_commit
from spt.round.budget import Stopped, Waiting
from spt.round.chronicle import Chronicle
from spt.round.direction import Candidate, Figure, Verdict
from spt.round.gates import GATES, Ask, Gates, Subject
from spt.round.journal import beside_reference, best_reference, try_reference
from spt.round.state import OWN, WHOLE, Course
from spt.round.tools import DirectionTools

__all__ = ["CONTROLLER", "Pursuit"]

CONTROLLER = ("memory", "sweep")  # agents whose candidates are composed of what is trusted
_REVISIONS = 2


class Pursuit:
    """A direction that stands in the journal, at work on a bench of its own."""

    def __init__(self, chronicle: Chronicle, bench: Bench, agents: Mapping[str, Agent], phase: str, name: str) -> None:
        self.chronicle, self.bench, self.agents = chronicle, bench, agents
        self.phase, self.name = phase, name
        self.settings = chronicle.settings

    def run(self) -> None:
        """Goes on to an outcome.  Stopped leaves it as it stands; any other error of ours is its outcome `failed`."""
        self.bench.budget.check()
        with self._spending() as spent:
            try:
                self._work(spent)
            except Stopped:
                raise
            except SptError as error:
                self.bench.budget.check_halted()
                self._fail(error.message)

    def confirm(self, candidate: Candidate, gates: Gates) -> bool:
        """Takes a candidate that no agent made, and asks these gates alone; whether it was promoted."""
        with self._spending():
            if self._course.candidate is None:
                self._take(candidate)
            if self._gates(gates):
                self._promote()
                return True
            said_no = self._course.said_no
            assert said_no is not None
            self._decline(said_no.gate, said_no.reason)
            return False

    @contextlib.contextmanager
    def _spending(self) -> Iterator[Spent]:
        """Tells in the end, whatever that is, what was spent in the block."""
        spent = Spent()
        try:
            yield spent
        finally:
            spent.device_s = self.bench.budget.device_s
            self.chronicle.spend(self.phase, spent, self.name)

    @property
    def _course(self) -> Course:
        return self.chronicle.state().courses[self.name]

    def _append(self, event: str, data: Mapping[str, Any], references: Mapping[str, Oid | None] | None = None) -> None:
        self.chronicle.append(self.phase, event, data, self.name, references)

    def _say(self, words: str) -> None:
        self.chronicle.say(f"{self.phase}: {self.name}: {words}")

    # --- the agent's work ---

    def _work(self, spent: Spent) -> None:
        course = self._course
        agent, tools = self._agent(course), self._tools(course, spent)
        while True:
            course = self._course
            said_no = course.said_no
            if course.candidate is None:
                answer = agent.implement(course.direction, tools)
            elif said_no is not None:
                if course.candidates > _REVISIONS:
                    return self._decline(said_no.gate, said_no.reason)
                answer = agent.revise(course.direction, said_no, tools)
            elif self._gates(GATES):
                return self._promote()
            else:
                continue
            self.bench.budget.check_halted()
            if isinstance(answer, Candidate):
                self._take(answer)
            elif answer.failed:
                return self._fail(answer.reason, answer.rescue)
            else:
                return self._decline("agent" if said_no is None else said_no.gate, answer.reason, answer.rescue)

    def _agent(self, course: Course) -> Agent:
        name = course.direction.agent
        if name not in self.agents:
            raise Usage(f"this round has no agent '{name}'", "it is named by a direction of its journal")
        return self.agents[name]

    def _author(self, course: Course) -> str:
        """The agent whose work it is, which for what is stacked is that of the first direction."""
        courses, direction = self.chronicle.state().courses, course.direction
        while direction.stacks is not None:
            direction = courses[direction.stacks].direction
        return direction.agent

    def _tools(self, course: Course, spent: Spent) -> DirectionTools:
        measured, trusted = self.chronicle.state().measured, self._author(course) in CONTROLLER
        return DirectionTools(self.bench, course.direction, self.settings.limits, measured, spent, trusted=trusted)

    def _take(self, candidate: Candidate) -> None:
        """Journals a candidate, and keeps its commit."""
        from spt.git.tree import compare

        store = self.bench.store
        rows = compare(store.objects, self._course.direction.base.tree, candidate.system.tree).rows
        data = {**candidate.record(), "files": len(rows), "lines": _lines(store, rows)}
        self._append("candidate", data, {try_reference(self.settings.round, self.name): candidate.commit})
        self._say(f"{len(rows)} files, {candidate.note or 'no word of its own'}")

    # --- the gates ---

    def _gates(self, gates: Gates) -> bool:
        """Asks the gates that have not spoken; whether all let the candidate through."""
        course = self._course
        assert course.candidate is not None
        author = self._author(course)
        checks = self._checks(course, course.candidate, author)
        subject = Subject(self.bench, course.direction, course.candidate, author in (*CONTROLLER, OWN), checks)
        spoken = {verdict.gate for verdict in course.verdicts}
        for names, ask in gates:
            if spoken & set(names) == set(names):
                continue
            self.bench.budget.check()
            for verdict in self._asked(ask, subject, gates):
                if verdict.gate in spoken:
                    continue
                self._append("gate", verdict.record())
                self._say(f"{verdict.gate}: {_told(verdict)}")
                if not verdict.passed:
                    return False
        return True

    def _asked(self, ask: Ask, subject: Subject, gates: Gates) -> Iterator[Verdict]:
        """A gate's verdicts; where it waits for another machine, all that later gates will ask is asked for as well."""
        try:
            yield from ask(subject)
        except Waiting:
            for _, later in gates:
                with contextlib.suppress(Waiting):
                    list(later(subject))
            raise

    def _checks(self, course: Course, candidate: Candidate, author: str) -> tuple[str, ...]:
        """The commands of the contracts that the candidate brings: of entries by their cards, else by their files."""
        from spt.apply import entries_of, history
        from spt.git.tree import compare
        from spt.memory import Memory

        memory = Memory.of(self.bench.store)
        before = entries_of(history(memory, course.direction.base_commit)[1])
        added = [name for name in entries_of(history(memory, candidate.commit)[1]) if name not in before]
        if author in CONTROLLER:
            return tuple(command for name in added for command in memory.card(name).contract.get("checks", []))
        rows = compare(memory.objects, course.direction.base.tree, candidate.system.tree).rows
        return tuple(
            f"python {row.path}"
            for row in rows
            if row.path.startswith("checks/") and row.path.endswith(".py") and row.new
        )

    # --- outcomes ---

    def _decline(self, gate: str, reason: str, rescue: str | None = None) -> None:
        self._append("declined", {"gate": gate, "reason": reason, "rescue": rescue})
        self._say(f"declined ({gate}): {reason}")

    def _fail(self, reason: str, rescue: str | None = None) -> None:
        self._append("failed", {"reason": reason, "rescue": rescue})
        self._say(f"failed: {reason}")

    def _promote(self) -> None:
        """Moves the current best onto the candidate; commit, record and journal in one transaction.

        Where the best has moved since the direction began, its candidate does not hold what moved it: it is promoted
        beside the best, to be stacked later.
        """
        with self.chronicle.alone() as state:
            course = state.courses[self.name]
            assert course.candidate is not None
            confirm, force = course.passed("confirm"), course.passed("force")
            if confirm is None or confirm.figure is None or force is None:
                raise Differs(f"'{self.name}' was neither confirmed nor forced: nothing is promoted")
            figure, demo = confirm.figure, self.settings.rule == DEMO
            beside = self.name != WHOLE and course.direction.base != state.best
            code, keys = self._code(course), {"timing": confirm.key, "forcing": force.key}
            kind = "raw ratio" if demo else "speedup"
            data = {
                "system": course.candidate.system.record(),
                "commit": code,
                "kind": kind,
                "rule": self.settings.rule,
                "beside": beside,
                **{name: getattr(figure, name) for name in ("gain", "low", "high", "noise")},
                **keys,
            }
            subject = f"best: {self.name}, {kind} {figure.gain:.3f}{' (rule demo)' if demo else ''}"
            record = self._record(course, code, subject, keys)
            round_ = self.settings.round
            place = beside_reference(round_, self.name) if beside else best_reference(round_)
            self._append("promoted", data, {place: record})
        noise = "" if figure.noise is None else f", noise {figure.noise:.2%}"
        where = " beside the best, to be stacked" if beside else ""
        self._say(f"promoted{where}, {kind} {figure.gain:.3f}{noise}, rule {self.settings.rule}")

    def _record(self, course: Course, code: Oid, subject: str, keys: Mapping[str, str | None]) -> Oid:
        assert course.candidate is not None
        trailers = {
            "Spt-Round": self.settings.round,
            "Spt-Direction": self.name,
            "Spt-Rule": self.settings.rule,
            **{f"Spt-{name.title()}": key for name, key in keys.items() if key is not None},
        }
        objects, system = self.chronicle.store.objects, course.candidate.system
        return record_commit(objects, code, system, self.bench.digest, subject, trailers, int(time.time()))

    def _code(self, course: Course) -> Oid:
        """The candidate's commits as they stand in the series: those of entries as they are, any others as one."""
        assert course.candidate is not None
        objects, direction, candidate = self.chronicle.store.objects, course.direction, course.candidate
        if direction.agent in (*CONTROLLER, OWN):
            return candidate.commit
        made = objects.commit(candidate.commit)
        author = Person(made.author.name, made.author.email, made.author.time_s, made.author.zone_min)
        said = {"Spt-Agent": direction.agent}
        return mechanism_commit(objects, direction.base_commit, made.tree, direction, self.settings.round, author, said)


def _told(verdict: Verdict) -> str:
    figure = verdict.figure
    numbers = "" if figure is None or figure.gain is None else f", ratio {figure.gain:.3f}{_noise(figure)}"
    return f"{'passes' if verdict.passed else 'no'}: {verdict.reason}{numbers}"


def _noise(figure: Figure) -> str:
    return "" if figure.noise is None else f" with noise {figure.noise:.2%}"


def _lines(store: Store, rows: Any) -> int:
    """Lines of the files that a candidate adds or changes, a measure of how much there is to review."""
    objects = store.objects
    files = (row.new.oid for row in rows if row.new is not None and row.new.mode != GITLINK)
    return sum(objects.blob(oid).count(b"\n") for oid in files)

"""The machine of a round's phases.  Whatever ended it, it goes on from its journal: what stands there is not redone.

A step is journaled when it is done, with the references that it moved; a step that was killed is taken again.  The
judge's own campaigns go on by themselves, by their keys.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from spt.campaign import DEMO
from spt.errors import Differs, SptError, Usage
from spt.git.objects import GITLINK, Oid, Person
from spt.round.agents import Agent, Task, Workshop, make_agent
from spt.round.bench import Bench
from spt.round.best import mechanism_commit, record_commit
from spt.round.budget import Stopped, Waiting
from spt.round.direction import Candidate, Declined, Direction, Figure, SystemOf, Verdict
from spt.round.distilling import Distilled, distil, residual_of
from spt.round.gates import GATES, PROMOTING, Ask, Gates, Subject
from spt.round.journal import PHASES, Journal, best_reference, try_reference
from spt.round.outlook import measured_of, task_text
from spt.round.release import next_branch, write_deployment
from spt.round.state import Course, State, fold
from spt.round.tools import DirectionTools
from spt.verdicts import NO

__all__ = ["CONTROLLER", "Machine", "Say"]

Say = Callable[[str], None]
CONTROLLER = ("memory", "sweep")  # agents whose candidates are composed of what is trusted
OWN = "controller"  # of directions that no agent proposed
_REVISIONS = 2


class Machine:
    """One process's work on a round; `say` gets a line for people whenever something is decided."""

    def __init__(self, journal: Journal, bench: Bench, say: Say) -> None:
        self.journal, self.bench, self.say = journal, bench, say
        self.settings = bench.settings
        self.store = bench.store
        workshop = Workshop(
            bench.store.work_tree or bench.store.state.parent,
            bench.deployment,
            self.settings.round,
            self.settings.limits,
        )
        self.agents: dict[str, Agent] = {}
        for word in self.settings.agents:
            agent = make_agent(word, workshop)
            self.agents[agent.name] = agent

    def run(self) -> State:
        """Goes through the phases that have not ended; returns how the round stands at the end.

        Stopped says that it is to go on another time, and stands in the journal.
        """
        steps: dict[str, Callable[[], str | None]] = {
            "measure": self._measure,
            "plan": self._plan,
            "explore": lambda: self._directions("explore"),
            "integrate": self._integrate,
            "tune": self._tune,
            "final": self._final,
            "distil": self._distil,
            "report": self._report,
        }
        try:
            for phase in PHASES:
                if self._state().phases.get(phase) in ("done", "skipped"):
                    continue
                self._phase(phase, steps[phase])
        except Stopped as stop:
            self.journal.append(self._state().phase, "stopped", {"reason": stop.message})
            raise
        return self._state()

    def _state(self) -> State:
        return fold(self.journal.events(), self.settings.start_commit)

    def _phase(self, phase: str, step: Callable[[], str | None]) -> None:
        """One phase; a step that returns words is skipped for that reason."""
        if self._state().phases.get(phase) is None:
            self.journal.append(phase, "phase", {"state": "begun", "reason": ""})
        self.bench.budget.check()
        with self.bench.metered() as spent:
            self._in_directions = 0.0, 0.0
            skipped = step()
            told = spent()
            told["wall_s"] -= self._in_directions[0]  # those have told it themselves
            told["device_s"] -= self._in_directions[1]
            self.journal.append(phase, "spent", told)
        if skipped is not None:
            self.say(f"{phase}: skipped, {skipped}")
        self.journal.append(
            phase, "phase", {"state": "done" if skipped is None else "skipped", "reason": skipped or ""}
        )

    # --- measure and plan ---

    def _measure(self) -> str | None:
        if not self.settings.cost_model:
            return "the round runs without a cost model"
        self._look("measure", self.settings.start)
        return None

    def _look(self, phase: str, system: SystemOf) -> None:
        """Measures a system against its ceiling, unless it was the last that was."""
        held = self._state().measured
        if held is not None and SystemOf.of(held) == system:
            return
        data = measured_of(self.bench, system)
        self.journal.append(phase, "measured", data)
        factors = ", ".join(f"{name} {value:.2f}" for name, value in data["factors"].items())
        self.say(f"{phase}: tau {data['tau']:.2f}, step {data['step_us']:.0f} us, factors to the ceiling: {factors}")

    def _tune(self) -> str | None:
        """Directions again, from the best and from what is left between it and its ceiling."""
        if self.settings.cost_model:
            self._look("tune", self._state().best)
        return self._directions("tune")

    def _plan(self) -> str | None:
        state = self._state()
        if state.plan is not None:
            return None
        found = [
            direction for agent in self.agents.values() for direction in agent.propose(self._task("explore", state))
        ]
        kept = found[: self.settings.directions]
        gap = max(state.measured["factors"].items(), key=lambda each: each[1])[0] if state.measured else None
        plan = {
            "v": 1,
            "kind": "plan",
            "round": self.settings.round,
            "gap": gap,
            "directions": [_planned(direction) for direction in kept],
        }
        from spt.formats import check

        check(plan, "plan", "the plan")
        self.journal.append("plan", "planned", {"plan": plan})
        for direction in kept:
            self.say(f"plan: {direction.id}: {direction.title}")
        if len(kept) < len(found):
            self.say(
                f"plan: {len(found) - len(kept)} more than the {self.settings.directions} directions of this round"
            )
        return None

    def _task(self, phase: str, state: State) -> Task:
        declined = [
            {"title": course.direction.title, "gate": str(course.end["gate"]), "reason": str(course.end["reason"])}
            for course in state.courses.values()
            if course.outcome == "declined"
        ]
        task = Task(
            phase=phase,
            base=state.best,
            base_commit=state.commit,
            slots=max(1, len(self.settings.devices)),
            outlook=state.measured,
            declined=declined,
            taken=frozenset(state.courses),
        )
        return Task(**{**vars(task), "text": task_text(task, self.bench.deployment.name)})

    # --- directions ---

    def _directions(self, phase: str) -> str | None:
        """Every direction of a phase, one after the other, each from the best of its time."""
        state = self._state()
        if phase == "tune" and not state.promoted:
            return "nothing was promoted that could be tuned"
        if phase == "explore":
            assert state.plan is not None
            wanted = [_of_plan(planned, phase, state) for planned in state.plan["directions"]]
        else:
            begun = [course.direction for course in state.of(phase)]
            fresh = [one for agent in self.agents.values() for one in agent.propose(self._task(phase, state))]
            wanted = [*begun, *fresh][: self.settings.directions]
        if not wanted:
            return "no agent has a direction"
        for direction in wanted:
            state = self._state()
            course = state.courses.get(direction.id)
            if course is None:
                if self._explored_long(state):
                    self.say(f"{phase}: the {self.settings.explore_minutes:g} minutes of exploring are up")
                    break
                direction = Direction(**{**vars(direction), "base": state.best, "base_commit": state.commit})
                self.journal.append(phase, "direction", direction.record(), direction.id)
            elif course.outcome is not None:
                continue
            self._direction(phase, direction.id)
        return None

    def _explored_long(self, state: State) -> bool:
        spent_s = sum(state.spent[phase].wall_s for phase in ("explore", "integrate", "tune") if phase in state.spent)
        limit = self.settings.explore_minutes
        return limit is not None and spent_s >= 60 * limit

    def _direction(self, phase: str, name: str) -> None:
        """One direction to its end: a candidate, gates, perhaps a revision, and an outcome."""
        self.bench.budget.check()
        with self.bench.metered() as spent:
            tools = None
            try:
                tools = self._tools(self._state().courses[name])
                self._work(phase, name, tools)
            except Stopped:
                raise
            except SptError as error:
                self._fail(phase, name, error.message)
            finally:
                told = spent()
                if tools is not None:
                    told |= {key: getattr(tools.spent, key) for key in ("input_tok", "output_tok", "usd")}
                wall_s, device_s = self._in_directions
                self._in_directions = wall_s + told["wall_s"], device_s + told["device_s"]
            self.journal.append(phase, "spent", told, name)

    def _tools(self, course: Course) -> DirectionTools:
        state, limits = self._state(), self.settings.limits
        trusted = course.direction.agent in CONTROLLER
        return DirectionTools(self.bench, course.direction, limits, state.measured, trusted=trusted)

    def _work(self, phase: str, name: str, tools: DirectionTools) -> None:
        agent = self._agent(self._state().courses[name].direction)
        while True:
            course = self._state().courses[name]
            said_no = course.said_no
            if course.candidate is None:
                answer = agent.implement(course.direction, tools)
            elif said_no is not None:
                if course.candidates > _REVISIONS:
                    self._decline(phase, course, said_no.gate, said_no.reason, None)
                    return
                answer = agent.revise(course.direction, said_no, tools)
            else:
                if self._gates(phase, course):
                    self._promote(phase, self._state().courses[name])
                    return
                continue
            if isinstance(answer, Declined):
                if answer.failed:
                    self._fail(phase, name, answer.reason, answer.rescue)
                else:
                    gate = "agent" if said_no is None else said_no.gate
                    self._decline(phase, course, gate, answer.reason, answer.rescue)
                return
            self._take(phase, course, answer)

    def _agent(self, direction: Direction) -> Agent:
        if direction.agent not in self.agents:
            raise Usage(f"this round has no agent '{direction.agent}'", "it is named by a direction of its journal")
        return self.agents[direction.agent]

    def _take(self, phase: str, course: Course, candidate: Candidate) -> None:
        """Journals a candidate, and keeps its commit."""
        from spt.git.tree import compare

        rows = compare(self.store.objects, course.direction.base.tree, candidate.system.tree).rows
        data = {**candidate.record(), "files": len(rows), "lines": _lines(self.store, rows)}
        name = course.direction.id
        references = {try_reference(self.settings.round, name): candidate.commit}
        self.journal.append(phase, "candidate", data, name, references)
        self.say(f"{phase}: {name}: {len(rows)} files, {candidate.note or 'no word of its own'}")

    def _gates(self, phase: str, course: Course, gates: Gates = GATES) -> bool:
        """Asks the gates that have not spoken; whether all let the candidate through."""
        assert course.candidate is not None
        trusted = course.direction.agent in (*CONTROLLER, OWN)
        subject = Subject(self.bench, course.direction, course.candidate, trusted, self._checks(course))
        spoken = {verdict.gate for verdict in course.verdicts}
        for names, ask in gates:
            if spoken & set(names) == set(names):
                continue
            self.bench.budget.check()
            for verdict in self._asked(ask, subject, gates):
                if verdict.gate in spoken:
                    continue
                self.journal.append(phase, "gate", verdict.record(), course.direction.id)
                self.say(f"{phase}: {course.direction.id}: {verdict.gate}: {_told(verdict)}")
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

    def _checks(self, course: Course) -> tuple[str, ...]:
        """The commands of the contracts that the candidate brings: of entries by their cards, else by their files."""
        from spt.apply import entries_of, history
        from spt.git.tree import compare
        from spt.memory import Memory

        assert course.candidate is not None
        memory = Memory.of(self.store)
        before = entries_of(history(memory, course.direction.base_commit)[1])
        added = [name for name in entries_of(history(memory, course.candidate.commit)[1]) if name not in before]
        if course.direction.agent in CONTROLLER:
            return tuple(command for name in added for command in memory.card(name).contract.get("checks", []))
        rows = compare(self.store.objects, course.direction.base.tree, course.candidate.system.tree).rows
        return tuple(
            f"python {row.path}"
            for row in rows
            if row.path.startswith("checks/") and row.path.endswith(".py") and row.new
        )

    def _decline(self, phase: str, course: Course, gate: str, reason: str, rescue: str | None) -> None:
        data = {"gate": gate, "reason": reason, "rescue": rescue}
        self.journal.append(phase, "declined", data, course.direction.id)
        self.say(f"{phase}: {course.direction.id}: declined ({gate}): {reason}")

    def _fail(self, phase: str, name: str, reason: str, rescue: str | None = None) -> None:
        self.journal.append(phase, "failed", {"reason": reason, "rescue": rescue}, name)
        self.say(f"{phase}: {name}: failed: {reason}")

    def _promote(self, phase: str, course: Course) -> None:
        """Moves the current best onto the candidate; commit, record and journal in one transaction."""
        assert course.candidate is not None
        confirm, force = course.passed("confirm"), course.passed("force")
        if confirm is None or confirm.figure is None or force is None:
            raise Differs(f"'{course.direction.id}' was neither confirmed nor forced: nothing is promoted")
        figure, system, demo = confirm.figure, course.candidate.system, self.settings.rule == DEMO
        code = self._code(course)
        keys = {"timing": confirm.key, "forcing": force.key}
        trailers = {
            "Spt-Round": self.settings.round,
            "Spt-Direction": course.direction.id,
            "Spt-Rule": self.settings.rule,
            **{f"Spt-{name.title()}": key for name, key in keys.items() if key is not None},
        }
        kind = "raw ratio" if demo else "speedup"
        subject = f"best: {course.direction.id}, {kind} {figure.gain:.3f}{' (rule demo)' if demo else ''}"
        objects = self.store.objects
        record = record_commit(objects, code, system, self.bench.digest, subject, trailers, int(time.time()))
        data = {
            "system": system.record(),
            "commit": code,
            "kind": kind,
            "rule": self.settings.rule,
            **{name: getattr(figure, name) for name in ("gain", "low", "high", "noise")},
            **keys,
        }
        references = {best_reference(self.settings.round): record}
        self.journal.append(phase, "promoted", data, course.direction.id, references)
        noise = "" if figure.noise is None else f", noise {figure.noise:.2%}"
        rule = f", rule {self.settings.rule}"
        self.say(f"{phase}: {course.direction.id}: promoted, {kind} {figure.gain:.3f}{noise}{rule}")

    def _code(self, course: Course) -> Oid:
        """The candidate's commits as they stand in the series: those of entries as they are, any others as one."""
        assert course.candidate is not None
        objects, direction, candidate = self.store.objects, course.direction, course.candidate
        if direction.agent in (*CONTROLLER, OWN):
            return candidate.commit
        made = objects.commit(candidate.commit)
        return mechanism_commit(
            objects,
            direction.base_commit,
            made.tree,
            direction,
            self.settings.round,
            Person(made.author.name, made.author.email, made.author.time_s, made.author.zone_min),
            {"Spt-Agent": direction.agent},
        )

    # --- integrate ---

    def _integrate(self) -> str | None:
        """The whole against what the round began with: what was promoted step by step must pay together."""
        state = self._state()
        if not state.promoted:
            return "nothing was promoted"
        if len(state.promoted) == 1:
            return "one promotion is the whole, and was measured against the start"
        name, start = "whole", self.settings.start
        if name not in state.courses:
            direction = Direction(
                id=name,
                phase="integrate",
                agent=OWN,
                title="All that was promoted, together",
                hypothesis="What was promoted one after the other pays together against what the round began with.",
                base=start,
                base_commit=self.settings.start_commit,
            )
            self.journal.append("integrate", "direction", direction.record(), name)
            candidate = Candidate(state.best, state.commit, f"{len(state.promoted)} promotions")
            self._take("integrate", self._state().courses[name], candidate)
        self._whole(name)
        return None

    def _whole(self, name: str) -> None:
        state = self._state()
        course = state.courses[name]
        if course.outcome is not None:
            return
        if self._gates("integrate", course, PROMOTING):
            self._promote("integrate", self._state().courses[name])
            return
        course = self._state().courses[name]
        assert course.said_no is not None
        self._decline("integrate", course, course.said_no.gate, course.said_no.reason, None)
        self._fall_back(state)

    def _fall_back(self, state: State) -> None:
        """Where the whole does not pay, the best is the first promotion alone, which was measured against the start."""
        first = state.promoted[0]
        system = SystemOf.of(first.end["system"])
        trailers = {"Spt-Round": self.settings.round, "Spt-Direction": first.direction.id}
        record = record_commit(
            self.store.objects,
            first.end["commit"],
            system,
            self.bench.digest,
            f"best: back to {first.direction.id}",
            trailers,
            int(time.time()),
        )
        data = {"system": system.record(), "commit": first.end["commit"], "reason": "the whole does not pay"}
        references = {best_reference(self.settings.round): record}
        self.journal.append("integrate", "best", data, None, references)
        self.say(f"integrate: the best is {first.direction.id} alone")

    # --- final, distil, report ---

    def _final(self) -> str | None:
        state = self._state()
        if not state.promoted:
            return "nothing was promoted: the system is the one that the round began with"
        if state.final is None:
            verdict = self.bench.final(state.best).verdict
            assert verdict is not None
            data = {
                "key": verdict["key"],
                "verdict": verdict["answer"],
                "reason": verdict["reason"],
                "against_stock": _ratio(verdict["timing"]["stock"]),
                "against_ar": _ratio(verdict["timing"]["ar"]),
                "buckets": verdict["buckets"],
            }
            self.journal.append("final", "final", data)
            self.say(f"final: {verdict['answer']}: {verdict['reason']}")
        return None

    def _passed(self, state: State) -> bool:
        """Whether the final lets the system out: by the rule `demo` a small one that does not reject is enough."""
        if state.final is None:
            return False
        answer = state.final["verdict"]
        return answer == "accept" or (self.settings.smoke and answer not in NO and answer == "smoke")

    def _distil(self) -> str | None:
        state = self._state()
        if not self._passed(state):
            return "nothing was promoted" if state.final is None else f"the final says {state.final['verdict']}"
        known = {(entry["name"], entry["promoted"]) for entry in state.entries}
        residual = []
        for course in state.promoted:
            for found in distil(self.bench, course, state.commit):
                if isinstance(found, str):
                    residual.append(found)
                elif (found.name, found.promoted) not in known:
                    self.journal.append("distil", "entry", found.record())
                    self._say_entry(found)
        for reason in residual:
            self.say(f"distil: residual: {reason}")
        if state.residual is None:
            entries = self._state().entries
            commits = residual_of(self.store, self.settings.start_commit, state.commit, entries)
            self.journal.append("distil", "residual", {"commits": commits, "reasons": residual})
        return None

    def _say_entry(self, found: Distilled) -> None:
        what = "a new entry" if found.discovery else "reused: no discovery"
        evidence = f"evidence {found.evidence[:12]}" if found.evidence else found.note
        self.say(f"distil: {found.name}: {what}; {evidence}")

    def _report(self) -> str | None:
        state = self._state()
        if self._passed(state) and state.deployment is None:
            branch = next_branch(self.store, self.bench.deployment.name)
            tip = self._released(state, branch)
            path = write_deployment(self.bench, state.best, branch)
            data = {"path": str(path), "system": state.best.record(), "branch": branch}
            self.journal.append("report", "deployment", data, None, {f"refs/heads/{branch}": tip})
            self.say(f"report: {branch} is the system; {path} runs it")
        if state.outcome is None:
            self.journal.append("report", "ended", {"outcome": self._outcome(state)})
        return None

    def _released(self, state: State, branch: str) -> Oid:
        """The record commit of the system's branch, on top of its series."""
        assert state.final is not None
        trailers = {
            "Spt-Round": self.settings.round,
            "Spt-Final": str(state.final["key"]),
            "Spt-Verdict": str(state.final["verdict"]),
        }
        subject = f"{branch}: {state.final['verdict']} in the final of round {self.settings.round}"
        begun_s = int(time.time())
        return record_commit(
            self.store.objects, state.commit, state.best, self.bench.digest, subject, trailers, begun_s
        )

    def _outcome(self, state: State) -> str:
        if not state.promoted:
            return "nothing promoted"
        assert state.final is not None
        return "promoted" if self._passed(state) else f"final: {state.final['verdict']}"


def _planned(direction: Direction) -> dict[str, Any]:
    return {
        "id": direction.id,
        "agent": direction.agent,
        "title": direction.title,
        "hypothesis": direction.hypothesis,
        "predicted_gain": direction.predicted_gain,
        "interval": None if direction.interval is None else list(direction.interval),
        "evidence": list(direction.evidence),
        "device": direction.slot,
    }


def _of_plan(planned: Mapping[str, Any], phase: str, state: State) -> Direction:
    data = {**planned, "base": state.best.record(), "base_commit": state.commit, "slot": planned["device"]}
    return Direction.of(planned["id"], phase, data)


def _told(verdict: Verdict) -> str:
    figure = verdict.figure
    numbers = "" if figure is None or figure.gain is None else f", ratio {figure.gain:.3f}{_noise(figure)}"
    return f"{'passes' if verdict.passed else 'no'}: {verdict.reason}{numbers}"


def _noise(figure: Figure) -> str:
    return "" if figure.noise is None else f" with noise {figure.noise:.2%}"


def _lines(store: Any, rows: Any) -> int:
    """Lines of the files that a candidate adds or changes, a measure of how much there is to review."""
    objects = store.objects
    files = (row.new.oid for row in rows if row.new is not None and row.new.mode != GITLINK)
    return sum(objects.blob(oid).count(b"\n") for oid in files)


def _ratio(timed: Mapping[str, Any]) -> dict[str, Any] | None:
    if timed["gain"] is None:
        return None
    low, high = timed["interval"] or (None, None)
    bounds = {name: None if end is None else 1 + end for name, end in (("low", low), ("high", high))}
    return {"gain": 1 + timed["gain"], **bounds}

"""The machine of a round's phases.  Whatever ended it, it goes on from its journal: what stands there is not redone.

A step is journaled when it is done, with the references that it moved; a step that was killed is taken again.  The
judge's own campaigns go on by themselves, by their keys.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from spt.git.objects import Oid
from spt.round.agents import Agent, Spent, Task, Workshop, make_agent
from spt.round.bench import Bench
from spt.round.best import record_commit
from spt.round.budget import Stopped
from spt.round.chronicle import Chronicle, Say
from spt.round.direction import Candidate, Direction, SystemOf
from spt.round.distilling import Distilled, distil, residual_of
from spt.round.gates import PROMOTING
from spt.round.journal import PHASES, Journal, beside_reference, best_reference
from spt.round.outlook import measured_of, task_text
from spt.round.pursuit import Pursuit
from spt.round.release import next_branch, write_deployment
from spt.round.slots import side_by_side
from spt.round.stacking import Stacking, best_line, to_stack
from spt.round.state import OWN, WHOLE, State
from spt.verdicts import NO

__all__ = ["Machine"]


class Machine:
    """One process's work on a round; `say` gets a line for people whenever something is decided."""

    def __init__(self, journal: Journal, bench: Bench, say: Say) -> None:
        self.bench, self.settings, self.store = bench, bench.settings, bench.store
        self.chronicle = Chronicle(journal, bench.settings, say)
        self.say, self._state = self.chronicle.say, self.chronicle.state
        workshop = Workshop(bench.store.place, bench.deployment, self.settings.round, self.settings.limits)
        self.agents: dict[str, Agent] = {}
        for word in self.settings.agents:
            agent = make_agent(word, workshop)
            self.agents[agent.name] = agent
        self.agents[OWN] = Stacking(bench.store, self.chronicle.state, self.settings.round)

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
            self.chronicle.append(self._state().phase, "stopped", {"reason": stop.message})
            raise
        return self._state()

    def _phase(self, phase: str, step: Callable[[], str | None]) -> None:
        """One phase; a step that returns words is skipped for that reason."""
        append, budget = self.chronicle.append, self.bench.budget
        if self._state().phases.get(phase) is None:
            append(phase, "phase", {"state": "begun", "reason": ""})
        budget.check()
        before_s = budget.device_s
        skipped = step()
        self.chronicle.spend(phase, Spent(device_s=budget.device_s - before_s))
        if skipped is not None:
            self.say(f"{phase}: skipped, {skipped}")
        append(phase, "phase", {"state": "done" if skipped is None else "skipped", "reason": skipped or ""})

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
        self.chronicle.append(phase, "measured", data)
        factors = ", ".join(f"{name} {value:.2f}" for name, value in data["factors"].items())
        self.say(f"{phase}: tau {data['tau']:.2f}, step {data['step_us']:.0f} us, factors to the ceiling: {factors}")

    def _plan(self) -> str | None:
        state = self._state()
        if state.plan is not None:
            return None
        found = [
            direction for agent in self.agents.values() for direction in agent.propose(self._task("explore", state))
        ]
        named: dict[str, Direction] = {}
        for direction in found:
            named.setdefault(direction.id, direction)
        kept = list(named.values())[: self.settings.directions]
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
        self.chronicle.append("plan", "planned", {"plan": plan})
        for direction in kept:
            self.say(f"plan: {direction.id}: {direction.title}")
        if len(kept) < len(named):
            self.say(
                f"plan: {len(named) - len(kept)} more than the {self.settings.directions} directions of this round"
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
            slots=self.settings.at_once,
            outlook=state.measured,
            declined=declined,
            taken=frozenset(state.courses),
        )
        return Task(**{**vars(task), "text": task_text(task, self.bench.deployment.name)})

    # --- directions ---

    def _directions(self, phase: str) -> str | None:
        """Every direction of a phase, one after the other in each slot, and each from the best of its time."""
        wanted = self._wanted(phase, self._state())
        if not wanted:
            return "no agent has a direction"
        left = iter(wanted)

        def work(slot: int) -> None:
            while (name := self._begin(phase, left, slot)) is not None:
                self._pursuit(phase, name, slot).run()

        side_by_side(min(self.settings.at_once, len(wanted)), work, self.bench.budget)
        return None

    def _wanted(self, phase: str, state: State) -> list[Direction]:
        if phase == "explore":
            assert state.plan is not None
            return [_of_plan(planned, phase, state) for planned in state.plan["directions"]]
        begun = [course.direction for course in state.of(phase) if course.direction.stacks is None]
        if len(begun) < len(state.of(phase)):
            return begun  # all had ended, and stacking had begun
        fresh = [one for agent in self.agents.values() for one in agent.propose(self._task(phase, state))]
        return [*begun, *fresh][: self.settings.directions]

    def _begin(self, phase: str, left: Iterator[Direction], slot: int) -> str | None:
        """The next direction that has not ended, begun now or before; None where there is none or the time is up."""
        with self.chronicle.alone() as state:
            for direction in left:
                course = state.courses.get(direction.id)
                if course is not None and course.outcome is not None:
                    continue
                if course is None:
                    if self._explored_long(state):
                        self.say(f"{phase}: the {self.settings.explore_minutes:g} minutes of exploring are up")
                        list(left)
                        return None
                    self._place(replace(direction, base=state.best, base_commit=state.commit, slot=slot))
                return direction.id
            return None

    def _place(self, direction: Direction) -> None:
        self.chronicle.append(direction.phase, "direction", direction.record(), direction.id)

    def _pursuit(self, phase: str, name: str, slot: int = 0) -> Pursuit:
        return Pursuit(self.chronicle, self.bench.apart(slot, name), self.agents, phase, name)

    def _explored_long(self, state: State) -> bool:
        spent_s = sum(state.spent[phase].wall_s for phase in ("explore", "integrate", "tune") if phase in state.spent)
        limit = self.settings.explore_minutes
        return limit is not None and spent_s >= 60 * limit

    # --- integrate and tune ---

    def _integrate(self) -> str | None:
        """One line of all that was promoted; then the whole against what the round began with, which must pay."""
        if not self._state().promoted:
            return "nothing was promoted"
        self._stack("integrate")
        state = self._state()
        if len(state.promoted) == 1 and not state.of("integrate"):
            return "one promotion is the whole, and was measured against the start"
        if len(state.promoted) > 1:
            self._whole(state)
        return None

    def _stack(self, phase: str) -> None:
        """Puts what was promoted side by side on the line that gained most, one after the other."""
        self._choose_line(phase)
        while True:
            state = self._state()
            waiting = (course for course in state.of(phase) if course.outcome is None)
            begun = next((course.direction for course in waiting if course.direction.stacks in state.aside), None)
            direction = begun or to_stack(state, phase)
            if direction is None:
                return
            if begun is None:
                self._place(direction)
            self._pursuit(phase, direction.id).run()

    def _choose_line(self, phase: str) -> None:
        state = self._state()
        line = best_line(state) if state.besides else state.promoted
        if line == state.promoted:
            return
        names = [course.direction.id for course in line]
        aside = [name for name in (*state.line, *state.aside) if name not in names]
        self._move_best(phase, line[-1].end, names, aside, f"{names[-1]} gained more than what it was promoted beside")

    def _whole(self, state: State) -> None:
        if WHOLE not in state.courses:
            direction = Direction(
                id=WHOLE,
                phase="integrate",
                agent=OWN,
                title="All that was promoted, together",
                hypothesis="What was promoted one after the other pays together against what the round began with.",
                base=self.settings.start,
                base_commit=self.settings.start_commit,
            )
            self._place(direction)
        course = self._state().courses[WHOLE]
        if course.outcome is None:
            candidate = Candidate(state.best, state.commit, f"{len(state.promoted)} promotions")
            self._pursuit("integrate", WHOLE).confirm(candidate, PROMOTING)
        state = self._state()
        if state.courses[WHOLE].outcome != "promoted" and len(state.promoted) > 1:
            first = state.promoted[0]  # which was measured against the start
            self._move_best("integrate", first.end, [first.direction.id], [], "the whole does not pay")

    def _move_best(self, phase: str, end: Mapping[str, Any], line: list[str], aside: list[str], reason: str) -> None:
        """Moves the best to what a promoted direction came to; `line` is what that is made of."""
        system, code = SystemOf.of(end["system"]), str(end["commit"])
        trailers = {"Spt-Round": self.settings.round, "Spt-Direction": line[-1]}
        record = self._recorded(code, system, f"best: {line[-1]}, since {reason}", trailers)
        data = {"system": system.record(), "commit": code, "line": line, "aside": aside, "reason": reason}
        round_, state = self.settings.round, self._state()
        # What the best was made of is still named by the journal, and may be stacked or become an entry.
        left = {name: str(state.courses[name].end["commit"]) for name in state.line if name not in line}
        references = {beside_reference(round_, name): oid for name, oid in left.items()}
        self.chronicle.append(phase, "best", data, None, {**references, best_reference(round_): record})
        self.say(f"{phase}: the best is {', '.join(line)}: {reason}")

    def _recorded(self, code: Oid, system: SystemOf, subject: str, trailers: Mapping[str, str]) -> Oid:
        objects = self.chronicle.store.objects
        return record_commit(objects, code, system, self.bench.digest, subject, trailers, int(time.time()))

    def _tune(self) -> str | None:
        """Directions again, from the best and from what is left between it and its ceiling."""
        if not self._state().promoted:
            return "nothing was promoted that could be tuned"
        if self.settings.cost_model and not self._state().of("tune"):
            self._look("tune", self._state().best)
        skipped = self._directions("tune")
        self._stack("tune")
        return skipped

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
            self.chronicle.append("final", "final", data)
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
        in_it = {course.direction.stacks for course in state.promoted}
        others = [each for each in state.promotions if each.direction.id not in {*state.line, *in_it}]
        tips = [(course, state.commit) for course in state.promoted]
        for course, tip in (*tips, *((course, str(course.end["commit"])) for course in others)):
            for found in distil(self.bench, course, tip):
                if isinstance(found, str):
                    residual.append(found)
                elif (found.name, found.promoted) not in known:
                    known.add((found.name, found.promoted))
                    self.chronicle.append("distil", "entry", found.record())
                    self._say_entry(found)
        for reason in residual:
            self.say(f"distil: residual: {reason}")
        if state.residual is None:
            entries = self._state().entries
            commits = residual_of(self.store, self.settings.start_commit, state.commit, entries)
            self.chronicle.append("distil", "residual", {"commits": commits, "reasons": residual})
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
            self.chronicle.append("report", "deployment", data, None, {f"refs/heads/{branch}": tip})
            self.say(f"report: {branch} is the system; {path} runs it")
        if state.outcome is None:
            self.chronicle.append("report", "ended", {"outcome": self._outcome(state)})
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
        return self._recorded(state.commit, state.best, subject, trailers)

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


def _ratio(timed: Mapping[str, Any]) -> dict[str, Any] | None:
    if timed["gain"] is None:
        return None
    low, high = timed["interval"] or (None, None)
    bounds = {name: None if end is None else 1 + end for name, end in (("low", low), ("high", high))}
    return {"gain": 1 + timed["gain"], **bounds}

"""The agent `scripted`: a Python file in place of a model, for tests and the demo.

`scripted:FILE` is run by the deployment's interpreter, in the same sandbox, with the same task and the same tools as a
model's agent has, and nothing else: `FILE propose`, `FILE implement` or `FILE revise`.
"""

from dataclasses import dataclass, replace
from pathlib import Path

from spt.errors import Missing, Unsupported, Usage
from spt.round.agents import Task, Tools, Workshop
from spt.round.brief import direction_brief, proposing_brief
from spt.round.clone import cloned
from spt.round.desk import Desk, Proposals, enclosure_of
from spt.round.direction import Candidate, Declined, Direction, Verdict
from spt.round.enclosure import find_bubblewrap
from spt.round.session import Session

__all__ = ["ScriptedAgent", "make"]

_PROPOSING_S = 120.0


def make(argument: str, workshop: Workshop) -> "ScriptedAgent":
    """The agent; `argument` is a Python file."""
    if not argument:
        raise Usage("the agent 'scripted' needs a Python file", "--agent scripted:FILE")
    script = Path(argument).absolute()
    if not script.is_file():
        raise Missing(f"there is no file '{argument}'")
    find_bubblewrap()
    return ScriptedAgent(workshop, script)


@dataclass(frozen=True)
class ScriptedAgent:
    """`script` is an absolute path."""

    workshop: Workshop
    script: Path
    name: str = "scripted"

    def propose(self, task: Task) -> list[Direction]:
        """What the script proposes; Unsupported where it breaks down over it."""
        proposals = Proposals(self.name, task)
        box = enclosure_of(self.workshop, self.workshop.limits, [self.script])
        box = replace(box, caps=replace(box.caps, wall_s=min(box.caps.wall_s, _PROPOSING_S)))
        name, words = f"propose-{task.phase}", self._words("propose")
        with cloned(self.workshop.repository, self.workshop.round, name, task.base_commit) as clone:
            with Session(clone, words, proposing_brief(task.text, task.slots), proposals.answer, box) as session:
                outcome = session.run()
            clone.forget()
        if outcome.reason is not None:
            raise Unsupported(f"'{self.script.name}' proposes nothing: {outcome.reason}", outcome.last or None)
        return proposals.directions

    def implement(self, direction: Direction, tools: Tools) -> Candidate | Declined:
        """Runs the script on the base."""
        return self._run("implement", direction, tools, None)

    def revise(self, direction: Direction, verdict: Verdict, tools: Tools) -> Candidate | Declined:
        """Runs the script on its own work, with what the gate said in its task."""
        return self._run("revise", direction, tools, verdict)

    def _run(self, what: str, direction: Direction, tools: Tools, verdict: Verdict | None) -> Candidate | Declined:
        enclosure = enclosure_of(self.workshop, self.workshop.limits, [self.script])
        with Desk.open(self.workshop, direction, tools, verdict) as desk:
            with desk.session(self._words(what), direction_brief(direction, verdict), enclosure) as session:
                outcome = session.run()
            return desk.conclude(outcome)

    def _words(self, what: str) -> list[str]:
        return [self.workshop.deployment.interpreter(), "-P", "-s", str(self.script), what]

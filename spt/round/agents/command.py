"""The agent `command`: any program that edits a worktree, another coding agent for one.

`command:PROGRAM WORD...` is started in the clone's working tree, in its sandbox, without a network.  It finds its task
in the file that SPT_TASK names (`{task}` in a word stands for its path), and asks with `tool`.  What its work is when
it ends with status 0 is the candidate.
"""

import shlex
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from spt.errors import Missing, Usage
from spt.round.agents import Task, Tools, Workshop
from spt.round.brief import direction_brief
from spt.round.desk import Desk, Proposals, enclosure_of
from spt.round.direction import Candidate, Declined, Direction, Verdict
from spt.round.enclosure import TASK, find_bubblewrap

__all__ = ["CommandAgent", "make"]


def make(argument: str, workshop: Workshop) -> "CommandAgent":
    """The agent; `argument` is its command line.  Usage or Missing where it is none that runs here."""
    try:
        words = shlex.split(argument)
    except ValueError as error:
        raise Usage(f"'{argument}' is no command line: {str(error).lower()}") from error
    if not words:
        raise Usage("the agent 'command' needs a program", "--agent 'command:PROGRAM WORD...'")
    program = shutil.which(words[0])
    if program is None:
        raise Missing(f"no program is called '{words[0]}'", "name one on PATH, or its path")
    find_bubblewrap()
    return CommandAgent(workshop, (str(Path(program).absolute()), *words[1:]))


@dataclass(frozen=True)
class CommandAgent:
    """`words` is the command line, its program an absolute path."""

    workshop: Workshop
    words: Sequence[str]
    name: str = "command"

    def propose(self, task: Task) -> list[Direction]:
        """One direction in exploring, which is to see what the program makes of the task."""
        proposals = Proposals(self.name, task)
        if task.phase != "explore" or f"{self.name}-1" in task.taken:
            return []
        title = f"What {Path(self.words[0]).name} makes of the task"
        proposals.answer("direction", {"title": title, "hypothesis": task.text or "It finds something."})
        return proposals.directions

    def implement(self, direction: Direction, tools: Tools) -> Candidate | Declined:
        """Runs the program once."""
        return self._run(direction, tools, None)

    def revise(self, direction: Direction, verdict: Verdict, tools: Tools) -> Candidate | Declined:
        """Runs it once more, on its own work, with what the gate said."""
        return self._run(direction, tools, verdict)

    def _run(self, direction: Direction, tools: Tools, verdict: Verdict | None) -> Candidate | Declined:
        words = [word.replace("{task}", str(TASK)) for word in self.words]
        enclosure = enclosure_of(self.workshop, self.workshop.limits, [Path(self.words[0])])
        with Desk.open(self.workshop, direction, tools, verdict) as desk:
            with desk.session(words, direction_brief(direction, verdict), enclosure) as session:
                outcome = session.run()
            return desk.conclude(outcome)

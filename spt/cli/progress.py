"""How far a campaign is, on standard error: a bar on a terminal, else a line now and then."""

import sys
import threading
import time
from types import TracebackType
from typing import Any

from spt.cli.output import say
from spt.printable import printable

__all__ = ["Progress"]

LINES = 10  # of one phase, where there is no terminal
QUIET_S = 60.0
LEAST_UNITS = 3  # an interval of two says nothing


class Progress:
    """Shows the harness's events; it is used as a context."""

    def __init__(self) -> None:
        self._bar: Any = None
        self._tasks: dict[str, Any] = {}
        self._said: dict[str, int] = {}
        self._said_s = time.monotonic()
        self._lock = threading.Lock()
        self._of = ""  # the direction of several that the event is of

    def __enter__(self) -> "Progress":
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
            from rich.progress import Progress as Bar

            what, found = TextColumn("{task.description}"), TextColumn("{task.fields[found]}")
            columns = (what, BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), found)
            self._bar = Bar(*columns, console=Console(stderr=True, highlight=False, markup=False))
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
        if kind is not None and issubclass(kind, KeyboardInterrupt):
            say("what was measured is kept: the same command goes on from there")

    def __call__(self, event: dict[str, Any]) -> None:
        """Shows one event; may be called from several threads."""
        with self._lock:
            self._of = f"{event['direction']}: " if "direction" in event else ""
            self._show(event)

    def _show(self, event: dict[str, Any]) -> None:
        if event["event"] == "unit":
            self._step(str(event["phase"]), event["units"], event["of"], _running(event))
        elif event["event"] == "turn":
            self._turn(str(event["phase"]), f"unit {event['unit']}: {event['turns']} of {event['of']} turns")
        elif event["event"] in ("measured", "ranked"):
            self._step("answers" if event["event"] == "measured" else "lattices", event["answers"], event["of"], "")
        elif event["event"] == "profiling":
            self._turn("profile", f"{event['answers']} of at most {event['of']} answers")
        elif event["event"] == "profiled":
            self._end("profile", f"{event['steps']} steps")
        elif event["event"] == "unprofiled":
            self._end_bar("profile", "none")
            self._say(f"note: {event['message']}")
        elif event["event"] == "answered":
            self._step(f"answers{_own(event)}", event["unit"] + 1, event["units"], "")
        elif event["event"] == "scored":
            self._step(f"scores{_own(event)}, head {event['head']}", event["answers"], event["of"], "")
        elif event["event"] == "plan":
            asked = event["asked_tok"]
            self._say(
                f"a final asks for up to {sum(asked.values()):,} tokens: {asked['timed']:,} to time, "
                f"{asked['forced']:,} more of the system to force, {asked['reference']:,} of stock beside them"
            )
        elif event["event"] == "void":
            self._say(f"unit {event['unit']} is void: {event['cause']}: {event['reason']}")

    def _step(self, phase: str, done: int, of: int, found: str) -> None:
        phase = self._of + phase
        if self._bar is not None:
            if phase not in self._tasks:
                self._tasks[phase] = self._bar.add_task(phase, total=of, found="")
            self._bar.update(self._tasks[phase], completed=done, total=of, found=found)
            return
        step = done * LINES // max(of, 1)
        if step != self._said.get(phase):
            self._said[phase] = step
            self._said_s = time.monotonic()
            say(f"{phase}: {done} of {of}" + (f", {found}" if found else ""))

    def _turn(self, phase: str, found: str) -> None:
        """How far a unit is: beside its phase's bar, or a line where none was said for a minute."""
        phase = self._of + phase
        if self._bar is not None:
            if phase not in self._tasks:
                self._tasks[phase] = self._bar.add_task(phase, total=None, found="")
            self._bar.update(self._tasks[phase], found=found)
        elif time.monotonic() - self._said_s > QUIET_S:
            self._said_s = time.monotonic()
            say(f"{phase}, {found}")

    def _end(self, phase: str, found: str) -> None:
        """What came of a phase of which nobody knew how long it is."""
        if self._bar is None:
            say(f"{self._of}{phase}: {found}")
        else:
            self._end_bar(phase, found)

    def _end_bar(self, phase: str, found: str) -> None:
        phase = self._of + phase
        if phase in self._tasks:
            self._bar.update(self._tasks[phase], completed=1, total=1, found=found)

    def _say(self, text: str) -> None:
        text = self._of + text
        if self._bar is not None:
            self._bar.console.print(printable(text))
        else:
            say(text)


def _own(event: dict[str, Any]) -> str:
    return " of stock" if event["arm"] == "stock" else ""


def _running(event: dict[str, Any]) -> str:
    """The mean so far and its interval; in calibration both arms are the same system."""
    if event["gain"] is None:
        return ""
    word = "A/A" if event["phase"] == "calibrate" else "gain"
    if event["units"] < LEAST_UNITS:
        return f"{word} {event['gain']:+.2%}"
    lower, upper = event["interval"]
    return f"{word} {event['gain']:+.2%} ({lower:+.2%} to {upper:+.2%})"

"""What `spt round start` and `resume` share: the work itself, and how its end is told."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spt.round.journal import Journal

__all__ = ["go_on"]


def go_on(journal: "Journal", minutes: float | None, as_json: bool) -> None:
    """Works on a round, shows what happens, and ends the command with its exit code."""
    import click

    from spt.cli.generate import ended_by_exception
    from spt.cli.output import print_json, say
    from spt.cli.progress import Progress
    from spt.cli.round.shown import show_state
    from spt.round.show import as_json as told
    from spt.round.working import work

    with ended_by_exception(), Progress() as progress:

        def show(event: dict[str, Any]) -> None:
            if event["event"] == "waits":
                of = f"{event['direction']}: " if "direction" in event else ""
                say(f"{of}waits: {event['reason']}")
            else:
                progress(event)

        state = work(journal, minutes, show, say)
    if as_json:
        print_json(told(journal, state))
    else:
        show_state(journal, state)
    click.get_current_context().exit(0 if state.outcome == "promoted" else 1)

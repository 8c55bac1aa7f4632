"""What the commands of `spt w12` share: whose command runs, by which interpreter, and what for."""

import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

__all__ = ["device_option", "packing_options", "run"]

Command = TypeVar("Command", bound=Callable[..., Any])


def packing_options(command: Command) -> Command:
    """Adds the flags of every command."""
    for option in (
        click.option("--json", "as_json", is_flag=True, help="Print figures as JSON on standard output."),
        click.option(
            "--python",
            metavar="PYTHON",
            default=sys.executable,
            help="An interpreter with torch; spt's own by default.",
        ),
        click.option(
            "--system", metavar="SYSTEM", default="w12-linear", show_default=True, help="Whose command it is."
        ),
    ):
        command = option(command)
    return command


def device_option(purpose: str) -> Callable[[Command], Command]:
    """Adds `--device`; purpose: what it says of it."""
    return click.option("--device", metavar="DEVICE", default="cpu", show_default=True, help=purpose)


def run(words: Sequence[object], system: str, python: str, *, as_json: bool) -> None:
    """Runs the command of the system, and ends with its exit code."""
    from spt.packing import run_packing

    told = [*map(str, words), *(["--json"] if as_json else [])]
    click.get_current_context().exit(run_packing(system, python, told))

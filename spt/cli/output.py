"""What commands print: data on standard output, talk on standard error, colour never carrying meaning."""

import json
import shutil
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import click

from spt.printable import printable

__all__ = ["counted", "data", "left_out", "print_json", "say", "show_path", "table"]

_NAMED = 5  # files that a note names before it counts


def data(text: str) -> None:
    """One line of the answer, on standard output."""
    click.echo(printable(text))


def say(text: str) -> None:
    """One line about the work, on standard error."""
    click.echo(printable(text), err=True)


def counted(number: int, noun: str, nouns: str | None = None) -> str:
    """A count with its noun: 1 entry, 2 entries."""
    return f"{number} {noun if number == 1 else nouns or noun + 's'}"


def left_out(paths: Sequence[str]) -> None:
    """Says which changes of the working tree are not in the tree that is used."""
    if paths:
        more = f" and {len(paths) - _NAMED} more" if len(paths) > _NAMED else ""
        say(f"note: uncommitted changes in {', '.join(paths[:_NAMED])}{more} are not in this system: commit them")


def show_path(path: Path) -> None:
    """A path as an answer, byte for byte, since another program may read it."""
    click.echo(str(path))


def print_json(value: Any) -> None:
    """The answer as JSON, on standard output; ASCII, so that no locale and no terminal makes it something else."""
    click.echo(json.dumps(value, indent=1, allow_nan=False))


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A plain table on standard output, as wide as the terminal; what is too wide goes on below, none of it lost."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    made = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False)
    for column in columns:
        made.add_column(column, overflow="fold")
    for row in rows:
        made.add_row(*(Text(printable(cell)) for cell in row))
    Console(file=sys.stdout, width=shutil.get_terminal_size((120, 24)).columns, highlight=False).print(made)

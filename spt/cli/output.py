"""What commands print: data on standard output, talk on standard error, colour never carrying meaning."""

import json
import shutil
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import click

__all__ = ["data", "print_json", "say", "table"]


def data(text: str) -> None:
    """One line of the answer, on standard output."""
    click.echo(text)


def say(text: str) -> None:
    """One line about the work, on standard error."""
    click.echo(text, err=True)


def print_json(value: Any) -> None:
    """The answer as JSON, on standard output."""
    click.echo(json.dumps(value, indent=1, ensure_ascii=False))


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A plain table on standard output, as wide as the terminal."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    made = Table(*columns, box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False)
    for row in rows:
        made.add_row(*(Text(cell) for cell in row))
    Console(file=sys.stdout, width=shutil.get_terminal_size((120, 24)).columns, highlight=False).print(made)

"""Completion of entry names."""

from pathlib import Path

import click

__all__ = ["complete_entries"]


def complete_entries(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """The entries whose name starts so; in `a+b` the last name counts."""
    from spt.names import entry_names

    before, sign, begun = incomplete.rpartition("+")
    return [f"{before}{sign}{name}" for name in entry_names(Path()) if name.startswith(begun)]

"""spt entry import"""

from pathlib import Path

import click

from spt.cli.output import print_json, say


@click.command("import")
@click.argument("source")
@click.argument("names", metavar="[NAME...]", nargs=-1)
@click.option("--json", "as_json", is_flag=True, help="Print what was done as JSON on standard output.")
def import_(source: str, names: tuple[str, ...], as_json: bool) -> None:
    """Take entries in from a folder, repository or bundle

    SOURCE is an entry's folder, a folder of them, a git repository (path or URL) or a bundle; NAME picks some.
    Everything is checked before anything is kept, and no code of an entry is run.

    \b
    Example:
      spt entry import ../colleague best-first-tree
    """
    from spt.intake import import_entries
    from spt.memory import Memory

    memory = Memory.open(Path())
    with memory.store.locked():
        memory = Memory.of(memory.store)
        happened = import_entries(memory, source, names)
        memory.store.publish("spt entry import")
    for name, word in happened.items():
        say(f"{name}: {word}")
        if name in memory.rescued:
            say(f"{name}: its old tip is '{memory.rescued[name]}'")
        for flag in memory.flags(name):
            say(f"review {name}: {flag}")
    if as_json:
        print_json(happened)

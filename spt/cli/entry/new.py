"""spt entry new"""

from pathlib import Path

import click

from spt.cli.output import print_json, say


@click.command()
@click.argument("name")
@click.option("--system", metavar="REV", required=True, help="The system: a branch from stock with its commits.")
@click.option("--from", "chosen", metavar="COMMIT", multiple=True, required=True, help="A commit of it; repeatable.")
@click.option("--requires", metavar="ENTRY", multiple=True, help="An entry that it builds on; repeatable.")
@click.option(
    "--yaml",
    "card",
    metavar="FILE",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="The entry.yaml to record; without it one is made from the newest commit and the options below.",
)
@click.option("--contract", type=click.Choice(["bitwise", "selection", "rounding"]), help="Its contract.")
@click.option("--invariant", "invariants", metavar="TEXT", multiple=True, help="What always holds; repeatable.")
@click.option("--partial", is_flag=True, help="Let other commits of the system wait for entries of their own.")
@click.option("--json", "as_json", is_flag=True, help="Print the source line as JSON on standard output.")
def new(
    name: str,
    system: str,
    chosen: tuple[str, ...],
    requires: tuple[str, ...],
    card: Path | None,
    contract: str | None,
    invariants: tuple[str, ...],
    partial: bool,
    as_json: bool,
) -> None:
    """Distil an entry from commits of a system

    The commits, on top of what is required, become one delta.  It is refused unless stock, the system's entries and
    the new one recompose to the system's exact tree, with every commit of the system accounted for.

    \b
    Example:
      spt entry new my-select --system my-branch --from 1f2e3d4 --from 5a6b7c8 --contract selection \\
          --invariant 'one rank is the chain'
    """
    from spt.making import make_entry
    from spt.memory import Memory

    memory = Memory.open(Path())
    with memory.store.locked():
        memory = Memory.of(memory.store)
        line = make_entry(memory, name, system, chosen, requires, card, contract, invariants, partial=partial)
        memory.store.publish("spt entry new")
    say(f"{name}: delta {memory.entry(name).delta.id[:12]}, source {line['tree'][:12]} recomposed exactly")
    if as_json:
        print_json(line)

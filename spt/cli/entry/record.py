"""spt entry record"""

from pathlib import Path

import click

from spt.cli.names import complete_entries


@click.command()
@click.argument("name", shell_complete=complete_entries)
@click.argument("key")
@click.option("--deployment", "file", metavar="FILE", help="What was run on; the nearest deployment.yaml by default.")
@click.option(
    "--entries",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="The entries/ of a checkout, where this is another repository.",
)
@click.option("--system", metavar="ENTRY+ENTRY", help="What the verdict's system is made of, where that is not found.")
@click.option("--json", "as_json", is_flag=True, help="Print the line as JSON on standard output.")
def record(name: str, key: str, file: str | None, entries: Path | None, system: str | None, as_json: bool) -> None:
    """Record a timing verdict as evidence of an entry

    KEY is the first digits of the verdict's key in the ledger of this repository; any answer is evidence.  Its system A
    must hold the entry as it is now.  The line and the samples go into the entry's folder; what tells the machine from
    others of its kind is left out of both.  The same verdict again adds nothing, unless forcing has spoken since.

    \b
    Example:
      spt entry record best-first-tree 52a42abf
      spt entry record best-first-tree 52a42abf --entries ../specpilot/entries
    """
    from spt.cli.judging import chosen_deployment
    from spt.cli.output import print_json, say
    from spt.evidence import ratio_of
    from spt.home import find_checkout
    from spt.record import file_of, line_of
    from spt.verdicts import Ledger

    checkout = find_checkout(Path(), entries)
    ledger, deployment = Ledger.find(Path()), chosen_deployment(file)
    line, samples = line_of(checkout.memory, ledger, deployment, name, key, system)
    path = file_of(line, deployment)
    word = "recorded in" if checkout.add_evidence(name, path, line, samples) else "is already in"
    say(f"{name}: {line['verdict']['answer']}, {ratio_of(line) or 'no ratio'}, {word} '{path}'")
    say("note: host name and serial number of the machine are left out; the samples' own digest is in the line")
    if as_json:
        print_json(line)

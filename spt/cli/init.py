"""spt init"""

from pathlib import Path

import click

from spt.cli.output import counted, print_json, say


@click.command()
@click.argument("folder", metavar="[DIR]", type=click.Path(path_type=Path), default=Path())
@click.option("--stock", metavar="REV", help="Name a revision of an existing git repository as its stock.")
@click.option(
    "--from",
    "root",
    metavar="DIR",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Take stock/, kernels/ and entries/ from plain files in this folder instead of those that ship with spt.",
)
@click.option("--no-sources", is_flag=True, help="Leave source systems out; their checks answer `unavailable here`.")
@click.option("--json", "as_json", is_flag=True, help="Print what was done as JSON on standard output.")
def init(folder: Path, stock: str | None, root: Path | None, no_sources: bool, as_json: bool) -> None:
    """Make a deployment repository, or name the stock of an existing one

    DIR is made, or must be empty; in a deployment repository stock and entries are brought up to date, and branches
    and files stay as they are.  An entry that was changed there is kept, and named.

    \b
    Example:
      spt init demo
      cd my-engine && spt init --stock main
    """
    import spt.share
    from spt.errors import Usage
    from spt.git.store import Store
    from spt.initialise import KEPT, init_shipped, init_stock, warnings

    if stock is not None:
        if root is not None:
            raise Usage("--from and --stock exclude each other")
        if no_sources:
            raise Usage("--no-sources and --stock exclude each other", "a revision brings no source systems")
        done = init_stock(folder, stock)
    else:
        done = init_shipped(folder, root or spt.share.shipped_root(), sources=not no_sources)
    for warning in warnings(Store.find(folder)):
        say(f"warning: {warning}")
    say(f"stock tree {done.stock} (commit {done.commit[:12]})")
    if done.entries:
        words = [(word, list(done.entries.values()).count(word)) for word in ("new", "changed", "unchanged", KEPT)]
        said = ", ".join(f"{number} {word}" for word, number in words if number or word != KEPT)
        say(f"{counted(len(done.entries), 'entry', 'entries')}: {said}")
    for name, reference in done.rescued.items():
        say(f"{name}: changed; its old tip is '{reference}'")
    for name in sorted(name for name, word in done.entries.items() if word == KEPT):
        say(f"note: {name} is kept, since it was changed here, or builds on one that was: {_take(root, name)}")
    if stock is None:
        say(counted(done.sources, "source system"))
    if not done.checked_out and stock is None:
        say("your branch stays where it is; `git switch -c NAME refs/spt/stock/current` starts one from the new stock")
    if as_json:
        print_json({"stock": done.stock, "commit": done.commit, "entries": done.entries, "sources": done.sources})


def _take(root: Path | None, name: str) -> str:
    import spt.share

    return f"`spt entry import {(root or spt.share.shipped_root()) / 'entries'} {name}` takes the shipped one"

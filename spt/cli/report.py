"""spt report"""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from spt.cli.output import data, print_json, say, show_path, table

if TYPE_CHECKING:
    from spt.report.story import Story
    from spt.report.transfer import Transfer
    from spt.verdicts import Ledger


@click.command()
@click.argument("rounds", nargs=-1, metavar="[ROUND]...")
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE.html", help="Where the page goes.")
@click.option("--transfer", "with_transfer", is_flag=True, help="Say how far entries transfer between deployments.")
@click.option("--json", "as_json", is_flag=True, help="Print all of it as JSON on standard output.")
def report(rounds: tuple[str, ...], out: Path | None, with_transfer: bool, as_json: bool) -> None:
    """Show what rounds did, on one page and in short

    The page is one HTML file that needs nothing beside it; its path is the last line of standard output.  All rounds
    are shown where none is named.  With --transfer alone it says which entries fit, apply and pay on each deployment.
    A page lies below the git common directory unless --out says where; --json writes one only where --out does.

    \b
    Example:
      spt report smol-cpu-1
      spt report smol-cpu-1 smol-cpu-2 --out rounds.html
      spt report --transfer
    """
    from spt.report.charts import require_matplotlib
    from spt.report.file import check_place
    from spt.report.summary import record

    if out is not None:
        check_place(out)
    if out is not None or not as_json:
        require_matplotlib()
    ledger = _ledger(alone=with_transfer and not rounds)
    stories = _stories(ledger, rounds, alone=with_transfer)
    found = _transfer(ledger, stories) if with_transfer else None
    path = _page(ledger, stories, found, out) if out is not None or not as_json else None
    if as_json:
        print_json(record(stories, found) | {"page": None if path is None else str(path)})
        return
    _show(stories, found)
    if path is not None:
        show_path(path)


def _ledger(*, alone: bool) -> "Ledger":
    """The ledger of the repository; that of none where transfer alone is asked about, outside of any."""
    from spt.errors import Usage
    from spt.git.store import Store
    from spt.verdicts import Ledger

    try:
        return Ledger(Store.find(Path()))
    except Usage as error:
        if alone:
            return Ledger(Store())
        raise Usage(f"rounds are kept in a git repository: {error.message}", error.hint) from error


def _stories(ledger: "Ledger", names: tuple[str, ...], *, alone: bool) -> "list[Story]":
    """The rounds that were named; all of them where none is, unless transfer alone is asked about."""
    from spt.errors import Missing
    from spt.report.events import read_round
    from spt.report.telling import tell
    from spt.round.journal import rounds

    if not names and alone:
        return []
    if not names and not (names := tuple(rounds(ledger.store))):
        raise Missing("there are no rounds here", "`spt round start` begins one")
    return [tell(read_round(ledger.store, name), ledger) for name in dict.fromkeys(names)]


def _transfer(ledger: "Ledger", stories: "list[Story]") -> "Transfer":
    from spt.home import find_home
    from spt.report.transfer import transfer

    home = find_home(Path())
    if home.note:
        say(f"note: {home.note}")
    return transfer(home.memory, ledger, stories)


def _page(ledger: "Ledger", stories: "list[Story]", found: "Transfer | None", out: Path | None) -> Path | None:
    """Writes the page; None where there is no place for one."""
    from spt.report.file import check_place, page_path, write_page
    from spt.report.page import make_page

    if out is None and ledger.store.common is None:
        say("note: there is no repository here to put a page into; --out FILE.html writes one")
        return None
    path = out or page_path(ledger.store, [story.round for story in stories])
    page = make_page(stories, ledger, found, path.absolute().parent)
    if out is None:
        path.parent.mkdir(parents=True, exist_ok=True)
    check_place(path)
    write_page(path, page)
    return path


def _show(stories: "list[Story]", found: "Transfer | None") -> None:
    from spt.report.summary import round_lines, row_cells, transfer_cells

    for story in stories:
        for line in round_lines(story):
            data(line)
        if story.promotions:
            table(("promoted", "gain", "over", "rule", "forcing", "entry", "commit"), row_cells(story))
    if found is not None:
        for words in found.left_out:
            say(f"warning: an entry is left out: {words}")
        if not found.places:
            say("note: no line of evidence names a deployment; `spt report ROUND --transfer` takes that of a round")
        columns = ("entry", "deployment", "machine", "fits", "applies", "pays", "figure")
        table(columns, transfer_cells(found))

"""spt entry apply"""

from pathlib import Path
from typing import Any

import click

from spt.cli.names import complete_entries
from spt.cli.output import data, print_json, say


@click.command()
@click.argument("names", metavar="NAME...", nargs=-1, required=True, shell_complete=complete_entries)
@click.option("--onto", metavar="STOCK", help="Start from this revision; needs one of the four options below.")
@click.option("--branch", metavar="B", help="Commit onto this branch, made if need be; HEAD stays.")
@click.option("--worktree", metavar="DIR", type=click.Path(path_type=Path), help="Check the result out in a worktree.")
@click.option("--tree-only", is_flag=True, help="Print the tree id; no commit is kept.")
@click.option("--export", "folder", metavar="DIR", type=click.Path(path_type=Path), help="Write files, no commit.")
@click.option("--enable", is_flag=True, help="Switch the entries on in ./deployment.yaml.")
@click.option("--variant", metavar="NAME", help="Which variant --enable takes where an entry has several.")
@click.option("--json", "as_json", is_flag=True, help="Print what was done as JSON on standard output.")
def apply(
    names: tuple[str, ...],
    onto: str | None,
    branch: str | None,
    worktree: Path | None,
    tree_only: bool,
    folder: Path | None,
    enable: bool,
    variant: str | None,
    as_json: bool,
) -> None:
    """Compose entries and commit them

    Without an option: one commit an entry, requirements first, onto the branch that is checked out, which must be
    clean.  Nothing is written on a conflict.  With all options at their defaults the result still behaves as stock;
    what switches an entry on is printed.

    \b
    Example:
      spt entry apply best-first-tree
      spt entry apply confident-budget --branch try --onto refs/spt/stock/current
    """
    from spt.application import Request, run

    request = Request(names, onto, branch, worktree, tree_only, folder, variant, enable)
    done = run(Path(), request)
    _report(done, as_json, tree_only)


def _report(done: Any, as_json: bool, tree_only: bool) -> None:
    for name, commit in done.applied.made:
        say(f"{name}: {commit[:12]}" if done.kept else f"{name}: composed")
    for name in done.applied.already:
        say(f"{name}: applied already")
    for line in done.switches:
        say(line)
    if as_json:
        made = [{"entry": name, "commit": commit if done.kept else None} for name, commit in done.applied.made]
        tree, commit = done.applied.tree, done.applied.commit if done.kept else None
        print_json({"tree": tree, "commit": commit, "made": made, "already": list(done.applied.already)})
    elif tree_only:
        data(done.applied.tree)

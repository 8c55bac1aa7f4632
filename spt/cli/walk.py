"""spt walk"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from spt.cli.output import counted, print_json, say
from spt.cli.walked import show_bounds, show_checks, show_grid, show_head, show_published, show_walked

if TYPE_CHECKING:
    from spt.bounds import Bounds
    from spt.lattice import Lattice
    from spt.walk import Walked

_USUAL = ("chain", "tree:32", "tree:63:0:16")
_NODES = (8, 16, 32, 64, 128)


def _numbers(context: click.Context, parameter: click.Parameter, value: str | None) -> tuple[int, ...] | None:
    """Whole numbers with commas between them, each once."""
    if value is None:
        return None
    parts = value.split(",")
    if not all(part.isascii() and part.isdigit() and len(part) < 5 for part in parts):
        raise click.BadParameter(f"'{value}' is not whole numbers with commas between them", context, parameter)
    return tuple(dict.fromkeys(map(int, parts)))


@click.command()
@click.argument("paths", metavar="LATTICE...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--policy", "-p", "words", multiple=True, metavar="POLICY", help="What to draft; repeatable.")
@click.option("--grid", is_flag=True, help="Trees over node budgets and positions.")
@click.option("--nodes", callback=_numbers, metavar="N,N", help="Node budgets of the grid.  [default: 8,16,32,64,128]")
@click.option("--positions", callback=_numbers, metavar="N,N", help="Positions of the grid.  [default: a half, all]")
@click.option("--width", type=click.IntRange(1, 64), default=16, show_default=True, help="Ranks of the grid's trees.")
@click.option("--published", is_flag=True, help="The four policies of the published curve, beside its figures.")
@click.option("--check", is_flag=True, help="Hold the walk of the system that ran against its recorded steps.")
@click.option(
    "--bounds", "as_bounds", is_flag=True, help="Where a tree wants unstored ranks, print what tau lies between."
)
@click.option("--only", multiple=True, metavar="NAME", help="Requests of this id or family; repeatable.")
@click.option(
    "--agreement", type=click.Path(path_type=Path), metavar="FILE", help="Recorded agreement of cheap passes."
)
@click.option("--plot", type=click.Path(path_type=Path), metavar="FILE.svg", help="Draw the grid: tau over nodes.")
@click.option("--json", "as_json", is_flag=True, help="Print all figures as JSON on standard output.")
def walk(
    paths: tuple[Path, ...],
    words: tuple[str, ...],
    grid: bool,
    nodes: tuple[int, ...] | None,
    positions: tuple[int, ...] | None,
    width: int,
    published: bool,
    check: bool,
    as_bounds: bool,
    only: tuple[str, ...],
    agreement: Path | None,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Walk recorded lattices: what a draft policy would have accepted, without a model

    LATTICE is a folder of `spt measure`, or a lattice file.  POLICY is one of

    \b
      chain[:POSITIONS]                             the best id of each position
      tree:NODES[:POSITIONS[:WIDTH]]                the best paths of the lattice
      confident:NODES:POSITIONS:WIDTH:FLOOR         those above a path probability
      length:SHORTEST:LONGEST                       chains as long as a request earns
      shared:NODES:REQUESTS[:POSITIONS[:WIDTH]]     a budget for all requests of a step
      levels:PASSES:AGREEMENT[/BONUS]:POLICY        cheap passes before each exact one

    POSITIONS 0 is all that the drafter proposes; AGREEMENT is a probability, or `recorded`.  Greedy decoding says the
    same whatever is drafted, so that the figures are those that the engine would reach, step by step.

    \b
    Example:
      spt walk measured/ -p chain:8 -p tree:63:15:16
      spt walk measured/ --grid --plot tau.svg
      spt walk measured/ -p shared:64:8 -p levels:1:0.98:tree:31
    """
    from spt.bounds import bounds
    from spt.errors import Usage
    from spt.lattices import read_agreement, read_lattices
    from spt.policy import Chain, Tree, parse_policy
    from spt.published import PUBLISHED
    from spt.walk import Walker
    from spt.walk_plot import check_plot, plot_grid

    policies = [parse_policy(word) for word in words]
    if plot is not None:
        check_plot(plot)
    grid = grid or not (plot is None and nodes is None and positions is None)
    if as_bounds and not policies:
        raise Usage("bounds are of trees that are named", "name them with --policy")
    if not (policies or grid or published or check):
        policies = [parse_policy(word) for word in _USUAL]

    lattices = read_lattices(paths, only)
    walker = Walker(lattices, None if agreement is None else read_agreement(agreement))
    checked = _checked(lattices, paths) if check else []
    bounded = [bounds(walker, each) for each in policies] if as_bounds else []
    walked = [] if as_bounds else walker.walk_all(policies)
    curve = walker.walk_all(policy for policy, _ in PUBLISHED) if published else []
    trees = [Tree(n, p, width) for p in positions or _halves(walker.depths) for n in nodes or _NODES]
    over = walker.walk_all(trees) if grid else []
    chain = walker.walk(Chain()).tau if grid else None
    if plot is not None:
        plot_grid(plot, over, chain, f"tau of best-first trees, {counted(len(walker.requests), 'request')}")
        say(f"the picture is in {plot}")

    head = show_head(walker)
    if as_json:
        parts: dict[str, Sequence[Walked | Bounds]]
        parts = {"policies": walked, "bounds": bounded, "published": curve, "grid": over, "check": checked}
        print_json(head | {name: [each.as_json() for each in part] for name, part in parts.items() if part})
        return
    show_checks(checked)
    show_bounds(bounded)
    show_walked(walked)
    show_published(curve)
    show_grid(over, chain)


def _halves(depths: int) -> tuple[int, ...]:
    """A half of the positions that the drafter proposes, and all."""
    return tuple(dict.fromkeys((max(1, (depths + 1) // 2), depths)))


def _checked(lattices: Sequence["Lattice"], paths: Sequence[Path]) -> list["Walked"]:
    from spt.walk_check import check_walk, policy_that_ran

    return [check_walk(lattice, policy_that_ran(path)) for lattice, path in zip(lattices, paths, strict=True)]

"""spt round start"""

import click

from spt.cli.names import complete_entries

_COUNT = click.IntRange(min=1, max=100_000)  # a journal keeps it, whose numbers have an end


@click.command()
@click.argument("system", required=False, shell_complete=complete_entries)
@click.option("--deployment", "file", metavar="FILE", help="What to make fast; the nearest deployment.yaml by default.")
@click.option("--name", metavar="NAME", help="Of the round; the deployment's with the next number when left out.")
@click.option("--agent", "agents", multiple=True, metavar="AGENT[:WORDS]", help="Repeatable.  [default: sweep, memory]")
@click.option("--rule", default="paired-1", show_default=True, metavar="RULE", help="Of the judge; `demo` for a CPU.")
@click.option("--max-minutes", type=float, metavar="M", help="Stop then; `spt round resume` goes on.")
@click.option(
    "--explore-minutes", type=float, metavar="M", help="Begin no direction after so many; go on to the final then."
)
@click.option("--directions", type=_COUNT, default=16, show_default=True, help="The most of one phase.")
@click.option("--tries", type=_COUNT, default=16, show_default=True, help="Quick measurements of each.")
@click.option("--agent-minutes", type=float, metavar="M", help="Of an agent in a sandbox, each time.  [default: 60]")
@click.option("--turns", type=_COUNT, metavar="N", help="Of a model, each time.")
@click.option("--usd", type=click.FloatRange(min=0), metavar="D", help="Of a model, each direction.")
@click.option("--no-cost-model", is_flag=True, help="Neither measure nor plan by the ceiling.")
@click.option(
    "--devices",
    "slots",
    multiple=True,
    metavar="D[,D]",
    help="cpu, cuda or cuda:N; two are exchanged within a unit of timing.  Repeatable: each is a slot.",
)
@click.option(
    "--agents", "at_once", type=_COUNT, metavar="N", help="Directions worked on side by side.  [default: the slots]"
)
@click.option("--elsewhere", is_flag=True, help="Another machine measures: `spt round pack` carries the jobs.")
@click.option("--executor", metavar="NAME[:WORDS]", help="Other hosts measure: slurm[:KEY=VALUE,...] or ray[:ADDRESS].")
@click.option("--no-sandbox", is_flag=True, help="For trusted code alone: on main, in stock or in an entry.")
@click.option("--json", "as_json", is_flag=True, help="Print how it ended as JSON on standard output.")
def start(
    system: str | None,
    file: str | None,
    name: str | None,
    agents: tuple[str, ...],
    rule: str,
    max_minutes: float | None,
    explore_minutes: float | None,
    directions: int,
    tries: int,
    agent_minutes: float | None,
    turns: int | None,
    usd: float | None,
    no_cost_model: bool,
    slots: tuple[str, ...],
    at_once: int | None,
    elsewhere: bool,
    executor: str | None,
    no_sandbox: bool,
    as_json: bool,
) -> None:
    """Begin a round on a deployment, and go through its phases

    SYSTEM is where it starts: `stock`, entries joined by `+`, or a git revision, perhaps with `@OPTIONS.yaml`; left
    out, the deployment's newest system, else what its file names, else stock.  The agents `sweep` (a search over
    options) and `memory` (every entry that fits) need no model.  Exit code 0 says that the round ended with a system
    that passed its final, and 1 any other end.

    \b
    Example:
      spt round start --max-minutes 600
      spt round start stock --agent memory:best-first-tree --devices cuda:0,cuda:1
      spt round start --agent claude --devices cuda:0 --devices cuda:1
      spt round start --agent claude --agents 4 --executor slurm:partition=gpu,time=240
    """
    import math
    from pathlib import Path

    from spt.choice import nearest_deployment
    from spt.cli.judging import chosen_devices
    from spt.cli.output import say
    from spt.cli.round.work import go_on
    from spt.errors import Missing, Usage
    from spt.round.agents import Limits
    from spt.round.budget import checked_minutes
    from spt.round.settings import Settings
    from spt.round.start import Wanted
    from spt.round.start import start as begin

    checked_minutes(max_minutes, "--max-minutes")
    checked_minutes(explore_minutes, "--explore-minutes")
    checked_minutes(agent_minutes, "--agent-minutes")
    if usd is not None and not math.isfinite(usd):
        raise Usage(f"--usd {usd:g} is no number of dollars", "leave it out for no limit")
    found = Path(file) if file is not None else nearest_deployment(Path.cwd())
    if found is None:
        raise Missing("there is no deployment.yaml here", "--deployment FILE names one (docs/deployment.md)")
    wanted = Wanted(
        file=found,
        system=system,
        name=name,
        agents=agents,
        rule=rule,
        slots=tuple(chosen_devices(devices, 2) for devices in slots),
        at_once=at_once,
        sandbox=not no_sandbox,
        cost_model=not no_cost_model,
        elsewhere=elsewhere,
        executor=executor,
        explore_minutes=explore_minutes,
        directions=directions,
        limits=Limits(None if agent_minutes is None else 60 * agent_minutes, turns, usd, tries),
    )
    journal = begin(Path(), wanted)
    settings = Settings.of(journal.settings())
    places = "; ".join(",".join(devices) for devices in settings.slots) or settings.parsed().device
    say(f"round {journal.round} on {places}: {journal.reference}")
    go_on(journal, max_minutes, as_json)

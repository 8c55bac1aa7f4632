"""spt time"""

import click

from spt.cli.judging import chosen_limits, chosen_plan, judging_options, requests_file
from spt.cli.names import complete_entries


@click.command()
@click.argument("a", shell_complete=complete_entries)
@click.argument("b", default="stock", shell_complete=complete_entries)
@judging_options
@click.pass_context
def time(
    ctx: click.Context,
    a: str,
    b: str,
    file: str | None,
    requests: str | None,
    seed: int | None,
    max_minutes: float | None,
    devices: str | None,
    no_sandbox: bool,
    as_json: bool,
) -> None:
    """Judge whether system A is faster than B, stock where it is left out

    A and B are `stock`, entries joined by `+`, or a git revision, each perhaps with `@OPTIONS.yaml`.  The same pair, on
    the same deployment and card, gets its old verdict without being measured again; what was stopped goes on.  The
    figure is a raw ratio until `spt force A B` accepted it.  Exit code 0 is promote, and 1 any other answer.

    \b
    Example:
      spt time best-first-tree
      spt time HEAD best-first-tree --deployment deployment.yaml --devices cuda:0,cuda:1 --max-minutes 30
    """
    from spt.cli.generate import ended_by_exception
    from spt.cli.judgement import show_verdict
    from spt.cli.output import print_json, say
    from spt.cli.progress import Progress
    from spt.judge import time_systems
    from spt.ratio import figure_of

    limits = chosen_limits(max_minutes, devices, no_sandbox=no_sandbox, most=2)
    plan = chosen_plan(a, b, file, seed, devices, trusted=no_sandbox)
    if plan.arms["a"].system == plan.arms["b"].system:
        say(f"note: '{a}' and '{b}' are the same system: what is measured is noise, and nothing can be promoted")
    with ended_by_exception(), Progress() as progress:
        verdict = time_systems(plan, requests_file(plan, requests), limits, progress)
    figure = figure_of(plan.ledger, verdict)
    if as_json:
        print_json({**verdict, "figure": None if figure is None else str(figure)})
    else:
        show_verdict(verdict, figure)
    ctx.exit(0 if verdict["answer"] == "promote" else 1)

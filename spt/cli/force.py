"""spt force"""

import click

from spt.cli.judging import chosen_limits, chosen_plan, judging_options, requests_file
from spt.cli.names import complete_entries


@click.command()
@click.argument("a", shell_complete=complete_entries)
@click.argument("b", default="stock", shell_complete=complete_entries)
@judging_options
@click.pass_context
def force(
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
    """Judge whether system A says what stock says

    Stock scores every token of A on A's own prefix, and is held against what it says of its own: that is measured once
    a deployment, stock and card.  Once `spt time A B` confirmed, the tokens that were timed come first: a speedup needs
    them accepted.  The same tokens get their old verdict without being measured again.  Exit code 0 is accept, and 1
    any other answer; `smoke`, of too few tokens, accepts nothing.

    \b
    Example:
      spt force best-first-tree
      spt force HEAD --requests sessions.jsonl --max-minutes 60
    """
    from spt.cli.generate import ended_by_exception
    from spt.cli.judgement import show_verdict
    from spt.cli.output import print_json, say
    from spt.cli.progress import Progress
    from spt.judge import force_system

    limits = chosen_limits(max_minutes, devices, no_sandbox=no_sandbox, most=1)
    plan = chosen_plan(a, b, file, seed, devices, trusted=no_sandbox)
    if plan.deployment.served:
        say("note: a verdict is of the server as it runs now: change the name of the deployment with its flags")
    with ended_by_exception(), Progress() as progress:
        verdict = force_system(plan, requests_file(plan, requests), limits, progress)
    if as_json:
        print_json(verdict)
    else:
        show_verdict(verdict, None)
    ctx.exit(0 if verdict["answer"] == "accept" else 1)

"""spt final"""

import click

from spt.cli.judging import chosen_limits, chosen_plan, final_options
from spt.cli.names import complete_entries


@click.command()
@click.argument("system", shell_complete=complete_entries)
@click.argument("b", default="stock", shell_complete=complete_entries)
@final_options
@click.pass_context
def final(
    ctx: click.Context,
    system: str,
    b: str,
    seal: str | None,
    again: str | None,
    smoke: bool,
    file: str | None,
    max_minutes: float | None,
    devices: str | None,
    no_sandbox: bool,
    as_json: bool,
) -> None:
    """Judge SYSTEM for the last time, on requests that nobody has seen

    Times SYSTEM against B (stock where it is left out) and against autoregressive decoding, and forces every token of
    it: timed requests, sessions past 4,096 tokens of context, and answers of 4,096 new tokens.  The seal is spent once
    everything that can fail was tried; then the same command goes on wherever it ended.  The same final gets its old
    verdict.  Exit code 0 is accept, and 1 any other answer.

    \b
    Example:
      spt final HEAD --seal round-7
      spt final HEAD best-first-tree --seal round-8 --devices cuda:0,cuda:1 --max-minutes 120
    """
    from spt.cli.generate import ended_by_exception
    from spt.cli.judgement import show_final
    from spt.cli.output import print_json
    from spt.cli.progress import Progress
    from spt.errors import Usage
    from spt.final import Asked, final_system

    if seal is None:
        raise Usage("a final's requests are drawn by a seal", "--seal NAME; `spt seal NAME` makes one before the round")
    limits = chosen_limits(max_minutes, devices, no_sandbox=no_sandbox, most=2)
    plan = chosen_plan(system, b, file, None, devices, trusted=no_sandbox)
    with ended_by_exception(), Progress() as progress:
        held = final_system(plan, Asked(seal, again, smoke), limits, progress)
    assert held.verdict is not None  # a final ends with one
    if as_json:
        print_json(held.record())
    else:
        show_final(plan.ledger, held)
    ctx.exit(0 if held.verdict["answer"] == "accept" else 1)

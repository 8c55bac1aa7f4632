"""spt round review"""

import click

from spt.cli.round.named import round_argument


@click.command()
@round_argument
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON on standard output.")
def review(name: str | None, as_json: bool) -> None:
    """Show what a round made: its commits, how they differ from what the agents wrote, and the verdicts behind them

    \b
    Example:
      spt round review
      git log --reverse --stat main..system/smol/1
    """
    from spt.cli.output import data, print_json, say
    from spt.cli.round.named import named_round
    from spt.round.reviewing import review as reviewed
    from spt.round.working import state_of

    journal = named_round(name)
    state = state_of(journal)
    found = list(reviewed(journal, state))
    if as_json:
        print_json(
            [
                {
                    "direction": each.course.direction.id,
                    "candidate": None if each.course.candidate is None else each.course.candidate.record(),
                    "gates": [verdict.record() for verdict in each.course.verdicts],
                    "end": dict(each.course.end),
                    "log": each.log,
                    "range_diff": each.range_diff,
                }
                for each in found
            ]
        )
        return
    if not found:
        say(f"the round '{journal.round}' promoted nothing")
    for each in found:
        course = each.course
        data(f"== {course.direction.id}: {course.direction.title}")
        end = course.end
        data(f"{end['kind']} {end['gain']:.3f}, rule {end['rule']}, timing {str(end['timing'])[:12]}")
        for verdict in course.verdicts:
            data(f"  {verdict.gate}: {'passes' if verdict.passed else 'no'}: {verdict.reason}")
        for line in (each.log or "no commit: options alone").splitlines():
            data(line)
        if each.range_diff:
            data("as the agent wrote it, and as it stands in the series:")
            for line in each.range_diff.splitlines():
                data(line)

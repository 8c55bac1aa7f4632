"""spt entry verify"""

from pathlib import Path
from typing import Any

import click

from spt.cli.names import complete_entries
from spt.cli.output import data, print_json, say


@click.command()
@click.argument("names", metavar="[NAME...]", nargs=-1, shell_complete=complete_entries)
@click.option("--all", "everything", is_flag=True, help="Verify every entry.")
@click.option("--checks", is_flag=True, help="Also run the commands of the contracts: the entries' own code.")
@click.option("--json", "as_json", is_flag=True, help="Print the reports as JSON on standard output.")
def verify(names: tuple[str, ...], everything: bool, checks: bool, as_json: bool) -> None:
    """Recompose entries and compare with what they came from

    One line an entry, with three answers.  recompose: stock, requirements and delta give the entry's own tree.
    source: with stock and deltas of that time they give the tree of the system that the entry was distilled from.
    record: card, trailers, references and evidence agree.  Exit code 1 where anything differs, else 4 where history
    is not here.

    --checks runs commands that came with the entry.  They are the author's own and gate nothing alone.

    \b
    Example:
      spt entry verify --all
      spt entry verify best-first-tree --checks
    """
    from spt.errors import Usage
    from spt.home import find_home
    from spt.verify import exit_code
    from spt.verify import verify as check

    if names and everything:
        raise Usage(f"--all takes every entry, and '{names[0]}' one", "leave one of them away")
    if not names and not everything:
        raise Usage("name the entries to verify, or --all")
    home = find_home(Path())
    if home.note:
        say(f"note: {home.note}")
    memory = home.memory
    if everything:
        names = tuple(sorted({*memory.entries, *memory.broken}))
    reports = [check(memory, name) for name in names]
    results = _checked(memory, names) if checks else {}
    memory.cards.save()
    if as_json:
        print_json([_as_json(report, results.get(report.name)) for report in reports])
    else:
        for report in reports:
            _print(report, results.get(report.name, []))
        if not reports:
            data("no entries")
    failed = any(not result.passed for found in results.values() for result in found)
    raise click.exceptions.Exit(1 if failed else exit_code(reports))


def _checked(memory: Any, names: tuple[str, ...]) -> dict[str, Any]:
    from spt.checks import run_checks, sandbox_words

    say("checks are the entries' own commands: a pass is the author's word and gates nothing alone")
    say(sandbox_words())
    return {name: run_checks(memory, name) for name in names if name in memory.entries}


def _print(report: Any, results: list[Any]) -> None:
    width = 28
    answers = "  ".join(f"{question} {finding.state}" for question, finding in report.findings.items())
    data(f"{report.name:<{width}} {answers}")
    for question, finding in report.findings.items():
        for difference in finding.differences:
            data(f"  {question}: {difference.kind}: {difference.text}")
    for result in results:
        word = "passes" if result.passed else "ran out of time" if result.status is None else f"fails ({result.status})"
        data(f"  check (author's own): {word} in {result.seconds_s:.1f} s: {result.command}")
        if not result.passed:
            for line in result.output.splitlines()[-10:]:
                data(f"    {line}")


def _as_json(report: Any, results: list[Any] | None) -> dict[str, Any]:
    found: dict[str, Any] = {"name": report.name}
    for question, finding in report.findings.items():
        differences = [vars(difference) for difference in finding.differences]
        found[question] = {"answer": finding.state, "differences": differences}
    if results is not None:
        found["checks"] = [vars(result) for result in results]
    return found

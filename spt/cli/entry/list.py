"""spt entry list"""

from pathlib import Path
from typing import Any

import click

from spt.cli.output import data, print_json, say, table


@click.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print the entries as JSON on standard output.")
def list_(as_json: bool) -> None:
    """List entries and what they add

    Evidence is `current`, `carried` (stock or requirements moved) or `stale` (the entry changed), and its figure a
    raw ratio or a claimed speedup (judged, and forcing accepted the timed tokens, as its line says).

    \b
    Example:
      spt entry list --json
    """
    from spt.errors import SptError
    from spt.home import find_home

    home = find_home(Path())
    if home.note:
        say(f"note: {home.note}")
    memory = home.memory
    rows, left_out = [], {name: error.message for name, error in memory.broken.items()}
    for name in sorted(memory.entries):
        try:
            rows.append(_row(memory, name))
        except SptError as error:
            left_out[name] = error.message
    memory.cards.save()
    for name, why in sorted(left_out.items()):
        say(f"warning: entry '{name}' is left out: {why}")
    if as_json:
        print_json(rows)
    elif rows:
        table(("entry", "contract", "adds", "requires", "evidence", "title"), [_cells(row) for row in rows])
    else:
        data("no entries")


def _row(memory: Any, name: str) -> dict[str, Any]:
    from spt.evidence import evidence_of

    card, entry = memory.card(name), memory.entry(name)
    return {
        "name": name,
        "title": card.data["title"],
        "contract": card.contract["kind"],
        "requires": list(card.requires),
        "options": sorted(card.options),
        "seams": card.seams,
        "delta_id": entry.delta.id,
        "on_current_stock": entry.stock == memory.stock,
        "evidence": [
            {
                "state": one.state,
                "kind": one.kind,
                "answer": one.answer,
                "ratio": None if one.ratio is None else str(one.ratio),
            }
            for one in evidence_of(memory, name)
        ],
    }


def _cells(row: dict[str, Any]) -> list[str]:
    seams = [f"{seam}={value}" for seam, values in row["seams"].items() for value in values]
    last = row["evidence"][-1] if row["evidence"] else None
    evidence = "none" if last is None else _evidence(last)
    if not row["on_current_stock"]:
        evidence = f"{evidence} (behind stock)"
    return [
        row["name"],
        row["contract"],
        ", ".join([*seams, *row["options"]]) or "-",
        ", ".join(row["requires"]) or "-",
        evidence,
        row["title"],
    ]


def _evidence(one: dict[str, Any]) -> str:
    answer = "" if one["answer"] is None else f" ({one['answer']})"
    return f"{one['state']}, {one['kind']}{answer}: {one['ratio'] or 'no ratio'}"

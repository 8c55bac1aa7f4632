"""spt entry show"""

from pathlib import Path
from typing import Any

import click

from spt.cli.names import complete_entries
from spt.cli.output import data, print_json, say


@click.command()
@click.argument("name", shell_complete=complete_entries)
@click.option("--json", "as_json", is_flag=True, help="Print the entry as JSON on standard output.")
def show(name: str, as_json: bool) -> None:
    """Show one entry: card, changes, evidence

    \b
    Example:
      spt entry show best-first-tree
    """
    from spt.home import find_home

    home = find_home(Path())
    if home.note:
        say(f"note: {home.note}")
    memory = home.memory
    found = _found(memory, name)
    if as_json:
        print_json(found)
        return
    for line in _lines(found):
        data(line)


def _found(memory: Any, name: str) -> dict[str, Any]:
    from spt.evidence import evidence_of

    card, entry = memory.card(name), memory.entry(name)
    closure = memory.composition().ordered(memory.closure([name]))
    return {
        "entry": card.data,
        "commit": entry.patch.oid,
        "delta_id": entry.delta.id,
        "stock_tree": entry.stock,
        "on_current_stock": entry.stock == memory.stock,
        "result_tree": entry.patch.tree,
        "closure": closure,
        "changes": [{"path": row.path, "change": _change(row)} for row in entry.delta.rows],
        "review": memory.flags(name),
        "evidence": [
            {
                "state": one.state,
                "kind": one.kind,
                "answer": one.answer,
                "ratio": None if one.ratio is None else str(one.ratio),
                "file": one.file,
                "line": one.line,
            }
            for one in evidence_of(memory, name)
        ],
    }


def _change(row: Any) -> str:
    return "adds" if row.old is None else "removes" if row.new is None else "edits"


def _lines(found: dict[str, Any]) -> list[str]:
    card, contract = found["entry"], found["entry"]["contract"]
    lines = [f"{card['name']}: {card['title']}", ""]
    texts = dict.fromkeys(card[key].strip() for key in ("summary", "mechanism"))  # a card made of a commit repeats
    lines += [line for text in texts if text != card["title"] for line in (*_text(text), "")]
    lines += [f"contract: {contract['kind']}", *(f"  - {text}" for text in contract["invariants"])]
    lines += [f"  check: {command}" for command in contract.get("checks", [])]
    lines += [f"applied in order: {', '.join(found['closure'])}"]
    for key in ("target", "drafter", "device", "runtime", "regime"):
        if wanted := card["requires"].get(key):
            lines.append(f"requires {key}: {', '.join(wanted)}")
    lines += [_variant(variant) for variant in card.get("variants", [])]
    lines += [f"{change['change']:<8}{change['path']}" for change in found["changes"]]
    lines += [f"review: {text}" for text in found["review"]]
    lines += [f"limit: {text}" for text in card.get("limits", [])]
    lines += [f"untested: {text}" for text in card.get("untested", [])]
    lines += [_evidence(one) for one in found["evidence"]] or ["evidence: none"]
    if not found["on_current_stock"]:
        lines.append(f"behind stock: `spt entry refresh {card['name']}` carries it on")
    return [*lines, f"delta {found['delta_id']}", f"commit {found['commit']}"]


def _text(paragraph: str) -> list[str]:
    """Lines of a longer text, set apart so that none can pass for one of ours."""
    return [f"  {line}" for line in paragraph.strip().splitlines()]


def _variant(variant: dict[str, Any]) -> str:
    options = " ".join(f"{name}={value}" for name, value in variant["options"].items())
    return f"switch on ({variant['name']}, {variant['card']}): {options}"


def _evidence(one: dict[str, Any]) -> str:
    line = one["line"]
    interval = (
        "" if line["interval"] is None else f", interval {line['interval'][0]:+.3f} to {line['interval'][1]:+.3f}"
    )
    answer = "" if one["answer"] is None else f" ({one['answer']})"
    units = "" if line["units"] is None else f"{line['units']} units, "
    return (
        f"evidence: {one['state']}, {one['kind']}{answer}: {one['ratio'] or 'no ratio'}{interval}, "
        f"{units}{line['requests']}, "
        f"on {line['card'].get('gpu') or line['card'].get('cpu') or 'an unnamed machine'}{_forcing(one)}"
    )


def _forcing(one: dict[str, Any]) -> str:
    """What forcing said of a system that was judged."""
    if one["kind"] != "judged":
        return ""
    forcing = one["line"]["forcing"]
    if forcing is None:
        return ", not forced"
    tokens = "the timed tokens" if forcing["timed"] == one["line"].get("verdict", {}).get("samples") else "other tokens"
    return f", forcing of {tokens}: {forcing['answer']}"

"""`spt entry new`: from the user's words to a card and a kept entry."""

import io
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from spt.distil import Draft, draft, keep
from spt.entry import Card, check_name, read_card
from spt.errors import Usage
from spt.git.message import split_message
from spt.git.objects import Person
from spt.git.tree import splice
from spt.memory import Memory
from spt.system import additions

__all__ = ["make_entry"]

_DAY_MIN = 24 * 60


def make_entry(
    memory: Memory,
    name: str,
    system: str,
    chosen: Sequence[str],
    requires: Sequence[str],
    file: Path | None,
    contract: str | None,
    invariants: Sequence[str],
    *,
    partial: bool,
) -> dict[str, Any]:
    """Stages an entry of commits of a system (revisions, as the user named them); returns its source line."""
    check_name(name)
    commits = [memory.store.resolve(revision) for revision in chosen]
    if file is None:
        absent = [flag for flag, word in (("--contract", contract), ("--invariant", invariants)) if not word]
        if contract is None or absent:
            raise Usage(f"an entry needs a contract: name {' and '.join(absent)}", "or give a whole card with --yaml")
        found = draft(memory, requires, memory.store.resolve(system), commits)
        data = _written_card(memory, name, found, contract, invariants)
    else:
        if contract or invariants or requires:
            raise Usage(
                "--yaml says contract and requirements itself", "leave --contract, --invariant, --requires away"
            )
        data = file.read_bytes()
        found = draft(memory, read_card(data, file.name).requires, memory.store.resolve(system), commits)
    card = read_card(data, "entry.yaml" if file is None else file.name)
    if card.name != name:
        raise Usage(f"'{file}' is the card of entry '{card.name}', not of '{name}'")
    return keep(memory, card, data, found, partial=partial)


def _written_card(memory: Memory, name: str, found: Draft, contract: str, invariants: Sequence[str]) -> bytes:
    """An entry.yaml from what the newest commit says and what the delta adds."""
    from ruamel.yaml import YAML

    subject, body = split_message(found.newest.message)
    if not subject:
        raise Usage(
            f"commit '{found.newest.oid[:12]}' has no message to make a card of", "give a whole one with --yaml"
        )
    result = splice(memory.objects, found.base, {row.path: row.new for row in found.delta.rows})
    options, seams = additions(memory.objects, found.base, result)
    commit = {"author": _person(found.newest.author), "date": _date(found.newest.author), "subject": subject}
    record = {
        "spt": "1",
        "name": name,
        "title": subject,
        "summary": subject,
        "mechanism": body or subject,
        "requires": {"entries": list(found.requires)},
        "options": options,
        "seams": seams,
        "contract": {"kind": contract, "invariants": list(invariants)},
        "commit": {**commit, **({"body": body} if body else {})},
    }
    yaml = YAML()
    yaml.width = 4096
    yaml.default_flow_style = False
    out = io.BytesIO()
    yaml.dump(record, out)
    data = out.getvalue()
    assert Card(record).data == read_card(data, "entry.yaml").data
    return data


def _person(author: Person) -> str:
    clean = "".join(letter for letter in author.name if letter not in "<>\n").strip() or "unknown"
    return f"{clean} <{author.email.replace(' ', '')}>"


def _date(author: Person) -> str:
    is_zone = 0 < abs(author.zone_min) < _DAY_MIN  # git lets a commit say anything
    zone = timezone(timedelta(minutes=author.zone_min)) if is_zone else UTC
    try:
        text = datetime.fromtimestamp(author.time_s, zone).isoformat(timespec="seconds")
    except (ValueError, OverflowError, OSError) as error:
        raise Usage(f"a commit's date '{author.time_s}' is none of the calendar", "give a card with --yaml") from error
    return text.replace("+00:00", "Z")

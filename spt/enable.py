"""Switching entries on: the option values of a variant, into deployment.yaml."""

import io
import os
import stat
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from spt.deployment import EXAMPLE_TARGET
from spt.entry import Card
from spt.errors import Missing, Usage
from spt.formats import read_yaml
from spt.git.objects import Objects, Oid
from spt.system import Value, check_options, options_of

__all__ = ["enable", "enabled", "switches_of"]


def switches_of(card: Card) -> list[str]:
    """How to switch an entry on, in words: a line a variant, or what it adds where there is none."""
    lines = []
    for variant in card.variants:
        options = " ".join(f"{name}={value}" for name, value in variant["options"].items())
        lines.append(f"to switch {card.name} on ({variant['name']}, {variant['card']}): {options}")
    if lines:
        return lines
    adds = [f"{seam}={value}" for seam, values in card.seams.items() for value in values]
    return [f"{card.name} adds {', '.join([*adds, *sorted(card.options)]) or 'no option'}; the default is stock"]


def enabled(
    file: Path, cards: Sequence[Card], variant: str | None, objects: Objects, tree: Oid
) -> tuple[bytes, list[str]]:
    """(the text of a deployment file with a variant of each entry in its `options`, what it switches on in words).

    Comments and order are kept.

    Raises Missing where there is no such file, Usage for a variant that an entry does not have or a value that the
    system's options do not allow.
    """
    try:
        text = file.read_bytes()
    except FileNotFoundError as error:
        start = f"spt: 1\\nname: demo\\ntarget: {{path: {EXAMPLE_TARGET}}}\\n"
        raise Missing(f"there is no '{file}'", f"printf '{start}' > deployment.yaml starts one, for example") from error
    held = read_yaml(text, file.name)
    if not isinstance(held, dict) or not isinstance(held.get("options") or {}, dict):
        raise Usage(f"{file.name}: a deployment file is a mapping, and so are its options")
    declared = options_of(objects, tree)
    values: dict[str, Value] = {}
    said = []
    for card in cards:
        chosen = _variant(card, variant)
        own = check_options(declared, chosen["options"], f"variant '{chosen['name']}' of {card.name}")
        words = " ".join(f"{name}={value}" for name, value in own.items())
        said.append(f"{file.name} switches {card.name} on ({chosen['name']}): {words}")
        values |= own
    return _with_options(text, values), said


def _variant(card: Card, name: str | None) -> dict[str, Any]:
    names = [str(variant["name"]) for variant in card.variants]
    if not names:
        raise Missing(f"entry '{card.name}' has no variant", "set its options in deployment.yaml by hand")
    if name is None and len(names) > 1:
        raise Usage(f"entry '{card.name}' has several variants", f"--variant one of: {', '.join(names)}")
    if name is not None and name not in names:
        raise Usage(f"entry '{card.name}' has no variant '{name}'", f"it has: {', '.join(names)}")
    return card.variants[names.index(name) if name is not None else 0]


def _with_options(text: bytes, values: dict[str, Value]) -> bytes:
    from ruamel.yaml import YAML

    yaml = YAML(typ="rt")
    yaml.preserve_quotes = True
    yaml.width = 4096
    document = yaml.load(text.decode())
    if document.get("options") is None:
        document["options"] = {}
    document["options"].update(values)
    out = io.BytesIO()
    yaml.dump(document, out)
    return out.getvalue()


def enable(file: Path, text: bytes) -> None:
    """Writes a deployment file at once, or not at all; it keeps its mode, and a link to it stays one."""
    file = file.resolve()
    handle, part = tempfile.mkstemp(prefix=".spt-", dir=file.parent)
    with os.fdopen(handle, "wb") as out:
        out.write(text)
    Path(part).chmod(stat.S_IMODE(file.stat().st_mode))
    Path(part).replace(file)

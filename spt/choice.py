"""What a command is to run: the deployment that flags and file name, and the options of a system.

Flags go over the file key by key.  Options are checked against what the system's tree declares, before any engine
is started; what is wrong is said with the place that it came from and the way to what was meant.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from spt.deployment import EXAMPLE_TARGET, NUMBERS, Deployment, parse, read_words
from spt.errors import Missing, SptError, Usage

__all__ = ["Chosen", "checked_options", "choose_deployment", "nearest_deployment", "split_options"]

_DEVICE = re.compile(r"cpu|cuda(:[0-9]+)?")
# Flags that go into a mapping of the file, by its key.
_INNER = {"sampling": ("temperature", "seed"), "target": ("widen", "jitter")}


@dataclass(frozen=True)
class Chosen:
    """A deployment, the file that it came from or None, and what the user should know about the choice."""

    deployment: Deployment
    file: Path | None
    notes: tuple[str, ...] = ()


def choose_deployment(
    file: str | None, target: str | None, drafter: str | None, words: Mapping[str, str | None], here: Path
) -> Chosen:
    """The deployment that the file says (by default the nearest one), with what the flags say put over it.

    Missing where there is neither file nor target; Usage, naming the flag, for a word that cannot be.
    """
    given = {key: word for key, word in words.items() if word is not None}
    _refuse_bad_flags(given)
    found = Path(file) if file is not None else nearest_deployment(here)
    if found is None and target is None:
        raise Missing(
            "no deployment: there is no deployment.yaml here, and neither --deployment nor --target is given",
            f"--target {EXAMPLE_TARGET}, for instance; a deployment.yaml names it once (docs/deployment.md)",
        )
    if found is None:
        value, where, folder = {"spt": "1", "name": "generate"}, "command line", here
    else:
        value, where, folder = read_words(found), str(found), found.absolute().parent
    notes: list[str] = []
    if isinstance(value, dict):
        value = _overlaid(value, folder, target, drafter, given, here, notes)
    return Chosen(parse(value, where, folder), found, tuple(notes))


def _refuse_bad_flags(given: Mapping[str, str]) -> None:
    for key, names in _INNER.items():
        for name in names:
            read_number, meaning = NUMBERS[f"{key}.{name}"]
            if name in given and read_number(given[name]) is None:
                raise Usage(f"--{name} '{given[name]}' is not {meaning}")
    if "device" in given and not _DEVICE.fullmatch(given["device"]):
        raise Usage(f"--device '{given['device']}' is none of cpu, cuda and cuda:N")


def _overlaid(
    value: Mapping[str, Any],
    folder: Path,
    target: str | None,
    drafter: str | None,
    given: Mapping[str, str],
    here: Path,
    notes: list[str],
) -> dict[str, Any]:
    """A deployment's words with the flags over them; another target has its own drafter, whatever the file says."""
    inner = {name for names in _INNER.values() for name in names}
    made = {**value, **{key: word for key, word in given.items() if key not in inner}}
    if target is not None and _absolute(target, here) != _held_target(value, folder):
        made["target"] = {"path": _absolute(target, here)}
        if made.pop("drafter", None) is not None and drafter is None:
            notes.append("the file's drafter is not for another target: the shipped one where it fits, else none")
    for key, names in _INNER.items():
        if over := {name: given[name] for name in names if name in given}:
            made[key] = {**(made.get(key) or {}), **over}
    if drafter is not None:
        made["drafter"] = None if drafter == "none" else {"path": _absolute(drafter, here)}
    return made


def _held_target(value: Mapping[str, Any], folder: Path) -> str | None:
    held = value.get("target")
    word = held.get("path") if isinstance(held, dict) else None
    return _absolute(word, folder) if isinstance(word, str) else None


def _absolute(word: str, here: Path) -> str:
    return word if word.startswith("package:") else str(here / word)


def nearest_deployment(here: Path) -> Path | None:
    """`deployment.yaml` in `here` or a folder above it, up to the root of a repository."""
    for folder in (here, *here.parents):
        if (folder / "deployment.yaml").is_file():
            return folder / "deployment.yaml"
        if (folder / ".git").exists():
            return None
    return None


# --- options ---


def split_options(options: Sequence[str]) -> dict[str, str]:
    """{name: value} of NAME=VALUE words."""
    values: dict[str, str] = {}
    for word in options:
        name, sign, value = word.partition("=")
        if not name or not sign:
            raise Usage(f"--option '{word}' is not of the form NAME=VALUE", "--option depth=7, for example")
        if name in values:
            raise Usage(f"--option '{name}' is given twice")
        values[name] = value
    return values


def checked_options(
    declared: Mapping[str, Any], layers: Iterable[tuple[str, Mapping[str, Any], str | None]], home: Any
) -> dict[str, Any]:
    """The values of layers (where they came from, values, a way to leave them out), later ones over earlier ones.

    Usage for the first that a system with these options does not take; it names what was perhaps meant, and the
    entry of `home` that adds it.
    """
    from spt.system import check_options

    values: dict[str, Any] = {}
    for where, given, way_out in layers:
        for name, value in given.items():
            try:
                values |= check_options(declared, {name: value}, where)
            except Usage as error:
                hints = [_meant(declared, name, value, home), way_out]
                raise Usage(error.message, "; ".join(filter(None, hints)) or error.hint) from error
    return values


def _meant(declared: Mapping[str, Any], name: str, value: object, home: Any) -> str | None:
    """What was perhaps meant: a word that an entry adds, one that is declared, or nearly one of either."""
    if name in declared and not declared[name].values:
        return None  # a number that is none: the system has the option, and no entry adds anything to that
    added = _added(home)
    words = (f"{name}={value}",) if name in declared else (name, f"{name}={value}")
    allowed = [str(one) for one in declared[name].values or ()] if name in declared else []
    here = get_close_matches(str(value), allowed, 1) if name in declared else get_close_matches(name, declared, 1)
    exact = [word for word in words if word in added]
    if here and not exact:
        return f"did you mean '{here[0]}'?"
    near = exact or [one for word in words for one in get_close_matches(word, added, 1, 0.85)]
    if near:
        entry = added[near[0]]
        return f"entry '{entry}' adds '{near[0]}': `spt entry apply {entry}`, or take '{entry}' as the system"
    return f"it takes one of: {', '.join(allowed)}" if allowed else None


def _added(home: Any) -> dict[str, str]:
    """{option or seam=value: the entry that adds it}, by what the cards say."""
    added: dict[str, str] = {}
    for one in sorted(home.memory.entries):
        try:
            card = home.memory.card(one)
        except SptError:
            continue  # what is wrong with an entry is not what is asked here
        added |= dict.fromkeys(card.options, one)
        added |= {f"{seam}={choice}": one for seam, choices in card.seams.items() for choice in choices}
    return added

"""How far entries transfer: for each entry and deployment, whether it fits, applies, and pays or loses there.

A deployment is known by its digest, from rounds and from lines of evidence.  What a card requires in words that nobody
can check stays words; only device and versions are held against the machine.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from spt.errors import Conflict, SptError
from spt.evidence import CARRIED, CURRENT, STALE, Evidence, evidence_of
from spt.memory import Memory, records_path
from spt.report.story import Story
from spt.verdicts import Ledger

__all__ = ["Cell", "Machine", "Place", "Transfer", "fits", "transfer"]

PAYS, LOSES, UNCLEAR, UNMEASURED = "pays", "loses", "unclear", "not measured"
# Compute capability by what a device's name holds; the first that is found counts.
_ARCHITECTURES = (
    ("GB200", "sm_100"),
    ("B200", "sm_100"),
    ("GH200", "sm_90"),
    ("H200", "sm_90"),
    ("H100", "sm_90"),
    ("A100", "sm_80"),
    ("L40S", "sm_89"),
    ("RTX PRO 6000", "sm_120"),
)
_VERSION = re.compile(r"(torch|triton|cuda|driver)\s*>=\s*(\d+(?:\.\d+)*)(\s+on a GPU)?")
_FILE = re.compile(r"evidence/\d{4}-\d\d-\d\d-(.+)\.jsonl")
_RANK = {CURRENT: 2, CARRIED: 1, STALE: 0}


@dataclass(frozen=True)
class Machine:
    """What a deployment ran on, as far as cards tell: None where they do not."""

    gpu: str | None
    cpu: str | None
    versions: Mapping[str, str | None]

    @classmethod
    def of(cls, card: Mapping[str, Any]) -> "Machine":
        versions = {name: card.get(name) for name in ("torch", "triton", "cuda", "driver")}
        return cls(card.get("gpu"), card.get("cpu"), versions)

    @property
    def name(self) -> str:
        return self.gpu or self.cpu or "an unnamed processor"

    @property
    def architecture(self) -> str | None:
        """What a card would call it: cpu, sm_90; None for a GPU that is not in our table."""
        if self.gpu is None:
            return "cpu"
        return next((word for needle, word in _ARCHITECTURES if needle in self.gpu), None)


@dataclass
class Place:
    """A deployment: its digest, the names and stock trees that were seen of it, and its machine."""

    digest: str
    names: list[str] = field(default_factory=list)
    stocks: list[str] = field(default_factory=list)
    machine: Machine | None = None

    @property
    def name(self) -> str:
        return ", ".join(self.names) or "unnamed"


@dataclass(frozen=True)
class Cell:
    """One entry on one deployment.

    fits: yes, no or unknown, and why.  applies: yes, conflict or unknown, and where.  pays: what its evidence says.
    line: that evidence, or None, and file: how it is read; over: what its figure is over; others: how many more lines
    there are, stale ones too.
    """

    fits: str
    why: str
    applies: str
    pays: str
    figure: str
    over: str
    state: str
    line: Mapping[str, Any] | None
    file: str
    others: int


@dataclass(frozen=True)
class Subject:
    """One entry: what its card requires in words that only people can check, and a cell for each place."""

    name: str
    title: str
    needs: tuple[str, ...]
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Transfer:
    """All entries on all deployments; `left_out` says which entries cannot be read, and why."""

    places: tuple[Place, ...]
    entries: tuple[Subject, ...]
    left_out: tuple[str, ...]


def transfer(memory: Memory, ledger: Ledger, stories: Sequence[Story]) -> Transfer:
    """What cards, stock trees and evidence say; entries that cannot be read are named and left out."""
    evidence: dict[str, list[Evidence]] = {}
    left_out = [f"'{name}': {error.message}" for name, error in sorted(memory.broken.items())]
    for name in sorted(memory.entries):
        try:
            memory.card(name)
            evidence[name] = evidence_of(memory, name)
        except SptError as error:
            left_out.append(f"'{name}': {error.message}")
    places = _places(ledger, stories, [one for lines in evidence.values() for one in lines])
    entries = []
    for name, lines in evidence.items():
        card = memory.card(name)
        cells = tuple(_cell(memory, name, place, lines) for place in places)
        entries.append(Subject(name, str(card.data["title"]), tuple(_words(card.data["requires"])), cells))
    return Transfer(tuple(places), tuple(entries), tuple(left_out))


def _places(ledger: Ledger, stories: Sequence[Story], evidence: Iterable[Evidence]) -> list[Place]:
    found: dict[str, Place] = {}

    def place(digest: str, name: str | None, stock: str) -> Place:
        one = found.setdefault(digest, Place(digest))
        if name and name not in one.names:
            one.names.append(name)
        if stock and stock not in one.stocks:
            one.stocks.append(stock)
        return one

    for each in evidence:
        named = _FILE.fullmatch(each.file)
        one = place(each.line["deployment"], named[1] if named else None, each.line["stock_tree"])
        one.machine = Machine.of(each.line["card"])
    verdicts = [held.verdict for held in ledger.all() if held.verdict is not None] if stories else []
    for story in stories:
        if story.digest:
            one = place(story.digest, story.deployment, story.stock)
            cards = [verdict["of"]["card"] for verdict in verdicts if verdict["of"]["deployment"] == story.digest]
            if one.machine is None and cards:
                one.machine = Machine.of(cards[-1])
    return sorted(found.values(), key=lambda one: (one.name, one.digest))


def _cell(memory: Memory, name: str, place: Place, evidence: Sequence[Evidence]) -> Cell:
    here = [each for each in evidence if each.line["deployment"] == place.digest]
    # The newest of the best standing: of now before what moved, judged before raw.
    ranked = sorted(here, key=lambda each: (_RANK[each.state], each.kind == "judged"))
    best = ranked[-1] if ranked else None
    verdict, why = fits(memory.card(name).data["requires"], place.machine)
    return Cell(
        fits=verdict,
        why=why,
        applies=_applies(memory, name, place),
        pays=_pays(best),
        figure="" if best is None or best.ratio is None else str(best.ratio),
        over="" if best is None else _over(best.line),
        state="" if best is None else f"{best.state}, {best.kind}",
        line=None if best is None else best.line,
        file="" if best is None else _file(memory, name, best.file),
        others=max(0, len(here) - 1),
    )


def _over(line: Mapping[str, Any]) -> str:
    """What a line's figure is over, in a word."""
    baseline = line["baseline"]
    if baseline["tree"] == line["stock_tree"]:
        return "stock, options set" if baseline["options"] else "stock"
    same = baseline["tree"] == line["system_tree"]
    return "the same tree, other options" if same else f"another tree, {baseline['tree'][:12]}"


def _file(memory: Memory, name: str, file: str) -> str:
    """How a line of evidence is read: from the entry's branch, or among shipped files, which have none."""
    if memory.store.common is None:
        return f"entries/{name}/{file}"
    return f"git show entry/{name}:{records_path(name)}/{file}"


def _pays(evidence: Evidence | None) -> str:
    """What an interval shows: no word is said of a figure without one."""
    if evidence is None or evidence.line["gain"] is None:
        return UNMEASURED
    interval = evidence.line["interval"]
    if interval is None:
        return UNCLEAR
    return PAYS if interval[0] > 0 else LOSES if interval[1] < 0 else UNCLEAR


def _applies(memory: Memory, name: str, place: Place) -> str:
    """Whether the entry and what it requires compose on the deployment's newest stock that is here, else on today's."""
    stock = next((tree for tree in reversed(place.stocks) if tree in memory.objects), memory.stock)
    where = "" if stock in place.stocks else ", on the stock of now; its own is not here"
    try:
        memory.composition(stock).tree(memory.closure([name]))
    except Conflict:
        return f"conflict{where}"
    except SptError as error:
        return f"unknown: {error.message}"
    return f"yes{where}"


def fits(requires: Mapping[str, Any], machine: Machine | None) -> tuple[str, str]:
    """(yes, no or unknown, what decides): the card's devices and versions against a machine."""
    if machine is None:
        return "unknown", "no card says what it runs on"
    devices = [str(word) for word in requires.get("device") or ()]
    if devices and not any(word.startswith("any") for word in devices):
        if machine.architecture is None:
            return "unknown", f"'{machine.gpu}' is not in our table; the card says {', '.join(devices)}"
        if machine.architecture not in devices:
            return "no", f"it runs on {', '.join(devices)}, not on {machine.architecture}"
    unknown = ""
    for word in requires.get("runtime") or ():
        for name, least, on_gpu in _VERSION.findall(str(word)):
            if on_gpu and machine.gpu is None:
                continue
            version = machine.versions.get(name)
            if version is None:
                unknown = f"no card says which {name}"
            elif _parts(version) < _parts(least):
                return "no", f"{name} {version} is older than {least}"
    return ("unknown", unknown) if unknown else ("yes", "device and versions")


def _parts(version: str) -> tuple[int, ...]:
    """Three numbers: 2.9 is 2.9.0."""
    found = [int(part) for part in re.findall(r"\d+", version.partition("+")[0])]
    return tuple([*found, 0, 0, 0][:3])


def _words(requires: Mapping[str, Any]) -> Iterable[str]:
    """What a card requires in words that only people can check."""
    for name in ("target", "drafter", "regime"):
        if wanted := requires.get(name):
            yield f"{name}: {', '.join(map(str, wanted))}"

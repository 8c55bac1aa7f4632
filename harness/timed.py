"""The tokens that were timed, as the first that are forced: taken over from the samples of a finished campaign."""

from pathlib import Path

from harness import promotion
from harness.errors import Usage
from harness.rules import rule_named
from harness.samples import Line, Samples, Unit, Writer, comparable, read
from harness.verdict import judged_units

__all__ = ["PHASE", "take_over", "timed_digest"]

PHASE = "confirm"  # only these units are what a promotion is of


def timed_digest(path: Path) -> str:
    """The digest by which a forcing verdict names what was timed; Usage where that is no finished confirmation."""
    samples = read(path)
    _confirmed(samples, path)
    return samples.digest


def take_over(writer: Writer, path: Path | None, begun: bool) -> None:
    """Puts what arm `a` said in the counting units of the confirmation in `path` first among the writer's samples.

    begun: whether answers were asked already.  A run that was killed in the midst takes over what is missing.
    Raises `Usage` where the two are not of one pair, deployment, rule and card, where the campaign in `path` is not
    finished or confirmed nothing, and where the writer's samples began otherwise.
    """
    own = writer.read()
    if path is None:
        if own.timed is not None:
            raise Usage(f"'{writer.path}' forces the tokens that were timed", "--timed SAMPLES names them")
        return
    timed = read(path)
    _refuse_other(own, timed, path)
    units = _confirmed(timed, path)
    lines = [each for unit in units for each in _lines(unit)]
    if own.timed is None:
        if begun:
            raise Usage(f"'{writer.path}' began without the tokens that were timed", "give another folder")
        tokens = sum(len(line["ids"]) for line in lines if line["type"] == "answer")
        lines = [{"type": "timed", "samples": timed.digest, "tokens": tokens}, *lines]
    elif own.timed["samples"] != timed.digest:
        raise Usage(f"'{writer.path}' forces the tokens of other samples than '{path}'", "give another folder")
    done = {unit.number for unit in own.of(PHASE)}
    writer.add_all(line for line in lines if line.get("unit") not in done)


def _lines(unit: Unit) -> list[Line]:
    return [*unit.said("a"), {"type": "unit", "phase": PHASE, "unit": unit.number, "first": ["a"], "leads": [[]]}]


def _confirmed(samples: Samples, path: Path) -> list[Unit]:
    """The units that the verdict on a campaign is of."""
    rule_named(samples.campaign["rule"])
    outcome = promotion.next_step(samples)
    if isinstance(outcome, promotion.Measure):
        raise Usage(f"the campaign in '{path}' is not finished", "the command that started it goes on from there")
    units = judged_units(samples, outcome) if outcome.phase == PHASE else []
    if samples.timed is not None or not units:
        raise Usage(f"nothing was confirmed in '{path}': it holds no tokens that were timed for a promotion")
    return units


def _refuse_other(own: Samples, timed: Samples, path: Path) -> None:
    mine, theirs = own.campaign, timed.campaign
    for name in ("deployment", "rule"):
        if mine[name] != theirs[name]:
            raise Usage(f"the timed samples '{path}' are of another {name}")
    for arm in ("a", "b", "stock"):
        if mine["arms"][arm] != theirs["arms"][arm]:
            raise Usage(f"the timed samples '{path}' are of another pair: arm '{arm}' differs")
    if not all(comparable(own.cards[-1], card) for card in timed.cards):
        raise Usage(f"the timed samples '{path}' are of a machine that cannot be compared with this one")

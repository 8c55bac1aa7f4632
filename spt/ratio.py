"""The figure of a timing verdict: a raw ratio, or a speedup once forcing accepted the tokens that were timed.

There is no way to make a `Speedup` but from a ledger that holds the forcing verdict.
"""

from collections.abc import Mapping
from typing import Any

from spt.errors import Differs
from spt.evidence import RawRatio
from spt.verdicts import FINAL, Ledger

__all__ = ["RawRatio", "Speedup", "figure_of"]


class Speedup:
    """Time before over time after, of a system whose timed tokens forcing accepted; `forcing` is that verdict's key.

    `against` names the comparison of a final, which holds its own forcing.
    """

    __slots__ = ("_forcing", "_value")

    def __init__(self, ledger: Ledger, verdict: Mapping[str, Any], against: str | None = None) -> None:
        gain = _gain(verdict, against)
        if ledger.held(verdict["what"], verdict["key"]).verdict != verdict or gain is None:
            problem = f"this {verdict['what']} verdict is not in the ledger: it has no figure"
            raise Differs(problem, "`spt verdict add` takes it in")
        if (rejected := ledger.rejecting(verdict)) is not None:
            raise Differs(
                "forcing rejected this system: its figure is a raw ratio",
                f"`spt verdict show {rejected['key'][:12]}` says why",
            )
        forcing = _accepting(ledger, verdict)
        if forcing is None:
            raise Differs(
                "no forcing verdict in the ledger accepts the tokens that were timed: the figure is a raw ratio",
                "`spt force A B` forces the tokens that were timed",
            )
        self._value, self._forcing = 1 + gain, str(forcing["key"])

    @property
    def value(self) -> float:
        return self._value

    @property
    def forcing(self) -> str:
        return self._forcing

    def __str__(self) -> str:
        return f"speedup {self.value:.3f}"


def _gain(verdict: Mapping[str, Any], against: str | None) -> float | None:
    gain = verdict["gain"] if against is None else verdict["timing"][against]["gain"]
    return None if gain is None else float(gain)


def _accepting(ledger: Ledger, verdict: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The verdict that accepts the tokens of the system: a final's own, or forcing's."""
    if verdict["what"] == FINAL:
        return verdict if verdict["answer"] == "accept" and ledger.rejecting(verdict) is None else None
    return ledger.passing(verdict)


def figure_of(ledger: Ledger, verdict: Mapping[str, Any], against: str | None = None) -> RawRatio | Speedup | None:
    """What may be said of the gain in a verdict; None where it has none."""
    gain = _gain(verdict, against)
    if gain is None:
        return None
    held = ledger.held(verdict["what"], verdict["key"]).verdict
    if held == verdict and _accepting(ledger, verdict) is not None:
        return Speedup(ledger, verdict, against)
    return RawRatio(1 + gain)

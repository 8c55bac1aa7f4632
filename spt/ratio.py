"""The figure of a timing verdict: a raw ratio, or a speedup once forcing accepted the tokens that were timed.

There is no way to make a `Speedup` but from a ledger that holds the forcing verdict.
"""

from collections.abc import Mapping
from typing import Any

from spt.errors import Differs
from spt.evidence import RawRatio
from spt.verdicts import Ledger

__all__ = ["RawRatio", "Speedup", "figure_of"]


class Speedup:
    """Time before over time after, of a system whose timed tokens forcing accepted; `forcing` is that verdict's key."""

    __slots__ = ("_forcing", "_value")

    def __init__(self, ledger: Ledger, timing: Mapping[str, Any]) -> None:
        held = ledger.held("timing", timing["key"]).verdict
        if held != timing or timing["gain"] is None:
            raise Differs("this timing verdict is not in the ledger: it has no figure", "`spt verdict add` takes it in")
        if (rejected := ledger.rejecting(timing)) is not None:
            raise Differs(
                "forcing rejected this system: its figure is a raw ratio",
                f"`spt verdict show {rejected['key'][:12]}` says why",
            )
        forcing = ledger.passing(timing)
        if forcing is None:
            raise Differs(
                "no forcing verdict in the ledger accepts the tokens that were timed: the figure is a raw ratio",
                "`spt force A B` forces the tokens that were timed",
            )
        self._value, self._forcing = 1 + float(timing["gain"]), str(forcing["key"])

    @property
    def value(self) -> float:
        return self._value

    @property
    def forcing(self) -> str:
        return self._forcing

    def __str__(self) -> str:
        return f"speedup {self.value:.3f}"


def figure_of(ledger: Ledger, timing: Mapping[str, Any]) -> RawRatio | Speedup | None:
    """What may be said of a timing verdict; None where it has no gain."""
    if timing["gain"] is None:
        return None
    if ledger.passing(timing) is not None and ledger.held("timing", timing["key"]).verdict == timing:
        return Speedup(ledger, timing)
    return RawRatio(1 + float(timing["gain"]))

"""The audit of large mismatches in words: what stood before, what the system said, what stock would have said."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.errors import Missing, Unsupported
from harness.samples import Samples
from harness.scored import SYSTEM_PHASES
from harness.text import Text, load_text

__all__ = ["in_words"]

BEFORE_TOK = 24
MAX_IDS = 1 << 32  # samples may name any number, and a tokenizer none beyond


def in_words(verdict: dict[str, Any], samples: Samples, target: Path) -> dict[str, Any]:
    """A forcing verdict whose audited events have their tokens as text: `before`, `given_text`, `best_text`.

    An engine chose these tokens, so nothing in the text can steer a terminal.  A target without a tokenizer, which is
    asked in ids alone, leaves the verdict as it is.
    """
    try:
        text = load_text(target)
    except (Missing, Unsupported):
        return verdict
    said = {
        line["request"]: line["prompt"] + line["ids"] for unit in samples.of(*SYSTEM_PHASES) for line in unit.said("a")
    }
    audit = [
        {
            **event,
            "before": _words(text, said[event["request"]][: event["position"]][-BEFORE_TOK:]),
            "given_text": _words(text, [event["given"]]),
            "best_text": _words(text, [event["best"]]),
        }
        for event in verdict["audit"]
    ]
    return {**verdict, "audit": audit}


def _words(text: Text, ids: Sequence[int]) -> str:
    """One line; a break is shown as `\\n`, and other characters that are not printed as a space."""
    shown = text.decode([token for token in ids if token < MAX_IDS]).replace("\\", "\\\\").replace("\n", "\\n")
    return "".join(letter if letter.isprintable() else " " for letter in shown)

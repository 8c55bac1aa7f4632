"""The summary of a measurement: a folder that has one is finished, and its files are the ones that it names."""

import hashlib
from pathlib import Path
from typing import Any

from harness import shape
from harness.errors import Usage
from harness.file import read_own
from harness.machine import COMPARED
from harness.shape import anything, constant, hexadecimal, integer, mapping, number, one_of, optional, record

__all__ = ["ANSWERS", "PROFILE", "STEPS", "SUMMARY", "digest_of", "read_summary"]

SUMMARY = "measurement.json"
ANSWERS, STEPS, PROFILE = "answers.jsonl", "steps.jsonl", "profile.jsonl"
_MOST_BYTES = 16 << 20
_ELSEWHERE = "measure into another folder"

_SHA = hexadecimal(64)
_SYSTEM = record({"tree": hexadecimal(40), "options": mapping(anything)})
_COUNTS = record(
    {
        **{
            name: integer()
            for name in ("answers", "tokens", "looped_tokens", "steps", "step_tokens", "kept_steps", "kept_tokens")
        },
        **{name: optional(number(0)) for name in ("tau", "tau_all")},
    }
)
_SUMMARY = record(
    {
        "v": constant(1),
        "kind": constant("measurement"),
        "deployment": mapping(anything),
        "deployment_digest": optional(_SHA),
        "system": _SYSTEM,
        "stock": _SYSTEM,
        "target": record({"digest": _SHA, "widen": integer(1), "jitter": integer()}),
        "drafter": _SHA,
        "counts": _COUNTS,
        "families": mapping(_COUNTS),
        "times": record({name: number(0) for name in ("prefill_s", "decode_s", "lattice_s")}),
        "lattice": record(
            {**{name: integer(1) for name in ("depths", "ranks")}, "positions": integer(), "bytes": integer()}
        ),
        "files": record({ANSWERS: _SHA, STEPS: _SHA}, {PROFILE: _SHA}),
        "card": mapping(anything),
        "date": shape.text,
    },
    {"unprofiled": one_of("unsupported", "short")},
)


def read_summary(folder: Path) -> dict[str, Any]:
    """The summary of a finished measurement, {} of one that is not finished; nothing is written.

    Usage for a summary that is none, and where answers or steps are not those that it names.  Its profile is left out:
    one that is gone may be taken again.
    """
    path = folder / SUMMARY
    text = read_own(path, _MOST_BYTES, _ELSEWHERE)
    if text is None:
        return {}
    try:
        summary: dict[str, Any] = shape.loads(text)
        _SUMMARY(summary, "the summary")
        for name in COMPARED:
            if name not in summary["card"]:
                raise shape.Mismatch(f"the summary 'card' lacks the key '{name}'")
    except shape.Mismatch as error:
        raise Usage(f"'{path}': {error}", _ELSEWHERE) from None
    for name in (ANSWERS, STEPS):
        file = folder / name
        if not file.is_file() or file.is_symlink():
            raise Usage(f"'{file}' is not there as a plain file, and '{SUMMARY}' tells of it", _ELSEWHERE)
        if digest_of(file) != summary["files"][name]:
            raise Usage(f"'{file}' was cut or changed after it was measured", _ELSEWHERE)
    return summary


def digest_of(path: Path) -> str:
    """The sha256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

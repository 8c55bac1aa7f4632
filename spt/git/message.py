"""Commit messages: a subject, perhaps a body, and the trailers by which a commit says which entry it is of."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from spt.git.objects import Person

__all__ = ["TOOL", "Trailers", "compose_message", "read_trailers", "split_message"]

# Commits that nobody wrote (stock, composed bases) are made by this person at time 0, so that their ids are
# the same on every machine.
TOOL = Person("spt", "spt@invalid", 0, 0)

_TRAILER = re.compile(r"^(Spt-[A-Za-z-]+): (\S.*)$")
_KEYS = {"entry": "Spt-Entry", "delta": "Spt-Delta", "base_tree": "Spt-Base-Tree", "result_tree": "Spt-Result-Tree"}


@dataclass(frozen=True)
class Trailers:
    """What a message's last paragraph says; None where it says nothing.

    `requires` is sorted (name, delta id) of the entries that are required directly.
    """

    entry: str | None = None
    delta: str | None = None
    requires: tuple[tuple[str, str], ...] = ()
    base_tree: str | None = None
    result_tree: str | None = None

    def lines(self) -> list[str]:
        """The trailer lines, in a fixed order."""
        lines = [f"Spt-Entry: {self.entry}"] if self.entry else []
        lines += [f"Spt-Delta: {self.delta}"] if self.delta else []
        lines += [f"Spt-Requires: {name}@{delta}" for name, delta in sorted(self.requires)]
        lines += [f"Spt-Base-Tree: {self.base_tree}"] if self.base_tree else []
        return lines + ([f"Spt-Result-Tree: {self.result_tree}"] if self.result_tree else [])


def compose_message(subject: str, body: str, trailers: Trailers) -> str:
    """The whole message, one newline at its end."""
    paragraphs = [subject.strip(), body.strip(), "\n".join(trailers.lines())]
    return "\n\n".join(paragraph for paragraph in paragraphs if paragraph) + "\n"


def split_message(message: str) -> tuple[str, str]:
    """(subject, body) without trailers of ours."""
    lines = message.strip().split("\n")
    while lines and (_TRAILER.match(lines[-1]) or not lines[-1].strip()):
        lines.pop()
    return (lines[0] if lines else ""), "\n".join(lines[1:]).strip()


def read_trailers(message: str) -> Trailers:
    """The trailers of a message's last paragraph; the first of a key that may stand once counts."""
    paragraph: Iterable[str] = message.strip().split("\n\n")[-1].split("\n")
    pairs = [match.groups() for line in paragraph if (match := _TRAILER.match(line.strip()))]
    single = {field: next((value for key, value in pairs if key == name), None) for field, name in _KEYS.items()}
    pinned = sorted(value.partition("@")[::2] for key, value in pairs if key == "Spt-Requires")
    return Trailers(requires=tuple((name, delta) for name, delta in pinned), **single)

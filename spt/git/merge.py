"""Line hunks of one file, and the merge of several changes of it at once.

All changes are hunks in the coordinates of one common base, so there is no order in which they could be
applied and no offset to search for: they are disjoint, with an untouched line between, or they conflict.
"""

from collections.abc import Sequence
from typing import NamedTuple

import pygit2

from spt.errors import Conflict

__all__ = [
    "Hunk",
    "Overlap",
    "apply_hunks",
    "hunks",
    "merge",
    "merge_hunks",
    "merge_mode",
    "merge_with_markers",
    "split",
]


class Hunk(NamedTuple):
    """Lines [start, end) of the old content are replaced by `lines`, each with its own ending."""

    start: int
    end: int
    lines: tuple[bytes, ...]


class Overlap(Conflict):
    """Two sides change the same place; `sides` are their indices."""

    def __init__(self, message: str, sides: tuple[int, int]) -> None:
        super().__init__(message)
        self.sides = sides


def split(data: bytes) -> list[bytes]:
    """Lines with their newline; only b"\\n" ends one, as in git."""
    lines = data.split(b"\n")
    tail = lines.pop()
    return [line + b"\n" for line in lines] + ([tail] if tail else [])


def hunks(old: bytes, new: bytes) -> tuple[Hunk, ...]:
    """The smallest hunks that git's own diff finds; neither side may be binary (hold a NUL byte)."""
    after = split(new)
    patch = pygit2.Patch.create_from(old, new, context_lines=0, flag=pygit2.enums.DiffOption.FORCE_TEXT)
    found = []
    for hunk in patch.hunks:
        # A hunk without lines of one side names the line before it, as in a unified diff.
        start = hunk.old_start - (1 if hunk.old_lines else 0)
        first = hunk.new_start - (1 if hunk.new_lines else 0)
        found.append(Hunk(start, start + hunk.old_lines, tuple(after[first : first + hunk.new_lines])))
    return tuple(found)


def apply_hunks(old: bytes, changes: Sequence[Hunk]) -> bytes:
    """The old content with sorted, disjoint hunks replaced."""
    lines, done, parts = split(old), 0, []
    for hunk in changes:
        parts += [*lines[done : hunk.start], *hunk.lines]
        done = hunk.end
    return b"".join([*parts, *lines[done:]])


def merge(base: bytes, sides: Sequence[bytes], *, same_is_one: bool = False) -> bytes:
    """The base with the changes of all sides; Overlap where two of them come closer than one line.

    With `same_is_one`, hunks that two sides share are one change; without, saying the same twice is a conflict,
    because whether both were meant is not for a tool to guess.
    """
    if any(b"\0" in content for content in (base, *sides)):
        raise Overlap("binary content cannot be merged", (0, 1))
    return merge_hunks(base, [hunks(base, content) for content in sides], same_is_one=same_is_one)


def merge_hunks(base: bytes, sides: Sequence[Sequence[Hunk]], *, same_is_one: bool = False) -> bytes:
    """`merge` of sides whose hunks over the base are known."""
    changes = sorted((hunk, side) for side, found in enumerate(sides) for hunk in found)
    kept: list[tuple[Hunk, int]] = []
    for hunk, side in changes:
        if kept and same_is_one and hunk == kept[-1][0]:
            continue
        if kept and side != kept[-1][1] and hunk.start <= kept[-1][0].end:
            first, last = min(kept[-1][0].start, hunk.start) + 1, max(kept[-1][0].end, hunk.end, hunk.start + 1)
            lines = f"line {first}" if first >= last else f"lines {first} to {last}"
            raise Overlap(f"changes meet at {lines}", (kept[-1][1], side))
        kept.append((hunk, side))
    return apply_hunks(base, [hunk for hunk, _ in kept])


def merge_with_markers(base: bytes, ours: bytes, theirs: bytes, names: tuple[str, str]) -> bytes:
    """A three-way merge in which both sides of a conflict stand between markers, for a person to settle."""
    lines, parts, done = split(base), [], 0
    for cluster in _clusters(sorted((hunk, side) for side in (0, 1) for hunk in hunks(base, (ours, theirs)[side]))):
        start, end = cluster[0][0].start, max(hunk.end for hunk, _ in cluster)
        parts.append(b"".join(lines[done:start]))
        done = end
        texts = [_region(lines, start, end, [hunk for hunk, of in cluster if of == side]) for side in (0, 1)]
        touched = {side for _, side in cluster}
        if len(touched) == 1 or texts[0] == texts[1]:
            parts.append(texts[min(touched)])
        else:
            marks = (f"<<<<<<< {names[0]}\n", "=======\n", f">>>>>>> {names[1]}\n")
            mine, other = (text if text.endswith(b"\n") or not text else text + b"\n" for text in texts)
            parts += [marks[0].encode(), mine, marks[1].encode(), other, marks[2].encode()]
    return b"".join([*parts, *lines[done:]])


def _clusters(changes: Sequence[tuple[Hunk, int]]) -> list[list[tuple[Hunk, int]]]:
    clusters: list[list[tuple[Hunk, int]]] = []
    for change in changes:
        if clusters and change[0].start <= max(hunk.end for hunk, _ in clusters[-1]):
            clusters[-1].append(change)
        else:
            clusters.append([change])
    return clusters


def _region(lines: Sequence[bytes], start: int, end: int, changes: Sequence[Hunk]) -> bytes:
    moved = [Hunk(hunk.start - start, hunk.end - start, hunk.lines) for hunk in changes]
    return apply_hunks(b"".join(lines[start:end]), moved)


def merge_mode(base: int, sides: Sequence[int]) -> int:
    """The one mode that a side changed to, or the base's; Overlap where two sides changed it."""
    changed = [side for side, mode in enumerate(sides) if mode != base]
    if len(changed) > 1:
        raise Overlap("the mode is changed twice", (changed[0], changed[1]))
    return sides[changed[0]] if changed else base

"""Files of JSON lines: read by bytes, and written row by row so that a run that was stopped goes on."""

import json
from pathlib import Path
from typing import Any

__all__ = ["Rows", "read_lines"]


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a file, one a line; only a newline ends a line (U+2028 inside a text does not)."""
    return [json.loads(line) for line in path.read_bytes().split(b"\n") if line.strip()]


class Rows:
    """A file of rows that all stand under one key; each row is on disk when `add` returns.

    A last line without its newline is a write that was cut off: it is dropped.
    Raises SystemExit with one line, and changes nothing, where the file was measured under another key.
    """

    def __init__(self, path: Path, key: dict[str, Any]) -> None:
        self.path = path
        whole = path.read_bytes() if path.exists() else b""
        kept = whole[: whole.rfind(b"\n") + 1]
        self.rows: list[dict[str, Any]] = [json.loads(line) for line in kept.split(b"\n") if line]
        for row in self.rows:
            if row.get("kind") == "about":
                _refuse_other(path, row["key"], key)
        if self.rows and not any(row.get("kind") == "about" for row in self.rows):
            raise SystemExit(f"'{path}' says nowhere what its rows were measured on; name another --out")
        if kept != whole:
            with path.open("r+b") as file:
                file.truncate(len(kept))
        self.run = 1 + max((row["run"] for row in self.rows), default=0)

    def begin(self, about: dict[str, Any]) -> None:
        """States what this run is measured on."""
        self.add({"kind": "about", **about})

    def add(self, row: dict[str, Any]) -> None:
        """Appends a row of this run."""
        row = {"v": 1, "run": self.run, **row}
        with self.path.open("a") as file:
            file.write(json.dumps(row) + "\n")
        self.rows.append(row)

    def of(self, kind: str) -> list[dict[str, Any]]:
        """All rows of a kind, in file order."""
        return [row for row in self.rows if row["kind"] == kind]


def _refuse_other(path: Path, held: dict[str, Any], key: dict[str, Any]) -> None:
    differing = [name for name in sorted(held.keys() | key.keys()) if held.get(name) != key.get(name)]
    if differing:
        name = differing[0]
        what = f"'{path}' holds rows whose {name} is {held.get(name)!r}, and here it is {key.get(name)!r}"
        more = f" ({len(differing) - 1} more differ)" if differing[1:] else ""
        raise SystemExit(f"{what}{more}; name another --out")

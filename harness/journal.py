"""A file of JSON lines with one writer: whole lines only, on the disk when `add` returns."""

import fcntl
import json
import os
from collections.abc import Iterable
from io import FileIO
from pathlib import Path
from typing import Any, Self

from harness.errors import HarnessError, Usage

__all__ = ["Journal"]


class Journal:
    """Half a last line, left by a writer that was killed, is cut off; `who` names a second writer in its refusal."""

    def __init__(self, path: Path, who: str) -> None:
        self.path = path
        self._who = who
        self._file: FileIO
        self._end = 0  # bytes of whole lines

    def __enter__(self) -> Self:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("a+b", buffering=0)
        except OSError as error:
            raise Usage(f"cannot write '{self.path}': {error.strerror}") from None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._end = self.path.read_bytes().rfind(b"\n") + 1
            self._file.truncate(self._end)
        except BlockingIOError:
            self._file.close()
            raise Usage(f"another {self._who} is writing '{self.path}'") from None
        except BaseException:
            self._file.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def lines(self) -> list[bytes]:
        """The lines so far, without their ends."""
        return self.path.read_bytes().split(b"\n")[:-1]

    def cut(self, count: int) -> None:
        """Keeps the first `count` lines."""
        self._end = sum(len(line) + 1 for line in self.lines()[:count])
        self._file.truncate(self._end)

    def append(self, values: Iterable[Any]) -> bytes:
        """Appends values that belong together, a line each: all or, on a disk that is full, none; returns the lines."""
        data = b"".join(json.dumps(value, allow_nan=False).encode() + b"\n" for value in values)
        try:
            self._write(data)
        except OSError as error:
            self._file.truncate(self._end)
            raise HarnessError(
                f"cannot write '{self.path}': {error.strerror}", "the same command goes on from here"
            ) from None
        self._end += len(data)
        return data

    def _write(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[self._file.write(rest) :]
        os.fsync(self._file.fileno())

"""Files that somebody else wrote, read as data: plain ones of a bounded size, nothing that blocks or leads away."""

import os
import stat
from pathlib import Path

from harness.errors import Usage
from harness.shape import Mismatch

__all__ = ["read_own", "read_plain"]


def read_plain(path: Path, most: int, start: int = 0) -> bytes | None:
    """The bytes of a file from `start` on, or None where nothing is there.

    `Mismatch` for a link, a folder, a pipe, a device, and for a file of more than `most` bytes in all.  OSError where
    the disk or a permission is at fault.
    """
    try:
        number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        if path.is_symlink() or not path.is_file():  # a link is not followed, a socket not opened
            raise Mismatch(f"'{path.name}' is no plain file") from None
        raise error
    try:
        about = os.fstat(number)
        if not stat.S_ISREG(about.st_mode):
            raise Mismatch(f"'{path.name}' is no plain file")
        if about.st_size > most:
            raise Mismatch(f"'{path.name}' has {about.st_size} bytes, and {most} are the most")
        os.lseek(number, start, os.SEEK_SET)
        # A file that grows meanwhile is read as far as it was.
        data = bytearray()
        while len(data) < about.st_size - start and (piece := os.read(number, about.st_size - start - len(data))):
            data += piece
        return bytes(data)
    finally:
        os.close(number)


def read_own(path: Path, most: int, hint: str) -> str | None:
    """The text of a small file of a folder of ours, or None where there is none; Usage where it is no text."""
    try:
        data = read_plain(path, most)
        return None if data is None else data.decode()
    except UnicodeDecodeError:
        raise Usage(f"'{path}' is no text", hint) from None
    except Mismatch as error:
        raise Usage(f"'{path}': {error}", hint) from None

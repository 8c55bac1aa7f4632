"""Where a page is written: whole or not at all, and never over a file that is no report."""

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from spt.errors import Missing, Usage
from spt.git.store import Store
from spt.report.page import GENERATOR

__all__ = ["check_place", "page_path", "write_page"]

_HEAD_BYTES = 512


def page_path(store: Store, rounds: Sequence[str]) -> Path:
    """Where a page lies if nobody says where: a round's own beside what it measured."""
    if len(rounds) == 1:
        return store.state / "rounds" / rounds[0] / "report.html"
    return store.state / "reports" / ("rounds.html" if rounds else "transfer.html")


def check_place(path: Path) -> None:
    """Raises before any work where a page could not be written: a folder that is not there, a file that is none."""
    if path.is_dir():
        raise Usage(f"'{path}' is a folder", "name a file in it")
    if not path.absolute().parent.is_dir():
        raise Missing(f"the folder of '{path}' is not there")
    if path.is_symlink() or path.exists():
        if not path.is_file() or path.is_symlink():
            raise Usage(f"'{path}' is no regular file", "name another file")
        with path.open("rb") as file:
            if GENERATOR.encode() not in file.read(_HEAD_BYTES):
                raise Usage(f"'{path}' is there, and no report", "name another file")


def write_page(path: Path, page: str) -> None:
    """Writes the page whole: what was there before stays until then."""
    mask = os.umask(0)
    os.umask(mask)
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".report-", delete=False) as file:
        try:
            file.write(page.encode())
            file.flush()
            os.fsync(file.fileno())
            Path(file.name).chmod(0o666 & ~mask)
            Path(file.name).replace(path)
        except BaseException:
            Path(file.name).unlink(missing_ok=True)
            raise

"""Finds what ships with the tool: system tree, harness, entries, drafter.

An installed wheel carries them in `spt/data`; a checkout (or an editable install of one) has them beside `spt/`.
This module imports the standard library only: `setup.py` runs it to fill the wheel.
"""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

__all__ = ["SYSTEM_FOLDERS", "SYSTEM_SUFFIXES", "copy_shipped", "shipped_files", "shipped_root", "system_files"]

SYSTEM_FOLDERS = ("stock", "kernels", "checks")
SYSTEM_SUFFIXES = (".py", ".toml", ".md")
SHIPPED_FOLDERS = (*SYSTEM_FOLDERS, "harness", "entries", "drafters")
_NEVER = ("__pycache__",)


def shipped_root() -> Path:
    """The folder that holds `stock/`, `kernels/`, `harness/`, `entries/` and `drafters/`."""
    package = Path(__file__).resolve().parent
    data = package / "data"
    return data if data.is_dir() else package.parent


def system_files(root: Path) -> Iterator[Path]:
    """The files of the system tree below `root`, relative, sorted: what an agent may edit."""
    for folder in SYSTEM_FOLDERS:
        yield from _files(root, folder, SYSTEM_SUFFIXES)


def shipped_files(root: Path) -> Iterator[Path]:
    """Every file below `root` that a wheel carries, relative, sorted."""
    yield from system_files(root)
    yield from _files(root, "harness", SYSTEM_SUFFIXES)
    for folder in ("entries", "drafters"):
        yield from _files(root, folder, None)


def copy_shipped(root: Path, to: Path) -> None:
    """Copies what ships from a checkout into `to`, which is made anew; modes become 0644."""
    if to.exists():
        shutil.rmtree(to)
    for path in shipped_files(root):
        target = to / path
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(root / path, target)
        target.chmod(0o644)


def _files(root: Path, folder: str, suffixes: tuple[str, ...] | None) -> Iterator[Path]:
    for path in sorted(_below(root / folder)):
        relative = path.relative_to(root)
        if any(part in _NEVER or part.startswith(".") for part in relative.parts):
            continue
        if path.is_file() and not path.is_symlink() and (suffixes is None or path.suffix in suffixes):
            yield relative


def _below(folder: Path) -> Iterator[Path]:
    """Every path below a folder, if it is there; OSError where something cannot be read, which is not nothing."""
    if folder.is_dir():
        for place, folders, names in os.walk(folder, onerror=_raise):
            yield from (Path(place) / name for name in (*folders, *names))


def _raise(error: OSError) -> None:
    raise error

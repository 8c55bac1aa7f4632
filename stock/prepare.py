"""`prepare`: every selected seam module writes what it wants for later runs into one folder."""

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

from stock.engine import Engine
from stock.options import SEAMS, seam_module
from stock.system import Settings, load_system, read_options, read_target

__all__ = ["prepare"]


def prepare(settings: Settings, folder: Path) -> dict[str, Any]:
    """Runs the modules' `prepare(target, options, folder)`; returns the fields of the protocol's `prepared`.

    On a GPU an engine warms up once, so that the kernel cache, which the harness keeps beside the folder, is filled.
    Where no module prepares anything and there is no GPU, the target is not read.
    """
    options, on_gpu = read_options(settings), settings.device.startswith("cuda")
    modules = [seam_module(seam, options[seam]) for seam in SEAMS]
    preparing = [module for module in modules if hasattr(module, "prepare")]
    if preparing or on_gpu:
        target = read_target(settings)
        for module in preparing:
            module.prepare(target, options, folder)
        if on_gpu:
            Engine(load_system(replace(settings, prepared=folder), target)).warm_up()
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    lines = [f"{_sha256(path)}  {path.relative_to(folder).as_posix()}\n" for path in files]
    return {
        "files": len(files),
        "bytes": sum(path.stat().st_size for path in files),
        "digest": hashlib.sha256("".join(sorted(lines)).encode()).hexdigest(),
    }


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

"""The machine card: what two measurements must share to be compared (docs/records.md)."""

import datetime
import importlib.metadata
import os
import platform
import runpy
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from harness import __version__
from harness.device import nvml, word

__all__ = ["COMPARED", "card", "shareable"]

# What two cards must share to be comparable.
COMPARED = ("gpu", "driver", "torch", "triton", "cuda", "harness", "power_cap_w")

# Where NVML's clock types stand; the names are the card's own.
_CLOCKS = {"graphics": 0, "sm": 1, "memory": 2}


def card(device: str, now: datetime.datetime, sandbox: str = "none") -> dict[str, Any]:
    """The card of this machine for `device` (`cpu`, `cuda`, `cuda:N`); every field of the GPU is null on a CPU.

    Raises `Missing` without nvidia-ml-py, and `Unsupported` where the device does not exist.
    """
    return {
        "torch": _version("torch"),
        "triton": _version("triton"),
        "cuda": _torch_cuda(),
        "harness": __version__,
        **(_gpu(device) if device.startswith("cuda") else dict.fromkeys(_GPU_FIELDS)),
        "host": platform.node(),
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)),
        "sandbox": sandbox,
        "date": now.isoformat(timespec="seconds"),
    }


def shareable(card: dict[str, Any]) -> dict[str, Any]:
    """A card without what tells this machine from others of its kind: for records that travel."""
    return {name: value for name, value in card.items() if name not in ("host", "uuid")}


_GPU_FIELDS = ("gpu", "driver", "power_cap_w", "uuid", "clocks_mhz")


def _gpu(device: str) -> dict[str, Any]:
    with nvml(device) as (pynvml, handle):
        return {
            "gpu": word(pynvml.nvmlDeviceGetName(handle)),
            "driver": ".".join(word(pynvml.nvmlSystemGetDriverVersion()).split(".")[:2]),
            "power_cap_w": pynvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1e3,
            "uuid": word(pynvml.nvmlDeviceGetUUID(handle)),
            "clocks_mhz": {name: pynvml.nvmlDeviceGetMaxClockInfo(handle, kind) for name, kind in _CLOCKS.items()},
        }


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _torch_cuda() -> str | None:
    """The CUDA version that torch was built for, from its one file that imports nothing."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    stated = runpy.run_path(str(Path(spec.origin).with_name("version.py"))).get("cuda")
    return None if stated is None else str(stated)


def _cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()

"""What a device can do: datasheets for GPUs, a measurement for a CPU, and the rates that floors are counted with.

Published rates are a share of the datasheet's, calibrated ones what was measured on such a device.
"""

import functools
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from spt import rates
from spt.errors import Missing, Unsupported

__all__ = ["BYTE_SHARE", "FLOP_SHARE", "TABLE", "Device", "Rates", "find_device", "measure_cpu"]

FLOP_SHARE, BYTE_SHARE = 0.6, 0.9


@dataclass(frozen=True)
class Rates:
    """What floors are counted with: bytes and FLOPs a second, and the words that say what they are a share of."""

    kind: str
    bytes_s: float
    flops_s: float
    base: str

    def floor_us(self, bytes_: float, flops: float) -> float:
        """The least time of so much work: whichever of the two takes longer."""
        return 1e6 * max(bytes_ / self.bytes_s, flops / self.flops_s)

    def serial_us(self, bytes_: float, flops: float) -> float:
        """The time of a kernel that moves its bytes and counts its FLOPs one behind the other, without any overlap."""
        return 1e6 * (bytes_ / self.bytes_s + flops / self.flops_s)


@dataclass(frozen=True)
class Device:
    """One device.

    needle: what its name holds.  peak_flops_s: dense, by type.  bytes_s: the datasheet's bandwidth (a CPU has none).
    read_bytes_s, gemm_flops_s: measured on such a device; None where nobody did.
    """

    name: str
    needle: str
    peak_flops_s: Mapping[str, float]
    bytes_s: float | None
    read_bytes_s: float | None = None
    gemm_flops_s: float | None = None
    source: str = "datasheet"

    def published(self, dtype: str, flop_share: float = FLOP_SHARE, byte_share: float = BYTE_SHARE) -> Rates:
        """Shares of the datasheet; Unsupported where it says nothing of the type, and for a CPU."""
        if self.bytes_s is None:
            raise Unsupported(f"'{self.name}' has no datasheet here", "its rates are measured: use the calibrated ones")
        peak = self._peak(dtype)
        base = f"{flop_share:.0%} of {peak / 1e12:.0f} TFLOP/s, {byte_share:.0%} of {self.bytes_s / 1e12:.2f} TB/s"
        return Rates("published", byte_share * self.bytes_s, flop_share * peak, f"{base} (datasheet)")

    def calibrated(self, dtype: str, flop_share: float = FLOP_SHARE) -> Rates | None:
        """The measured read rate, whole; and the measured product rate, or a share of the peak where there is none."""
        if self.read_bytes_s is None:
            return None
        flops = self.gemm_flops_s or flop_share * self._peak(dtype)
        how = "measured" if self.gemm_flops_s else f"{flop_share:.0%} of the datasheet"
        base = f"{_rate(self.read_bytes_s, 'B/s')} read (measured), {_rate(flops, 'FLOP/s')} ({how})"
        return Rates("calibrated", self.read_bytes_s, flops, base)

    def measured(self, read_bytes_s: float) -> "Device":
        """The device with another measured read rate, such as that of the run itself."""
        return replace(self, read_bytes_s=read_bytes_s)

    def _peak(self, dtype: str) -> float:
        if dtype not in self.peak_flops_s:
            raise Unsupported(f"the table of devices says nothing of '{dtype}' on '{self.name}'")
        return self.peak_flops_s[dtype]


def _tera(bfloat16: float, float32: float) -> dict[str, float]:
    return {"bfloat16": bfloat16 * 1e12, "float32": float32 * 1e12}


# Dense peaks with FP32 sums, and FP32 without tensor cores; bandwidths as NVIDIA's datasheets give them.
TABLE = (
    Device("H200 SXM", "H200", _tera(989.4, 66.9), 4.8e12, read_bytes_s=4.42e12),
    Device("H200 NVL", "H200 NVL", _tera(835.5, 60.0), 4.8e12),
    Device("H100 SXM", "H100", _tera(989.4, 66.9), 3.35e12),
    Device("H100 PCIe", "H100 PCIe", _tera(756.5, 51.2), 2.04e12),
    Device("H100 NVL", "H100 NVL", _tera(835.5, 60.0), 3.94e12),
    Device("A100 SXM 80 GB", "A100-SXM4-80GB", _tera(312.0, 19.5), 2.039e12),
    Device("A100 SXM 40 GB", "A100-SXM4-40GB", _tera(312.0, 19.5), 1.555e12),
    Device("A100 PCIe 80 GB", "A100 80GB PCIe", _tera(312.0, 19.5), 1.935e12),
    Device("A100 PCIe 40 GB", "A100-PCIE-40GB", _tera(312.0, 19.5), 1.555e12),
    Device("RTX PRO 6000", "RTX PRO 6000 Blackwell Workstation", _tera(503.8, 126.0), 1.792e12),
    Device("L40S", "L40S", _tera(362.05, 91.6), 0.864e12),
)


def find_device(name: str | None) -> Device:
    """The device that a machine card calls `name`; None is this machine's CPU, which is measured now.

    Unsupported for a GPU that the table does not hold: nothing is guessed.
    """
    if name is None:
        return measure_cpu()
    known = [device for device in TABLE if device.needle.lower() in name.lower()]
    if not known:
        needles = ", ".join(device.needle for device in TABLE)
        raise Unsupported(f"the table of devices has no '{name}'", f"it has {needles}")
    return max(known, key=lambda device: len(device.needle))


@functools.cache
def measure_cpu(threads: int | None = None) -> Device:
    """This machine's CPU, measured by a child that imports numpy alone; Missing where that fails."""
    told = os.environ.get("OMP_NUM_THREADS", "")  # which an engine that is started here gets as well
    allowed = threads or (int(told) if told.isdecimal() and int(told) else len(os.sched_getaffinity(0)))
    limits = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), str(allowed))
    command = [sys.executable, "-P", "-s", str(Path(rates.__file__))]
    done = subprocess.run(command, env={**os.environ, **limits}, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise Missing(f"this processor's rates cannot be measured: {last}", "it needs numpy, and 600 MB of memory")
    found = json.loads(done.stdout)
    return Device(
        name="cpu",
        needle="cpu",
        peak_flops_s={},
        bytes_s=None,
        read_bytes_s=found["read_bytes_s"],
        gemm_flops_s=found["gemm_flops_s"],
        source=f"measured with {allowed} threads",
    )


def _rate(value: float, unit: str) -> str:
    return f"{value / 1e12:.2f} T{unit}" if value >= 1e12 else f"{value / 1e9:.1f} G{unit}"

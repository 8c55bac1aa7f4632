"""What a device says of itself: how busy it is, what is free, at which clocks; and that one judge has it.

A CPU says nothing, so that all its answers are None.
"""

import contextlib
import fcntl
import os
import re
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.errors import HarnessError, Missing, Unsupported, Usage

__all__ = ["Device", "Reading", "locked", "nvml", "open_device", "word"]

BUSY_PERCENT = 1  # NVML shows up to this much while nothing runs
LOCKS = Path("/tmp")  # the same for all users; SPT_LOCKS names another
_POLL_S = 0.02
_NODES = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")
# Bits of NVML's reasons that hold clocks down; idle and clocks that somebody set do not.
_THROTTLES = {
    0x04: "power cap",
    0x08: "hardware",
    0x10: "sync boost",
    0x20: "thermal",
    0x40: "hardware thermal",
    0x80: "power brake",
}


@dataclass(frozen=True)
class Reading:
    """One look at a GPU."""

    busy_percent: int  # of NVML's last window, up to a second
    processes: tuple[int, ...]  # ids, as NVML numbers them, of those that compute there
    free_bytes: int
    total_bytes: int
    clock_mhz: int  # of the multiprocessors
    memory_clock_mhz: int
    power_w: float
    throttle: str  # reasons that hold the clocks down, in words; empty for none

    @property
    def idle(self) -> bool:
        return self.busy_percent <= BUSY_PERCENT


class Device:
    """A device that engines run on."""

    def __init__(self, name: str, library: Any = None, handle: Any = None) -> None:
        self.name = name
        self._library, self._handle = library, handle

    @property
    def uuid(self) -> str:
        """What tells this device from all others; `cpu` for a CPU."""
        return self.name if self._handle is None else word(self._library.nvmlDeviceGetUUID(self._handle))

    @property
    def nodes(self) -> tuple[Path, ...]:
        """The files below /dev that an engine needs: this GPU's own and those of the driver that are there."""
        if self._handle is None:
            return ()
        own = Path(f"/dev/nvidia{self._library.nvmlDeviceGetMinorNumber(self._handle)}")
        return (own, *(path for path in map(Path, _NODES) if path.exists()))

    def reading(self) -> Reading | None:
        """A look at the device now, or None where nothing can be known."""
        if self._handle is None:
            return None
        library, handle = self._library, self._handle
        memory = library.nvmlDeviceGetMemoryInfo(handle)
        reasons = library.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
        return Reading(
            busy_percent=library.nvmlDeviceGetUtilizationRates(handle).gpu,
            processes=tuple(sorted(one.pid for one in library.nvmlDeviceGetComputeRunningProcesses(handle))),
            free_bytes=memory.free,
            total_bytes=memory.total,
            clock_mhz=library.nvmlDeviceGetClockInfo(handle, library.NVML_CLOCK_SM),
            memory_clock_mhz=library.nvmlDeviceGetClockInfo(handle, library.NVML_CLOCK_MEM),
            power_w=library.nvmlDeviceGetPowerUsage(handle) / 1e3,
            throttle=", ".join(name for bit, name in _THROTTLES.items() if reasons & bit),
        )

    def wait_until_idle(self, patience_s: float) -> bool | None:
        """Whether the device is idle within `patience_s`; None where that cannot be known."""
        return self._wait(patience_s, lambda seen: seen.idle)

    def wait_until_free(self, free_bytes: int, patience_s: float) -> bool | None:
        """Whether so much memory is free within `patience_s`; None where that cannot be known."""
        return self._wait(patience_s, lambda seen: seen.free_bytes >= free_bytes)

    def _wait(self, patience_s: float, holds: Any) -> bool | None:
        deadline = time.monotonic() + patience_s
        while (seen := self.reading()) is not None:
            if holds(seen):
                return True
            if time.monotonic() >= deadline:
                return False
            time.sleep(_POLL_S)
        return None


@contextlib.contextmanager
def open_device(name: str) -> Iterator[Device]:
    """The device `name` (`cpu`, `cuda`, `cuda:N`); Usage for any other word, else raises as `nvml` does."""
    if not re.fullmatch("cpu|cuda(:[0-9]{1,3})?", name):
        raise Usage(f"no device is called '{name}'", "cpu, cuda or cuda:N")
    if not name.startswith("cuda"):
        yield Device(name)
        return
    with nvml(name) as (library, handle):
        yield Device(name, library, handle)


@contextlib.contextmanager
def nvml(name: str) -> Iterator[tuple[Any, Any]]:
    """NVML's library and its handle of the GPU that engines call `name`.

    Raises `Missing` without nvidia-ml-py, and `Unsupported` where the device does not exist.
    """
    try:
        import pynvml
    except ImportError:
        raise Missing("the package 'nvidia-ml-py' is not installed here", "pip install 'specpilot[gpu]'") from None
    try:
        pynvml.nvmlInit()
        try:
            yield pynvml, _handle(pynvml, int(name.partition(":")[2] or 0))
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        raise Unsupported(f"no NVIDIA device '{name}': {error}") from None


def _handle(pynvml: Any, index: int) -> Any:
    """NVML sees all GPUs; what the engine calls `cuda:index` is one of CUDA_VISIBLE_DEVICES."""
    visible = [one.strip() for one in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if one.strip()]
    if not visible:
        return pynvml.nvmlDeviceGetHandleByIndex(index)
    if index >= len(visible):
        raise Unsupported(f"no device 'cuda:{index}': CUDA_VISIBLE_DEVICES lists {len(visible)}")
    if visible[index].isdecimal():
        return pynvml.nvmlDeviceGetHandleByIndex(int(visible[index]))
    return pynvml.nvmlDeviceGetHandleByUUID(visible[index])


def word(value: str | bytes) -> str:
    """Text of NVML; older versions of the binding answer bytes."""
    return value.decode() if isinstance(value, bytes) else value


@contextlib.contextmanager
def locked(uuid: str) -> Iterator[None]:
    """Holds the device for this judge; raises `HarnessError` with the process id of another one that has it.

    The lock goes with its process, however that ends; the file stays and means nothing by itself.
    """
    folder = Path(os.environ.get("SPT_LOCKS") or LOCKS)
    if not folder.is_absolute():
        raise Usage(f"SPT_LOCKS is '{folder}', which is another folder for each judge", "give an absolute path")
    path = folder / f"spt-judge-{uuid.replace('/', '-')}.lock"
    descriptor = _lock_file(path)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            other = os.read(descriptor, 32).decode(errors="replace").strip() or "unknown"
            raise HarnessError(
                f"another judge measures on '{uuid}': process {other}", "wait until it has ended: two would disturb"
            ) from None
        os.truncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def _lock_file(path: Path) -> int:
    """A descriptor of the file that every user may lock; a link that somebody put there is not followed."""
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        try:
            # Creating and opening apart: kernels refuse O_CREAT on another user's file in such a folder.
            descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o600)
            os.fchmod(descriptor, 0o666)
        except FileExistsError:
            descriptor = os.open(path, flags)
    except OSError as error:
        raise HarnessError(
            f"the lock '{path}' cannot be opened: {error.strerror}",
            "SPT_LOCKS names another folder, the same for every judge of this machine",
        ) from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise HarnessError(f"the lock '{path}' is no plain file")
    return descriptor

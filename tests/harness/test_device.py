"""harness/device.py: what a pretended NVML says arrives, and one judge has a device."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from harness.device import locked, open_device
from harness.errors import HarnessError, Missing, Unsupported, Usage

ROOT = Path(__file__).parents[2]


def test_reading(nvml):
    """One look tells who computes there, what is free, and what holds the clocks down."""
    nvml.reasons = 0x1 | 0x4 | 0x40  # idle does not count
    with open_device("cuda:1") as device:
        seen = device.reading()

        assert device.uuid == "GPU-1"
        assert device.nodes[0] == Path("/dev/nvidia5")
    assert (seen.busy_percent, seen.processes, seen.free_bytes) == (0, (7, 31), 90)
    assert (seen.clock_mhz, seen.memory_clock_mhz, seen.power_w) == (1755, 3201, 540.5)
    assert seen.throttle == "power cap, hardware thermal"


def test_waiting_for_idle(nvml):
    """A device that settles is idle, and one that works on is not: this voids a unit."""
    nvml.busy = [100, 60, 2, 1]
    with open_device("cuda") as device:
        assert device.wait_until_idle(5) is True
        nvml.busy = [2]
        assert device.wait_until_idle(0.05) is False


def test_waiting_for_memory(nvml):
    """Memory that an ended engine still holds is waited for."""
    with open_device("cuda") as device:
        assert device.wait_until_free(90, 0) is True
        assert device.wait_until_free(91, 0.05) is False


def test_a_cpu_tells_nothing():
    """On a CPU nothing is known, which is not the same as idle."""
    with open_device("cpu") as device:
        assert (device.reading(), device.wait_until_idle(9), device.wait_until_free(1, 9)) == (None, None, None)
        assert (device.uuid, device.nodes) == ("cpu", ())


def test_no_nvml(monkeypatch):
    """Without the package a GPU is not opened."""
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(Missing), open_device("cuda"):
        pass


def test_errors_inside_the_block_pass(nvml):
    """What the caller raises is its own; what NVML raises names the device."""
    with pytest.raises(ZeroDivisionError), open_device("cuda"):
        _ = 1 / 0
    with pytest.raises(Unsupported, match="cuda:5"), open_device("cuda:5"):
        pass


@pytest.fixture
def locks(tmp_path, monkeypatch):
    monkeypatch.setenv("SPT_LOCKS", str(tmp_path))
    return tmp_path


def test_two_judges_on_one_device(locks):
    """The second judge is refused and told of the first; when the first is killed the device is free at once."""
    code = "import sys; from harness.device import locked\nwith locked('GPU-1'): print('has it', flush=True); input()"
    first = [sys.executable, "-c", code]
    with subprocess.Popen(first, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as judge:
        assert judge.stdout.readline() == "has it\n"
        with pytest.raises(HarnessError, match=f"'GPU-1': process {judge.pid}$"), locked("GPU-1"):
            pass
        with locked("GPU-2"):
            pass
        judge.kill()
        judge.wait()
    with locked("GPU-1"):
        assert (locks / "spt-judge-GPU-1.lock").read_text() == f"{os.getpid()}\n"


def test_a_lock_is_for_every_user(locks):
    """Who made the file does not own the device."""
    with locked("GPU-1"):
        assert stat.S_IMODE((locks / "spt-judge-GPU-1.lock").stat().st_mode) == 0o666


def test_a_link_in_the_place_of_a_lock(locks):
    """A link is not followed: a judge that runs as root would write where it leads."""
    (locks / "aim").write_text("precious")
    (locks / "spt-judge-GPU-1.lock").symlink_to(locks / "aim")
    with pytest.raises(HarnessError, match="cannot be opened"), locked("GPU-1"):
        pass

    assert (locks / "aim").read_text() == "precious"


@pytest.mark.parametrize("name", ["", "tpu", "cuda:", "cuda:x", "cpu:0", "cuda:99999999999999999999", "cpu/x"])
def test_words_that_name_no_device(name):
    """A word that is no device is refused: nothing else is measured in its place."""
    with pytest.raises(Usage, match="no device is called"), open_device(name):
        pass


def test_where_locks_lie(locks, monkeypatch, tmp_path):
    """An empty SPT_LOCKS is none; a folder that is another one for each judge, or is not there, holds no lock."""
    monkeypatch.setattr("harness.device.LOCKS", tmp_path)
    monkeypatch.setenv("SPT_LOCKS", "")
    with locked("cpu"):
        assert (tmp_path / "spt-judge-cpu.lock").is_file()
    monkeypatch.setenv("SPT_LOCKS", "locks")
    with pytest.raises(Usage, match="another folder for each judge"), locked("cpu"):
        pass
    monkeypatch.setenv("SPT_LOCKS", str(tmp_path / "absent"))
    with pytest.raises(HarnessError, match="cannot be opened") as refused, locked("cpu"):
        pass
    assert "SPT_LOCKS names another folder" in refused.value.hint

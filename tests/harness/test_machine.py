"""harness/machine.py: a card that the schema knows, on a CPU and with a pretended NVML."""

import datetime
import sys

import pytest

from harness.errors import Missing, Unsupported
from harness.machine import COMPARED, card, shareable
from tests.harness.schemas import validator

NOW = datetime.datetime(2026, 11, 30, 12, 0, tzinfo=datetime.UTC)
GPU = ("gpu", "driver", "power_cap_w", "uuid", "clocks_mhz")


def test_card_of_a_cpu():
    """On a CPU the fields of the GPU are null and the rest is there."""
    made = card("cpu", NOW)

    validator("card").validate(made)
    assert {made[name] for name in GPU} == {None}
    assert made["torch"].startswith("2.")
    assert made["date"] == "2026-11-30T12:00:00+00:00"


def test_what_travels_names_no_machine():
    """A card that goes into a record keeps all that is compared, and neither host nor serial number."""
    made = card("cpu", NOW)

    assert set(made) - set(shareable(made)) == {"host", "uuid"}
    assert set(COMPARED) <= set(shareable(made))
    validator("card").validate(shareable(made))


@pytest.mark.parametrize(
    ("device", "visible", "name"),
    [
        ("cuda", "", "NVIDIA H000"),
        ("cuda:1", "", "NVIDIA H100"),
        ("cuda:0", "1,0", "NVIDIA H100"),
        ("cuda:1", "GPU-0, GPU-1", "NVIDIA H100"),
    ],
)
def test_card_of_a_gpu(nvml, monkeypatch, device, visible, name):
    """The card names the GPU that the engine will see as `cuda:N`, with the driver to its minor number."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    made = card(device, NOW)

    validator("card").validate(made)
    assert made["gpu"] == name
    assert made["driver"] == "570.86"
    assert made["power_cap_w"] == 700
    assert made["clocks_mhz"] == {"graphics": 1980, "sm": 1981, "memory": 1982}


@pytest.mark.parametrize(("device", "visible"), [("cuda:5", ""), ("cuda:1", "0")])
def test_no_such_gpu(nvml, monkeypatch, device, visible):
    """A device that does not exist is unsupported, by name."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    with pytest.raises(Unsupported, match=device):
        card(device, NOW)


def test_no_nvml(monkeypatch):
    """Without nvidia-ml-py a GPU has no card, and the hint says how to get it."""
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(Missing) as caught:
        card("cuda", NOW)

    assert "specpilot[gpu]" in caught.value.hint

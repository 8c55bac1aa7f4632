"""What a GPU's clocks were when a figure was taken."""

from typing import Any

__all__ = ["read_clocks"]


def read_clocks(card: dict[str, Any]) -> dict[str, Any]:
    """SM clock in MHz, power in watts and the driver's throttle reasons (a bit mask, in hex) of the card's GPU.

    card: the machine card (docs/records.md); without a GPU the result is empty.
    """
    if card["uuid"] is None:
        return {}
    import pynvml

    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByUUID(card["uuid"])
    return {
        "clock_mhz": pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM),
        "power_w": pynvml.nvmlDeviceGetPowerUsage(handle) / 1e3,
        "throttled": hex(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)),
    }

"""A pretended NVML: two GPUs, as nvidia-ml-py shows them, whose state a test sets."""

import types


class NVML(types.ModuleType):
    """Two GPUs, as nvidia-ml-py shows them."""

    class NVMLError(Exception):
        pass

    def __init__(self):
        super().__init__("pynvml")
        self.running = 0  # how often it was opened and not closed
        self.busy, self.free, self.reasons = [0], 90, 0  # percent of one look after the other; bytes; bits

    def nvmlInit(self):  # noqa: N802 - the library's names
        self.running += 1

    def nvmlShutdown(self):  # noqa: N802
        self.running -= 1

    def nvmlSystemGetDriverVersion(self):  # noqa: N802
        return b"570.86.15"

    def nvmlDeviceGetHandleByIndex(self, index):  # noqa: N802
        if index > 1:
            raise self.NVMLError("Invalid Argument")
        return index

    def nvmlDeviceGetHandleByUUID(self, uuid):  # noqa: N802
        return int(uuid.removeprefix("GPU-"))

    def nvmlDeviceGetName(self, handle):  # noqa: N802
        return f"NVIDIA H{handle}00"

    def nvmlDeviceGetEnforcedPowerLimit(self, handle):  # noqa: N802
        return 700_000

    def nvmlDeviceGetUUID(self, handle):  # noqa: N802
        return f"GPU-{handle}"

    def nvmlDeviceGetMaxClockInfo(self, handle, kind):  # noqa: N802
        return 1980 + kind

    NVML_CLOCK_SM, NVML_CLOCK_MEM = 1, 2

    def nvmlDeviceGetMinorNumber(self, handle):  # noqa: N802
        return handle + 4

    def nvmlDeviceGetUtilizationRates(self, handle):  # noqa: N802
        return types.SimpleNamespace(gpu=self.busy.pop(0) if len(self.busy) > 1 else self.busy[0])

    def nvmlDeviceGetMemoryInfo(self, handle):  # noqa: N802
        return types.SimpleNamespace(free=self.free, total=100)

    def nvmlDeviceGetComputeRunningProcesses(self, handle):  # noqa: N802
        return [types.SimpleNamespace(pid=pid) for pid in (31, 7)]

    def nvmlDeviceGetClockInfo(self, handle, kind):  # noqa: N802
        return {1: 1755, 2: 3201}[kind]

    def nvmlDeviceGetPowerUsage(self, handle):  # noqa: N802
        return 540_500

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle):  # noqa: N802
        return self.reasons

"""Compiles kernels for sm_90 in a process without a GPU: launches of tensors on the device "meta" compile alone."""

from collections.abc import Callable
from typing import Any

from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

__all__ = ["Hopper", "compiled"]


class Hopper:
    """The part of Triton's driver that compiling asks."""

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> Any:
        return GPUTarget("cuda", 90, 32)


def compiled(call: Callable[[], Any]) -> list[Any]:
    """The kernels that a call would launch, in order, compiled into Triton's cache; none of them runs.

    For a process of its own: the driver stays replaced.
    """
    driver.set_active(Hopper())
    launch, made = JITFunction.run, []

    def run(kernel: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> None:
        made.append(launch(kernel, *args, grid=grid, warmup=True, **options))

    JITFunction.run = run
    try:
        call()
    finally:
        JITFunction.run = launch
    return made

"""Compiles kernels for sm_90 in a process without a GPU: launches of tensors on the device "meta" compile alone."""

from collections.abc import Callable
from typing import Any

from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

__all__ = ["SHARED_LIMIT", "compiled"]

SHARED_LIMIT = 227 * 1024  # bytes that a block of an H100 or H200 may have


class Hopper:
    """The part of Triton's driver that compiling asks."""

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> Any:
        return GPUTarget("cuda", 90, 32)


def compiled(call: Callable[[], Any], told: Callable[..., Any] | None = None) -> list[Any]:
    """The kernels that a call would launch, in order, compiled into Triton's cache; none of them runs.

    told: what is returned of each, of the kernel, what was compiled, and the options of its launch; left out, what was
    compiled.  For a process of its own: the driver stays replaced.
    """
    driver.set_active(Hopper())
    launch, made = JITFunction.run, []

    def run(kernel: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> None:
        result = launch(kernel, *args, grid=grid, warmup=True, **options)
        made.append(result if told is None else told(kernel, result, options))

    JITFunction.run = run
    try:
        call()
    finally:
        JITFunction.run = launch
    return made

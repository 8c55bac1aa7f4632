"""Capture of a decode step's phases in CUDA graphs.

A captured phase reads and writes tensors that keep their place, so a replay does on new values what the capture
recorded.  Nothing in a phase may wait for the device or depend on a value there.
"""

from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor

__all__ = ["HostCopy", "Phases"]


class Phases:
    """Runs named phases: eagerly, or as graphs that were captured for the same key.

    All graphs share one memory pool; what a phase returned at its capture is what every replay fills.
    """

    def __init__(self, device: torch.device, graphs: bool) -> None:
        self.graphs = graphs and device.type == "cuda"
        self._captured: dict[Hashable, tuple[torch.cuda.CUDAGraph, Any]] = {}
        self._pool = torch.cuda.graph_pool_handle() if self.graphs else None
        self._stream = torch.cuda.Stream(device) if self.graphs else None

    def __contains__(self, key: Hashable) -> bool:
        return key in self._captured

    def run(self, key: Hashable, phase: Callable[..., Any], *arguments: Any) -> Any:
        """The phase's result; replayed where the key was captured."""
        captured = self._captured.get(key)
        if captured is None:
            return phase(*arguments)
        graph, result = captured
        graph.replay()
        return result

    def capture(self, key: Hashable, phase: Callable[..., Any], *arguments: Any) -> Any:
        """Records the phase for the key without running it; the phase must have run before."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
            result = phase(*arguments)
        self._captured[key] = (graph, result)
        return result


class HostCopy:
    """A tensor's values of now, for the host to read later: what a later replay leaves in it is not seen."""

    def __init__(self, tensor: Tensor) -> None:
        self._values, self._copied = tensor, None
        if tensor.is_cuda:
            self._values = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            self._values.copy_(tensor, non_blocking=True)
            self._copied = torch.cuda.Event()
            self._copied.record()

    def read(self) -> list[Any]:
        """The values, when the device has come so far; a list of lists for a matrix."""
        if self._copied is not None:
            self._copied.synchronize()
        values: list[Any] = self._values.tolist()
        return values

"""Git-native patches and memory for making speculative decoding faster without changing what the model says."""

from spt.version import __version__

__all__ = ["__version__"]

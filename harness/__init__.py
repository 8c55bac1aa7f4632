"""The judge: it turns text into ids, drives engines, owns the clock, and counts what comes back.

It runs as a process of its own (`python -m harness`), imports nothing of the other packages, and never torch.
"""

__version__ = "0.1.0"

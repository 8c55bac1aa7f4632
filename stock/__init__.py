"""The reference speculative-decoding engine: plain, small, and the system that is optimised.

Read `engine.py` first: one loop of draft, select, verify, accept.
"""

__version__ = "0.1.0"

"""benchmarks/overhead.py: what it calls overhead is what the client adds."""

import argparse
import time

from benchmarks import overhead
from harness.process import Process


def test_overhead_is_what_the_client_adds(monkeypatch):
    """A client that reads each line late adds that time to every request, and the engine's own time is no part."""
    arguments = argparse.Namespace(requests=3, tokens=10, step_tok=4, request_ms=40.0)
    plain_us = overhead.measure(arguments, None)
    receive = Process.receive

    def late(self, patience_s):
        line = receive(self, patience_s)
        time.sleep(0.02)
        return line[0], line[1] + 20_000_000

    monkeypatch.setattr(Process, "receive", late)
    late_us = overhead.measure(arguments, None)

    assert len(plain_us) == len(late_us) == 3
    assert min(plain_us) > 0
    assert min(late_us) >= 20_000 - 1

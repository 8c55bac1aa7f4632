"""Shared by all tests."""

import os
import signal

import pytest

# Children inherit what is ignored; tests that interrupt them must not depend on how they themselves were started.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(scope="session", autouse=True)
def own_locks(tmp_path_factory):
    """Judges of tests that run beside one another lock nothing of each other, nor of a judge at work."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPT_LOCKS", str(tmp_path_factory.mktemp("locks")))
        yield


@pytest.fixture(scope="session", autouse=True)
def no_power_cut():
    """What runs in the tests' own process waits for no disk: a kill loses nothing of it, and no test cuts the power."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        yield

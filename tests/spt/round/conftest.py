import importlib.util
import shutil
from pathlib import Path

import pytest

from tests.spt.round import enclosed
from tests.spt.round.toys import CANARY, NOOP, SLOWER, START, UNCHECKED, WRONG, copied, make_round_deployment
from tests.spt.toys import spt

# What agents do in a sandbox can only be seen where there is one, and the SDK's part only where it is installed.
ENCLOSED = ("agent", "cheating_agent", "claude", "claude_real", "command", "enclosure", "session_killed")
sdk = importlib.util.find_spec("claude_agent_sdk")
bundled = sdk is not None and (Path(sdk.origin).parent / "_bundled" / "claude").exists()
left_out = set() if enclosed.works() else set(ENCLOSED)
left_out |= (set() if sdk is not None else {"claude"}) | (set() if bundled else {"claude_real"})
collect_ignore = [f"test_{name}.py" for name in sorted(left_out)]


@pytest.fixture(scope="session")
def pristine_round(tmp_path_factory):
    """A deployment on the fake engine with four entries, that nobody writes to."""
    return make_round_deployment(tmp_path_factory.mktemp("round"), [CANARY, NOOP, UNCHECKED, WRONG])


@pytest.fixture
def repository(pristine_round, tmp_path):
    """A deployment repository to run rounds in."""
    yield copied(pristine_round, tmp_path / "deployment")
    shutil.rmtree(tmp_path / "deployment")


@pytest.fixture(scope="session")
def ended(pristine_round, tmp_path_factory):
    """A repository whose round `one`, by sweep and memory, has ended; nobody writes to it.  (folder, what it said)"""
    folder = copied(pristine_round, tmp_path_factory.mktemp("ended") / "deployment")
    agents = ("--agent", "sweep:tau,step_ms", "--agent", "memory", "--tries", "3")
    ran = spt(*START, SLOWER, "--name", "one", *agents, "--json", cwd=folder)
    assert ran.out, ran.err
    return folder, ran

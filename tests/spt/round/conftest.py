"""What agents do in a sandbox can only be seen where there is one, and the SDK's part only where it is installed."""

import importlib.util

from tests.spt.round import enclosed

ENCLOSED = ["test_claude.py", "test_command.py", "test_enclosure.py", "test_session_killed.py"]
collect_ignore = [] if enclosed.works() else [*ENCLOSED]
if importlib.util.find_spec("claude_agent_sdk") is None:
    collect_ignore.append("test_claude.py")

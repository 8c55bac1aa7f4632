"""What agents do in a sandbox can only be seen where there is one."""

from tests.spt.round import enclosed

collect_ignore = [] if enclosed.works() else ["test_enclosure.py", "test_session_killed.py", "test_command.py"]

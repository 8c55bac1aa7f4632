"""harness/tree.py: the id that git itself gives."""

import os
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.errors import Usage
from harness.tree import tree_id

NAMES = st.sampled_from(["a", "a.b", "a-b", "a0", "b", "é", "sub.py", "Z"])
FILES = st.dictionaries(
    st.lists(NAMES, min_size=1, max_size=3).map("/".join), st.tuples(st.binary(max_size=9), st.booleans()), max_size=7
)


def git(folder, *arguments):
    environment = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_DIR": str(folder / ".git")}
    done = subprocess.run(["git", *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@settings(max_examples=15, deadline=None)
@given(files=FILES)
def test_equals_git(files, tmp_path_factory):
    """Names that sort differently as folders, modes, empty folders: the id is `git write-tree`'s."""
    root = tmp_path_factory.mktemp("tree")
    (root / "tree" / "empty" / "empty").mkdir(parents=True)
    for name, (data, executable) in files.items():
        path = root / "tree" / name
        if any((root / "tree" / parent).is_file() for parent in path.relative_to(root / "tree").parents):
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.is_dir():
            path.write_bytes(data)
            path.chmod(0o755 if executable else 0o644)
    git(root, "init", "-q")
    git(root, "--work-tree", "tree", "add", "-A")

    assert tree_id(root / "tree") == git(root, "write-tree")


def test_links_are_refused(tmp_path):
    """A link could point elsewhere after it was hashed."""
    (tmp_path / "link").symlink_to("/etc/passwd")
    with pytest.raises(Usage, match="neither a plain file nor a folder"):
        tree_id(tmp_path)

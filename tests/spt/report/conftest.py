import shutil

import pytest

from tests.spt.report.journals import Maker, make_repository
from tests.spt.toys import spt


@pytest.fixture(scope="session", autouse=True)
def wide():
    """A terminal that is wide enough for a table's rows to be lines."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "200")
        yield


@pytest.fixture(scope="session")
def three(tmp_path_factory):
    """Three rounds in a row of 60 directions with hostile text, and one of another way; nobody writes to it.

    The third has not ended.
    """
    folder = make_repository(tmp_path_factory.mktemp("three") / "repository")
    made = Maker(folder)
    made.make("smol-1")
    made.make("smol-2")
    made.make("smol-3", end=False)
    Maker(folder, seed=9).make("ablation-1", tried=12, promoted=1, modes={"cost_model": False, "agents": 1})
    return folder


@pytest.fixture(scope="session")
def page(three):
    """The page of all of them, where it lies by itself."""
    ran = spt("report", cwd=three)
    assert ran.code == 0, ran.err
    path = three / ".git/spt/reports/rounds.html"
    assert ran.out.splitlines()[-1] == str(path)
    return path.read_text()


@pytest.fixture
def repository(tmp_path):
    """A repository without any round."""
    return make_repository(tmp_path / "repository")


@pytest.fixture(scope="session")
def two(tmp_path_factory):
    """Two small rounds in a row; nobody writes to it."""
    folder = make_repository(tmp_path_factory.mktemp("two") / "repository")
    made = Maker(folder)
    for name in ("smol-1", "smol-2"):
        made.make(name, tried=10, promoted=2)
    return folder


@pytest.fixture
def copy(two, tmp_path):
    """A copy of the two rounds, to write to."""
    return shutil.copytree(two, tmp_path / "copy")

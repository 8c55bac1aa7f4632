import shutil

import pytest

from tests.spt.report.journals import Maker, make_repository
from tests.spt.toys import spt


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


@pytest.fixture
def copy(three, tmp_path):
    """A copy of the three rounds, to write to."""
    return shutil.copytree(three, tmp_path / "copy")

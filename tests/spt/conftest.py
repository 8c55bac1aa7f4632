import shutil

import pytest

from tests.spt.toys import make_root, spt


@pytest.fixture(scope="session")
def shipped(tmp_path_factory):
    """Shipped files of a toy: stock and three entries."""
    return make_root(tmp_path_factory.mktemp("shipped"))


@pytest.fixture(scope="session")
def pristine(tmp_path_factory, shipped):
    """A deployment repository of the toy that nobody writes to."""
    folder = tmp_path_factory.mktemp("pristine") / "deployment"
    assert spt("init", folder, "--from", shipped, cwd=shipped).code == 0
    return folder


@pytest.fixture
def deployment(tmp_path, pristine):
    """A deployment repository of the toy."""
    folder = tmp_path / "deployment"
    shutil.copytree(pristine, folder)
    return folder

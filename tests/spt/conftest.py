import pytest

from tests.spt.toys import make_root, spt


@pytest.fixture(scope="session")
def shipped(tmp_path_factory):
    """Shipped files of a toy: stock and three entries."""
    return make_root(tmp_path_factory.mktemp("shipped"))


@pytest.fixture
def deployment(tmp_path, shipped):
    """A deployment repository of the toy."""
    folder = tmp_path / "deployment"
    assert spt("init", folder, "--from", shipped, cwd=tmp_path).code == 0
    return folder

import shutil

import pytest

from tests.spt.toys import INT_OPTION, commit_files, engine, git, make_root, new, spt


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


@pytest.fixture
def system(deployment):
    """A system: two mechanisms whose commits are interleaved, on a branch of its own; returns the commits by name."""
    git(deployment, "switch", "-q", "-c", "round")
    commits = {
        "a1": commit_files(deployment, {"stock/engine.py": engine(line20="200")}, "alpha: first half\n\nWhy it wins."),
        "b1": commit_files(
            deployment,
            {"stock/options/beta.toml": INT_OPTION.format("beta-size", 8), "stock/select/beta.py": "# beta\n"},
            "beta: new files",
        ),
        "a2": commit_files(deployment, {"stock/engine.py": engine(line20="200", line22="220")}, "alpha: second half"),
        "b2": commit_files(
            deployment, {"stock/engine.py": engine(line20="200", line22="220", line25="250")}, "beta: the other half"
        ),
    }
    git(deployment, "switch", "-q", "main")
    return commits


@pytest.fixture
def distilled(deployment, system):
    """The deployment once both mechanisms are entries."""
    assert new(deployment, "alpha", system["a1"], system["a2"], extra=["--partial"]).code == 0
    assert new(deployment, "beta", system["b1"], system["b2"]).code == 0
    return deployment

"""Real histories: what two packages changed from release to release becomes entries that recompose exactly.

The releases come from the package index that pip is configured for; where they cannot be had, these tests fail.
"""

import subprocess
import sys
import zipfile

import pytest

from tests.spt.toys import git, spt

RELEASES = {"click": ["8.0.4", "8.1.3", "8.1.7"], "packaging": ["23.0", "23.1", "23.2", "24.0"]}
CONTRACT = ("--contract", "bitwise", "--invariant", "the release as it was")
GROUPS = 3


def unpack_release(package, version, folder, downloads):
    """Makes a folder hold the files of a release, and no others."""
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:"]
    subprocess.run([*command, "-d", downloads, f"{package}=={version}"], check=True, capture_output=True)
    (wheel,) = downloads.glob(f"{package}-{version}-*.whl")
    for path in sorted(folder.glob(f"{package}/**/*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder, [name for name in archive.namelist() if name.startswith(f"{package}/")])


@pytest.mark.parametrize("package", sorted(RELEASES))
def test_releases_recompose(tmp_path, package):
    """Each release is three interleaved commits, each commit an entry on the entry before that touches its files."""
    folder, downloads = tmp_path / "history", tmp_path / "downloads"
    git(tmp_path, "init", "-q", "-b", "main", "history")
    first, *later = RELEASES[package]
    unpack_release(package, first, folder, downloads)
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", first)
    assert spt("init", ".", "--stock", "HEAD", cwd=folder).code == 0
    series = []
    for version in later:
        unpack_release(package, version, folder, downloads)
        changed = git(folder, "status", "--porcelain", "-uall", "--no-renames").splitlines()
        paths = sorted(line.split()[-1] for line in changed)
        for group in range(GROUPS):
            # A file is always in the same group, whatever else a release changes.
            mine = [path for path in paths if sum(path.encode()) % GROUPS == group]
            if mine:
                git(folder, "add", "-A", "--", *mine)
                git(folder, "commit", "-q", "-m", f"{package} {version}, part {group}")
                series.append((version, group, git(folder, "rev-parse", "HEAD")))
        assert git(folder, "status", "--porcelain") == ""
    newest: dict[int, str] = {}
    for version, group, commit in series:
        name = f"{package}-{version}-{group}"
        requires = ("--requires", newest[group]) if group in newest else ()
        partial = () if commit == series[-1][2] else ("--partial",)
        ran = spt(
            "entry", "new", name, "--system", "main", "--from", commit, *CONTRACT, *requires, *partial, cwd=folder
        )
        assert ran.code == 0, ran.err
        newest[group] = name

    assert spt("entry", "verify", "--all", cwd=folder).code == 0
    names = [row["name"] for row in spt("entry", "list", "--json", cwd=folder).json]
    tree = spt("entry", "apply", *names, "--onto", "refs/spt/stock/current", "--tree-only", cwd=folder).out.strip()
    assert tree == git(folder, "rev-parse", "main^{tree}")
    assert len(names) == len(series) >= 2 * len(later)

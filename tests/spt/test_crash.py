"""kill -9 at any point loses nothing, leaves a repository that git understands, and is mended by the next run.

A child process is killed at its n-th event that can change anything (a file opened for writing, a rename, a
program started), for every n until the command comes to its end.
"""

import os
import shutil
import signal
import sys
import time
from pathlib import Path

import pytest

from tests.spt.toys import CONTRACT, ENGINE, card, commit_files, git, make_root, spt, write

_EVENTS = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.chmod", "subprocess.Popen", "os.symlink"}
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


def child(action, *, own_group=False):
    """Forks; the child runs `action` with its output thrown away.  Returns its id."""
    pid = os.fork()
    if own_group:
        os.setpgid(pid, pid)  # in both, whichever comes first
    if pid == 0:
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        try:
            action()
        finally:
            os._exit(0)
    return pid


def killed_at(number, arguments, cwd):
    """Runs `spt` in a child that is killed at its n-th changing event; returns how many events there were till then."""
    count = 0
    counted, report = os.pipe()

    def watch(event, values):
        nonlocal count
        if event in _EVENTS or (event == "open" and isinstance(values[2], int) and values[2] & _WRITES):
            count += 1
            os.write(report, b".")
            if count == number:
                os.kill(os.getpid(), signal.SIGKILL)

    def run():
        sys.addaudithook(watch)
        spt(*arguments, cwd=cwd)

    os.waitpid(child(run), 0)
    os.close(report)
    with os.fdopen(counted, "rb") as said:
        return len(said.read())


def references(folder):
    if not (folder / ".git").is_dir() or not (folder / ".git/HEAD").exists():
        return {}
    lines = git(folder, "for-each-ref", "--format=%(refname) %(objectname)").splitlines()
    return dict(line.split() for line in lines)


def files(folder):
    """Files of the working tree, by path."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and not name.startswith(".git/") and "/.git" not in name:
            found[name] = path.read_bytes()
    return found


def scene_init(folder, shipped):
    return ["init", folder / "new", "--from", shipped], folder, folder / "new"


def scene_init_again(folder, shipped):
    newer = make_root(folder / "newer")
    write(newer, {"stock/linear/dense.py": "# moved\n"})
    return ["init", folder / "d", "--from", newer], folder, folder / "d"


def scene_apply(folder, shipped):
    return ["entry", "apply", "tuned", "tree-select"], folder / "d", folder / "d"


def scene_branch(folder, shipped):
    return ["entry", "apply", "tuned", "--branch", "try"], folder / "d", folder / "d"


def scene_worktree(folder, shipped):
    return ["entry", "apply", "tuned", "--worktree", folder / "w"], folder / "d", folder / "d"


def scene_export(folder, shipped):
    return ["export", "tuned", folder / "out"], folder / "d", folder / "d"


def scene_import(folder, shipped):
    newer = make_root(folder / "newer", entries=False)
    write(newer / "entries/extra", {"entry.yaml": card("extra"), "tree/kernels/extra.py": "x\n"})
    return ["entry", "import", newer / "entries"], folder / "d", folder / "d"


def scene_refresh(folder, shipped):
    git(folder / "d", "switch", "-q", "--detach")
    commit = commit_files(folder / "d", {"stock/engine.py": "first\n" + ENGINE})
    git(folder / "d", "switch", "-q", "main")
    spt("init", ".", "--stock", commit, cwd=folder / "d")
    return ["entry", "refresh", "--all"], folder / "d", folder / "d"


def scene_new(folder, shipped):
    git(folder / "d", "switch", "-q", "-c", "round")
    commit = commit_files(folder / "d", {"kernels/new.py": "x\n"}, "a new kernel")
    return ["entry", "new", "mine", "--system", "round", "--from", commit, *CONTRACT], folder / "d", folder / "d"


def scene_edit(folder, shipped):
    return ["entry", "edit", "tuned"], folder / "d", folder / "d"


def scene_write_back(folder, shipped):
    spt("entry", "edit", "tuned", cwd=folder / "d")
    write(folder / "d/.git/spt/worktrees/tuned", {"stock/linear/w12.py": "# better\n"})
    return ["entry", "export", "tuned", "--to", folder], folder / "d", folder / "d"


def scene_checkout(folder, shipped):
    root = make_root(folder / "checkout")
    git(root, "init", "-q")
    git(root, "add", "-A")
    git(root, "commit", "-q", "-m", "all")
    write(root, {"stock/engine.py": "first\n" + ENGINE})
    return ["entry", "refresh", "--all"], root, root


SCENES = [
    scene_init,
    scene_init_again,
    scene_apply,
    scene_branch,
    scene_worktree,
    scene_export,
    scene_import,
    scene_refresh,
    scene_new,
    scene_edit,
    scene_write_back,
    scene_checkout,
]


def prepared(scene, folder, pristine, shipped):
    """A fresh scene: (arguments, where to run, the repository)."""
    folder.mkdir()
    shutil.copytree(pristine, folder / "d")
    return scene(folder, shipped)


def outcome(folder, repository):
    """All that a user can see at the end."""
    status = git(repository, "status", "--porcelain=v2", "--branch")
    worktrees = [line.replace(str(folder), "") for line in git(repository, "worktree", "list").splitlines()]
    everything = {name: data for name, data in files(folder).items() if not name.startswith(("newer/", "d/.git"))}
    return references(repository), status, worktrees, everything


@pytest.mark.parametrize("most", [6, pytest.param(1000, marks=pytest.mark.full)], ids=["some", "all"])
@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.__name__.removeprefix("scene_"))
def test_a_kill_at_any_event_loses_nothing(tmp_path, pristine, shipped, scene, most):
    """After the kill each reference and file is old or new and each object whole; run again, all is as undisturbed."""
    arguments, cwd, repository = prepared(scene, tmp_path / "x", pristine, shipped)
    before, old_files = references(repository), files(tmp_path / "x")
    events = killed_at(0, arguments, cwd)
    wanted = outcome(tmp_path / "x", repository)
    after, new_files = wanted[0], files(tmp_path / "x")

    assert events > 3
    for number in sorted({1 + round(step * (events - 1) / (most - 1)) for step in range(most)}):
        shutil.rmtree(tmp_path / "x")
        arguments, cwd, repository = prepared(scene, tmp_path / "x", pristine, shipped)
        assert killed_at(number, arguments, cwd) == number
        assert before.keys() <= references(repository).keys()
        for name, oid in references(repository).items():
            assert oid in (before.get(name), after.get(name)), f"{name} at event {number}"
        for name, data in old_files.items():
            assert files(tmp_path / "x").get(name) in (data, new_files.get(name)), f"{name} at event {number}"
        if references(repository):
            assert git(repository, "fsck", "--strict", "--no-dangling") == ""
            git(repository, "status")
        ran = spt(*arguments, cwd=cwd)
        assert ran.code == 0, f"event {number}: {ran.err}"
        for leftover in (tmp_path / "x").glob(".out.*"):  # of an export: beside the folder, never in it
            shutil.rmtree(leftover)
        assert outcome(tmp_path / "x", repository) == wanted, f"event {number}"


@pytest.mark.parametrize("delay_ms", [3, 9, 15, 21, 27, 35])
def test_a_kill_of_git_too_is_explained_and_mended(tmp_path, pristine, shipped, delay_ms):
    """Killed with its git child, a run may leave git's own lock: the next run names it, and works once it is gone."""
    arguments, cwd, repository = prepared(scene_apply, tmp_path / "x", pristine, shipped)
    pid = child(lambda: spt(*arguments, cwd=cwd), own_group=True)
    time.sleep(delay_ms / 1000)
    os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    locks = list((repository / ".git").rglob("*.lock"))
    git(repository, "status")
    if locks:
        ran = spt(*arguments, cwd=cwd)
        assert ran.code in (0, 5)
        assert ran.code == 0 or "lock" in ran.err
        for lock in locks:
            lock.unlink(missing_ok=True)

    assert spt(*arguments, cwd=cwd).code == 0
    assert git(repository, "status", "--porcelain") == ""
    assert git(repository, "fsck", "--strict", "--no-dangling") == ""
    assert git(repository, "log", "-1", "--format=%s") == "tuned: do it"


@pytest.mark.parametrize("left", [b"", b"# best", None], ids=["empty", "half", "gone"])
def test_files_that_a_killed_checkout_tore_are_mended(deployment, left):
    """A file that git was writing when it was killed, or was about to replace, is written whole by the next run."""
    tree = spt("entry", "apply", "tree-select", "--tree-only", cwd=deployment).out.strip()
    old = git(deployment, "rev-parse", "HEAD^{tree}")
    for path in ("stock/select/best.py", "stock/engine.py"):
        (deployment / path).unlink(missing_ok=True)
        if left is not None:
            (deployment / path).write_bytes(left[: 0 if path.endswith("engine.py") else None])
    refused = spt("entry", "apply", "tree-select", cwd=deployment)
    write(deployment, {".git/spt/moving-.git": f"{old} {tree}\n"})

    assert (refused.code, "has changes" in refused.err) == (2, True)
    assert spt("entry", "apply", "tree-select", cwd=deployment).code == 0
    assert git(deployment, "status", "--porcelain") == ""
    assert not (deployment / ".git/spt/moving-.git").exists()


def test_a_pack_is_kept_from_gc_until_its_references_are_there(deployment, monkeypatch):
    """A gc that prunes everything unreachable, between objects and references, takes nothing that is needed."""
    from spt.git.store import Store

    original = Store._update

    def update_after_gc(store, moves, reason):
        git(deployment, "gc", "-q", "--prune=now")
        original(store, moves, reason)

    monkeypatch.setattr(Store, "_update", update_after_gc)
    assert spt("entry", "apply", "tuned", "--branch", "try", cwd=deployment).code == 0

    assert git(deployment, "fsck", "--strict", "--no-dangling") == ""
    assert git(deployment, "log", "-1", "--format=%s", "try") == "tuned: do it"
    assert not list((deployment / ".git/objects/pack").glob("*.keep"))


def test_a_branch_that_moves_meanwhile_is_not_overwritten(deployment, monkeypatch):
    """Someone else's commit between reading and writing stays: exit 5, and the command can be run again."""
    from spt.git import store as module

    real = module.git

    def race(*arguments, **options):
        if arguments[:2] == ("update-ref", "--stdin") and b"refs/heads/try" in options.get("stdin", b""):
            git(deployment, "update-ref", "refs/heads/try", "main")
        return real(*arguments, **options)

    monkeypatch.setattr(module, "git", race)
    ran = spt("entry", "apply", "tuned", "--branch", "try", cwd=deployment)

    assert (ran.code, "run the command again" in ran.err) == (5, True)
    assert git(deployment, "rev-parse", "try") == git(deployment, "rev-parse", "main")


def test_one_command_at_a_time(deployment, monkeypatch):
    """A second command waits for the first, and says so when that takes too long."""
    import fcntl

    from spt.git import store as module

    monkeypatch.setattr(module, "_LOCK_WAIT_S", 0.2)
    (deployment / ".git/spt").mkdir(exist_ok=True)
    with Path(deployment / ".git/spt/lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        ran = spt("entry", "apply", "tuned", cwd=deployment)

    assert (ran.code, "another spt command" in ran.err) == (5, True)
    assert spt("entry", "apply", "tuned", cwd=deployment).code == 0

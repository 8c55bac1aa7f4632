"""A round whose judge is another machine: jobs go there in one tar, samples come back, verdicts are made here."""

import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.spt.round.toys import CANARY, FROM, START, make_round_deployment
from tests.spt.toys import errors_well, git, snapshot, spt

ROOT = Path(__file__).parents[3]
BEGIN = [*START, FROM, "--name", "far", "--elsewhere", "--agent", "memory:canary"]


def far(folder, *arguments):
    """A command on the other machine: its own folder, no repository, and neither git nor pygit2."""
    (folder / "none").mkdir(exist_ok=True)
    (folder / "none/pygit2.py").write_text("raise ImportError('there is no git here')\n")
    (folder / "none/git").write_text("#!/bin/sh\nexit 99\n")
    (folder / "none/git").chmod(0o755)
    environment = {
        "PATH": f"{folder / 'none'}:{os.environ['PATH']}",
        "PYTHONPATH": f"{folder / 'none'}:{ROOT}",
        "LC_ALL": "C.UTF-8",
        "SPT_LOCKS": os.environ["SPT_LOCKS"],
    }
    done = subprocess.run(
        [sys.executable, "-P", "-s", "-m", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


@pytest.fixture(scope="module")
def carried(tmp_path_factory):
    """A round that was carried to and fro until it ended: (repository, how it ended, jobs a trip).

    Beside the repository lies each trip's tar.
    """
    folder = make_round_deployment(tmp_path_factory.mktemp("far"), [CANARY])
    there = tmp_path_factory.mktemp("there")
    ran, trips = spt(*BEGIN, cwd=folder), []
    while "waits for what another machine measures" in ran.err:
        assert len(trips) < 6, trips
        packed = spt("round", "pack", "far", "-o", there / "out.tar", cwd=folder)
        assert packed.code == 0, packed.err
        shutil.copy(there / "out.tar", folder.parent / f"trip-{len(trips)}.tar")
        far(there, "spt", "round", "unpack", "out.tar", "work")
        trips.append([event["name"].partition("-")[0] for event in far(there, "harness", "batch", "work")])
        far(there, "spt", "round", "pack", "work", "--samples", "-o", "back.tar")
        assert spt("round", "unpack", there / "back.tar", "far", cwd=folder).code == 0
        ran = spt("round", "resume", "far", "--json", cwd=folder)
    return folder, ran, trips


def test_a_round_is_carried_to_a_machine_without_git_and_back(carried):
    """It ends as one that was measured at home; one trip is for the candidate, one for the final."""
    folder, ran, trips = carried
    assert ran.code == 0, ran.err
    assert ran.json["outcome"] == "promoted"
    assert ran.json["final"]["verdict"] == "smoke"
    assert trips[0] == ["run", "run", "run", "calibrate", "development", "run", "run", "time", "force"]
    assert trips[1:] == [["final"]]
    git(folder, "fsck", "--strict")


def test_verdicts_of_samples_from_elsewhere_are_in_the_ledger(carried):
    """What the judge there measured is judged here, and named by the journal."""
    from spt.verdicts import Ledger

    folder, ran, _ = carried
    keys = {held.key for held in Ledger.find(folder).all()}
    [course] = ran.json["directions"]
    assert {course["end"]["timing"], course["end"]["forcing"], ran.json["final"]["key"]} <= keys


def test_what_is_no_jobs_of_a_round_is_refused(carried, tmp_path):
    """A tar of something else, a round that waits for nothing, and one that measures at home."""
    folder, _, _ = carried
    before = snapshot(folder)
    with tarfile.open(tmp_path / "other.tar", "w") as tar:
        tar.add(__file__, "sub/file.py")
    assert errors_well(spt("round", "unpack", tmp_path / "other.tar", "far", cwd=folder), 2, "no job of a round")
    with tarfile.open(tmp_path / "empty.tar", "w"):
        pass
    assert errors_well(spt("round", "unpack", tmp_path / "empty.tar", "far", cwd=folder), 2, "no batch")
    assert errors_well(spt("round", "pack", "far", "-o", tmp_path / "x.tar", cwd=folder), 4, "nothing to carry")
    assert errors_well(spt("round", "pack", "gone", "-o", tmp_path / "x.tar", cwd=folder), 4, "no round is called")
    assert snapshot(folder) == before


def test_a_tar_with_one_bad_job_leaves_nothing_of_the_others(carried, tmp_path):
    """Every job is looked at before the first is written, whichever is bad; in new folders and beside what is there."""
    folder, _, trips = carried
    trip = next(number for number, jobs in enumerate(trips) if len(jobs) > 1)
    with tarfile.open(folder.parent / f"trip-{trip}.tar") as tar:
        held = {member.name: tar.extractfile(member).read() for member in tar}
    *_, last = (name for name in held if name.endswith(".tar"))
    for data in (held[last][:1500], b"", held[last].replace(b'"seed"', b'"deed"')):
        write_tar(tmp_path / "bad.tar", held | {last: data})
        ran = spt("round", "unpack", tmp_path / "bad.tar", tmp_path / "work", cwd=tmp_path)
        assert errors_well(ran, 2), data[:99]
        assert not list((tmp_path / "work").iterdir())

    write_tar(tmp_path / "one.tar", only(held, last))
    assert spt("round", "unpack", tmp_path / "one.tar", tmp_path / "work", cwd=tmp_path).code == 0
    job = tmp_path / "work" / last.removesuffix(".tar") / "job.json"
    job.write_text(json.dumps(json.loads(job.read_text()) | {"seed": 99}))
    before = snapshot(tmp_path / "work")
    write_tar(tmp_path / "all.tar", held)
    assert errors_well(spt("round", "unpack", tmp_path / "all.tar", tmp_path / "work", cwd=tmp_path), 3, "another job")
    assert snapshot(tmp_path / "work") == before


def only(held, name):
    """What a tar holds, with one of its jobs."""
    batch = json.loads(held["batch.json"])
    jobs = [job for job in batch["jobs"] if f"{job['name']}.tar" == name]
    return {"batch.json": json.dumps({**batch, "jobs": jobs}).encode(), name: held[name]}


def write_tar(path, files):
    with tarfile.open(path, "w") as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))


JOB = {"name": "run-1", "command": "run", "words": []}


@pytest.mark.parametrize(
    "jobs",
    [
        [JOB | {"words": 5}],
        [JOB | {"words": [1]}],
        [JOB | {"command": "../up"}],
        [JOB | {"command": None}],
        [JOB | {"name": "run-\x1b[31m"}],
        [JOB | {"name": ".new-1"}],
        [JOB, JOB],
        {},
        [[]],
    ],
)
def test_a_batch_that_is_damaged_is_refused_before_anything_is_written(jobs, tmp_path):
    """Whatever another machine wrote, `unpack` names the tar, and leaves no batch that `pack` would fail on."""
    data = json.dumps({"v": 1, "kind": "batch", "jobs": jobs}).encode()
    write_tar(tmp_path / "back.tar", {"batch.json": data, "run-1.tar": b""})
    ran = spt("round", "unpack", tmp_path / "back.tar", tmp_path / "work", cwd=tmp_path)
    assert errors_well(ran, 2, "back.tar', batch.json")
    assert not list((tmp_path / "work").iterdir())


def test_the_verdict_of_another_system_is_not_taken_for_a_final(carried, tmp_path):
    """A journal that was moved back may come to another best: its seal was spent, and that is said."""
    import shutil
    from dataclasses import replace

    from spt.errors import Usage
    from spt.git.store import Store
    from spt.round.budget import Budget
    from spt.round.far import FarBench
    from spt.round.journal import Journal
    from spt.round.settings import Settings
    from spt.round.working import state_of

    folder = tmp_path / "d"
    shutil.copytree(carried[0], folder, symlinks=True)
    journal = Journal.open(Store.find(folder), "far")
    best, settings = state_of(journal).best, Settings.of(journal.settings())
    bench = FarBench(journal.store, settings, Budget(None, tmp_path / "stop"), print)
    verdict = bench.final(best).verdict
    assert verdict is not None and verdict["answer"] == "smoke"
    with pytest.raises(Usage, match="by another final"):
        bench.final(replace(best, options={**best.options, "tau": 3}))

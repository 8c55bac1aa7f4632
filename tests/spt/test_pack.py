"""`spt job pack|unpack`: the same bytes for the same job, and nothing of a tar but a job's own plain files."""

import errno
import io
import json
import os
import shutil
import tarfile

import pytest

from spt.errors import Conflict, Missing, Usage
from spt.pack import MAX_JOB_BYTES, pack, unpack
from tests.fakes.lattice import write_measurement
from tests.spt.judged import made_up_samples, make_deployment
from tests.spt.toys import errors_well, spt

TREE = "a" * 40
JOB = {
    "v": 1,
    "kind": "job",
    "arms": {"a": {"dir": "a", "tree": TREE, "options": {}}, "b": {"dir": "b", "tree": TREE, "options": {}}},
    "deployment": {"target": {"path": "/here/model", "widen": 1, "jitter": 0}, "drafter": None, "device": "cpu"},
    "requests": "requests.jsonl",
    "seed": 1,
    "rule": "paired-1",
    "phase": "screen",
    "units": 0,
}


@pytest.fixture
def job(tmp_path):
    """A job's folder with half a line of samples at its end, and what an engine prepared."""
    folder = tmp_path / "job"
    for arm in "ab":
        (folder / arm / "stock").mkdir(parents=True)
        (folder / arm / "stock" / "engine.py").write_text(f"arm = '{arm}'\n")
    (folder / "a" / "stock" / "run").write_text("#!/bin/sh\n")
    (folder / "a" / "stock" / "run").chmod(0o755)
    (folder / "out" / "prepared").mkdir(parents=True)
    (folder / "out" / "prepared" / "large").write_bytes(b"0" * 1000)
    (folder / "out" / "samples.jsonl").write_text('{"one": 1}\n{"two"')
    (folder / "requests.jsonl").write_text('{"id": "r", "ids": [5]}\n')
    (folder / "job.json").write_text(json.dumps(JOB))
    return folder


def files(folder):
    return {
        path.relative_to(folder).as_posix(): (path.read_bytes(), path.stat().st_mode & 0o777)
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_there_and_back(job, tmp_path):
    """A job comes out as it went in, whole lines of samples with it, and where its models are is told on the way."""
    pack(job, tmp_path / "there.tar")
    file = unpack(tmp_path / "there.tar", tmp_path / "other", {"target": "/there/model", "device": "cuda:0"})
    came = files(file.parent)
    deployment = json.loads(file.read_text())["deployment"]

    assert set(came) == {*(name for name in files(job) if "prepared" not in name)}
    assert came["a/stock/run"] == (b"#!/bin/sh\n", 0o755)
    assert came["b/stock/engine.py"] == (b"arm = 'b'\n", 0o644)
    assert came["out/samples.jsonl"][0] == b'{"one": 1}\n'
    assert deployment == {"target": {"path": "/there/model", "widen": 1, "jitter": 0}, "drafter": None} | {
        "device": "cuda:0"
    }

    with (file.parent / "out" / "samples.jsonl").open("a") as samples:
        samples.write('{"two": 2}\n')
    pack(file, tmp_path / "back.tar", samples=True)
    with tarfile.open(tmp_path / "back.tar") as tar:
        assert tar.getnames() == ["job.json", "out/samples.jsonl"]
    unpack(tmp_path / "back.tar", job, {})
    assert (job / "out" / "samples.jsonl").read_text() == '{"one": 1}\n{"two": 2}\n'
    assert json.loads((job / "job.json").read_text()) == JOB
    unpack(tmp_path / "there.tar", job, {})  # older samples take nothing back
    assert (job / "out" / "samples.jsonl").read_text() == '{"one": 1}\n{"two": 2}\n'


def test_the_same_folder_makes_the_same_bytes(job, tmp_path):
    """Neither time, owner nor the order of the folder shows in a tar."""
    pack(job, tmp_path / "one.tar")
    copy = tmp_path / "copy"
    for name in ("out", "requests.jsonl", "b", "a", "job.json"):
        source = job / name
        if source.is_dir():
            shutil.copytree(source, copy / name, copy_function=shutil.copyfile)
        else:
            shutil.copyfile(source, copy / name)
    (copy / "a" / "stock" / "run").chmod(0o700)
    pack(copy / "job.json", tmp_path / "two.tar")

    assert (tmp_path / "one.tar").read_bytes() == (tmp_path / "two.tar").read_bytes()


def test_what_was_timed_goes_along(job, tmp_path):
    """The samples whose tokens are forced travel there, not back, and other ones are a conflict."""
    (job / "timed.jsonl").write_text('{"timed": 1}\n')
    pack(job, tmp_path / "there.tar")
    file = unpack(tmp_path / "there.tar", tmp_path / "other", {})
    assert (file.parent / "timed.jsonl").read_text() == '{"timed": 1}\n'
    pack(file, tmp_path / "back.tar", samples=True)
    with tarfile.open(tmp_path / "back.tar") as tar:
        assert tar.getnames() == ["job.json", "out/samples.jsonl"]
    (job / "timed.jsonl").write_text('{"timed": 2}\n')
    with pytest.raises(Conflict):
        unpack(tmp_path / "there.tar", job, {})


def measure(folder):
    """A finished measurement's files, and what its engines left beside them."""
    out = folder / "out"
    made = write_measurement(folder / "made", {"r": ([5], [[6], [7, 8]]), "s": ([5, 6], [[7], [8], [9]])})
    out.mkdir(exist_ok=True)
    for path in made.iterdir():
        path.rename(out / path.name)
    made.rmdir()
    summary = json.loads((out / "measurement.json").read_text())
    summary["system"]["tree"] = TREE
    (out / "measurement.json").write_text(json.dumps(summary))
    (out / "profile.jsonl").write_text("profile\n")
    (out / "cache").mkdir(exist_ok=True)
    for name in ("key", "cache/kernel", "profile.jsonl.new", "lattices/times.jsonl"):
        (out / name).write_text(f"{name}\n")
    names = ("answers.jsonl", "steps.jsonl", "profile.jsonl", "lattices/00000.lattice", "lattices/00001.lattice")
    return ["job.json", *sorted(f"out/{name}" for name in names), "out/measurement.json"]


DAMAGED = {
    "answers": ("out/answers.jsonl", lambda data: data.replace(b"toy", b"tay")),
    "answers cut": ("out/answers.jsonl", lambda data: data[: data.index(b"\n") + 1]),
    "no answers": ("out/answers.jsonl", None),
    "steps": ("out/steps.jsonl", lambda data: data[:-1] + b" \n"),
    "no steps": ("out/steps.jsonl", None),
    "a lattice": ("out/lattices/00000.lattice", lambda data: data[:-1] + bytes([data[-1] ^ 1])),
    "no lattice": ("out/lattices/00001.lattice", None),
    "one lattice more": ("out/lattices/00002.lattice", b"x"),
    "a part more": ("out/lattices/00001.1.lattice", b"x"),
    "summary": ("out/measurement.json", lambda data: b"garbage"),
    "no object": ("out/measurement.json", lambda data: b"[]"),
    "not finished": ("out/measurement.json", None),
    "of another system": ("out/measurement.json", lambda data: data.replace(TREE.encode(), b"d" * 40)),
}


def damage(folder, name):
    path, change = DAMAGED[name]
    file = folder / path
    if change is None:
        file.unlink()
    else:
        file.write_bytes(change if isinstance(change, bytes) else change(file.read_bytes()))


@pytest.mark.parametrize("name", [name for name in DAMAGED if name != "not finished"])
def test_a_damaged_measurement_is_not_packed(name, job, tmp_path):
    """What no reader would read does not travel, and no tar is written."""
    measure(job)
    damage(job, name)
    for samples in (True, False):
        with pytest.raises(Usage, match="damaged"):
            pack(job, tmp_path / "back.tar", samples=samples)
    assert not (tmp_path / "back.tar").exists()


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_measurement_is_not_taken(name, job, tmp_path):
    """A tar whose measurement is not whole, or not of its job, changes nothing, in a new folder and in its job's."""
    there = shutil.copytree(job, tmp_path / "there")
    names = measure(there)
    damage(there, name)
    path = tmp_path / "damaged.tar"
    with tarfile.open(path, "w") as tar:
        for inside in {*names, DAMAGED[name][0]}:
            if (there / inside).exists():
                tar.add(there / inside, inside)
    before = files(job)
    for to in (tmp_path / "new", job):
        with pytest.raises(Usage, match=r"damaged\.tar' holds") as refused:
            unpack(path, to, {})
        assert ".job." not in refused.value.message and ".new." not in refused.value.message
    assert files(job) == before
    assert not (tmp_path / "new").exists()


def test_lattices_that_the_tar_does_not_have(job, tmp_path):
    """A measurement does not come to lie among files of another."""
    there = shutil.copytree(job, tmp_path / "there")
    measure(there)
    pack(there, tmp_path / "back.tar", samples=True)
    (job / "out/lattices").mkdir()
    (job / "out/lattices/00007.lattice").write_text("of another\n")
    before = files(job)
    with pytest.raises(Conflict, match="another measurement"):
        unpack(tmp_path / "back.tar", job, {})
    assert files(job) == before


@pytest.mark.parametrize(
    ("change", "is_same"),
    [
        ({"device": "cuda:1"}, True),
        ({"target": {"path": "/there", "widen": 1, "jitter": 0}}, True),
        ({"target": {"path": "/here/model", "widen": 2, "jitter": 0}}, False),
        ({"drafter": {"path": "/there"}}, False),
        ({"context": 64}, False),
        ({"engine": {"kind": "command", "command": ["evil"]}}, False),
    ],
)
def test_a_digest_is_only_a_word(change, is_same, job, tmp_path):
    """Two jobs under one deployment digest are one job only where their deployments are, but for where models lie."""
    told = {**JOB, "deployment_digest": "d" * 64}
    (job / "job.json").write_text(json.dumps(told))
    pack(job, tmp_path / "job.tar")
    (job / "job.json").write_text(json.dumps({**told, "deployment": {**JOB["deployment"], **change}}))
    before = files(job)
    if is_same:
        unpack(tmp_path / "job.tar", job, {})
    else:
        with pytest.raises(Conflict, match="'deployment' differs"):
            unpack(tmp_path / "job.tar", job, {})
    assert files(job).keys() == before.keys() and files(job)["job.json"] == before["job.json"]


def test_a_measurement_comes_back(job, tmp_path):
    """What a reader reads goes back, once it is finished; other files of it are a conflict, and nothing is written."""
    (job / "out/samples.jsonl").unlink()
    pack(job, tmp_path / "there.tar")
    there = unpack(tmp_path / "there.tar", tmp_path / "other", {}).parent
    named = measure(there)
    (there / "out/measurement.json").rename(there / "kept")
    with pytest.raises(Missing, match="no samples at"):
        pack(there, tmp_path / "back.tar", samples=True)
    (there / "kept").rename(there / "out/measurement.json")
    pack(there, tmp_path / "back.tar", samples=True)
    with tarfile.open(tmp_path / "back.tar") as tar:
        assert tar.getnames() == named

    (job / "out/answers.jsonl").write_text("others\n")
    before = files(job)
    with pytest.raises(Conflict):
        unpack(tmp_path / "back.tar", job, {})
    assert files(job) == before
    (job / "out/answers.jsonl").unlink()
    for _ in range(2):
        unpack(tmp_path / "back.tar", job, {})
    for name in named[1:]:
        assert (job / name).read_bytes() == (there / name).read_bytes()
    (job / "job.json").write_text(json.dumps({**JOB, "max_tokens": 9}))
    with pytest.raises(Conflict, match="'max_tokens' differs"):
        unpack(tmp_path / "back.tar", job, {})


def test_another_job_is_a_conflict(job, tmp_path):
    """Samples that were measured apart, other files and another job leave the folder as it is."""
    pack(job, tmp_path / "job.tar")
    before = files(job)
    for path, text in (
        ("job.json", json.dumps({**JOB, "seed": 2})),
        ("b/stock/engine.py", "other\n"),
        ("out/samples.jsonl", '{"other": 1}\n'),
    ):
        (job / path).write_text(text)
        changed = files(job)
        with pytest.raises(Conflict):
            unpack(tmp_path / "job.tar", job, {"device": "cuda"})
        assert files(job) == changed
        (job / path).write_bytes(before[path][0])


def member(name, data=b"", **fields):
    made = tarfile.TarInfo(name)
    made.size = len(data)
    for field, value in fields.items():
        setattr(made, field, value)
    return made, data


HOSTILE = {
    "absolute": [member("/etc/x", b"x")],
    "outside": [member("../x", b"x")],
    "outside below": [member("a/../../x", b"x")],
    "backslash": [member("a\\..\\x", b"x")],
    "dot": [member("./a/x", b"x")],
    "git": [member("a/.git/config", b"x")],
    "git in capitals": [member("a/.GIT/config", b"x")],
    "link": [member("a/x", type=tarfile.SYMTYPE, linkname="/etc")],
    "link, then through it": [member("a/x", type=tarfile.SYMTYPE, linkname="/tmp"), member("a/x/y", b"x")],
    "hard link": [member("a/x", type=tarfile.LNKTYPE, linkname="job.json")],
    "device": [member("a/x", type=tarfile.CHRTYPE)],
    "fifo": [member("a/x", type=tarfile.FIFOTYPE)],
    "folder": [member("a/x", type=tarfile.DIRTYPE)],
    "twice": [member("a/x", b"1"), member("a/x", b"2")],
    "file and folder": [member("a/x", b"1"), member("a/x/y", b"2")],
    "stray": [member("harness/__main__.py", b"x")],
    "stray beside samples": [member("out/prepared/a/prepared.json", b"{}")],
    "stray beside a measurement": [member("out/lattices/a/00000.lattice", b"x")],
    "less than nothing": [member("a/x", pax_headers={"size": "-1024"})],
    "sparse, and no number": [member("a/x", pax_headers={"GNU.sparse.size": "z"})],
    "sparse, and no map": [member("a/x", pax_headers={"GNU.sparse.map": "x,y", "GNU.sparse.size": "9"})],
    "sparse, and half a map": [member("a/x", pax_headers={"GNU.sparse.major": "1", "GNU.sparse.minor": "0"})],
    "a name too long": [member(f"a/{'n' * 300}", b"x")],
    "a path too long": [member(f"a/{'d/' * 2000}x", b"x")],
    "huge job": [member("job.json", b" " * (MAX_JOB_BYTES + 1))],
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_tars_are_refused_whole(name, job, tmp_path):
    """Links, devices, paths that lead outside, files of no job, doubles and what is too large: nothing is written."""
    path, room = tmp_path / "hostile.tar", tmp_path / "room"
    room.mkdir()
    with tarfile.open(path, "w") as tar:
        for made, data in [member("job.json", json.dumps(JOB).encode()), *HOSTILE[name]]:
            tar.addfile(made, io.BytesIO(data))
    with pytest.raises(Usage) as refused:
        unpack(path, room / "job", {})

    assert ".job." not in refused.value.message  # no folder that is gone when it is read

    assert list(room.iterdir()) == []


@pytest.mark.parametrize("job_", ["{", "[]", json.dumps({**JOB, "seed": -1}), json.dumps({**JOB, "requests": "../x"})])
def test_what_is_wrong_with_a_job_names_its_tar(job_, tmp_path):
    """The user knows the tar, not the folder that it was read in."""
    path = tmp_path / "broken.tar"
    with tarfile.open(path, "w") as tar:
        made, data = member("job.json", job_.encode())
        tar.addfile(made, io.BytesIO(data))
    with pytest.raises(Usage, match=r"broken\.tar', job\.json: "):
        unpack(path, tmp_path / "job", {})


@pytest.mark.parametrize("deployment", [{}, {"target": 7}])
def test_a_target_is_changed_where_there_is_one(deployment, tmp_path):
    """A job whose deployment is none of ours is no job to be told where its target lies."""
    path = tmp_path / "other.tar"
    with tarfile.open(path, "w") as tar:
        made, data = member("job.json", json.dumps({**JOB, "deployment": deployment}).encode())
        tar.addfile(made, io.BytesIO(data))
    with pytest.raises(Usage, match="names no target"):
        unpack(path, tmp_path / "job", {"target": "/there"})
    assert not (tmp_path / "job").exists()


def test_a_tar_takes_the_place_of_files_alone(job, tmp_path):
    """Neither a device nor a folder is replaced by a tar, whoever runs this."""
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to("fifo")
    before = files(tmp_path)
    for name in ("folder", "fifo", "link", ""):
        ran = spt("job", "pack", job, "-o", name, cwd=tmp_path)
        assert errors_well(ran, 2, "cannot be a tar")
    assert (tmp_path / "fifo").is_fifo() and files(tmp_path) == before


def test_a_size_that_is_only_claimed(tmp_path):
    """A header that claims more than there is, or more than may be, is refused before it is read."""
    made, _ = member("a/huge")
    made.size = 2**40
    (tmp_path / "bomb.tar").write_bytes(made.tobuf() + bytes(1024))
    (tmp_path / "cut.tar").write_bytes(member("job.json", b"x" * 2000)[0].tobuf() + b"x" * 100)
    (tmp_path / "none.tar").write_bytes(b"no tar at all" * 100)
    for name in ("bomb", "cut", "none"):
        with pytest.raises(Usage):
            unpack(tmp_path / f"{name}.tar", tmp_path / "job", {})
    with pytest.raises(Missing):
        unpack(tmp_path / "absent.tar", tmp_path / "job", {})
    assert not (tmp_path / "job").exists()


@pytest.mark.parametrize("place", ["../up", "/etc", "a/b", "out", "job.json", "timed.jsonl"])
def test_a_job_that_names_files_elsewhere_is_refused(place, job, tmp_path):
    """A job carries what lies beside it, so that packing one takes nothing else along."""
    (job / "job.json").write_text(json.dumps({**JOB, "requests": place}))
    with pytest.raises(Usage, match="beside the job"):
        pack(job, tmp_path / "job.tar")
    assert not (tmp_path / "job.tar").exists()


def test_a_disk_that_is_full_is_not_the_tars_fault(job, tmp_path, monkeypatch):
    """What cannot be written is not said of the tar, and half a job stays nowhere."""
    pack(job, tmp_path / "job.tar")

    def full(source, to):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("spt.pack.shutil.copyfileobj", full)
    ran = spt("job", "unpack", "job.tar", "new", cwd=tmp_path)
    assert errors_well(ran, 5, "error: no space left on device")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["job", "job.tar"]


def test_links_are_not_packed(job, tmp_path):
    """A tree with a link in it is no job."""
    (job / "a" / "link").symlink_to("/etc/hostname")
    with pytest.raises(Usage, match="plain file"):
        pack(job, tmp_path / "job.tar")


def test_commands(tmp_path):
    """A job goes to another machine and its samples come back into the ledger."""
    folder = make_deployment(tmp_path)
    samples = made_up_samples(folder, tmp_path / "measured.jsonl", 0.05)
    made = tmp_path / "measured.jsonl-job"
    assert spt("job", "pack", made, "-o", "there.tar", cwd=tmp_path).code == 0
    came = spt("job", "unpack", "there.tar", "--target", "model", "--device", "cpu", cwd=tmp_path)
    assert came.out == f"{tmp_path / 'there' / 'job.json'}\n"
    assert json.loads((tmp_path / "there/job.json").read_text())["deployment"]["target"]["path"] == str(
        tmp_path / "model"
    )
    (tmp_path / "there" / "out").mkdir()
    shutil.copyfile(samples, tmp_path / "there" / "out" / "samples.jsonl")
    assert spt("job", "pack", "there", "--samples", "-o", "back.tar", cwd=tmp_path).code == 0
    assert spt("job", "unpack", "back.tar", made, cwd=tmp_path).code == 0
    added = spt("verdict", "add", made / "out" / "samples.jsonl", cwd=folder)

    assert (added.code, added.out.partition(":")[0]) == (0, "promote")
    assert errors_well(spt("job", "pack", "nowhere", "-o", "x.tar", cwd=tmp_path), 4, "nowhere")
    assert errors_well(spt("job", "make", "time", "-o", made, cwd=folder), 2, "new folder")
    assert errors_well(spt("job", "unpack", "/", cwd=tmp_path), 2, "is no tar")
    assert errors_well(spt("job", "unpack", "", cwd=tmp_path), 2, "is no tar")
    assert errors_well(spt("job", "unpack", "there.tar", "new", "--device", "tpu", cwd=tmp_path), 2, "'tpu'")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    "ended", ["{}", "[]", '{"status": "0", "error": null}', '{"status": 1, "error": 7}', "nothing"]
)
def test_a_job_that_does_not_say_how_it_ended_is_not_taken(ended, job, tmp_path):
    """What a batch wrote of an end is checked where it comes in, so that nothing damaged lies among a round's jobs."""
    (job / "out" / "ended.json").write_text(ended)
    pack(job, tmp_path / "back.tar", samples=True)
    with pytest.raises(Usage, match=r"back\.tar"):
        unpack(tmp_path / "back.tar", tmp_path / "there", {})
    assert not (tmp_path / "there").exists()

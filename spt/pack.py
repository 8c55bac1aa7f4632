"""A job and what came of it as one tar: trees, requests and job go to a machine without git, samples come back.

The same folder always makes the same bytes.  A tar may come from anywhere, so what it holds is read as data: plain
files of a job and nothing else, under caps.  The harness that runs it is the one that is installed there.
"""

import errno
import io
import json
import os
import re
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any, NoReturn

from spt.errors import Conflict, Missing, Usage
from spt.formats import check, read_json

__all__ = ["ENDED", "TIMED", "load_ended", "load_job", "pack", "received", "unpack"]

JOB, SAMPLES = "job.json", "out/samples.jsonl"
TIMED = "timed.jsonl"  # beside a job of forcing: what was timed
LATTICES = "out/lattices"
SUMMARY = "out/measurement.json"  # of a measurement that is finished
ENDED, ANSWERS = "out/ended.json", "out/answers.jsonl"  # of a batch: how a job ended, and what came of a run
_MEASURED = re.compile(r"out/(answers\.jsonl|steps\.jsonl|profile\.jsonl|lattices/[0-9]+(\.[0-9]+)?\.lattice)")
_PACK = "`spt job pack`, where it was measured, writes it again"
MAX_FILES = 20_000
MAX_BYTES = 4 * 2**30
MAX_JOB_BYTES = 2**20
MAX_NAME, MAX_PATH = 255, 1024  # bytes; what most file systems hold
_SAME = (
    "arms",
    "seed",
    "rule",
    "phase",
    "units",
    "deployment_digest",
    "deployment",
    "commitment",
    "max_tokens",
    "sizes",
)  # of two jobs that are one


def load_job(path: Path, where: str | None = None) -> tuple[Path, dict[str, Any]]:
    """(folder, job) of a job's folder or of its file; a job here keeps its files beside it.

    where: what errors name instead of the file.
    """
    file = path / JOB if path.is_dir() else path
    try:
        data = file.read_bytes()
    except OSError as error:
        raise Missing(f"the job '{file}' cannot be read: {error.strerror}", "`spt job make` writes one") from None
    job = _job(data, where or str(file))
    return file.parent, job


def _job(data: bytes, where: str) -> dict[str, Any]:
    job: dict[str, Any] = read_json(data, where)
    check(job, "job", where)
    for name in (job["requests"], *(arm["dir"] for arm in job["arms"].values())):
        if len(PurePosixPath(name).parts) != 1 or name in ("..", "out", JOB, TIMED):
            raise Usage(f"{where}: '{name}' does not lie beside the job")
    return job


# --- there ---


def pack(path: Path, out: Path, *, samples: bool = False) -> None:
    """Writes the tar of a job's folder: all that it needs, and the samples that there are; or, to go back, these alone.

    Half a last line, which a run may be writing, stays behind, and so does a measurement that is not finished.
    Raises Usage where `out` cannot be a plain file, such as a device or a folder.
    """
    if not out.name or (out.exists() and not out.is_file()):
        raise Usage(f"'{out}' cannot be a tar", "it is no plain file: give another name")
    folder, job = load_job(path)
    names = [JOB] if samples else [JOB, job["requests"], *sorted({arm["dir"] for arm in job["arms"].values()})]
    if not samples and (folder / TIMED).exists():
        names.append(TIMED)
    results = _results(folder)
    _check_measurement(folder, job, f"'{folder / 'out'}'", "measure into another folder")
    if samples and not results:
        raise Missing(
            f"there are no samples at '{folder / SAMPLES}'",
            "nothing was measured yet, or a measurement is not finished",
        )
    names += results
    with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=_parent(out)) as scratch:
        part = Path(scratch) / "tar"
        with tarfile.open(part, "w", format=tarfile.PAX_FORMAT) as tar:
            for file in (file for name in names for file in _files(folder / name)):
                data = file.read_bytes()
                inside = file.relative_to(folder).as_posix()
                if inside == SAMPLES:
                    data = data[: data.rfind(b"\n") + 1]
                tar.addfile(_member(inside, data, file), io.BytesIO(data))
        part.replace(out)


def _results(folder: Path) -> list[str]:
    """Samples, and the files of a measurement that is finished, the summary last; of a batch, how the job ended."""
    found = [SAMPLES] if (folder / SAMPLES).is_file() else []
    if (folder / ENDED).is_file():
        is_run = (folder / ANSWERS).is_file() and not (folder / SUMMARY).is_file()
        found += [*([ANSWERS] if is_run else []), ENDED]
    if (folder / SUMMARY).is_file():
        inside = (file.relative_to(folder).as_posix() for file in sorted((folder / "out").rglob("*")))
        found += [*(name for name in inside if _MEASURED.fullmatch(name)), SUMMARY]
    return found


def _check_measurement(folder: Path, job: dict[str, Any], where: str, hint: str) -> None:
    """Usage where there are files of a measurement in `folder/out`, and not a whole one of this job.

    where: what the error names instead of that folder.
    """
    from spt.lattice import read_lattice  # it needs numpy, and most jobs hold no measurement

    def refuse(problem: str) -> NoReturn:
        raise Usage(f"{where} holds a measurement that is damaged: {problem.replace(f'{folder}/', '')}", hint)

    if not (folder / SUMMARY).exists():
        return
    try:
        lattice = read_lattice(folder / "out")
    except (Usage, Missing) as error:
        refuse(error.message)
    firsts = sorted(path.name for path in (folder / LATTICES).glob("*.lattice") if path.name.count(".") == 1)
    if firsts != [f"{place:05}.lattice" for place in range(len(lattice.requests))]:
        refuse(f"'{LATTICES}' does not hold one lattice for each line of 'out/answers.jsonl'")
    for path in sorted((folder / LATTICES).glob("*.*.lattice")):
        first, part, _ = path.name.split(".")
        if not part.isdecimal() or f"{first}.lattice" not in firsts or int(part) >= _parts(folder, first):
            refuse(f"'{path}' is a part of no lattice")
    summary = read_json((folder / SUMMARY).read_bytes(), where)
    if job.get("deployment_digest") not in (None, summary["deployment_digest"]):
        refuse("it is of another deployment than its job")
    for name, arm in (("system", "a"), ("stock", "stock")):
        if arm in job["arms"] and summary[name] != {key: job["arms"][arm][key] for key in ("tree", "options")}:
            refuse(f"its '{name}' is not the arm '{arm}' of its job")


def _parts(folder: Path, stem: str) -> int:
    """How many files a lattice has, which was read before."""
    with (folder / LATTICES / f"{stem}.lattice").open("rb") as file:
        file.readline()
        return int(read_json(file.readline(), stem)["parts"])


def _parent(path: Path) -> Path:
    if not path.parent.is_dir():
        raise Usage(f"folder '{path.parent}' does not exist")
    return path.parent


def _files(path: Path) -> Iterator[Path]:
    if path.is_symlink() or not (path.is_file() or path.is_dir()):
        raise Usage(f"'{path}' is neither a plain file nor a folder")
    if path.is_file():
        yield path
    else:
        for inner in sorted(path.iterdir()):
            yield from _files(inner)


def _member(name: str, data: bytes, file: Path) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.size = len(data)
    made.mode = _mode(file.stat().st_mode)
    return made  # time 0, owner 0, no names


def _mode(mode: int) -> int:
    """One of three; what nobody else may read, such as the requests of a final, stays so."""
    return 0o755 if mode & 0o100 else 0o644 if mode & 0o077 else 0o600


# --- and back ---


def unpack(path: Path, to: Path, changes: dict[str, Any]) -> Path:
    """Writes what a tar holds into the folder `to`, new or of the same job; returns its job's file.

    changes: fields of the job's deployment, for where models and devices are on this machine.  Conflict where another
    job lies there, or samples of which neither is the beginning of the other; then nothing is written.
    """
    with received(path, to, changes) as land:
        return land()


@contextmanager
def received(path: Path, to: Path, changes: dict[str, Any]) -> Iterator[Callable[[], Path]]:
    """A tar that was looked at whole, beside the folder `to`: what `unpack` does with it, to be called in the block.

    Where something is wrong with it, that is said here, before anything is written.
    """
    with tempfile.TemporaryDirectory(prefix=f".{to.name}.", dir=_parent(to)) as scratch:
        part = Path(scratch) / "job"
        part.mkdir()
        _extract(path, part)
        _, job = load_job(part, _inside(path))
        _check_came(part, job, path)
        is_new = not to.exists()
        if not is_new:
            _refuse_other(part, job, to)
            job = load_job(to)[1]
        job = _changed(job, changes)

        def land() -> Path:
            if is_new:
                _write_job(part / JOB, job)
                part.rename(to)
                return to / JOB
            _merge(part, to)
            if changes:
                _write_job(to / JOB, job)
            return to / JOB

        yield land


def _check_came(part: Path, job: dict[str, Any], path: Path) -> None:
    """Usage where what a tar holds of a measurement is not a whole one of its job, or does not say how a job ended."""
    measured = [name for name in _inner(part) if _MEASURED.fullmatch(name)]
    if measured and not (part / SUMMARY).exists() and not (measured == [ANSWERS] and (part / ENDED).exists()):
        raise Usage(f"'{path}' holds '{measured[0]}' of a measurement that is not finished", _PACK)
    _check_measurement(part, job, f"'{path}'", _PACK)
    if (part / ENDED).exists():
        load_ended(part / ENDED, f"'{path}', {ENDED}")


def load_ended(file: Path, where: str) -> tuple[int, str]:
    """(status, error) of a job that ended in a batch, the error empty where there is none; `where` is what errors
    name."""
    ended = read_json(file.read_bytes(), where)
    status, error = (ended.get("status"), ended.get("error")) if isinstance(ended, dict) else (None, None)
    if type(status) is not int or not isinstance(error, str | None):
        raise Usage(f"{where} does not say how the job ended")
    return status, error or ""


def _inner(folder: Path) -> list[str]:
    return [file.relative_to(folder).as_posix() for file in _files(folder)]


def _inside(path: Path) -> str:
    return f"'{path}', {JOB}"


def _changed(job: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    deployment = {**job["deployment"], **{name: value for name, value in changes.items() if name != "target"}}
    if "target" in changes:
        if not isinstance(target := deployment.get("target"), dict):
            raise Usage("the job's deployment names no target", "it was not written by `spt job make`")
        deployment["target"] = {**target, "path": changes["target"]}
    return {**job, "deployment": deployment}


def _write_job(file: Path, job: dict[str, Any]) -> None:
    part = file.with_name(f".{file.name}")
    part.write_text(json.dumps(job, indent=1))
    part.replace(file)


def _extract(path: Path, to: Path) -> None:
    try:
        with tarfile.open(path, "r:") as tar:
            left = MAX_BYTES
            for number, member in enumerate(tar, 1):
                _refuse_unsafe(path, member, number, left)
                left -= member.size
                _write(tar, member, to / member.name)
            if not (to / JOB).is_file():
                raise Usage(f"'{path}' holds no job")
            _refuse_stray(path, to)
    except (tarfile.TarError, ValueError) as error:  # numbers of its headers are read as they come
        raise Usage(f"'{path}' is not a whole tar: {error}") from error
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise  # that is of the folder it goes to
        if error.filename is None or Path(str(error.filename)) == path:
            raise Missing(f"'{path}' cannot be read: {error.strerror or error}") from None
        raise


def _refuse_unsafe(path: Path, member: tarfile.TarInfo, number: int, left: int) -> None:
    name = PurePosixPath(member.name)
    if not member.isreg() or member.issparse():
        raise Usage(f"'{path}' holds '{member.name}', which is not a plain file")
    unsafe = name.is_absolute() or ".." in name.parts or not name.parts or "\\" in member.name or "\0" in member.name
    unsafe = unsafe or any(part.lower() == ".git" or len(os.fsencode(part)) > MAX_NAME for part in name.parts)
    if unsafe or str(name) != member.name or len(os.fsencode(member.name)) > MAX_PATH:
        raise Usage(f"'{path}' holds the unsafe path '{member.name}'")
    cap = MAX_JOB_BYTES if member.name == JOB else left
    if not 0 <= member.size <= cap or number > MAX_FILES:
        raise Usage(f"'{path}' holds more than a job may: {MAX_FILES} files of {MAX_BYTES >> 30} GiB together")


def _write(tar: tarfile.TarFile, member: tarfile.TarInfo, to: Path) -> None:
    # The folder is ours and holds no link, so no component can lead outside.
    source = tar.extractfile(member)
    assert source is not None  # a plain file
    try:
        to.parent.mkdir(parents=True, exist_ok=True)
        with to.open("xb") as file:
            shutil.copyfileobj(source, file)
    except (FileExistsError, NotADirectoryError):
        raise Usage(f"the tar holds '{member.name}' twice, or as file and folder") from None
    to.chmod(_mode(member.mode))


def _refuse_stray(path: Path, folder: Path) -> None:
    """Nothing but the job's own files came."""
    _, job = load_job(folder, _inside(path))
    rooms = {JOB, TIMED, job["requests"], "out", *(arm["dir"] for arm in job["arms"].values())}
    for file in _files(folder):
        inside = file.relative_to(folder).as_posix()
        is_result = inside in (SAMPLES, SUMMARY, ENDED) or _MEASURED.fullmatch(inside)
        if inside.split("/")[0] not in rooms or (inside.startswith("out/") and not is_result):
            raise Usage(f"'{path}' holds '{inside}', which is no part of its job")


def _elsewhere(job: dict[str, Any]) -> dict[str, Any]:
    """A job without what may differ from machine to machine: where its models lie, and on which device it runs."""
    deployment = {name: value for name, value in job["deployment"].items() if name != "device"}
    if isinstance(target := deployment.get("target"), dict):
        deployment["target"] = {name: value for name, value in target.items() if name != "path"}
    deployment["drafter"] = deployment.get("drafter") is not None
    return {**job, "deployment": deployment}


def _refuse_other(part: Path, job: dict[str, Any], to: Path) -> None:
    """Conflict where what came does not go on with what is in the folder `to`."""
    _, held = load_job(to)
    mine, theirs = _elsewhere(job), _elsewhere(held)
    if differing := [name for name in _SAME if mine.get(name) != theirs.get(name)]:
        raise Conflict(f"'{to}' holds another job: its '{differing[0]}' differs", "give another folder")
    for file in _new(part):
        there = to / file.relative_to(part)
        if there.exists() and there.read_bytes() != file.read_bytes():
            raise Conflict(f"'{there}' is not what the tar holds", "give another folder")
    if (part / SUMMARY).exists():
        came_names = {*_inner(part), "out/profile.jsonl"}  # a profile that no summary names is read all the same
        here_names = (file.relative_to(to).as_posix() for file in sorted((to / "out").rglob("*")))
        for name in here_names:
            if _MEASURED.fullmatch(name) and name not in came_names:
                raise Conflict(f"'{to / name}' is of another measurement than the tar's", "give another folder")
    came, here = _samples(part), _samples(to)
    if not came.startswith(here) and not here.startswith(came):
        raise Conflict(f"'{to / SAMPLES}' and the tar were measured apart", "give another folder")


def _merge(part: Path, to: Path) -> None:
    """Takes over files that are not there yet, and samples that go on where those that are there end."""
    for file in _new(part):
        there = to / file.relative_to(part)
        if not there.exists():
            there.parent.mkdir(parents=True, exist_ok=True)
            file.rename(there)
    if len(_samples(part)) > len(_samples(to)):
        (to / SAMPLES).parent.mkdir(exist_ok=True)
        (part / SAMPLES).replace(to / SAMPLES)


def _new(part: Path) -> list[Path]:
    """What is taken over as it is.  A measurement's summary comes last, as it does where it is measured."""
    new = [file for file in _files(part) if file.relative_to(part).as_posix() not in (JOB, SAMPLES)]
    return sorted(new, key=lambda file: file == part / SUMMARY)


def _samples(folder: Path) -> bytes:
    """Whole lines; half a last one may be left of a run that was killed."""
    data = (folder / SAMPLES).read_bytes() if (folder / SAMPLES).is_file() else b""
    return data[: data.rfind(b"\n") + 1]

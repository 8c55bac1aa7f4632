"""A round's jobs as one tar, and samples back: a tar of the tars of `spt job pack`, and the order of the jobs.

Nothing here needs git: the other machine packs and unpacks with the same code.
"""

import contextlib
import io
import json
import re
import shutil
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from spt.errors import Missing, Usage
from spt.formats import read_json
from spt.pack import ENDED, pack, received

__all__ = ["BATCH", "pack_jobs", "unpack_jobs"]

BATCH = "batch.json"
_MOST_JOBS, _MOST_BYTES = 1000, 4 << 30
_MOST_BATCH_BYTES = 1 << 20


def pack_jobs(folder: Path, out: Path, *, samples: bool = False) -> int:
    """Writes the tar of the jobs in `folder` that have not ended, or, to go back, the samples of those that were begun.

    Returns how many jobs are in it; Missing where there is none.
    """
    if not out.name or (out.exists() and not out.is_file()):
        raise Usage(f"'{out}' cannot be a tar", "it is no plain file: give another name")
    if not out.parent.is_dir():
        raise Usage(f"folder '{out.parent}' does not exist")
    batch = _read(folder / BATCH)
    names = [job["name"] for job in batch["jobs"]]
    if samples:
        names = [name for name in names if any((folder / name / "out" / each).is_file() for each in _BEGUN)]
    else:
        names = _needed(folder, batch, [name for name in names if not (folder / name / ENDED).is_file()])
    if not names:
        raise Missing(f"there is nothing to carry in '{folder}'", "every job has come back, or none was begun")
    jobs = [job for job in batch["jobs"] if job["name"] in names]
    with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as scratch:
        part, inner = Path(scratch) / "tar", Path(scratch) / "job.tar"
        with tarfile.open(part, "w", format=tarfile.PAX_FORMAT) as tar:
            _put(tar, BATCH, json.dumps({**batch, "jobs": jobs}, indent=1).encode())
            for name in names:
                pack(folder / name, inner, samples=samples)
                _put(tar, f"{name}.tar", inner.read_bytes())
        part.replace(out)
    return len(names)


_BEGUN = ("samples.jsonl", "ended.json", "answers.jsonl")


def _needed(folder: Path, batch: dict[str, Any], names: list[str]) -> list[str]:
    """The jobs with those whose samples they read, in the order of the batch."""
    words = [word for job in batch["jobs"] if job["name"] in names for word in job["words"]]
    read = {word[1:].partition("/")[0] for word in words if word.startswith("@")}
    return [job["name"] for job in batch["jobs"] if job["name"] in names or job["name"] in read]


def _put(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    made = tarfile.TarInfo(name)
    made.size, made.mode = len(data), 0o600
    tar.addfile(made, io.BytesIO(data))


def unpack_jobs(path: Path, folder: Path, changes: dict[str, Any]) -> list[str]:
    """Unpacks every job of a tar into `folder`: new ones, or samples that go on where those there end; their names.

    changes: where models and devices are on this machine.  A tar that holds anything else is refused whole.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".came-", dir=folder) as scratch:
        batch = _extract(path, Path(scratch))
        names = [str(job["name"]) for job in batch["jobs"]]
        file = folder / BATCH
        held = _read(file) if file.is_file() else {**batch, "jobs": []}
        with contextlib.ExitStack() as stack:
            tars = ((Path(scratch) / f"{name}.tar", folder / name) for name in names)
            landings = [stack.enter_context(received(tar, to, changes)) for tar, to in tars]
            for land in landings:
                land()
        known = {job["name"] for job in held["jobs"]}
        held["jobs"] += [job for job in batch["jobs"] if job["name"] not in known]
        part = Path(scratch) / BATCH
        part.write_text(json.dumps(held, indent=1))
        part.replace(file)
    return names


def _extract(path: Path, to: Path) -> dict[str, Any]:
    """Lays the tars of a tar into `to`; returns its batch."""
    try:
        with tarfile.open(path, "r:") as tar:
            left = _MOST_BYTES
            for number, member in enumerate(tar, 1):
                plain = member.isreg() and not member.issparse() and Path(member.name).name == member.name
                cap = _MOST_BATCH_BYTES if member.name == BATCH else left
                if not plain or number > _MOST_JOBS or not 0 <= member.size <= cap:
                    raise Usage(f"'{path}' holds '{member.name}', which is no job of a round")
                left -= member.size
                source = tar.extractfile(member)
                assert source is not None  # a plain file
                with (to / member.name).open("xb") as file:
                    shutil.copyfileobj(source, file)
    except FileExistsError:
        raise Usage(f"'{path}' holds a file twice") from None
    except (tarfile.TarError, ValueError) as error:
        raise Usage(f"'{path}' is not a whole tar: {error}") from error
    except FileNotFoundError:
        raise Missing(f"there is no tar '{path}'") from None
    if not (to / BATCH).is_file():
        raise Usage(f"'{path}' holds no batch of a round", "`spt round pack` writes one")
    batch = _read(to / BATCH, f"'{path}', {BATCH}")
    came = {file.name for file in to.iterdir()} - {BATCH}
    if came != {f"{job['name']}.tar" for job in batch["jobs"]}:
        raise Usage(f"'{path}' does not hold the jobs that its batch names")
    return batch


def _read(file: Path, where: str | None = None) -> dict[str, Any]:
    """The batch in a file; `where` is what errors name instead of it."""
    if not file.is_file():
        raise Missing(f"there is no batch of jobs at '{file}'", "a round that was started with --elsewhere has one")
    where = where or f"'{file}'"
    value = read_json(file.read_bytes(), where)
    jobs = value.get("jobs") if isinstance(value, dict) else None
    if not isinstance(jobs, list) or not all(_is_job(job) for job in jobs):
        raise Usage(f"{where} is no batch of a round's jobs")
    if len({job["name"] for job in jobs}) < len(jobs):
        raise Usage(f"{where} names a job twice")
    return dict(value)


def _is_job(job: Any) -> bool:
    """What `FarBench` names and asks; whether the words are right is for the harness that runs them."""
    if not isinstance(job, dict) or job.keys() != {"name", "command", "words"}:
        return False
    name, command, words = job["name"], job["command"], job["words"]
    named = isinstance(name, str) and re.fullmatch(r"[a-z0-9][a-z0-9-]{0,99}", name) is not None
    asked = isinstance(command, str) and re.fullmatch(r"[a-z]{1,20}", command) is not None
    return named and asked and isinstance(words, list) and all(isinstance(word, str) for word in words)

"""`python -m harness prepare`: each arm writes what it wants for later runs, once, before any request exists.

It does so enclosed, in a process that exits, under a cap on time and on bytes.  What it left is digested, and every
run that uses it sees it read-only and checks the digest before and after.
"""

import contextlib
import hashlib
import json
import math
import os
import shutil
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from harness import shape
from harness.client import PREPARE_S, Engine, Start, digest_folder
from harness.device import locked, open_device
from harness.errors import HarnessError, Hung, Missing, Refused, Usage, Violation
from harness.gguf_file import open_gguf
from harness.job import Arm, Deployment, read_job
from harness.launch import launch, refuse_sandbox, settings_of
from harness.probe import check_sandbox
from harness.sandbox import Enclosure, find_bubblewrap
from harness.shape import constant, integer, number, record, text
from harness.wire import Prepared

__all__ = ["Store", "fill", "model_paths", "prepare", "stored", "weights_bytes"]

CAP_WEIGHTS = 2  # what an arm may write, in bytes of the weights
SLACK_BYTES = 64 << 20  # compiled kernels of a tiny model are larger than the model
MAX_FILES = 100_000
_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2}
_RECORD = record(
    {
        "v": constant(1),
        "kind": constant("prepared"),
        "tree": text,
        "files": integer(),
        "bytes": integer(),
        "digest": text,
        "seconds": number(0),
        "sandbox": text,
    }
)


@dataclass(frozen=True)
class Store:
    """What one arm prepared: `files` for the engine to read, `kernels` that were compiled meanwhile."""

    folder: Path
    tree: str
    digest: str  # over both folders
    bytes: int
    seconds_s: float

    @property
    def files(self) -> Path:
        return self.folder / "files"

    @property
    def kernels(self) -> Path:
        return self.folder / "kernels"

    @classmethod
    def open(cls, folder: Path) -> "Store":
        """The store in `folder`; raises `Missing` or `Usage` where there is none, or it is not what it was."""
        file = folder / "prepared.json"
        try:
            value = shape.loads(file.read_bytes())
            _RECORD(value, "the record")
        except OSError as error:
            raise Missing(f"nothing is prepared in '{folder}': {error.strerror}", "run `prepare` first") from None
        except shape.Mismatch as error:
            raise Usage(f"{file}: {error}") from None
        store = cls(folder, value["tree"], value["digest"], value["bytes"], value["seconds"])
        store.check()
        return store

    def check(self) -> None:
        """Raises `Violation` unless the folders hold what `prepare` left there."""
        if _digest(self.folder).digest != self.digest:
            raise Violation(f"what was prepared in '{self.folder}' has changed")

    def enclosure(self, enclosure: Enclosure) -> Enclosure:
        """The same enclosure with this store in it, read-only."""
        return replace(enclosure, files=self.files, kernels=self.kernels, filling=False)


def prepare(job_file: Path, out: Path, *, sandbox: bool = True) -> dict[str, Any]:
    """Prepares every arm of the job below `out`, one folder an arm; an arm that is there already is only checked.

    Returns what was written, by arm.
    """
    job = read_job(job_file)
    refuse_sandbox(job, sandbox=sandbox)
    deployment = job.deployment
    with open_device(deployment.device) as device, locked(device.uuid):
        enclosure = Enclosure(
            find_bubblewrap() if sandbox else None,
            device=deployment.device,
            nodes=device.nodes,
            reads=model_paths(deployment),
        )
        if sandbox:
            check_sandbox(enclosure)
        stores = {name: stored(arm, deployment, out / name, enclosure) for name, arm in job.arms.items()}
    arms = {name: _facts(store) for name, store in stores.items()}
    return {"v": 1, "kind": "prepared", "sandbox": enclosure.word, "arms": arms}


def _facts(store: Store) -> dict[str, Any]:
    return {"tree": store.tree, "bytes": store.bytes, "digest": store.digest, "seconds": round(store.seconds_s, 3)}


def stored(arm: Arm, deployment: Deployment, folder: Path, enclosure: Enclosure, start: Start = Engine.start) -> Store:
    """What the arm prepared in `folder`, now or before."""
    folder = folder.absolute()
    arm.check()
    if (folder / "prepared.json").is_file():
        store = Store.open(folder)
        if store.tree != arm.tree:
            raise Usage(f"'{folder}' was prepared by another tree: {store.tree[:12]}", "give another folder")
        return store
    cap_bytes = CAP_WEIGHTS * weights_bytes(deployment) + SLACK_BYTES
    return fill(arm, deployment, folder, enclosure, cap_bytes, start=start)


def fill(
    arm: Arm,
    deployment: Deployment,
    folder: Path,
    enclosure: Enclosure,
    cap_bytes: int,
    patience_s: float = PREPARE_S,
    start: Start = Engine.start,
) -> Store:
    """Runs `prepare` of one arm into the new folder `folder`; whatever goes wrong, nothing stays there.

    Raises `Violation` beyond `cap_bytes`, or when anything but plain files was left, and `Hung` beyond `patience_s`.
    """
    fresh = folder.with_name(folder.name + ".new")
    shutil.rmtree(fresh, ignore_errors=True)
    try:
        store = Store(fresh, arm.tree, "", 0, 0.0)
        store.files.mkdir(parents=True)
        store.kernels.mkdir()
        inside = replace(enclosure, files=store.files, kernels=store.kernels, filling=True, file_bytes=cap_bytes)
        started_s = time.monotonic()
        _run(arm, deployment, inside, lambda: _check_size(fresh, cap_bytes), patience_s, start)
        seconds_s = time.monotonic() - started_s
        _settle(fresh)
        _check_size(fresh, cap_bytes)
        left = _digest(fresh)
        value = {"v": 1, "kind": "prepared", "tree": arm.tree, **asdict(left), "seconds": seconds_s}
        (fresh / "prepared.json").write_text(json.dumps({**value, "sandbox": enclosure.word}) + "\n")
        fresh.rename(folder)
    except OSError as error:
        raise HarnessError(f"cannot write '{folder}': {error.strerror}") from None
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return Store(folder, arm.tree, left.digest, left.bytes, seconds_s)


def _run(
    arm: Arm,
    deployment: Deployment,
    enclosure: Enclosure,
    watch: Callable[[], None],
    patience_s: float,
    start: Start,
) -> None:
    assert enclosure.files is not None and enclosure.prepared is not None
    with launch(deployment, arm, start, enclosure=enclosure) as engine:
        engine.watch(watch)
        settings = enclosure.settings(settings_of(deployment, arm, engine))
        try:
            engine.prepare(settings, enclosure.files, patience_s, inside=enclosure.prepared)
        except Refused as error:
            if error.code != "unsupported":  # an engine without `prepare` has prepared nothing
                raise
        except Hung as error:
            raise Hung(f"'prepare' took too long: {error.message}") from None


def _check_size(folder: Path, cap_bytes: int) -> None:
    count = size = 0
    for path in _all(folder):
        with contextlib.suppress(FileNotFoundError):  # it may still be at work
            count, size = count + 1, size + path.lstat().st_blocks * 512
    if size > cap_bytes:
        raise Violation(f"'prepare' wrote {size >> 20} MiB, and may write {cap_bytes >> 20} MiB")
    if count > MAX_FILES:
        raise Violation(f"'prepare' wrote more than {MAX_FILES} files")


def _settle(folder: Path) -> None:
    """Takes the write permission from what was left, and refuses everything but plain files and folders.

    Its process is gone, so that nothing is swapped under our hands; a folder that it closed is opened first.
    """
    for path in _all(folder):
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            raise Violation(f"'prepare' left '{path.relative_to(folder)}', which is neither a plain file nor a folder")
        path.chmod(0o755 if path.is_dir() else 0o444)


def _digest(folder: Path) -> Prepared:
    """Of both folders, with the paths as they stand below `folder`; the record beside them does not count."""
    parts = {name: digest_folder(folder / name) for name in ("files", "kernels")}
    whole = "".join(f"{part.digest}  {name}\n" for name, part in parts.items())
    return Prepared(
        files=sum(part.files for part in parts.values()),
        bytes=sum(part.bytes for part in parts.values()),
        digest=hashlib.sha256(whole.encode()).hexdigest(),
    )


def _all(folder: Path) -> Iterator[Path]:
    """Everything below the folder, each folder before what is in it; links are not followed."""
    for base, folders, files in os.walk(folder):
        yield from (Path(base, name) for name in [*folders, *files])


# --- the bytes of the weights ---


def model_paths(deployment: Deployment) -> tuple[Path, ...]:
    """What an engine of this deployment reads."""
    return tuple(Path(path) for path in (deployment.target.path, deployment.drafter) if path is not None)


def weights_bytes(deployment: Deployment) -> int:
    """An upper bound of the bytes of the loaded weights: all tensors of the target count as widened both ways."""
    size = _BYTES[deployment.dtype]
    drafter = 0 if deployment.drafter is None else _loaded_bytes(Path(deployment.drafter), size)
    return _loaded_bytes(Path(deployment.target.path), size) * deployment.target.widen**2 + drafter


def _loaded_bytes(path: Path, size: int) -> int:
    """Numbers in the files' headers times `size`; of a format that only a foreign engine knows, the files' bytes."""
    if not path.exists():
        raise Missing(f"no model at '{path}'")
    files = [file for file in (_all(path) if path.is_dir() else [path]) if file.is_file()]
    known = {".safetensors": _safetensors_elements, ".gguf": _gguf_elements}
    try:
        elements = sum(known[file.suffix](file) for file in files if file.suffix in known)
    except (ValueError, KeyError, TypeError, struct.error) as error:
        raise Usage(f"the weights in '{path}' cannot be read: {error}") from None
    return elements * size or sum(file.stat().st_size for file in files)


def _safetensors_elements(path: Path) -> int:
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
    return sum(math.prod(tensor["shape"]) for name, tensor in header.items() if name != "__metadata__")


def _gguf_elements(path: Path) -> int:
    return sum(int(tensor.n_elements) for tensor in open_gguf(path).tensors)

"""The seal of a final: a secret that is committed to before a round and used once after it.

What is committed is sha256 of 32 random bytes, the seed, and the digest of the generator; the three together are the
secret, and fix every request of the final.  They lie in a file that only its owner may read.  Beside it `FILE.used`
names the one job that drew from it; it is on the disk before the first request exists.
"""

import contextlib
import datetime
import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import shape
from harness.errors import HarnessError, Missing, Usage
from harness.shape import constant, hexadecimal, integer, record, text

__all__ = ["MAX_SEED", "SALT_BYTES", "Seal", "create", "read", "spend", "used_path"]

SALT_BYTES = 32
MAX_SEED = 2**64 - 1


SECRET = record(
    {
        "v": constant(1),
        "kind": constant("seal"),
        "salt": hexadecimal(2 * SALT_BYTES),
        "seed": integer(0, MAX_SEED),
        "generator": hexadecimal(2 * SALT_BYTES),
    }
)
USED = record(
    {
        "v": constant(1),
        "kind": constant("seal_used"),
        "job": text,
        "date": text,
        "commitment": hexadecimal(2 * SALT_BYTES),
    }
)


@dataclass(frozen=True)
class Seal:
    """A final's secret.  salt: 32 random bytes.  generator: hex digest of the generator that will draw."""

    salt: bytes
    seed: int
    generator: str

    @property
    def commitment(self) -> str:
        """What is published before: sha256 over salt, seed (8 bytes, little-endian) and the generator's digest."""
        seed = self.seed.to_bytes(8, "little")
        return hashlib.sha256(self.salt + seed + bytes.fromhex(self.generator)).hexdigest()

    def record(self) -> dict[str, Any]:
        """The secret as a JSON object, to be revealed after the final."""
        named = {"salt": self.salt.hex(), "seed": self.seed, "generator": self.generator}
        return {"v": 1, "kind": "seal", **named}

    @classmethod
    def of(cls, value: Mapping[str, Any]) -> "Seal":
        """The seal that `record` wrote.  Raises shape.Mismatch."""
        SECRET(value, "the seal")
        return cls(bytes.fromhex(value["salt"]), value["seed"], value["generator"])


def create(path: Path, seal: Seal) -> None:
    """Writes the secret to the new file `path` with mode 0600; a file that is there is never replaced."""
    if used_path(path).exists() or not _write_new(path, seal.record()):
        raise Usage(f"'{path}' is there already", "a seal is made once; give another file")


def read(path: Path) -> Seal:
    """The secret in the file `path`, which must be the owner's alone."""
    try:
        mode = path.stat().st_mode
        value = shape.loads(path.read_bytes())
        seal = Seal.of(value)
    except OSError as error:
        raise Missing(f"the seal '{path}' cannot be read: {error.strerror}") from None
    except shape.Mismatch as error:
        raise Usage(f"{path}: {error}") from None
    if mode & 0o077:
        raise Usage(f"others may read the seal '{path}'", "a secret that was open to others is none; make a new seal")
    return seal


def spend(path: Path, job: str, now: datetime.datetime) -> Seal:
    """Marks the seal in `path` as used by the job with this key, and only then gives it.

    The same job may come again and goes on; any other is refused for good.
    """
    seal = read(path)
    mark = {"v": 1, "kind": "seal_used", "job": job, "date": now.isoformat(), "commitment": seal.commitment}
    if _write_new(used_path(path), mark):
        return seal
    before = _read_mark(used_path(path))
    if before["job"] != job or before["commitment"] != seal.commitment:
        raise HarnessError(
            f"the seal '{path}' was used on {before['date']} by the job '{before['job']}'",
            "a final is drawn once; a new round makes a new seal",
        )
    return seal


def used_path(path: Path) -> Path:
    """Where it is written that the seal in `path` was used."""
    if not path.name:
        raise Usage(f"'{path}' is no file of a seal", "--seal FILE names one")
    return path.with_name(path.name + ".used")


def _read_mark(path: Path) -> dict[str, Any]:
    try:
        value = shape.loads(path.read_bytes())
        USED(value, "the mark")
    except OSError as error:
        raise Missing(f"the mark '{path}' cannot be read: {error.strerror}") from None
    except shape.Mismatch as error:
        raise Usage(f"{path}: {error}", "it says which job used the seal; without it the seal counts as used") from None
    mark: dict[str, Any] = value
    return mark


def _write_new(path: Path, value: Mapping[str, Any]) -> bool:
    """Writes the object to `path` whole and on the disk, or not at all; False where the file is there already."""
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # its mode is 0600
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(json.dumps(value).encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
            # Unlike a rename, a link never replaces what another process put there meanwhile.
            with contextlib.suppress(FileExistsError):
                Path(path).hardlink_to(name)
                return True
            return False
        finally:
            Path(name).unlink()
            _sync(path.parent)
    except OSError as error:
        raise Usage(f"cannot write '{path}': {error.strerror}") from None


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

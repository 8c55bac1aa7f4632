"""The ledger of verdicts, `refs/spt/verdicts`: what was looked at and what came of it, one JSON file a key.

Every look and every verdict is a commit of its own, so nothing that was seen can be unseen.  Samples are too large
for git: they lie compressed below the git common directory, named by their digest, and the ledger names them.
"""

import datetime
import gzip
import hashlib
import json
import os
import tempfile
import time
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spt.errors import Missing, Usage
from spt.formats import canonical, check, read_json
from spt.git.message import TOOL
from spt.git.objects import FILE, State
from spt.git.store import Store
from spt.git.tree import splice, walk

__all__ = ["FINAL", "LEDGER", "NO", "OPEN", "SEALS", "Held", "Ledger", "named", "now", "read_samples"]

LEDGER = "refs/spt/verdicts"
# Answers that leave a key open: nothing was learnt of the candidate, or too little to accept anything.
OPEN = ("refused", "smoke")
NO = ("reject", "malformed")  # what forcing says of a system that is not lossless
FINAL = "final"
SEALS = "seal"  # the folder of what is known of seals (spt/seal.py)


def named(identity: Mapping[str, Any]) -> str:
    """The key of what a verdict is of, as the harness computes it (docs/judge.md)."""
    return hashlib.sha256(canonical(identity).encode()).hexdigest()


def now() -> str:
    """The time as the ledger states it."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def read_samples(path: Path) -> bytes:
    """The whole lines of a file of samples, compressed or not; half a last line is left out.

    Raises Missing where it cannot be read, Usage where it is not whole.
    """
    try:
        data = path.read_bytes()
        data = gzip.decompress(data) if path.suffix == ".gz" else data
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise Usage(f"the samples '{path}' are not whole: {error}") from error
    except FileNotFoundError:
        raise Missing(f"there are no samples at '{path}'") from None
    except OSError as error:
        raise Missing(f"the samples '{path}' cannot be read: {error.strerror}") from None
    return data[: data.rfind(b"\n") + 1]


@dataclass(frozen=True)
class Held:
    """What the ledger knows of one key: the looks that were taken, and the verdict once there is one."""

    what: str
    key: str
    looks: tuple[dict[str, Any], ...] = ()
    verdict: dict[str, Any] | None = None
    seal: str | None = None  # of a final: the name
    again: str | None = None  # of a final: why the system was measured another time

    @property
    def closed(self) -> bool:
        """Whether this key has its answer for good; a seal is used once, so a final's always is."""
        return self.verdict is not None and (self.what == FINAL or self.verdict["answer"] not in OPEN)

    @property
    def path(self) -> str:
        return f"{self.what}/{self.key}.json"

    def record(self) -> dict[str, Any]:
        fields = {"what": self.what, "key": self.key, "looks": list(self.looks), "verdict": self.verdict}
        if self.what == FINAL:
            fields |= {"seal": self.seal, "again": self.again}
        return {"v": 1, "kind": "ledger", **fields}


class Ledger:
    """The verdicts of one repository."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._known: tuple[str | None, list[Held]] = (None, [])  # what `all` read, and of which tree

    @classmethod
    def find(cls, path: Path) -> "Ledger":
        """The ledger of the repository that `path` lies in; Usage where it lies in none."""
        try:
            return cls(Store.find(path))
        except Usage as error:
            problem = f"verdicts are kept in a git repository: {error.message}"
            raise Usage(problem, error.hint) from error

    # Reading.

    def held(self, what: str, key: str) -> Held:
        """What is known of a key: nothing at all where it was never judged."""
        state = self._lookup(f"{what}/{key}.json")
        return Held(what, key) if state is None else self._read(what, key, state)

    def all(self) -> list[Held]:
        """Everything that is known, by kind and key."""
        tree = self._tree()
        if tree is None:
            return []
        if self._known[0] != tree:
            found = []
            for path, state in walk(self.store.objects, tree):
                what, _, name = path.partition("/")
                if what != SEALS:
                    found.append(self._read(what, name.removesuffix(".json"), state))
            self._known = tree, found
        return list(self._known[1])

    def passing(self, timing: Mapping[str, Any]) -> dict[str, Any] | None:
        """The forcing verdict that accepted the very tokens that a timing verdict is of; None once any rejected."""
        verdict = self.held("forcing", named({**timing["of"], "timed": timing["samples"]})).verdict
        if verdict is None or verdict["answer"] != "accept" or verdict.get("timed") != timing["samples"]:
            return None
        return verdict if verdict.get("stock") == timing["stock"] and self.rejecting(timing) is None else None

    def rejecting(self, timing: Mapping[str, Any]) -> dict[str, Any] | None:
        """A verdict, of forcing or of a final, that rejected the system of this one, on its deployment, card and stock.

        Whatever it was paired with, and whichever tokens it was of: one that is kept is enough.
        """
        return next((each for each in self._forced(timing, "forcing", FINAL) if each["answer"] in NO), None)

    def forcing(self, timing: Mapping[str, Any]) -> dict[str, Any] | None:
        """What forcing says of the system of a timing verdict: what passes, else what rejects, else what there is.

        Of these it is the one of the tokens that were timed, or the newest.
        """
        decided = self.passing(timing) or self.rejecting(timing)
        return decided or max(
            self._forced(timing, "forcing"),
            key=lambda verdict: (verdict.get("timed") == timing["samples"], verdict["date"]),
            default=None,
        )

    def _forced(self, timing: Mapping[str, Any], *kinds: str) -> Iterator[dict[str, Any]]:
        """The verdicts of these kinds on the system of a timing verdict, on its deployment and card, by its stock."""
        for held in self.all():
            verdict = held.verdict
            if verdict is None or held.what not in kinds or verdict.get("stock") != timing["stock"]:
                continue
            if all(verdict["of"][name] == timing["of"][name] for name in ("a", "deployment", "card")):
                yield verdict

    def timing(self, prefix: str) -> dict[str, Any]:
        """The one timing verdict whose key begins so; Missing or Usage where it is none or not one."""
        found = [held for held in self.all() if held.key.startswith(prefix)]
        hint = "`spt verdict list` names those that there are"
        if not found:
            raise Missing(f"no verdict has a key that begins with '{prefix}'", hint)
        timed = [held for held in found if held.what == "timing"]
        if not timed:
            raise Usage(f"'{prefix}' is the key of a {found[0].what} verdict, not of a timing", hint)
        if len(timed) > 1:
            raise Usage(f"{len(timed)} timing verdicts have a key that begins with '{prefix}'", hint)
        if timed[0].verdict is None:
            raise Missing(f"the campaign '{prefix}' has no verdict yet", "the `spt time` that began it goes on")
        return timed[0].verdict

    def _tree(self) -> str | None:
        tip = self.store.reference(LEDGER)
        return None if tip is None else self.store.objects.commit(tip).tree

    def _lookup(self, path: str) -> State | None:
        tree = self._tree()
        return None if tree is None else self.store.objects.lookup(tree, path)

    def _read(self, what: str, key: str, state: State) -> Held:
        where = f"{LEDGER}:{what}/{key}.json"
        value = read_json(self.store.objects.blob(state.oid), where)
        check(value, "ledger", where)
        verdict = value["verdict"]
        stated = [(value["what"], value["key"])]
        if verdict is not None:
            stated += [(verdict["what"], verdict["key"]), (what, named(verdict["of"]))]
        if any(one != (what, key) for one in stated):
            raise Usage(f"{where}: what it holds is of another key")
        return Held(what, key, tuple(value["looks"]), verdict, value.get("seal"), value.get("again"))

    def record(self, path: str, kind: str) -> dict[str, Any] | None:
        """The record of this kind in the file `path`, or None."""
        if (state := self._lookup(path)) is None:
            return None
        value: dict[str, Any] = read_json(self.store.objects.blob(state.oid), f"{LEDGER}:{path}")
        check(value, kind, f"{LEDGER}:{path}")
        return value

    def paths(self, folder: str) -> list[str]:
        """The files below a folder, in order."""
        tree = self._tree()
        found = () if tree is None else walk(self.store.objects, tree)
        return [path for path, _ in found if path.startswith(f"{folder}/")]

    # Writing.

    def add_look(self, what: str, key: str, look: Mapping[str, Any]) -> None:
        """Appends a look, once a phase and number; after an open verdict it belongs to a new run."""
        with self.store.locked():
            held = self.held(what, key)
            if held.closed:
                raise Usage(f"the {what} of '{key[:12]}' has its verdict: there is nothing to look at")
            looks = held.looks if held.verdict is None else ()
            if not any((one["phase"], one["look"]) == (look["phase"], look["look"]) for one in looks):
                self._put(Held(what, key, (*looks, dict(look))), f"{what}: look {look['look']} at {look['phase']}")

    def add(self, verdict: Mapping[str, Any]) -> dict[str, Any]:
        """Appends a verdict; returns the one that the key has now, which is the old one where it was closed."""
        if verdict["key"] != named(verdict["of"]):
            raise Usage(f"the verdict '{verdict['key'][:12]}' is not of what it says")
        what, key = verdict["what"], verdict["key"]
        with self.store.locked():
            held = self.held(what, key)
            if held.verdict is not None and held.closed:
                return held.verdict
            self._put(Held(what, key, held.looks, dict(verdict)), f"{what}: {verdict['answer']}")
            return dict(verdict)

    def _put(self, held: Held, subject: str) -> None:
        self.commit({held.path: held.record()}, f"{subject}\n\nSpt-Key: {held.key}\n")

    def commit(self, records: Mapping[str, Mapping[str, Any]], message: str) -> None:
        """Writes records to their paths in one commit; the caller holds the repository's lock."""
        objects, tip, states = self.store.objects, self.store.reference(LEDGER), {}
        for path, record in records.items():
            check(record, record["kind"], path)
            data = json.dumps(record, indent=1, sort_keys=True, allow_nan=False).encode() + b"\n"
            states[path] = State(FILE, objects.add_blob(data))
        tree = splice(objects, self._tree(), states)
        author = TOOL._replace(time_s=int(time.time()))
        self.store.stage(LEDGER, objects.add_commit(tree, [] if tip is None else [tip], author, message))
        self.store.publish("spt verdict")

    # Samples.

    def raw(self, digest: str) -> Path:
        """Where the samples with this digest lie, if they are here."""
        return self.store.state / "raw" / f"{digest}.jsonl.gz"

    def keep_raw(self, samples: Path) -> Path:
        """Keeps a file of samples, compressed, under the digest of its lines; half a last line is left out."""
        data = read_samples(samples)
        kept = self.raw(hashlib.sha256(data).hexdigest())
        if not kept.exists():
            kept.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=kept.parent, prefix=".", delete=False) as file:
                try:
                    file.write(gzip.compress(data, 6, mtime=0))
                    file.flush()
                    os.fsync(file.fileno())
                    Path(file.name).replace(kept)
                except BaseException:
                    Path(file.name).unlink(missing_ok=True)
                    raise
        return kept

"""Work that leaves an agent's sandbox: one bundle, read as what it is, bytes of someone whom nobody trusts.

Git indexes them in a scratch repository that has the base and nothing else, strictly and with little to use up.  So a
commit cannot name an object that only the trusted repository holds, and what is damaged, malformed or huge stays in
the scratch.  What is whole is copied, under `refs/spt/incoming/`; from there it is tried or kept as rescue.
"""

import re
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from spt.errors import Missing, SptError
from spt.git.incoming import scratch_folder
from spt.git.objects import MAX_BLOB_BYTES, Objects, Oid
from spt.git.program import Confines, GitFailed, git
from spt.git.store import Store
from spt.printable import printable
from spt.round.journal import try_reference

__all__ = [
    "BUNDLE_BYTES",
    "INCOMING",
    "LEFT_SUBJECT",
    "RESCUE",
    "WORK",
    "Unfit",
    "Work",
    "commits_between",
    "incoming_reference",
    "keep_incoming",
    "read_bundle",
    "take_in",
    "try_incoming",
]

WORK = "refs/heads/work"
INCOMING = "refs/spt/incoming/"
RESCUE = "refs/spt/rescue/"
LEFT_SUBJECT = "what the agent left uncommitted"
BUNDLE_BYTES = 8 * 2**20
MAX_OBJECTS = 4096
MAX_COMMITS = 100
MAX_WHOLE_BYTES = 64 * 2**20  # of all objects, inflated
MAX_COMMIT_BYTES = 16 * 1024
_HEADER_BYTES = 4096
_CONFINES = Confines(file_bytes=64 * 2**20, memory_bytes=768 * 2**20, cpu_s=20, wall_s=60.0)
_SWITCHES = (("pack.threads", "1"), ("core.bigFileThreshold", str(MAX_BLOB_BYTES)))
_MAGIC = b"# v2 git bundle\n"
_LINE = re.compile(rb"(-?)([0-9a-f]{40})(?: (.*))?")
_OPTION = re.compile(r"^Spt-Option:(.*)$", re.MULTILINE)
_VALUE = re.compile(r"\s*(\S{1,64}?)\s*=\s*(\S{1,64})\s*")
_MAX_OPTIONS = 32
_NOTE = 200


class Unfit(SptError):
    """What an agent left cannot be taken in; the message says why, in one line."""

    exit_code = 1


@dataclass(frozen=True)
class Work:
    """What an agent made: its last commit, that commit's whole tree, the option values that its commits state (as
    text, the later of two counts), and one line of its own."""

    commit: Oid
    tree: Oid
    options: dict[str, str]
    note: str


def incoming_reference(round_: str, direction: str) -> str:
    """The reference of work that was taken in and is neither tried nor rescued yet."""
    return f"{INCOMING}{round_}/{direction}"


def take_in(store: Store, data: bytes, base: Oid, lent: Path, round_: str, direction: str) -> Work:
    """Copies the work in a bundle into the repository, under its incoming reference.

    `lent` is an object folder that holds the base and what it needs, and no more.  Unfit where the bundle is not what
    it should be; nothing was written then.
    """
    with read_bundle(data, base, lent) as (objects, work), store.locked():
        store.objects.copy(objects, [work.commit])
        _replace(store, incoming_reference(round_, direction), work.commit, base, round_, direction)
        store.publish(f"spt: work of {round_}/{direction}")
    return work


def _replace(store: Store, name: str, new: Oid, base: Oid, round_: str, direction: str) -> None:
    """Stages a reference; what it held before and the new commit does not stand on is rescued with it."""
    old = store.reference(name)
    if old is not None and old not in commits_between(store.objects, new, base):
        store.stage(_rescue_reference(round_, direction, old), old)
    store.stage(name, new)


def _rescue_reference(round_: str, direction: str, oid: Oid) -> str:
    return f"{RESCUE}{round_}/{direction}/{oid[:12]}"


def commits_between(objects: Objects, tip: Oid, base: Oid) -> list[Oid]:
    """The commits of work that was taken in, newest first, its base the last."""
    found = [tip]
    while found[-1] != base:
        found += objects.commit(found[-1]).parents
    return found


@contextmanager
def read_bundle(data: bytes, base: Oid, lent: Path) -> Iterator[tuple[Objects, Work]]:
    """The work in a bundle, with objects that hold all of it; Unfit where it is not what it should be."""
    tip, pack = _head(data, base)
    with scratch_folder() as folder:
        git("init", "-q", "--bare", "--template=", str(folder))
        (folder / "objects" / "info").mkdir(exist_ok=True)
        (folder / "objects" / "info" / "alternates").write_bytes(bytes(lent.absolute()) + b"\n")
        try:
            git(
                *("index-pack", "--stdin", "--strict", "--fix-thin", f"--max-input-size={BUNDLE_BYTES}"),
                git_dir=folder,
                stdin=pack,
                switches=_SWITCHES,
                confines=_CONFINES,
            )
            _refuse_large(folder)
        except GitFailed as error:
            raise Unfit(f"its bundle cannot be read: {_words(error)}") from error
        # Whatever is reachable is now looked up in the bundle and its base alone.
        objects = Objects(lent)
        try:
            objects.copy(Objects(folder / "objects", lent), [tip])
            work = _work(objects, tip, base)
        except Missing as error:
            raise Unfit(f"its bundle is not whole: {error.message}") from error
        yield objects, work


def _words(error: GitFailed) -> str:
    said = printable(error.message.removeprefix("git index-pack failed: ").removeprefix("fatal: "))
    return "git used up what it may, and was ended" if error.status < 0 and said.startswith("status") else said


def _head(data: bytes, base: Oid) -> tuple[Oid, bytes]:
    """(the commit of the one reference, the pack)."""
    if len(data) > BUNDLE_BYTES:
        raise Unfit(f"its bundle has {len(data)} bytes, more than the {BUNDLE_BYTES} allowed")
    if not data.startswith(_MAGIC):
        raise Unfit("what it left is no git bundle")
    end = data.find(b"\n\n", 0, _HEADER_BYTES)
    if end < 0:
        raise Unfit("its bundle names more references than the one that is its work")
    needs: list[tuple[str, str]] = []
    heads: list[tuple[str, str]] = []
    for line in data[len(_MAGIC) : end].split(b"\n"):
        found = _LINE.fullmatch(line)
        if found is None:
            raise Unfit("its bundle has a header that is none")
        (needs if found[1] else heads).append((found[2].decode(), (found[3] or b"").decode(errors="replace")))
    if [name for _, name in heads] != [WORK]:
        raise Unfit("its bundle names more references than the one that is its work")
    if {oid for oid, _ in needs} != {base}:
        raise Unfit("its work does not stand on the base that it was given")
    pack = data[end + 2 :]
    if len(pack) < 12 or pack[:4] != b"PACK":
        raise Unfit("its bundle holds no pack")
    count = struct.unpack(">I", pack[8:12])[0]
    if count > MAX_OBJECTS:
        raise Unfit(f"its bundle holds {count} objects, more than the {MAX_OBJECTS} allowed")
    return heads[0][0], pack


def _refuse_large(folder: Path) -> None:
    """Unfit where what was indexed is too large; sizes are read, nothing is inflated for it."""
    said = git("cat-file", "--batch-all-objects", "--batch-check=%(objectsize)", git_dir=folder, confines=_CONFINES)
    sizes = [int(line) for line in said.split()]
    if max(sizes, default=0) > MAX_BLOB_BYTES:
        raise Unfit(f"its bundle holds an object of {max(sizes)} bytes, more than the {MAX_BLOB_BYTES} allowed")
    if sum(sizes) > MAX_WHOLE_BYTES:
        raise Unfit(f"its bundle unfolds to {sum(sizes)} bytes, more than the {MAX_WHOLE_BYTES} allowed")


def _work(objects: Objects, tip: Oid, base: Oid) -> Work:
    messages: list[str] = []
    oid = tip
    while oid != base:
        if len(messages) >= MAX_COMMITS:
            raise Unfit(f"its work has more than {MAX_COMMITS} commits")
        if objects.size(oid) > MAX_COMMIT_BYTES:
            raise Unfit(
                f"its commit '{oid[:12]}' has {objects.size(oid)} bytes, more than the {MAX_COMMIT_BYTES} allowed"
            )
        commit = objects.commit(oid)
        if commit.oid != oid:
            raise Unfit(f"'{oid[:12]}' is no commit")
        if len(commit.parents) != 1:
            raise Unfit(f"its commit '{oid[:12]}' is a merge, or stands on nothing")
        messages.append(commit.message)
        oid = commit.parents[0]
    options: dict[str, str] = {}
    for message in reversed(messages):
        options |= dict(_option(line) for line in _OPTION.findall(message))
    if len(options) > _MAX_OPTIONS:
        raise Unfit(f"its commits state {len(options)} options, more than the {_MAX_OPTIONS} allowed")
    subjects = (message.strip().split("\n")[0] for message in messages)
    note = next((subject for subject in subjects if subject and subject != LEFT_SUBJECT), "")
    return Work(tip, objects.commit(tip).tree, options, printable(note)[:_NOTE])


def _option(said: str) -> tuple[str, str]:
    """Name and value of a trailer; which names there are is for the tree to say."""
    found = _VALUE.fullmatch(said)
    if found is None:
        raise Unfit(f"its commits say 'Spt-Option:{printable(said)[:80]}', which is no NAME=VALUE")
    return found[1], found[2]


def keep_incoming(store: Store, round_: str, direction: str) -> str | None:
    """Moves work that was taken in to a rescue reference; returns that, None where there is none."""
    with store.locked():
        name = incoming_reference(round_, direction)
        oid = store.reference(name)
        if oid is None:
            return None
        rescue = _rescue_reference(round_, direction, oid)
        store.stage(rescue, oid)
        store.stage(name, None)
        store.publish(f"spt: rescue of {round_}/{direction}")
    return rescue


def try_incoming(store: Store, round_: str, direction: str, base: Oid) -> None:
    """Moves work that was taken in to the reference of what is tried; what that held before is not lost."""
    with store.locked():
        name = incoming_reference(round_, direction)
        oid = store.reference(name)
        if oid is not None:
            _replace(store, try_reference(round_, direction), oid, base, round_, direction)
            store.stage(name, None)
            store.publish(f"spt: {round_}/{direction} is tried")

"""spt/round/bundle.py: bytes that someone whom nobody trusts left behind, and what may come of them."""

import hashlib
import struct
import zlib

import pytest

from spt.git.objects import Objects
from spt.git.store import Store
from spt.round import bundle
from spt.round.bundle import Unfit, incoming_reference, keep_incoming, read_bundle, take_in, try_incoming
from spt.round.clone import cloned
from tests.spt.round.enclosed import rescued
from tests.spt.toys import commit_files, git, snapshot, write

PERSON = b"agent <agent@invalid> 1767323045 +0000"


@pytest.fixture
def base(deployment):
    return git(deployment, "rev-parse", "HEAD")


@pytest.fixture
def clone(deployment, base):
    """A clone that is open while the test runs."""
    with cloned(deployment, "r-1", "x-1", base) as made:
        yield made
        made.forget()


@pytest.fixture
def work(clone, tmp_path):
    """An agent's working tree, as a plain clone of the base."""
    git(tmp_path, "clone", "-q", f"file://{clone.origin}", tmp_path / "work")
    return tmp_path / "work"


def bundled(work, base, *references):
    names = references or ("refs/heads/work",)
    git(work, "bundle", "create", "-q", work / "b", *names, f"^{base}")
    return (work / "b").read_bytes()


def refusal(data, clone):
    """Why a bundle is not taken in: one line; nothing of it is in the repository."""
    before = snapshot(clone.repository)
    with pytest.raises(Unfit) as caught:
        take_in(Store.find(clone.repository), data, clone.base, clone.origin / "objects", "r-1", "x-1")

    assert snapshot(clone.repository) == before
    assert caught.value.message.isprintable()
    return caught.value.message


def header(base, tip, *more):
    lines = [b"# v2 git bundle", b"-" + base.encode(), tip.encode() + b" refs/heads/work", *more]
    return b"\n".join(lines) + b"\n\n"


def packed(*things):
    """A pack of (kind number, content) or (kind number, content, size that its header claims)."""
    body = struct.pack(">4sII", b"PACK", 2, len(things))
    for kind, data, *claimed in things:
        size = claimed[0] if claimed else len(data)
        byte, size = kind << 4 | size & 15, size >> 4
        while size:
            body += bytes([byte | 0x80])
            byte, size = size & 0x7F, size >> 7
        body += bytes([byte]) + zlib.compress(data, 9)
    return body + hashlib.sha1(body).digest()


def named(kind, data):
    return hashlib.sha1(b"%s %d\0" % (kind, len(data)) + data).hexdigest()


def forged(base, tree_entries=(), message=b"forged\n", parent=None):
    """(tip, tree, things to pack) of a commit with a tree of these (mode, name, id)."""
    tree = b"".join(b"%s %s\0%s" % (mode, name, bytes.fromhex(oid)) for mode, name, oid in tree_entries)
    parents = b"parent " + (parent or base).encode() + b"\n"
    commit = b"tree %s\n%sauthor %s\ncommitter %s\n\n%s" % (
        named(b"tree", tree).encode(),
        parents,
        PERSON,
        PERSON,
        message,
    )
    return named(b"commit", commit), [(1, commit), (2, tree)]


def test_work_is_taken_in(deployment, clone, work, base):
    """The very commits of an agent arrive under the incoming reference, with its options and one line of its own."""
    commit_files(work, {"stock/engine.py": "x = 1\n"}, "faster\n\nSpt-Option: linear=w12\nSpt-Option: select=a")
    tip = commit_files(work, {"stock/new.py": "y = 1\n"}, "and more\n\nSpt-Option: select = best")
    taken = take_in(Store.find(deployment), bundled(work, base), base, clone.origin / "objects", "r-1", "x-1")

    assert taken.commit == tip == git(deployment, "rev-parse", incoming_reference("r-1", "x-1"))
    assert taken.options == {"linear": "w12", "select": "best"}
    assert taken.note == "and more"
    assert git(deployment, "fsck", "--strict", "--no-dangling") == ""


def test_a_base_of_long_history(deployment, tmp_path):
    """A clone holds the base alone: neither what came before it nor any other branch's objects."""
    secret = commit_files(deployment, {"stock/secret.py": "s = 1\n"}, "in")
    blob = git(deployment, "rev-parse", f"{secret}:stock/secret.py")
    base = commit_files(deployment, {"stock/secret.py": None}, "out")
    with cloned(deployment, "r-1", "x-1", base) as clone:
        objects = Objects(clone.origin / "objects")

        assert base in objects
        assert secret not in objects
        assert blob not in objects
        assert git(clone.origin, "rev-list", "--all", "--count") == "1"


def test_what_only_the_trusted_repository_has(deployment, clone, base, tmp_path):
    """A commit that names an object which its bundle does not hold is not whole, though the repository has that."""
    write(deployment, {"sealed": "the requests\n"})
    sealed = git(deployment, "hash-object", "-w", "sealed")
    tip, things = forged(base, [(b"100644", b"stock.py", sealed)])

    assert "cannot be read" in refusal(header(base, tip) + packed(*things), clone)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "no git bundle"),
        (b"\0" * 5000, "no git bundle"),
        (b"# v3 git bundle\n@object-format=sha1\n\nPACK", "no git bundle"),
        (b"# v2 git bundle\nnonsense\n\nPACK", "header that is none"),
        (b"# v2 git bundle\n" + b"x" * 100_000, "more references"),
        (b"# v2 git bundle\n\n", "header that is none"),
        (b"# v2 git bundle\n" + b"1" * 40 + b" refs/heads/work\n\nPACK", "does not stand on the base"),
    ],
)
def test_garbage(clone, data, words):
    """What is no bundle of one reference on the base is named as that."""
    assert words in refusal(data, clone)


@pytest.mark.parametrize("pack", [b"", b"PACK", b"PACK\0\0\0\2\0\0\0\1garbage and more of it", b"x" * 1000])
def test_garbage_for_a_pack(clone, base, pack):
    """A header that is right does not help what follows."""
    assert refusal(header(base, "1" * 40) + pack, clone)


def test_damaged(clone, work, base):
    """A bundle with one byte changed anywhere in its pack is refused."""
    commit_files(work, {"stock/engine.py": "x = 1\n"})
    data = bundled(work, base)
    start = data.index(b"\n\n") + 2
    for at in range(start, len(data), 37):
        assert refusal(data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :], clone)


def test_a_tip_that_is_not_there(clone, work, base):
    """A header may name a commit that the pack lacks; then it is not whole."""
    commit_files(work, {"stock/engine.py": "x = 1\n"})
    data = bundled(work, base)

    assert "not whole" in refusal(header(base, "1" * 40) + data[data.index(b"\n\n") + 2 :], clone)


def test_thousands_of_references(clone, work, base):
    """A bundle of thousands of references is refused by its header."""
    tip = commit_files(work, {"stock/engine.py": "x = 1\n"})
    script = "".join(f"create refs/heads/b{number} {tip}\n" for number in range(3000))
    git(work, "update-ref", "--stdin", stdin=script.encode())

    assert "more references" in refusal(bundled(work, base, "--all"), clone)


def test_a_bomb_of_zeros(clone, base):
    """A small pack that unfolds to much is refused before any of it is kept, and in bounded memory."""
    data = bytes(200 << 20)
    tip, things = forged(base, [(b"100644", b"zeros", named(b"blob", data))])

    assert "209715200 bytes" in refusal(header(base, tip) + packed((3, data), *things), clone)


def test_many_bombs(clone, base):
    """Objects that are each small enough unfold to too much together."""
    blobs = [bytes([number]) * (12 << 20) for number in range(8)]
    entries = [(b"100644", b"f%d" % number, named(b"blob", data)) for number, data in enumerate(blobs)]
    tip, things = forged(base, entries)

    assert "unfolds to" in refusal(header(base, tip) + packed(*((3, data) for data in blobs), *things), clone)


def test_a_size_that_is_a_lie(clone, base):
    """A header that claims terabytes makes git ask for memory that it may not have."""
    tip, things = forged(base)

    assert refusal(header(base, tip) + packed((3, b"x", 1 << 42), *things), clone)


def test_a_delta_bomb(clone, base):
    """A delta of a few bytes that makes a terabyte of a file of the base makes nothing."""
    blob = git(clone.repository, "rev-parse", f"{base}:stock/engine.py")
    source = int(git(clone.repository, "cat-file", "-s", blob))
    delta = varint(source) + varint(1 << 40) + b"\x91\x00\x40" * 1000  # copies of the first bytes
    body = struct.pack(">4sII", b"PACK", 2, 1)
    size = len(delta)
    body += bytes([7 << 4 | size & 15 | 0x80, size >> 4 & 0x7F | 0x80, size >> 11])
    body += bytes.fromhex(blob) + zlib.compress(delta)

    assert refusal(header(base, "1" * 40) + body + hashlib.sha1(body).digest(), clone)


def varint(number):
    """A size as a delta writes it: 7 bits a byte, low ones first."""
    data = bytearray()
    while number >> 7:
        data.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*data, number])


def test_too_many_objects(clone, base):
    """The number of objects is read before any of them."""
    pack = struct.pack(">4sII", b"PACK", 2, 1 << 30)

    assert "objects, more than" in refusal(header(base, "1" * 40) + pack, clone)


def test_too_large(clone, base):
    """A bundle beyond its cap is not looked at."""
    assert "more than" in refusal(b"# v2 git bundle\n" + bytes(bundle.BUNDLE_BYTES), clone)


def test_a_merge(clone, work, base):
    """A system's branch is a series of commits, and so must be what goes there."""
    commit_files(work, {"stock/engine.py": "x = 1\n"})
    git(work, "switch", "-q", "-c", "side", base)
    commit_files(work, {"stock/new.py": "x = 1\n"})
    git(work, "switch", "-q", "work")
    git(work, "merge", "-q", "--no-edit", "side")

    assert "is a merge" in refusal(bundled(work, base), clone)


def test_another_root(clone, work, base):
    """Work without the base below it is not taken for work on the base."""
    git(work, "switch", "-q", "--orphan", "other")
    commit_files(work, {"a.py": "x = 1\n"})
    git(work, "branch", "-f", "work")

    assert "does not stand on the base" in refusal(bundled(work, base), clone)


def test_too_many_commits(clone, work, base):
    """A history that nobody could read is refused."""
    tip = git(work, "rev-parse", "HEAD")
    for number in range(bundle.MAX_COMMITS + 1):
        tip = git(work, "commit-tree", "HEAD^{tree}", "-p", tip, "-m", str(number))
    git(work, "update-ref", "refs/heads/work", tip)

    assert f"more than {bundle.MAX_COMMITS} commits" in refusal(bundled(work, base), clone)


def test_a_long_message(clone, work, base):
    """A commit's message is no place for a file."""
    write(work, {"message": "x" * 20_000})
    git(work, "commit", "-q", "--allow-empty", "-F", "message")

    assert "more than" in refusal(bundled(work, base), clone)


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("best_first_nodes=63", ("best_first_nodes", "63")),
        ("step_ms = 0.25", ("step_ms", "0.25")),
        ("\ta-b=c=d ", ("a-b", "c=d")),
        ("Odd=1", ("Odd", "1")),
    ],
)
def test_an_option_has_any_name(deployment, clone, work, base, line, found):
    """Whatever a tree may declare can be named in a trailer: none is left out in silence."""
    git(work, "commit", "-q", "--allow-empty", "-m", f"x\n\nSpt-Option: {line}")
    taken = take_in(Store.find(deployment), bundled(work, base), base, clone.origin / "objects", "r-1", "x-1")
    assert taken.options == dict([found])


@pytest.mark.parametrize("line", ["tau", "=4", "tau=", "two words=1", "tau=1 2", "x" * 65 + "=1", "tau=" + "1" * 65])
def test_an_option_that_is_none_is_named(clone, work, base, line):
    """A trailer that cannot be read is an error that shows it: work without its option would be judged as stock."""
    git(work, "commit", "-q", "--allow-empty", "-m", f"x\n\nSpt-Option: {line}")
    assert f"'Spt-Option: {line}"[:60] in refusal(bundled(work, base), clone)


def test_many_options(clone, work, base):
    """Option values are a handful."""
    message = "x\n\n" + "\n".join(f"Spt-Option: o{number}=1" for number in range(40))
    git(work, "commit", "-q", "--allow-empty", "-m", message)

    assert "40 options" in refusal(bundled(work, base), clone)


def test_a_tag_for_a_commit(clone, base):
    """What the reference leads to is a commit and nothing else."""
    commit, things = forged(base)
    tag = b"object %s\ntype commit\ntag v\ntagger %s\n\nx\n" % (commit.encode(), PERSON)

    assert refusal(header(base, named(b"tag", tag)) + packed((4, tag), *things), clone)


@pytest.mark.parametrize("name", [b".git", b".GIT", b"git~1", b"..", b"a/b", b""])
def test_names_of_traps(clone, base, name):
    """Trees with names that no checkout may have are refused by git or by the gate of scope, and none gets further."""
    blob = b"x = 1\n"
    tip, things = forged(base, [(b"100644", name, named(b"blob", blob))])
    data = header(base, tip) + packed((3, blob), *things)
    try:
        with read_bundle(data, base, clone.origin / "objects") as (objects, work):
            from spt.round.scope import check_scope

            assert check_scope(objects, objects.commit(base).tree, work.tree)
    except Unfit as error:
        assert error.message.isprintable()


def test_rescue_and_candidate(deployment, clone, work, base):
    """Work that is tried is no longer incoming; what another replaces, and what nobody uses, is rescued."""
    first = commit_files(work, {"stock/engine.py": "x = 1\n"})
    store, lent = Store.find(deployment), clone.origin / "objects"
    take_in(store, bundled(work, base), base, lent, "r-1", "x-1")
    second = commit_files(work, {"stock/engine.py": "x = 2\n"})
    take_in(store, bundled(work, base), base, lent, "r-1", "x-1")
    try_incoming(store, "r-1", "x-1", base)
    assert git(deployment, "rev-parse", "refs/spt/try/r-1/x-1") == second
    assert rescued(deployment) == {}  # the second stands on the first

    git(work, "reset", "-q", "--hard", base)
    third = commit_files(work, {"stock/new.py": "x = 3\n"})
    take_in(store, bundled(work, base), base, lent, "r-1", "x-1")
    try_incoming(store, "r-1", "x-1", base)
    assert git(deployment, "rev-parse", "refs/spt/try/r-1/x-1") == third
    assert list(rescued(deployment).values()) == [second]

    git(work, "reset", "-q", "--hard", base)
    fourth = commit_files(work, {"stock/new.py": "x = 4\n"})
    take_in(store, bundled(work, base), base, lent, "r-1", "x-1")
    assert keep_incoming(store, "r-1", "x-1") == f"refs/spt/rescue/r-1/x-1/{fourth[:12]}"
    assert keep_incoming(store, "r-1", "x-1") is None
    assert git(deployment, "for-each-ref", "refs/spt/incoming") == ""
    assert first not in rescued(deployment).values()

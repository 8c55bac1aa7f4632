"""The repository as a whole: what is tracked, what ships, and that a wheel and a checkout are one."""

import gzip
import hashlib
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from spt.formats import read_jsonl, read_yaml
from spt.share import system_files

ROOT = Path(__file__).parents[1]
MIB = 1 << 20


def tracked():
    out = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [ROOT / name for name in out.split("\0") if name]


def tree_id(files):
    """The git tree id of {path: bytes}, all of mode 100644."""
    folders, blobs = {}, {}
    for path, data in files.items():
        head, _, rest = path.partition("/")
        if rest:
            folders.setdefault(head, {})[rest] = data
        else:
            blobs[head] = ("100644", git_object(b"blob", data))
    entries = {**blobs, **{name: ("40000", tree_id(inside)) for name, inside in folders.items()}}
    order = sorted(entries, key=lambda name: name + "/" * (name in folders))
    return git_object(
        b"tree", b"".join(f"{entries[n][0]} {n}\0".encode() + bytes.fromhex(entries[n][1]) for n in order)
    )


def git_object(kind, data):
    return hashlib.sha1(kind + f" {len(data)}\0".encode() + data).hexdigest()


def test_tracked_files_stay_small():
    """All tracked files together stay under 32 MiB, so that a clone is quick and a bare machine takes it."""
    assert sum(path.stat().st_size for path in tracked()) < 32 * MIB


def texts():
    """Path and bytes of every tracked file that says something: packed text unpacked, this file left out."""
    for path in tracked():
        if path.suffix not in (".safetensors", ".bundle") and path != Path(__file__):
            data = path.read_bytes()
            yield path.relative_to(ROOT), gzip.decompress(data) if path.suffix == ".gz" else data


def naming(pattern):
    """The tracked files that say what the pattern finds."""
    return [f"{path}: {found[0].decode()}" for path, data in texts() if (found := re.search(pattern, data))]


# Folders that every machine has, those of the sandbox, and places that tests and addresses make up.
EVERYWHERE = {"bin", "dev", "etc", "lib", "lib64", "proc", "sys", "tmp", "usr", "var"}
OF_THE_SANDBOX = {"spt"}
MADE_UP = {"deep", "v1", "here", "models", "no", "nowhere", "there", "x"}
# What may stand above a folder: names of examples and of toys.
ABOVE = {"colleague", "specpilot", "bad", "deployment", "draft", "full", "good", "model", "no", "other", "out"}
ABOVE |= {"CONTRIBUTING", "f", "outside", "steps", "store", "up", "x"}


def test_no_tracked_file_names_a_folder_of_a_machine():
    """A clone has nothing beside it, and no other machine has the folders of this one."""
    absolute = {
        f"{path}: {found[0].decode()}"
        for path, data in texts()
        for found in re.finditer(rb"(?<![\w.}\])*>/~+-])/([a-z][a-z0-9]*)/[\w.-]", data)
        if found[1].decode() not in EVERYWHERE | OF_THE_SANDBOX | MADE_UP
    }
    relative = {
        f"{path}: {found[0].decode()}"
        for path, data in texts()
        for found in re.finditer(rb"\.\./(\w+)", data)
        if found[1].decode() not in ABOVE
    }
    own = naming(re.escape(str(ROOT)).encode() + b"|" + re.escape(str(Path.home())).encode() + rb"/\w")

    assert (absolute, relative, own) == (set(), set(), [])


def test_no_tracked_file_names_a_package_index():
    """Where packages come from is the user's own setting."""
    hosts = rb"pypi\.org|pythonhosted\.org|npmjs\.(org|com)|download\.pytorch\.org|anaconda\.org|deb\.debian\.org"
    assert naming(rb"(?i)\b(" + hosts + rb")\b|--(extra-)?index-url|/opt/(pypi|wheels)") == []


def test_no_tracked_record_names_a_machine():
    """A card says what a machine is, never which: no host name, no serial number of a GPU."""
    assert naming(rb'(?i)"host": ?"|\bGPU-[0-9a-f]{8}-[0-9a-f]{4}-') == []


def test_no_merge_is_half_done():
    """No tracked text holds the marks that a conflict leaves."""
    marks = re.compile(rb"^(<{7}|>{7}|\|{7}) ", re.M)
    assert [path for path in tracked() if marks.search(path.read_bytes())] == []


def test_no_placeholder_is_left():
    """Text that waits to be filled in is no text."""
    assert naming(rb"@@[A-Z_]+@@") == []


def test_measurements_are_there():
    """The page of measurements lists the files and folders beside it, all of them and no other."""
    folder = ROOT / "docs" / "measurements"
    listed = re.findall(r"^\| `(\d{4}-\d\d-\d\d-[^`/]+)/?` \|", (folder / "README.md").read_text(), re.MULTILINE)
    inside = [path.relative_to(folder) for path in tracked() if path.is_relative_to(folder)]

    assert sorted(listed) == sorted({path.parts[0] for path in inside} - {"README.md"})


VARIANTS = [
    (card.parent, variant)
    for card in sorted((ROOT / "entries").glob("*/entry.yaml"))
    for variant in read_yaml(card.read_bytes(), str(card))["variants"]
]


@pytest.mark.parametrize(("entry", "variant"), VARIANTS, ids=[f"{path.name}-{v['name']}" for path, v in VARIANTS])
def test_every_variant_was_measured(entry, variant):
    """For each card that an entry's variants name there is a figure of a machine of that kind, taken on today's delta.

    A card that names a GPU needs a line from that GPU, any other a line from a machine without one.
    """
    (lock,) = (
        row
        for row in read_jsonl((ROOT / "entries/lock.jsonl").read_bytes(), "lock.jsonl", "lock")
        if row["name"] == entry.name
    )
    files = [path for path in tracked() if path.parent == entry / "evidence" and path.suffix == ".jsonl"]
    lines = [line for path in files for line in read_jsonl(path.read_bytes(), str(path), "evidence")]
    gpus = {line["card"]["gpu"] for line in lines if line["delta_id"] == lock["delta_id"] and line["gain"] is not None}

    assert any(gpu.split()[-1] in variant["card"] if gpu else "core" in variant["card"] for gpu in gpus)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """A wheel built from a copy of the tracked files, as a release would be."""
    copy, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for path in tracked():
        target = copy / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", out, copy]
    subprocess.run(command, check=True, capture_output=True)
    return zipfile.ZipFile(next(out.glob("specpilot-*.whl")))


def test_wheel_and_checkout_hold_one_system_tree(wheel):
    """The system tree inside the wheel has the tree id of the checkout's."""
    prefix = "spt/data/"
    inside = {name.removeprefix(prefix): wheel.read(name) for name in wheel.namelist() if name.startswith(prefix)}
    shipped = {path: data for path, data in inside.items() if path.startswith(("stock/", "kernels/"))}
    ours = {str(path): (ROOT / path).read_bytes() for path in system_files(ROOT)}

    assert tree_id(shipped) == tree_id(ours)


def test_wheel_holds_what_a_report_is_made_of(wheel):
    """The template and the style of the report's page are no Python, and travel all the same."""
    for name in ("spt/report/page.html", "spt/report/page.css"):
        assert wheel.read(name) == (ROOT / name).read_bytes()


def test_wheel_installs_one_import_name(wheel):
    """Generic names such as `stock` and `kernels` never land in site-packages."""
    tops = {name.partition("/")[0] for name in wheel.namelist()}

    assert {top for top in tops if not top.endswith(".dist-info")} == {"spt"}
    assert not [name for name in wheel.namelist() if "__pycache__" in name]


def test_wheel_carries_what_a_user_needs(wheel):
    """Harness, entries with their sources, schemas and the default drafter travel with the tool."""
    names = set(wheel.namelist())

    assert "spt/schemas/protocol.json" in names
    assert "spt/data/harness/text.py" in names
    assert "spt/data/entries/lock.jsonl" in names
    assert "spt/data/drafters/smollm2-135m-dflash-b16/model.int8.safetensors" in names

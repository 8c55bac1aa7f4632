"""harness/prepared.py: what an arm prepares is capped, plain, digested, and the same at every run."""

import json
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest

from harness import prepared
from harness.client import Engine, digest_folder
from harness.errors import Crashed, HarnessError, Hung, Usage, Violation
from harness.job import Arm, Deployment
from harness.prepared import Store, fill, weights_bytes
from harness.sandbox import Enclosure, find_bubblewrap
from harness.tree import tree_id
from harness.wire import Sampling, Target
from tests.harness.enclosures import MIB, ROOT, works
from tests.processes import marked

FAKE = [sys.executable, "-P", "-s", str(ROOT / "tests/fakes/engine.py")]
BOXES = [Enclosure(None), *([Enclosure(find_bubblewrap())] if works() else [])]

# An engine that prepares by the code that it is given, and states what it left.
PREPARER = """
import hashlib, json, os, sys, time
from pathlib import Path
def say(op, **fields):
    os.write(4, json.dumps({"v": 1, "op": op, **fields}).encode() + b"\\n")
say("hello", engine="preparer", version="1", options={})
line = json.loads(os.fdopen(3, "rb").readline())
folder, kernels = Path(line["dir"]), Path(os.environ["TRITON_CACHE_DIR"])
exec(sys.argv[1])
lines, size = [], 0
for path in folder.rglob("*"):
    if path.is_file() and not path.is_symlink():
        lines.append(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(folder)}\\n")
        size += path.stat().st_size
say("prepared", files=len(lines), bytes=size, digest=hashlib.sha256("".join(sorted(lines)).encode()).hexdigest())
"""


@pytest.fixture(params=BOXES, ids=lambda box: box.word)
def box(request):
    return request.param


@pytest.fixture
def arm(tmp_path):
    (tmp_path / "system").mkdir()
    (tmp_path / "system" / "a.py").write_text("x = 1\n")
    return Arm("a", tmp_path / "system", tree_id(tmp_path / "system"), {})


def deployment(command, target="/none"):
    engine = {"kind": "command", "command": command}
    return Deployment(Target(str(target)), None, Sampling(), "float32", "exact", "cpu", engine, 256, 1)


def fill_by(code, arm, out, box, cap_bytes=8 * MIB, patience_s=20.0):
    command = [sys.executable, "-I", "-S", "-c", PREPARER, code]
    return fill(arm, deployment(command), out, box, cap_bytes, patience_s)


def test_what_is_prepared_is_kept(arm, tmp_path, box):
    """Files and compiled kernels lie there with a digest that holds, and cannot be written by accident."""
    code = "(folder / 'deep').mkdir(); (folder / 'deep' / 'w').write_bytes(b'weights'); (kernels / 'k').write_text('k')"
    store = fill_by(code, arm, tmp_path / "out", box)

    assert (store.files / "deep" / "w").read_bytes() == b"weights"
    assert (store.kernels / "k").read_text() == "k"
    assert store.bytes == len(b"weightsk")
    assert (store.files / "deep" / "w").stat().st_mode & 0o222 == 0
    assert Store.open(tmp_path / "out") == store


def test_change_is_noticed(arm, tmp_path, box):
    """Whoever changes what was prepared, a byte, a name or a kernel, is noticed by the next check."""
    code = "(folder / 'w').write_bytes(b'weights'); (kernels / 'k').write_text('k')"
    store = fill_by(code, arm, tmp_path / "out", box)
    store.check()
    for change, undo in (
        (lambda: (store.files / "w").rename(store.files / "v"), lambda: (store.files / "v").rename(store.files / "w")),
        (lambda: (store.kernels / "new").write_text(""), (store.kernels / "new").unlink),
    ):
        change()
        with pytest.raises(Violation, match="has changed"):
            store.check()
        undo()
    store.check()


NONE = "digest=hashlib.sha256(b'').hexdigest()"
BAD = {
    "too much": ("[(folder / str(i)).write_bytes(b'x' * (5 << 20)) for i in range(2)]", "may write"),
    "too many kernels": ("[(kernels / str(i)).write_bytes(b'x' * (1 << 20)) for i in range(10)]", "may write"),
    "a link": ("(folder / 'l').symlink_to('/etc/hostname')", "neither a plain file"),
    "a link among kernels": ("(kernels / 'l').symlink_to('/')", "neither a plain file"),
    "a pipe": ("os.mkfifo(kernels / 'p')", "neither a plain file"),
    "another digest": (
        f"(folder / 'w').write_text('x'); say('prepared', files=0, bytes=0, {NONE}); os._exit(0)",
        "does not state what the folder holds",
    ),
    "no end": (f"say('prepared', files=0, bytes=0, {NONE}); time.sleep(60)", "did not end"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_ways_to_prepare(arm, tmp_path, box, monkeypatch, case):
    """Each is an error that says why, and leaves nothing behind."""
    monkeypatch.setattr("harness.client.END_S", 0.2)
    code, words = BAD[case]
    with pytest.raises((Violation, Hung), match=words):
        fill_by(code, arm, tmp_path / "out", box)

    assert sorted(path.name for path in tmp_path.iterdir()) == ["system"]


def test_one_file_beyond_the_cap_is_not_even_written(arm, tmp_path, box):
    """The disk of the judge does not fill up while the cap waits for its turn."""
    with pytest.raises((Crashed, Violation), match=r"File too large|wrote 8 MiB"):
        fill_by("(folder / 'w').write_bytes(b'x' * (9 << 20))", arm, tmp_path / "out", box)

    assert not (tmp_path / "out").exists()


def test_cap_holds_while_it_writes(arm, tmp_path, box):
    """An engine that writes on and on is ended long before its time is up."""
    code = """
for index in range(10**6):
    (folder / str(index)).write_bytes(b'x' * (1 << 20))
    time.sleep(0.01)
"""
    with pytest.raises(Violation, match="may write 8 MiB"):
        fill_by(code, arm, tmp_path / "out", box)


def test_time_is_capped(arm, tmp_path, box):
    """An engine that does not come to an end is ended, with all that it started."""
    mark = f"mark-prepare-{os.getpid()}"
    code = f"""
import subprocess
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(99)", "{mark}"])
time.sleep(99)
"""
    with pytest.raises(Hung, match="'prepare' took too long"):
        fill_by(code, arm, tmp_path / "out", box, patience_s=0.5)

    assert marked(mark) == []
    assert not (tmp_path / "out").exists()


def test_closed_folders_are_opened(arm, tmp_path, box):
    """A folder that the engine closed hides nothing from the digest."""
    code = "(kernels / 'd').mkdir(); (kernels / 'd' / 'k').write_text('hidden'); (kernels / 'd').chmod(0)"
    store = fill_by(code, arm, tmp_path / "out", box)

    assert digest_folder(store.kernels).bytes == len("hidden")


def test_engine_without_prepare(arm, tmp_path, box):
    """An engine that has no `prepare` has prepared nothing, which is no error."""
    code = "say('error', id=None, code='unsupported', message='no'); os._exit(0)"
    store = fill_by(code, arm, tmp_path / "out", box)

    assert store.bytes == 0


def test_bytes_of_the_weights(tmp_path):
    """They come from the files' headers, not from an engine; a format nobody here knows counts as it lies there."""
    header = json.dumps({"a": {"dtype": "F32", "shape": [3, 5], "data_offsets": [0, 60]}, "__metadata__": {}}).encode()
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    (tmp_path / "config.json").write_text("{}")
    plain = deployment(FAKE, tmp_path)
    wide = Deployment(**{**vars(plain), "target": Target(str(tmp_path), widen=4), "dtype": "bfloat16"})

    assert (weights_bytes(plain), weights_bytes(wide)) == (15 * 4, 15 * 16 * 2)
    (tmp_path / "model.safetensors").rename(tmp_path / "model.bin")
    assert weights_bytes(plain) == 8 + len(header) + len("{}")
    assert weights_bytes(deployment(FAKE, write_gguf(tmp_path / "toy.gguf"))) == (6 + 256) * 4


def write_gguf(path):
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("a", np.zeros((2, 3), np.float32))
    packed = gguf.quantize(np.zeros((1, 256), np.float32), gguf.GGMLQuantizationType.Q4_1)
    writer.add_tensor("b", packed, raw_dtype=gguf.GGMLQuantizationType.Q4_1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture
def job(arm, tmp_path, toy_paths):
    whole = vars(deployment(FAKE, toy_paths["smollm"][0]))
    whole = {**whole, "name": "toy", "target": vars(whole["target"]), "sampling": vars(whole["sampling"])}
    whole["load"] = {"concurrency": whole.pop("concurrency"), "arrival": "closed"}
    arms = {name: {"dir": str(arm.folder), "tree": arm.tree, "options": {}} for name in ("a", "b", "stock")}
    value = {"v": 1, "kind": "job", "arms": arms, "deployment": whole, "requests": "requests.jsonl", "seed": 0}
    (tmp_path / "requests.jsonl").write_text("")
    (tmp_path / "job.json").write_text(json.dumps({**value, "rule": "paired-1", "phase": "prepare", "units": 0}))
    return tmp_path / "job.json"


def command(job, out, *words):
    full = [sys.executable, "-m", "harness", "prepare", "--job", str(job), "--out", str(out), *words]
    return subprocess.run(full, cwd=ROOT, capture_output=True, text=True, check=False)


def test_command(job, arm, tmp_path):
    """All arms prepare; the same command again only checks; another tree's folder is refused."""
    words = [] if works() else ["--no-sandbox"]
    ran = command(job, tmp_path / "out", *words)
    told = json.loads(ran.stdout)

    assert told["arms"].keys() == {"a", "b", "stock"}
    assert told["sandbox"] == BOXES[-1].word
    assert (tmp_path / "out" / "a" / "files" / "fake.txt").is_file()
    again = command(job, tmp_path / "out", *words)
    assert json.loads(again.stdout) == told
    shutil.rmtree(tmp_path / "out" / "b" / "kernels")
    assert "error: what was prepared in" not in command(job, tmp_path / "out", *words).stderr  # it was empty
    (tmp_path / "out" / "a" / "files" / "fake.txt").chmod(0o644)
    (tmp_path / "out" / "a" / "files" / "fake.txt").write_text("other")
    changed = command(job, tmp_path / "out", *words)
    assert (changed.returncode, changed.stdout) == (1, "")
    assert changed.stderr.startswith(f"error: what was prepared in '{tmp_path}/out/a' has changed")


def test_tree_that_is_another(job, arm, tmp_path):
    """The folder must be the tree that the job names."""
    (arm.folder / "a.py").write_text("x = 2\n")
    with pytest.raises(Usage, match="is not the tree"):
        prepared.prepare(job, tmp_path / "out", sandbox=False)


def test_a_run_reads_what_was_prepared(job, arm, tmp_path, box):
    """The engine is told of the folder where it sees it, and the digest is the same afterwards."""
    store = fill(arm, deployment(FAKE), tmp_path / "out", box, 8 * MIB)
    inside = store.enclosure(box)
    settings = inside.settings(deployment(FAKE).settings({"step_ms": 0}))
    with Engine.start(FAKE, arm.folder, enclosure=inside) as engine:
        engine.load(settings)
    store.check()

    assert settings.prepared == str(inside.prepared)
    assert isinstance(Path(settings.prepared), Path)


def test_disk_that_refuses(arm, tmp_path, box):
    """A place that cannot be written is named."""
    (tmp_path / "file").write_text("")
    with pytest.raises(HarnessError, match="cannot write"):
        fill_by("pass", arm, tmp_path / "file" / "out", box)

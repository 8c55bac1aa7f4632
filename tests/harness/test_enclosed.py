"""Engines that try to get out of harness/sandbox.py, or to work on when they must stand still.

Collected only where bubblewrap works (conftest.py); tests/harness/test_sandbox.py says what happens where it does not.
"""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness import cgroup, process
from harness.client import Engine
from harness.errors import Crashed, Hung, Violation
from harness.sandbox import PREPARED, SYSTEM, Enclosure, find_bubblewrap
from harness.wire import Generate, Settings, Target
from tests.harness.enclosures import MIB, as_nobody, enclosed, enclosure, told, ways
from tests.processes import marked, vanish

ROOT = Path(__file__).parents[2]
FAKE = [sys.executable, "-P", "-s", str(ROOT / "tests/fakes/engine.py")]
SETTINGS = Settings(
    Target("toy"), dtype="float32", mode="exact", context=256, options={"step_ms": 0, "prefill_ms": 0, "stop_rate": 0}
)
WAYS = ways()


@pytest.fixture(params=WAYS)
def way(request, monkeypatch):
    """Each way of freezing that this machine has."""
    make = cgroup.Group.make
    only = WAYS[request.param]
    monkeypatch.setattr(process.Group, "make", lambda memory, pids, found=only: make(memory, pids, found))
    return request.param


@pytest.fixture
def mark(tmp_path):
    return f"mark-{tmp_path.name}-{os.getpid()}"


# --- what it sees ---


def test_a_conforming_engine(tmp_path, way):
    """An enclosed engine answers as it does outside, before and after it stood still."""
    ask = Generate("a", [5, 6], 40, [2])
    with Engine.start(FAKE, tmp_path) as plain:
        plain.load(SETTINGS)
        expected = plain.generate(ask).ids
    box = enclosure()
    with Engine.start(FAKE, tmp_path, enclosure=box) as engine:
        engine.load(box.settings(SETTINGS))
        before = engine.generate(ask).ids
        engine.freeze()
        engine.thaw()
        after = engine.generate(ask).ids

    assert before == after == expected


def test_both_arms_see_the_same(tmp_path):
    """Paths, environment, user, arguments and open files do not tell one arm from the other."""
    code = """
tell({"environ": dict(os.environ), "argv": sys.argv, "cwd": os.getcwd(), "ids": [os.getuid(), os.getgid(), os.getpid()],
      "root": sorted(os.listdir("/")), "tmp": sorted(os.listdir("/tmp/spt")), "dev": sorted(os.listdir("/dev")),
      "host": os.uname().nodename, "system": os.listdir(sys.argv[1]),
      "fds": sorted(int(fd) for fd in os.listdir("/proc/self/fd"))})
"""
    seen = []
    for name in ("one", "another"):
        with enclosed(tmp_path / name, code, str(SYSTEM)) as arm:
            seen.append(told(arm))

    assert seen[0] == seen[1]
    assert seen[0]["tmp"] == ["cache", "home", "tmp", "work"]
    assert seen[0]["ids"][:2] == [1000, 1000]
    assert seen[0]["environ"]["PYTHONPATH"] == str(SYSTEM)
    assert seen[0]["fds"] == [0, 1, 2, 3, 4, 5]  # and the listing's own
    assert not {"nvidia0", "nvidiactl", "kvm", "mem", "vda"} & set(seen[0]["dev"])
    assert socket.gethostname() != seen[0]["host"]


def test_writes(tmp_path):
    """Nothing but the room's tmpfs takes a file, whatever is tried first, and the room is gone afterwards."""
    code = """
for point in [line.split()[4] for line in open("/proc/self/mountinfo")]:
    attempt(lambda: ctypes.CDLL(None).mount(None, point.encode(), None, 4096 | 32, None))
    attempt(lambda: os.chmod(point, 0o777))
ctypes.CDLL(None).umount2(b"/tmp", 2)
wrote = []
for point in sorted({line.split()[4] for line in open("/proc/self/mountinfo")} | {"/etc", "/spt", "/sys", "/var", "/run"}):
    for path in (point, point + "/written-by-engine"):
        if attempt(lambda: os.close(os.open(path, os.O_WRONLY | os.O_CREAT))):
            wrote.append(path)
attempt(lambda: os.symlink("/etc/shadow", sys.argv[1] + "/link"))
tell(wrote)
"""  # noqa: E501
    (tmp_path / "system").mkdir()
    (tmp_path / "system" / "a.py").write_text("x = 1\n")
    with enclosed(tmp_path / "system", code, str(SYSTEM)) as arm:
        wrote = told(arm)

    devices = {f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom", "tty", "ptmx", "console")}
    assert {"/tmp/written-by-engine", "/dev/shm/written-by-engine"} <= set(wrote)
    assert set(wrote) - devices == {"/tmp/written-by-engine", "/dev/shm/written-by-engine"}
    assert [path.name for path in (tmp_path / "system").iterdir()] == ["a.py"]
    assert not Path("/tmp/written-by-engine").exists()
    assert not Path("/dev/shm/written-by-engine").exists()


def test_hunt_for_a_sealed_file(tmp_path, monkeypatch):
    """A file of the judge is found neither by its path, nor through open files, nor in any process's variables."""
    sealed = tmp_path / "sealed"
    sealed.write_text("CANARY-7331\n")
    code = """
found = []
def look(path):
    attempt(lambda: b"CANARY-" + b"7331" in open(path, "rb").read(1 << 16) and found.append(path))
for start in ("/", "../" * 9, *(os.path.join("/proc", who, "root", "") for who in ("1", "self"))):
    look(start + sys.argv[1])
for pid in (name for name in os.listdir("/proc") if name.isdecimal()):
    for name in ("environ", "cmdline", "maps"):
        look(f"/proc/{pid}/{name}")
    for number in attempt(lambda: os.listdir(f"/proc/{pid}/fd")) or []:
        link = attempt(lambda: os.readlink(f"/proc/{pid}/fd/{number}"))
        if isinstance(link, str) and not link.startswith(("pipe:", "anon_inode:", "/dev/null", "/proc/")):
            found.append(link)
tell({"found": found, "pids": [int(name) for name in os.listdir("/proc") if name.isdecimal()]})
"""
    monkeypatch.setenv("SECRET", "CANARY-7331")
    with sealed.open() as file:
        os.set_inheritable(file.fileno(), True)
        outside = {**os.environ, "SECRET": "CANARY-7331"}
        with enclosed(tmp_path / "system", code, str(sealed)[1:], outside=outside) as arm:
            seen = told(arm)

    assert seen["found"] == []
    assert len(seen["pids"]) <= 3


def test_network(tmp_path):
    """No server of the machine is reached: not by loopback, not by a name without a file, not by a file."""
    code = """
tcp = attempt(lambda: socket.create_connection(("127.0.0.1", int(sys.argv[1])), 1))
outside = attempt(lambda: socket.create_connection(("192.0.2.1", 80), 1))
unix = socket.socket(socket.AF_UNIX)
tell([tcp and "tcp", outside and "route", attempt(lambda: unix.connect("\\0" + sys.argv[2])) and "abstract",
      attempt(lambda: unix.connect("/" + sys.argv[3])) and "file",
      [line.split(":")[0].strip() for line in open("/proc/net/dev").readlines()[2:] if "lo:" not in line]])
"""
    name, path = f"spt-test-{os.getpid()}", tmp_path / "socket"
    with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_UNIX) as abstract:
        abstract.bind("\0" + name)
        abstract.listen()
        with socket.socket(socket.AF_UNIX) as file:
            file.bind(str(path))
            file.listen()
            with enclosed(tmp_path / "system", code, str(tcp.getsockname()[1]), name, str(path)[1:]) as arm:
                assert told(arm) == [None, None, None, None, []]


def test_terminal(tmp_path):
    """An engine of a judge that has a terminal gets none, so that it cannot type into it."""
    engine = """
import fcntl, termios
typed = []
for path in ("/dev/tty", "/proc/self/fd/0", "/proc/self/fd/1", "/proc/self/fd/2"):
    attempt(lambda: fcntl.ioctl(os.open(path, os.O_RDWR), termios.TIOCGWINSZ, b"x" * 8) and typed.append(path))
    attempt(lambda: fcntl.ioctl(os.open(path, os.O_RDWR), termios.TIOCSTI, b"x") and typed.append(path))
tell(typed)
"""
    judge = """
import os, sys
from pathlib import Path
from tests.harness.enclosures import enclosed, told
os.open(sys.argv[1], os.O_RDWR)  # the first of a new session: the terminal is ours
print(os.ctermid(), bool(os.open("/dev/tty", os.O_RDWR)))
with enclosed(Path(sys.argv[2]), sys.argv[3]) as arm:
    print(told(arm))
"""
    ours, theirs = os.openpty()
    try:
        command = [sys.executable, "-c", judge, os.ttyname(theirs), str(tmp_path / "system"), engine]
        ran = subprocess.run(command, cwd=ROOT, start_new_session=True, capture_output=True, text=True, check=False)
    finally:
        os.close(ours)
        os.close(theirs)

    assert ran.stdout.splitlines() == ["/dev/tty True", "[]"], ran.stderr


def test_flood_of_output(tmp_path):
    """What it prints by the megabyte is drained, and its answer still comes."""
    with enclosed(tmp_path / "system", 'os.write(1, b"x" * (20 << 20)); tell("done")') as arm:
        assert told(arm) == "done"
        assert len(arm.tail()) <= 2 * process.TAIL_BYTES


# --- what it may use up ---


def test_memory(tmp_path):
    """Memory beyond the cap is not had, be it in one process, in several, or in files of the tmpfs."""
    hog = "tell('up')\nblocks = []\nwhile True: blocks.append(bytearray(8 << 20))"
    with enclosed(tmp_path / "system", hog, memory_bytes=96 * MIB) as arm:
        assert told(arm) == "up"
        with pytest.raises(Crashed) as caught:
            arm.receive(20)

    capped = cgroup.Group.make(96 * MIB, 64)
    if capped is not None and capped.memory:
        assert "memory cap" in caught.value.message
    else:
        assert "MemoryError" in caught.value.tail
    if capped is not None:
        capped.close()

    files = """
size = 0
with open("/tmp/hog", "wb") as file:
    while attempt(lambda: file.write(b"x" * (1 << 20)) and file.flush() is None):
        size += 1
tell(size)
"""
    with enclosed(tmp_path / "system", files, memory_bytes=48 * MIB) as arm:
        try:
            assert told(arm) <= 48
        except Crashed as error:
            assert "memory cap" in error.message


def test_fork_bomb(tmp_path, mark):
    """Processes beyond the cap are not had, and none is left when the engine is closed."""
    bomb = """
count = 0
while True:
    pid = attempt(os.fork)
    if pid is None:
        break
    if pid is True:
        time.sleep(1e6)
    count += 1
tell(count)
""".replace("os.fork)", "lambda: os.fork() or True)")
    with enclosed(tmp_path / "system", bomb, mark, pids=24) as arm:
        made = told(arm)
        assert marked(mark)

    assert made < 24
    assert vanish(mark)


@pytest.mark.parametrize(
    "promise", [test_writes, test_network, test_memory, test_fork_bomb, test_both_arms_see_the_same]
)
def test_as_an_ordinary_user(promise):
    """What holds for root's engines holds for those of a user without rights, whose caps are resource limits."""
    arguments = ", 'mark-of-nobody'" if promise is test_fork_bomb else ""
    code = f"""
import tempfile
from pathlib import Path
from tests.harness import test_enclosed
with tempfile.TemporaryDirectory() as folder:
    test_enclosed.{promise.__name__}(Path(folder){arguments})
"""
    command = as_nobody([sys.executable, "-c", code])
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert ran.returncode == 0, ran.stderr


# --- standing still and ending ---

# Processes and a thread that never rest, and timers, one every 20 ms, that wake whoever a signal stopped.
BURN = """
signal.signal(signal.SIGCONT, lambda *_: None)
def burn():
    while True:
        sum(range(1000))
if "timer" in sys.argv:
    libc, names = ctypes.CDLL(None), ("value", "high", "signo", "notify")
    class Event(ctypes.Structure):
        _fields_ = [(name, ctypes.c_int) for name in names] + [("rest", ctypes.c_char * 48)]
    for index in range(300):
        timer, once = ctypes.c_void_p(), (ctypes.c_long * 4)(0, 0, index // 50, index % 50 * 20_000_000 + 1)
        assert libc.timer_create(1, ctypes.byref(Event(0, 0, signal.SIGCONT, 0)), ctypes.byref(timer)) == 0
        assert libc.timer_settime(timer, 0, ctypes.byref(once), None) == 0
if os.fork() and os.fork():
    threading.Thread(target=burn, daemon=True).start()
    tell("burning")
else:
    burn()
burn()
"""


def burnt_s(mark):
    """CPU time of the marked processes."""
    ticks = 0
    for pid in marked(mark):
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(words[11]) + int(words[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def test_frozen_means_still(tmp_path, way, mark):
    """A frozen engine of several processes and threads uses no CPU time, and goes on when thawed."""
    with enclosed(tmp_path / "system", BURN, mark) as arm:
        told(arm)
        assert arm.freezes_by == way
        arm.freeze()
        before_s = burnt_s(mark)
        time.sleep(0.15)
        frozen_s = burnt_s(mark)
        arm.thaw()
        deadline = time.monotonic() + 5
        while burnt_s(mark) == frozen_s and time.monotonic() < deadline:
            time.sleep(0.02)

        assert len(marked(mark)) >= 3
        assert frozen_s == before_s
        assert burnt_s(mark) > frozen_s
    assert vanish(mark)


def test_an_engine_that_wakes_itself(tmp_path, way, mark):
    """A timer that undoes a stop does nothing against a cgroup, and is caught where only signals are to be had."""
    with enclosed(tmp_path / "system", BURN, mark, "timer") as arm:
        told(arm)
        if way == "signals":
            with pytest.raises((Violation, Hung), match=r"ran while it was frozen|could not be frozen"):
                arm.freeze()
                time.sleep(0.3)
                arm.thaw()
        else:
            arm.freeze()
            before_s = burnt_s(mark)
            time.sleep(0.3)
            assert burnt_s(mark) == before_s
            arm.thaw()
    assert vanish(mark)


@pytest.mark.parametrize("frozen", [False, True])
def test_daemon_does_not_outlive_its_engine(tmp_path, way, mark, frozen):
    """What left the session and the parent behind ends with the engine all the same, frozen or not."""
    code = """
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        tell("loose")
        while True:
            sum(range(1000))
    os._exit(0)
"""
    with enclosed(tmp_path / "system", code, mark) as arm:
        assert told(arm) == "loose"
        if frozen:
            arm.freeze()
    assert marked(mark) == []


def test_engine_that_ends_takes_its_daemon_along(tmp_path, mark):
    """When the engine ends by itself nothing stays behind in its namespace."""
    code = "if os.fork() == 0:\n    os.setsid(); tell('loose'); time.sleep(1e6)\nos.read(3, 1); sys.exit(3)"
    with enclosed(tmp_path / "system", code, mark) as arm:
        assert told(arm) == "loose"
        arm.send(b"", 1)

        assert arm.wait(5) == 3
        assert vanish(mark)


@pytest.mark.parametrize("frozen", [False, True])
def test_killed_judge(tmp_path, way, mark, frozen):
    """kill -9 of the judge leaves no engine: it goes at once, or, frozen by version 1, with the next judge's start."""
    judge = """
import sys
from pathlib import Path
from harness import cgroup, process
from tests.harness import test_enclosed as our
from tests.harness.enclosures import enclosed, told
folder, mark, way, frozen = sys.argv[1:]
make = cgroup.Group.make
process.Group.make = lambda memory, pids: make(memory, pids, our.WAYS[way])
with enclosed(Path(folder), our.BURN, mark) as arm:
    told(arm)
    if frozen == "True":
        arm.freeze()
    print("ready", flush=True)
    sys.stdin.read()
"""
    command = [sys.executable, "-c", judge, str(tmp_path / "system"), mark, way, str(frozen)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=ROOT, env={**os.environ, "TMPDIR": str(tmp_path)}, **pipes) as child:
        assert child.stdout.readline() == "ready\n"
        engines = [pid for pid in marked(mark) if pid != child.pid]
        child.send_signal(signal.SIGKILL)
    swept = cgroup.Group.make(64 * MIB, 64, WAYS[way])
    if swept is not None:
        swept.close()

    assert len(engines) >= 3
    assert vanish(mark)
    left = [*WAYS[way].v1.values(), *filter(None, [WAYS[way].v2])]
    assert [folder for parent in left for folder in parent.glob(f"{cgroup.PREFIX}{child.pid}-*")] == []


def test_signals_are_told_through_bubblewrap(tmp_path):
    """How an enclosed engine ended is said as of any other."""
    code = "os.kill(os.getpid(), signal.SIGSEGV)"
    with enclosed(tmp_path / "system", code) as arm, pytest.raises(Crashed, match="SIGSEGV"):
        arm.receive(5)


# --- models and what was prepared ---


def test_models_are_seen_with_what_their_links_lead_to(tmp_path):
    """A model's folder of links into a store reads as outside; the rest of the store is not there."""
    store, model = tmp_path / "store", tmp_path / "model"
    store.mkdir()
    model.mkdir()
    (store / "wanted").write_text("weights")
    (store / "other").write_text("another's")
    (model / "model.safetensors").symlink_to("../store/wanted")
    code = 'tell([open("/" + sys.argv[1] + "/model.safetensors").read(), os.listdir("/" + sys.argv[2])])'
    with enclosed(tmp_path / "system", code, str(model)[1:], str(store)[1:], reads=(model,)) as arm:
        assert told(arm) == ["weights", ["wanted"]]


def test_prepared_files_are_read_only_and_kernels_a_copy(tmp_path):
    """A run reads what was prepared, and may add to its own copy of the kernel cache only."""
    files, kernels = tmp_path / "files", tmp_path / "kernels"
    for folder in (files, kernels):
        (folder / "deep").mkdir(parents=True)
        (folder / "deep" / "a").write_text(folder.name)
        (folder / "deep" / "a").chmod(0o444)
    code = """
cache = os.environ["TRITON_CACHE_DIR"]
tell([open(sys.argv[1] + "/deep/a").read(), open(cache + "/deep/a").read(),
      attempt(lambda: open(sys.argv[1] + "/new", "w")) and "wrote", attempt(lambda: open(cache + "/deep/new", "w")) and "wrote"])
"""  # noqa: E501
    with enclosed(tmp_path / "system", code, str(PREPARED), files=files, kernels=kernels) as arm:
        assert told(arm) == ["files", "kernels", None, "wrote"]
    assert [path.name for path in (kernels / "deep").iterdir()] == ["a"]


_PROC = """
import os
writable = []
for base, folders, files in os.walk("/proc"):
    folders[:] = [each for each in folders if not (base == "/proc" and (each.isdecimal() or "self" in each))]
    writable += [path for path in (os.path.join(base, each) for each in files) if os.access(path, os.W_OK)]
with open("/proc/self/comm", "w") as file:
    file.write("named")
print(len(os.listdir("/proc/sys")), writable)
"""


@pytest.mark.parametrize("nodes", [(), (Path("/dev/null"),)], ids=["cpu", "gpu"])
def test_what_belongs_to_root_below_proc_stays_closed(nodes, tmp_path):
    """CUDA names its threads below /proc/self, so processes are open; nothing else in /proc can be written."""
    box = Enclosure(find_bubblewrap(), nodes=nodes)
    ran = subprocess.run(
        box.command([sys.executable, "-c", _PROC], {}, tmp_path), capture_output=True, text=True, check=True
    )
    count, _, writable = ran.stdout.strip().partition(" ")

    assert int(count) > 3
    assert writable == "[]"

"""Composing a memory against git's own ways to replay patches, in one run, on the same machine and disk.

A synthetic memory: a stock of 300 files in 72 folders, entries that each add a folder of three files and edit one
file (entries add files and change few lines, or stock lacks a seam), with up to 12 entries below each.  All of them
are applied to a commit beside stock, by `spt`, by one `git cherry-pick A..B` and by one `git am`, each on a fresh
copy of the repository, one way after the other in every run; the trees must come out equal.  Every entry is verified
on such a copy too: recomposed from its requirements, and its records held against it.

What is compared: git's ways write objects, references and files; `apply --branch` writes objects and references;
`apply` writes files as well, by git itself, whose own `checkout` of that difference is the floor beside it; verifying
writes nothing by itself, so a row verifies and applies with all that is written.

The exit code is 1 where, on a disk, one of ASSERTED is less than 10 times faster than one cherry-pick of the smallest
memory (the median over the runs of the ratio within a run), or where its CPU time an entry grows by more than half
from the smallest to the largest memory.  On a file system in memory git pays for no disk, and nothing is promised.

    python -m benchmarks.memory [--entries 140 500 2000] [--runs 9] [--disk FOLDER...]
"""

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from spt.application import Request, run
from spt.apply import apply
from spt.entry import Card
from spt.git.objects import FILE, State
from spt.git.store import Store
from spt.git.tree import Delta, Row
from spt.initialise import init_stock
from spt.memory import Memory
from spt.verify import verify

FILES, FOLDERS, LINES = 300, 72, 240
MOST_BELOW = 12
ENVIRONMENT = {
    "PATH": os.environ["PATH"],
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    **{
        f"GIT_{who}_{what}": text for who in ("AUTHOR", "COMMITTER") for what, text in (("NAME", "a"), ("EMAIL", "a@b"))
    },
    "GIT_AUTHOR_DATE": "2026-01-02T03:04:05Z",
    "GIT_COMMITTER_DATE": "2026-01-02T03:04:05Z",
}


def git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=folder, env=ENVIRONMENT, capture_output=True, check=True)
    return done.stdout.decode()


def stock_path(number: int) -> str:
    return f"part{number % FOLDERS:02d}/file{number:03d}.py"


def build(folder: Path, count: int, seed: int = 1) -> None:
    """A repository with a synthetic memory of `count` entries, and a commit `beside` stock to replay them onto."""
    git(folder.parent, "init", "-q", "-b", "main", str(folder))
    for number in range(FILES):
        path = folder / stock_path(number)
        path.parent.mkdir(exist_ok=True)
        path.write_text("".join(f"value_{line} = {number * line}\n" for line in range(LINES)))
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "stock")
    init_stock(folder, "main")
    store = Store.find(folder)
    with store.locked():
        add_entries(Memory.of(store), count, random.Random(seed))
        store.publish("benchmark")
    (folder / "beside.txt").write_text("something else changed\n")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "beside")
    git(folder, "branch", "beside")
    run(folder, Request(tuple(sorted(Memory.open(folder).entries)), onto="main~1", branch="chain"))
    git(folder, "gc", "-q")


def add_entries(memory: Memory, count: int, rng: random.Random) -> None:
    slots: Counter[int] = Counter()
    names: list[str] = []
    for number in range(count):
        name = f"entry-{number:05d}"
        requires = drawn_requirements(memory, names, rng)
        card = Card(card_record(name, requires))
        composition = memory.composition()
        below = composition.closed(requires)
        rows = []
        for part in range(3):
            text = "".join(f"# {name}, part {part}, line {line}\n" for line in range(60))
            path = f"part{number % FOLDERS:02d}/{name}/part{part}.py"
            rows.append(Row(path, None, State(FILE, memory.objects.add_blob(text.encode()))))
        file = rng.randrange(FILES)
        old = composition.value(below, stock_path(file))
        assert old is not None
        lines = memory.objects.blob(old.oid).splitlines(keepends=True)
        # Slots keep a line between entries that do not require one another, whatever stands above them.
        lines[4 * slots[file]] = f"{name} = {file}\n".encode()
        slots[file] += 1
        rows.append(Row(stock_path(file), old, State(FILE, memory.objects.add_blob(b"".join(lines)))))
        record = {"entry.yaml": json.dumps(card.data, indent=1).encode()}
        memory.stage_entry(card, Delta(tuple(sorted(rows))), composition.tree(below), record)
        names.append(name)


def drawn_requirements(memory: Memory, names: list[str], rng: random.Random) -> list[str]:
    chosen: list[str] = []
    closures = memory.composition().closures
    for name in rng.sample(names[-200:], min(len(names), rng.randrange(4))):
        if len(frozenset().union(*(closures[one] for one in (*chosen, name)))) <= MOST_BELOW:
            chosen.append(name)
    return chosen


def card_record(name: str, requires: list[str]) -> dict[str, object]:
    return {
        "spt": "1",
        "name": name,
        "title": name,
        "summary": "A synthetic entry with a summary of one sentence.",
        "mechanism": "It adds three files and edits a line, which is what most entries do. " * 4,
        "requires": {"entries": sorted(requires)},
        "contract": {"kind": "bitwise", "invariants": ["nothing but the lines named changes"]},
        "commit": {"author": "A U Thor <author@example.com>", "date": "2026-01-02T03:04:05Z", "subject": name},
    }


# What is timed.  Each works on its own fresh copy of the repository, whose writes have reached the disk.


def spt_branch(folder: Path, names: tuple[str, ...]) -> str:
    run(folder, Request(names, branch="applied"))
    return "applied"


def spt_here(folder: Path, names: tuple[str, ...]) -> str:
    run(folder, Request(names))
    return "HEAD"


def git_cherry_pick(folder: Path, names: tuple[str, ...]) -> str:
    git(folder, "cherry-pick", "main~1..chain")
    return "HEAD"


def git_am(folder: Path, names: tuple[str, ...]) -> str:
    git(folder, "am", "-q", "--keep-cr", str(folder.parent / "series.mbox"))
    return "HEAD"


def git_checkout(folder: Path, names: tuple[str, ...]) -> str:
    git(folder, "checkout", "-q", "applied")
    return "HEAD"


def verified(memory: Memory) -> None:
    """Every entry recomposes, and its records are true."""
    for name in memory.entries:
        report = verify(memory, name)
        assert report.recompose.state == "ok" and report.record.state == "ok", report
    memory.cards.save()


def spt_verify(folder: Path, names: tuple[str, ...]) -> None:
    verified(Memory.open(folder))


def spt_verify_apply(folder: Path, names: tuple[str, ...]) -> str:
    """Verifies and applies in one quarantine: the second finds the trees of the first."""
    store = Store.find(folder)
    with store.locked():
        memory = Memory.of(store)
        verified(memory)
        tip = store.reference("refs/heads/main")
        assert tip is not None
        store.stage("refs/heads/applied", apply(memory, names, tip).commit)
        store.publish("benchmark")
    return "applied"


def no_cards(folder: Path) -> None:
    shutil.rmtree(folder / ".git" / "spt" / "cache", ignore_errors=True)


def applied_branch(folder: Path) -> None:
    run(folder, Request(tuple(sorted(Memory.open(folder).entries)), branch="applied"))


@dataclass
class Times:
    """Of each way, a number a run: the wall clock, and the CPU time of all that it started.  Seconds."""

    wall_s: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    cpu_s: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))


Way = Callable[[Path, tuple[str, ...]], str | None]
BRANCH, VERIFY, STORED = "spt apply --branch", "spt verify --all", "spt verify --all and apply --branch"
CHERRY_PICK, CHECKOUT = "git cherry-pick A..B (files too)", "git checkout of that difference"
OURS: dict[str, Way] = {
    BRANCH: spt_branch,
    VERIFY: spt_verify,
    "spt verify --all, cards read anew": spt_verify,
    STORED: spt_verify_apply,
    "spt apply (files too)": spt_here,
    CHECKOUT: git_checkout,
}
THEIRS: dict[str, Way] = {CHERRY_PICK: git_cherry_pick, "git am (files too)": git_am}
BEFORE = {  # what is done to the copy before the clock
    "spt verify --all, cards read anew": no_cards,
    VERIFY: lambda folder: spt_verify(folder, ()),
    STORED: lambda folder: spt_verify(folder, ()),
    CHECKOUT: applied_branch,
}
ASSERTED = (BRANCH, VERIFY)
LEAST_RATIO, MOST_GROWTH = 10.0, 1.5
IN_MEMORY = ("tmpfs", "ramfs")


def timed_ways(folder: Path, runs: int, ways: Mapping[str, Way]) -> Times:
    """Seconds of each way, in every run one after the other; all that end in a tree must end in one."""
    names = tuple(sorted(Memory.open(folder).entries))
    series = git(folder, "format-patch", "--stdout", "--binary", "--full-index", "main~1..chain")
    (folder.parent / "series.mbox").write_text(series)
    times = Times()
    trees = set()
    for _ in range(runs):
        for word, action in ways.items():
            copy = folder.with_name("copy")
            shutil.copytree(folder, copy)
            git(copy, "update-index", "-q", "--refresh")
            BEFORE.get(word, lambda folder: None)(copy)
            os.sync()
            cpu_s, started_s = sum(os.times()[:4]), time.perf_counter()
            tip = action(copy, names)
            times.wall_s[word].append(time.perf_counter() - started_s)
            times.cpu_s[word].append(sum(os.times()[:4]) - cpu_s)
            if tip is not None:
                trees.add(git(copy, "rev-parse", f"{tip}^{{tree}}"))
            shutil.rmtree(copy)
    assert len(trees) == 1, "the ways to replay do not agree"
    return times


def verify_and_compose(folder: Path) -> None:
    """Verify and apply of everything in memory."""
    memory = Memory.open(folder)
    verified(memory)
    apply(memory, memory.entries, memory.store.resolve("beside"))


def own_peak_mib() -> float:
    """Peak resident memory of this process; what `getrusage` says would be the parent's after a fork."""
    rows = dict(row.split(":", 1) for row in Path("/proc/self/status").read_text().splitlines())
    return int(rows["VmHWM"].split()[0]) / 1024


def peak_mib(folder: Path) -> tuple[float, float]:
    """(peak resident memory of a fresh process that verifies and applies everything, of one that only opens), MiB."""
    script = (
        "import sys; from pathlib import Path; from benchmarks import memory as m\n"
        "folder = Path(sys.argv[1]); m.Memory.open(folder)\n"
        "if sys.argv[2] == 'all': m.verify_and_compose(folder)\n"
        "print(m.own_peak_mib())"
    )
    found = []
    for what in ("all", "open"):
        done = subprocess.run([sys.executable, "-c", script, str(folder), what], capture_output=True, check=True)
        found.append(float(done.stdout))
    return found[0], found[1]


def ratios(times: Times, word: str) -> list[float]:
    """How many times faster than cherry-pick, in each run."""
    return [base / own for base, own in zip(times.wall_s[CHERRY_PICK], times.wall_s[word], strict=True)]


def line(word: str, times: Times, count: int) -> str:
    own, cpu_us = times.wall_s[word], statistics.median(times.cpu_s[word]) / count * 1e6
    compared = f"{statistics.median(ratios(times, word)):6.1f}x cherry-pick" if CHERRY_PICK in times.wall_s else ""
    spread = f"{min(own) * 1e3:.0f} to {max(own) * 1e3:.0f}"
    clock = f"{statistics.median(own) * 1e3:9.1f} ms ({spread})"
    return f"  {word:<40}{clock:<32} CPU {cpu_us:5.0f} us an entry {compared}"


def measure(home: Path, count: int, runs: int, *, against_git: bool) -> Times:
    """Prints the figures of one size on one disk and returns the seconds of each way."""
    with tempfile.TemporaryDirectory(dir=home) as scratch:
        folder = Path(scratch) / "memory"
        build(folder, count)
        times = timed_ways(folder, runs, OURS | THEIRS if against_git else OURS)
        print(f"{count} entries in {home} ({disk_of(home)}), median of {runs} (fastest to slowest)")
        for word in times.wall_s:
            print(line(word, times, count))
        peak, opened = peak_mib(folder)
        print(f"  peak resident memory {peak:.0f} MiB, of which {opened:.0f} MiB to open the repository", flush=True)
    return times


def failures(where: str, found: Mapping[int, Times]) -> list[str]:
    """What is slower than promised on one disk, from the times of each size."""
    least, most = min(found), max(found)
    said = []
    for word in ASSERTED:
        times = statistics.median(ratios(found[least], word))
        if times < LEAST_RATIO:
            said.append(f"{where}: {word} of {least} entries is {times:.1f}x cherry-pick, less than {LEAST_RATIO:.0f}x")
        small, large = (statistics.median(found[count].cpu_s[word]) / count for count in (least, most))
        if large / small > MOST_GROWTH:
            said.append(f"{where}: {word} takes {large / small:.2f} times the CPU an entry at {most} as at {least}")
    return said


def disk_of(folder: Path) -> str:
    """The type of the file system that a folder lies on."""
    rows = [row.split() for row in Path("/proc/mounts").read_text().splitlines()]
    fits = [(len(row[1]), row[2]) for row in rows if folder.resolve().is_relative_to(row[1])]
    return max(fits)[1]


def main() -> int:
    """Measures every size on every disk; 1 where a promise is not kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entries", type=int, nargs="+", default=[140, 500, 2000])
    parser.add_argument("--runs", type=int, default=9, help="of the smallest memory; larger ones get a third")
    parser.add_argument("--disk", type=Path, nargs="+", default=[Path(tempfile.gettempdir())])
    chosen = parser.parse_args()
    print(f"{git(Path(), '--version').strip()}, Python {sys.version.split()[0]}, {os.cpu_count()} CPUs")
    least, said = min(chosen.entries), []
    for home in chosen.disk:
        found = {}
        for count in sorted(set(chosen.entries)):
            runs = chosen.runs if count == least else -(-chosen.runs // 3)
            found[count] = measure(home, count, runs, against_git=count == least)
        if disk_of(home) in IN_MEMORY:
            print(f"{home} is {disk_of(home)}: nothing is promised there")
        else:
            said += failures(f"{home} ({disk_of(home)})", found)
    for text in said:
        print(text, file=sys.stderr)
    return 1 if said else 0


if __name__ == "__main__":
    sys.exit(main())

"""Realistic rounds in real repositories: journals as `spt.round.journal` writes them, their verdicts and raw samples.

The journal's commits go in through one `git fast-import`, since a process for each event would take minutes.
"""

import hashlib
import json
import math
import random
import subprocess

from spt.formats import canonical
from spt.git.store import Store
from spt.verdicts import Ledger, named
from tests.harness import campaigns
from tests.spt.judged import forcing
from tests.spt.toys import ENVIRONMENT, git

DATE = "2026-11-{:02d}T{:02d}:{:02d}:00+00:00"
STOCK = "a" * 40
CARD = {**dict.fromkeys(("driver", "triton", "cuda", "power_cap_w")), "gpu": "NVIDIA H200", "torch": "2.11.0"}
DEPLOYMENT = "d" * 64
NOTHING = {"tree": STOCK, "options": {}}
FACTORS = {"tau": 1.4531, "kernel": 1.3712, "overhead": 1.0521}
FLOORS = {"gemm": 2801.25, "attention": 103.5, "head": 55.125, "drafter": 210.5, "glue": 3.25}
TAKEN = {"gemm": 3402.75, "attention": 260.25, "head": 61.5, "drafter": 390.75, "glue": None}
HOSTILE = (
    "<script>alert('owned')</script>",
    "\x1b[31mred\x1b[0m \x1b]0;title\x07 \x9b2J and a bell\x07",
    "right to left \u202egnirts\u202c \u2066isolated\u2069 \u200f\u061c",
    "a" * 5000,
    "{{ 7 * 7 }} {% for x in y %} ${7*7} $\\frac{1}{2}$",
    "\"><img src=x onerror=alert(1)> ' onmouseover='alert(2)",
    "]]></svg></style></title><!-- &lt;b&gt; &#x3c; -->",
    "line\none\r\nline two\u2028line three\0null",
    "https://example.com/<a href='javascript:alert(3)'>x</a>",
    "表題 עברית العربية \u0301\u0301\u0301 \U0001f600",
)
TITLES = (
    "Larger draft trees at the same positions",
    "Fuse the head's gather with the top ranks",
    "Twelve-bit weights for every linear layer",
    "Skip the copy of logits to the host",
    "Split the cache by pages of sixty-four rows",
)
GATES = ("scope", "default", "exact", "checks", "development", "predicted", "screen", "confirm", "force")


def key(*words):
    return hashlib.sha256(" ".join(map(str, words)).encode()).hexdigest()


def tree(*words):
    return key(*words)[:40]


def timing(a, b, gain, samples, **more):
    """A timing verdict on two systems: promoted with a gain (a share) at 0.2 % noise."""
    of = {"a": a, "b": b, "deployment": DEPLOYMENT, "card": CARD, "harness": "0.1.0", "rule": "paired-1"}
    numbers = {"interval": [gain - 0.0123, gain + 0.0117], "noise": 0.0021, "threshold": 0.03, "spread": 0.0019}
    numbers |= {"published": None, "between": None, "gain_same": None, "diverged": 3, "voids": 0, "look": 1}
    numbers |= {"mismatch": None, "events": None, "tokens": 61_440, "units": 10, "sandbox": "bubblewrap"}
    stock = {
        "stock": NOTHING,
        "samples": samples,
        "date": DATE.format(1, 9, 0),
        "answer": "promote",
        "reason": "above the threshold",
    }
    about = {"v": 1, "kind": "verdict", "key": named(of), "rule": "paired-1", "what": "timing", "of": of}
    return {**about, **numbers, **stock, "gain": gain, **more}


def final(a, answer, samples, gains=(0.31, 2.72), **more):
    """A final's verdict: gains over stock and over autoregressive decoding."""
    of = {**timing(a, NOTHING, 0, samples)["of"], "seal": key("seal", a["tree"]), "requests": key("requests")}
    timed = {
        name: {
            "units": 10, "gain": gain, "interval": [gain - 0.021, gain + 0.023], "spread": 0.002, "between": None,
            "gain_same": None, "diverged": 2, "tokens": 61_440, "tau": {"a": 4.66, "b": 3.43},
        }
        for name, gain in zip(("stock", "ar"), gains, strict=True)
    }  # fmt: skip
    bucket = {"axis": "position", "low": 0, "high": 512, "tokens": 40_123, "sessions": 104, "mismatch": 0.00731}
    bucket |= {"stock_mismatch": 0.00722, "excess": {"value": 9e-05, "lower": -0.0012, "upper": 0.0014}}
    bucket |= {"covered": True, "rejects": False, "events": []}
    whole = {name: timing(a, NOTHING, 0, samples)[name] for name in ("v", "kind", "rule", "stock", "samples", "date")}
    whole |= {"gain": None, "interval": None, "noise": None, "threshold": None, "mismatch": 0.0073, "events": 0}
    whole |= {"stock_mismatch": 0.0072, "excess": {"value": 0.0001, "lower": -0.001, "upper": 0.0012}, "voids": 0}
    whole |= {"sessions": 112, "looped_tok": 512, "buckets": [bucket], "uncovered": [], "event_tests": [], "audit": []}
    whole |= {"malformed": [], "units": 10, "tokens": 121_000, "full": True, "sorts": [], "timing": timed}
    return {**whole, "what": "final", "of": of, "key": named(of), "answer": answer, "reason": "made up", **more}


def samples(folder, name, arms, phase, seed):
    """A file of raw samples in which arm a takes longer steps than arm b."""
    dice = random.Random(seed)
    lines = campaigns.head(**arms)
    for number in range(12):
        for arm, most in (("a", 7), ("b", 4)):
            steps = [dice.randint(1, most) for _ in range(10)]
            ids = [dice.randrange(3, 49_000) for _ in range(1 + sum(steps))]
            lines.append(campaigns.answer(phase, 0, arm, f"r{number}", ids, lines=[1, *steps]))
    return campaigns.write(folder / f"{name}.jsonl", lines)


class Events:
    """The events of one round, in the order in which they are added."""

    def __init__(self, round_, day=1):
        self.round = round_
        self.day = day
        self.rows = []

    def add(self, phase, event, data, direction=None):
        number = len(self.rows)
        date = DATE.format(self.day, number // 60 % 24, number % 60)
        about = {"v": 1, "kind": "round_event", "round": self.round, "seq": number, "phase": phase, "event": event}
        self.rows.append({**about, "direction": direction, "data": data, "date": date})
        return number


def write_journal(repository, rows, round_=None, reference=None):
    """Puts events into the repository as a journal of one commit an event, by one process."""
    round_ = round_ or rows[0]["round"]
    reference = reference or f"refs/spt/round/{round_}"
    stream, held = [b"feature done\n"], b""
    for row in rows:
        held += canonical(row).encode() + b"\n"
        subject = f"{row['phase']}: {row['event']}" + (f" {row['direction']}" if row["direction"] else "")
        message = f"{subject}\n\nSpt-Round: {row['round']}\nSpt-Seq: {row['seq']}\n".encode()
        stream.append(f"commit {reference}\ncommitter spt <spt@invalid> {1_796_000_000 + row['seq']} +0000\n".encode())
        stream.append(b"data %d\n%s\n" % (len(message), message))
        if row["seq"] == 0:
            stream.append(b"M 100644 inline round.yaml\ndata 3\n{}\n\n")
        stream.append(b"M 100644 inline events.jsonl\ndata %d\n%s\n" % (len(held), held))
    stream.append(b"done\n")
    command = ["git", "fast-import", "--quiet", "--force"]
    subprocess.run(command, cwd=repository, env=ENVIRONMENT, input=b"".join(stream), capture_output=True, check=True)


def commits(repository, round_, names):
    """A commit for each direction, under refs/spt/try; returns them by name."""
    stream, marks = [b"feature done\n"], {}
    for number, name in enumerate(names, 1):
        stream.append(f"commit refs/spt/try/{round_}/{name}\nmark :{number}\n".encode())
        stream.append(b"committer A <a@example.com> 1796000000 +0000\ndata 2\nx\n")
        stream.append(f"M 100644 inline stock/{name}.py\ndata 2\n#\n\n".encode())
    stream.append(b"done\n")
    marked = repository / ".git" / "marks"
    command = ["git", "fast-import", "--quiet", "--force", f"--export-marks={marked}"]
    subprocess.run(command, cwd=repository, env=ENVIRONMENT, input=b"".join(stream), capture_output=True, check=True)
    for line in marked.read_text().splitlines():
        mark, oid = line.split()
        marks[names[int(mark[1:]) - 1]] = oid
    marked.unlink()
    return marks


def make_repository(folder):
    """An empty repository."""
    folder.mkdir(parents=True)
    git(folder, "init", "-q", "-b", "main")
    git(folder, "commit", "-q", "--allow-empty", "-m", "start")
    return folder


class Maker:
    """Makes rounds in one repository, each from where the one before ended."""

    def __init__(self, repository, seed=7):
        self.repository = repository
        self.ledger = Ledger(Store.find(repository))
        self.dice = random.Random(seed)
        self.best = dict(NOTHING)
        self.total = 1.0  # over stock
        self.day = 0
        self.verdicts = []

    def make(self, round_, tried=60, promoted=4, hostile=True, modes=None, start=None, smoke=False, end=True):
        """Writes a round with so many directions; returns its rows."""
        self.best = dict(start or self.best)
        self.day += 1
        events, first = Events(round_, self.day), self.best
        modes = modes or {"cost_model": True, "agents": 4}
        begun = {
            "deployment": "smol-x8-h200",
            "digest": DEPLOYMENT,
            "stock": STOCK,
            "start": first,
            "modes": modes,
            "rule": "paired-1",
        }
        begun |= {"commitment": key("seal", round_), "agents": ["sweep", "memory"], "limits": {"minutes": 600}}
        begun["rule"] = "paired-1"
        events.add("measure", "begun", begun)
        events.add("measure", "measured", self.measured(round_, 1.0))
        events.add("measure", "spent", self.cost())
        events.add("measure", "phase", {"state": "done", "reason": None})
        events.add("plan", "planned", {"plan": {"v": 1, "kind": "plan", "round": round_, "directions": []}})
        names = [f"{self.dice.choice(('tree', 'kernel', 'sweep'))}-{number}" for number in range(tried)]
        held = commits(self.repository, round_, names) if names else {}
        winners = names[:: max(1, tried // promoted)][:promoted] if promoted else []
        for number, name in enumerate(names):
            phase = "explore" if number < tried * 4 // 5 else "tune"
            self.direction(events, phase, number, name, held[name], name in winners, hostile)
        if promoted > 1:
            self.whole(events, first)
        for phase in ("explore", "integrate"):
            events.add(phase, "phase", {"state": "done", "reason": ""})
        events.add("tune", "phase", {"state": "skipped", "reason": "no time was left"})
        if promoted:
            self.finish(events, smoke)
        if end:
            last = {"path": f"spt/rounds/{round_}/deployment.yaml", "system": self.best, "branch": f"system/x/{round_}"}
            events.add("report", "deployment", last)
            events.add("report", "ended", {"outcome": "promoted" if promoted else "nothing promoted"})
        write_journal(self.repository, events.rows)
        self.flush()
        return events.rows

    def direction(self, events, phase, number, name, commit, wins, hostile):
        """All events of one direction."""
        text = HOSTILE[number % len(HOSTILE)] if hostile else "a plain reason"
        predicted = round(1.03 + self.dice.random() / 5, 6)
        data = {"agent": ("claude", "memory", "sweep")[number % 3], "title": TITLES[number % 5], "hypothesis": text}
        data |= {"predicted_gain": predicted, "interval": [predicted - 0.02, predicted + 0.03], "slot": number % 4}
        data |= {"base": self.best, "base_commit": commit, "evidence": []}
        if hostile and number % 4 == 0:
            data["title"] = text
        events.add(phase, "direction", data, name)
        system = {"tree": tree(events.round, name), "options": {"select": "best_first", "nodes": 15 + number}}
        events.add(
            phase, "candidate", {"system": system, "commit": commit, "note": text[:80], "files": 2, "lines": 40}, name
        )
        stop = len(GATES) if wins else 1 + number % (len(GATES) - 1)
        gain = round(0.031 + self.dice.random() / 20, 6)
        for gate in GATES[:stop]:
            passed = wins or gate != GATES[stop - 1]
            figure = None
            if gate in ("screen", "confirm"):
                figure = {"gain": 1 + gain, "low": 1 + gain - 0.0123, "high": 1 + gain + 0.0117, "noise": 0.0021}
            data = {"gate": gate, "passed": passed, "reason": text if not passed else "as it must be", "key": None}
            events.add(phase, "gate", {**data, "figure": figure}, name)
        events.add(phase, "spent", self.cost(), name)
        if wins:
            self.promote(events, phase, name, commit, system, gain)
        elif number % 11 == 5:
            events.add(phase, "failed", {"reason": text, "rescue": f"refs/spt/rescue/{name}"}, name)
        else:
            events.add(phase, "declined", {"gate": GATES[stop - 1], "reason": text, "rescue": None}, name)

    def promote(self, events, phase, name, commit, system, gain):
        raw = samples(self.repository / ".git", f"{name}", {"a": system, "b": self.best}, "confirm", name)
        digest = self.ledger.keep_raw(raw).name.partition(".")[0]
        raw.unlink()
        verdict = timing(system, self.best, gain, digest)
        said = forcing(verdict)
        self.verdicts += [verdict, said]
        data = {"system": system, "commit": commit, "kind": "speedup", "rule": "paired-1", "gain": 1 + gain}
        low, high = verdict["interval"]
        data |= {"low": 1 + low, "high": 1 + high, "timing": verdict["key"], "forcing": said["key"]}
        events.add(phase, "promoted", data, name)
        self.best = system
        self.total *= 1 + gain

    def whole(self, events, start):
        """What was promoted, measured together against the round's start: no idea of its own."""
        gain = round(0.99 * math.prod(row["data"]["gain"] for row in events.rows if row["event"] == "promoted") - 1, 6)
        data = {"agent": "controller", "title": "All that was promoted, together", "hypothesis": "It pays together."}
        data |= {"predicted_gain": None, "interval": None, "slot": 0, "base": start, "evidence": []}
        events.add("integrate", "direction", data, "whole")
        figure = {"gain": 1 + gain, "low": 1 + gain - 0.0123, "high": 1 + gain + 0.0117, "noise": 0.0021}
        verdict = timing(self.best, start, gain, key("whole", events.round))
        self.verdicts.append(verdict)
        data = {"gate": "confirm", "passed": True, "reason": "above", "key": verdict["key"], "figure": figure}
        events.add("integrate", "gate", data, "whole")
        data = {"system": self.best, "commit": None, "kind": "raw ratio", "rule": "paired-1", **figure}
        events.add("integrate", "promoted", {**data, "timing": verdict["key"], "forcing": None}, "whole")

    def finish(self, events, smoke):
        """The last phases of a round in which something was promoted."""
        raw = samples(self.repository / ".git", "final", {"a": self.best, "b": NOTHING}, "stock", events.round)
        digest = self.ledger.keep_raw(raw).name.partition(".")[0]
        raw.unlink()
        gains = (round(0.97 * self.total - 1, 4), round(2.9 * self.total - 1, 4))
        verdict = final(self.best, "smoke" if smoke else "accept", digest, gains)
        self.verdicts.append(verdict)
        figures = {}
        for name, against in (("against_stock", "stock"), ("against_ar", "ar")):
            low, high = verdict["timing"][against]["interval"]
            figures[name] = {"gain": 1 + verdict["timing"][against]["gain"], "low": 1 + low, "high": 1 + high}
        events.add("final", "measured", self.measured(events.round, 1.31))
        events.add("final", "final", {"key": verdict["key"], "verdict": verdict["answer"], **figures, "buckets": []})
        events.add("final", "spent", self.cost())
        promoted = [row for row in events.rows if row["event"] == "promoted" and row["direction"] != "whole"]
        for number, row in enumerate(promoted[:-1]):
            name, delta = f"entry-{events.round}-{number}", key("delta", events.round, number)
            git(self.repository, "update-ref", f"refs/spt/patch/{name}/{delta[:12]}", row["data"]["commit"])
            data = {"name": name, "delta": delta, "discovery": number % 2 == 0, "promoted": row["direction"]}
            events.add("distil", "entry", data)
        data = {"commits": [promoted[-1]["data"]["commit"]], "reasons": [f"{promoted[-1]['direction']}: no delta"]}
        events.add("distil", "residual", data)

    def measured(self, round_, speed):
        factors = {name: round(1 + (value - 1) / speed**2, 6) for name, value in FACTORS.items()}
        numbers = {"tau": round(3.43 * speed, 4), "nodes": 15, "factors": factors, "published": 8.12, "calibrated": 8.7}
        numbers |= {"step_us": 4568.25 / speed**0.5, "floors_us": FLOORS, "classes_us": TAKEN}
        return {"folder": f"spt/rounds/{round_}/measured", **numbers}

    def cost(self):
        wall_s = round(self.dice.uniform(60, 4000), 3)
        numbers = {"wall_s": wall_s, "device_s": round(wall_s * 0.7, 3), "usd": round(self.dice.uniform(0.1, 3), 4)}
        return numbers | {"input_tok": self.dice.randrange(10_000, 900_000), "output_tok": self.dice.randrange(90_000)}

    def flush(self):
        """Puts the verdicts into the ledger, all in one commit."""
        records = {}
        for verdict in self.verdicts:
            record = {"v": 1, "kind": "ledger", "what": verdict["what"], "key": verdict["key"], "looks": []}
            if verdict["what"] == "final":
                record |= {"seal": "a-seal", "again": None}
            records[f"{verdict['what']}/{verdict['key']}.json"] = {**record, "verdict": verdict}
        if records:
            with self.ledger.store.locked():
                self.ledger.commit(records, "verdicts\n")
        self.verdicts.clear()


def events_of(repository, round_):
    """The events of a journal as git has them."""
    return [json.loads(line) for line in git(repository, "show", f"refs/spt/round/{round_}:events.jsonl").split("\n")]

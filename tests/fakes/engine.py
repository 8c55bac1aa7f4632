"""A conforming worker (docs/protocol.md) with scripted speed, noise, mismatches and crashes.

    python tests/fakes/engine.py [--set NAME=VALUE ...] --in-fd 3 --out-fd 4

Its language is a pure function of the ids so far, so that any instance can score what another said: the best
token, the runner-up and the gap between them come from a hash of the last 8 ids and the position.
What it does wrong is scripted by its options, declared in `hello` like any engine's.
Standard library only.
"""

import argparse
import hashlib
import json
import math
import os
import queue
import random
import struct
import sys
import threading
import time
from pathlib import Path

VOCABULARY = 1000
STOP_ID = 2
MAX_LINE = 16 << 20
HEARD = 8  # ids at the end of a context that the language depends on, beside its length
MODEL_SUFFIXES = (".json", ".safetensors", ".jinja", ".model", ".txt", ".gguf")
SPIN_S = 3e-4  # a sleep ends late by about so much
PAUSE_S = 5e-3  # what comes later than so long after the last wait begins a schedule of its own

OPTIONS = {
    "step_ms": (1.0, [0.0, 1e5], "time of one exact pass"),
    "prefill_ms": (1.0, [0.0, 1e5], "time of a prefill"),
    "load_ms": (0.0, [0.0, 1e6], "time of a load"),
    "noise": (0.0, [0.0, 1.0], "relative standard deviation of every wait"),
    "tau": (1, [1, 64], "tokens an exact pass"),
    "tired_after": (0, [0, 10**9], "no larger tau than the default after so many requests (0: never)"),
    "mismatch": (0.0, [0.0, 1.0], "share of emitted tokens that are the runner-up instead of the best"),
    "far": (0.0, [0.0, 1.0], "share of emitted tokens that are far from the best"),
    "mismatch_after": (0, [0, 10**9], "no mismatch before this output index"),
    "stop_rate": (0.01, [0.0, 1.0], "share of positions whose best token is the stop id"),
    "early_stop": (0, [0, 10**9], "emit the stop id at this output index (0: never)"),
    "crash_after": (0, [0, 10**9], "exit with status 7 after so many emitted tokens (0: never)"),
    "hang_after": (0, [0, 10**9], "stop answering after so many emitted tokens (0: never)"),
    "stray": (0, [0, 1], "print to standard output and standard error between lines"),
    "bad_line": (0, [0, 10**9], "write a line that is not JSON after so many lines (0: never)"),
    "drop_done": (0, [0, 1], "never send done"),
    "draft": ("dflash", ["dflash", "none"], "none: one token an exact pass"),
    "seed": (0, [0, 2**31], "seed of mismatches"),
    "parts": (1, [1, 9], "files that a lattice is split into"),
    "profile_steps": (8, [0, 10**9], "steps a window of a profile (0: profiles are not supported)"),
    "prefill_rows": (512, [64, 8192], "no effect: scores do not depend on chunks here"),
}
LOAD = {"target", "drafter", "dtype", "device", "mode", "head", "options", "prepared", "limits"}
GENERATE = {"id", "prompt", "max_tokens", "stop_ids", "ignore_eos", "sampling", "logprobs", "digest"}
FIELDS = {
    "load": LOAD,
    "prepare": LOAD | {"dir"},
    "generate": GENERATE,
    "cancel": {"id"},
    "score": {"id", "ids", "start", "sampling"},
    "lattice": {"id", "ids", "start", "sampling", "file"},
    "record": {"on", "file"},
    "profile": {"on", "file"},
    "stats": set(),
    "shutdown": set(),
}


class ProtocolError(Exception):
    def __init__(self, code: str, message: str, request: str | None = None) -> None:
        super().__init__(message)
        self.code, self.message, self.request = code, message, request


def facts(ids: list[int], before: int = 0) -> tuple[int, int, float, float]:
    """Best token, runner-up, their gap in logits, and a uniform number: what the language says after `ids`.

    `before` ids more stand before these, which are HEARD at least then.
    """
    last = ids[-HEARD:]
    raw = hashlib.blake2b(struct.pack(f"<{len(last)}qq", *last, before + len(ids)), digest_size=24).digest()
    best, second, gap, uniform = struct.unpack("<IIdQ", raw[:8] + struct.pack("<d", 0) + raw[8:16])
    gap = -math.log((int.from_bytes(raw[16:20], "little") + 0.5) / 2**32)
    best = 3 + best % (VOCABULARY - 3)
    second = 3 + second % (VOCABULARY - 3)
    if second == best:
        second = 3 + (best - 2) % (VOCABULARY - 3)
    return best, second, gap, uniform / 2**64


def defaults_with(changes) -> dict:
    """The defaults of all options, some of them changed: pairs of name and text."""
    values = {name: default for name, (default, _, _) in OPTIONS.items()}
    return values | {name: type(values[name])(text) for name, text in changes}


def digest_of(model: str) -> str:
    """The content digest of a model's folder or file (docs/deployment.md)."""
    path = Path(model)
    files = [path] if path.is_file() else [file for file in path.iterdir() if file.suffix in MODEL_SUFFIXES]
    lines = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files]
    return hashlib.sha256("".join(sorted(lines)).encode()).hexdigest()


def named(target: dict) -> dict:
    """A target as a lattice names it."""
    return {"digest": digest_of(target["path"]), "widen": target["widen"], "jitter": target["jitter"]}


def heard(prompt: list[int], answer: list[int]) -> tuple[list[int], int]:
    """The end of a context as `facts` takes it: a long one is not copied for every token."""
    last = answer[-HEARD:]
    last = last if len(last) == HEARD else (prompt[-HEARD:] + last)[-HEARD:]
    return last, len(prompt) + len(answer) - len(last)


class Engine:
    def __init__(self, send, defaults: dict) -> None:
        self.send, self.defaults = send, defaults
        self.options: dict[str, float] | None = None
        self.limits = {"context": 0, "requests": 0}
        self.target: dict = {}
        self.drafter: dict | None = None
        self.record: Path | None = None
        self.profile: Path | None = None
        self.profiled = 0
        self.open: dict[str, dict] = {}
        self.counters = {"requests": 0, "steps": 0, "tokens": 0}
        self.emitted = 0
        self.due_s = 0.0

    def best(self, ids: list[int], before: int = 0) -> tuple[int, int, float]:
        best, second, gap, uniform = facts(ids, before)
        return (STOP_ID if uniform < self.options["stop_rate"] else best), second, gap

    def wait(self, ms: float) -> None:
        """A metronome: waits end on a schedule, so that what was late is not late twice, nor in the next request."""
        ms *= max(0.0, 1 + self.unsteady.gauss(0, self.options["noise"]))
        self.due_s += ms / 1e3
        time.sleep(max(0.0, self.due_s - time.perf_counter() - SPIN_S))
        while time.perf_counter() < self.due_s:
            pass

    def load(self, line: dict) -> None:
        values = dict(self.defaults)
        for name, value in line["options"].items():
            if name not in OPTIONS:
                raise ProtocolError("bad_option", f"unknown option '{name}'")
            bounds = OPTIONS[name][1]
            if isinstance(bounds[0], str):
                fits = value in bounds
            else:
                fits = isinstance(value, (int, float)) and bounds[0] <= value <= bounds[1]
            if not fits:
                raise ProtocolError("bad_option", f"option '{name}' is {value!r}, not in {bounds}")
            values[name] = value
        self.options, self.limits = values, line["limits"]
        self.target, self.drafter = line["target"], line["drafter"]
        self.random, self.unsteady = random.Random(values["seed"]), random.Random()
        self.open.clear()
        self.due_s = time.perf_counter()
        self.wait(values["load_ms"])
        self.due_s = 0.0  # the first request has a schedule of its own

    def on_load(self, line: dict) -> None:
        begin = time.monotonic()
        self.load(line)
        self.send("ready", load_s=time.monotonic() - begin, bytes=0, vocabulary=VOCABULARY,
                  stop_ids=[STOP_ID], context=line["limits"]["context"])  # fmt: skip

    def on_prepare(self, line: dict) -> None:
        self.load(line)
        data = b"prepared by the fake engine\n"
        (Path(line["dir"]) / "fake.txt").write_bytes(data)
        listing = f"{hashlib.sha256(data).hexdigest()}  fake.txt\n"
        self.send("prepared", files=1, bytes=len(data), digest=hashlib.sha256(listing.encode()).hexdigest())
        sys.exit(0)

    def on_generate(self, line: dict) -> None:
        name = line["id"]
        if name in self.open:
            raise ProtocolError("duplicate_id", f"request '{name}' is open already", name)
        if len(self.open) >= self.limits["requests"]:
            raise ProtocolError("busy", f"{len(self.open)} requests are open", name)
        if not line["prompt"]:
            raise ProtocolError("bad_request", "the prompt is empty", name)
        if max(line["prompt"]) >= VOCABULARY:
            raise ProtocolError("bad_request", f"id {max(line['prompt'])} is outside the vocabulary", name)
        if len(line["prompt"]) + line["max_tokens"] > self.limits["context"]:
            raise ProtocolError("too_long", f"prompt and answer exceed {self.limits['context']} tokens", name)
        self.open[name] = {**line, "answer": [], "steps": 0}
        self.counters["requests"] += 1
        if len(self.open) == 1 and (now_s := time.perf_counter()) - self.due_s > PAUSE_S:
            self.due_s = now_s
        self.wait(self.options["prefill_ms"])
        self.note_profile("prefill")
        self.emit(name, 1)

    def step(self) -> None:
        name = next(iter(self.open))
        self.wait(self.options["step_ms"])
        self.open[name]["steps"] += 1
        self.counters["steps"] += 1
        self.note_profile("draft", "verify", "accept", "host")
        tired = 0 < self.options["tired_after"] < self.counters["requests"]
        tau = self.defaults["tau"] if tired else self.options["tau"]
        self.emit(name, 1 if self.options["draft"] == "none" else int(tau))

    def next_token(self, request: dict) -> int:
        options, answer = self.options, request["answer"]
        best, second, _ = self.best(*heard(request["prompt"], answer))
        if options["early_stop"] and len(answer) + 1 >= options["early_stop"]:
            return STOP_ID
        draw = self.random.random()
        if len(answer) >= options["mismatch_after"]:
            if draw < options["mismatch"]:
                return second
            if draw < options["mismatch"] + options["far"]:
                return 3 + (best + 7) % (VOCABULARY - 3)
        return best

    def emit(self, name: str, count: int) -> None:
        request, ids, reason = self.open[name], [], None
        for _ in range(count):
            token = self.next_token(request)
            request["answer"].append(token)
            ids.append(token)
            if not request["ignore_eos"] and token in request["stop_ids"]:
                reason = "stop"
            elif len(request["answer"]) == request["max_tokens"]:
                reason = "length"
            if reason:
                break
        self.emitted += len(ids)
        self.counters["tokens"] += len(ids)
        if self.options["crash_after"] and self.emitted >= self.options["crash_after"]:
            os._exit(7)
        if self.options["hang_after"] and self.emitted >= self.options["hang_after"]:
            time.sleep(1e6)
        if self.record is not None and request["steps"]:
            self.note(name, ids)
        extra = {"logprobs": [-0.5] * len(ids)} if request["logprobs"] else {}
        self.send("tokens", id=name, ids=ids, **extra)
        if reason and not self.options["drop_done"]:
            self.finish(name, reason)

    def finish(self, name: str, reason: str) -> None:
        request = self.open.pop(name)
        usage = {
            "prompt_tok": len(request["prompt"]),
            "completion_tok": len(request["answer"]),
            "steps": request["steps"],
        }
        extra = {}
        if request["digest"]:
            extra["logits_sha256"] = hashlib.sha256(json.dumps(request["answer"]).encode()).hexdigest()
        self.send("done", id=name, reason=reason, usage=usage, **extra)

    def on_cancel(self, line: dict) -> None:
        if line["id"] not in self.open:
            raise ProtocolError("unknown_id", f"no open request '{line['id']}'", line["id"])
        self.finish(line["id"], "cancelled")

    def on_score(self, line: dict) -> None:
        result: dict[str, list] = {"argmax": [], "margin": [], "rank": [], "logit": [], "kept": []}
        for at in range(line["start"], len(line["ids"])):
            first = max(0, at - HEARD)
            best, second, gap = self.best(line["ids"][first:at], first)
            token = line["ids"][at]
            margin, rank = (0.0, 0) if token == best else (gap, 1) if token == second else (gap + 10, 17)
            for key, value in zip(result, (best, margin, rank, 20 - margin, True), strict=True):
                result[key].append(value)
        self.send("scores", id=line["id"], start=line["start"], **result)

    def on_lattice(self, line: dict) -> None:
        """Ranks whose best at each depth is the token of `ids` there, as a drafter that is always right would give."""
        if self.drafter is None:
            raise ProtocolError("unsupported", "the fake engine has no drafter", line["id"])
        sys.path.insert(0, str(Path(__file__).parent))  # it is run with -P
        import numpy as np
        from lattice import some_ranks, write_lattice

        tokens, start, depths = line["ids"], line["start"], int(self.options["tau"])
        ids, logprobs = some_ranks(len(tokens) - start, depths, 4, VOCABULARY)
        for position in range(len(ids)):
            for depth, token in enumerate(tokens[start + position + 1 :][:depths]):
                others = [other for other in ids[position, depth] if other != token]
                ids[position, depth] = np.array([token, *others])[:4]
        path = Path(os.environ["TMPDIR"]) / line["file"]
        header = {"request": line["id"], "sampling": line["sampling"]}
        header |= {"target": named(self.target), "drafter": digest_of(self.drafter["path"])}
        files = write_lattice(path, tokens, start, ids, logprobs, VOCABULARY, int(self.options["parts"]), header)
        digest = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
        self.send("lattice", id=line["id"], file=line["file"], parts=len(files), digest=digest)

    def on_record(self, line: dict) -> None:
        self.record = Path(os.environ["TMPDIR"]) / line["file"] if line["on"] else None
        self.send("ok", to="record")

    def note(self, name: str, ids: list[int]) -> None:
        """Writes the record of a step that emitted `ids`; every draft was right."""
        request = self.open[name]
        start = len(request["prompt"]) + len(request["answer"]) - len(ids) - 1
        anchor = request["answer"][-len(ids) - 1]
        times = dict.fromkeys(("draft_us", "verify_us", "accept_us", "host_us"), 1.0)
        path = [0] * (len(ids) - 1)
        record = {"v": 1, "kind": "steps", "request": name, "step": request["steps"] - 1, "start": start}
        record |= {"anchor": anchor, "nodes": int(self.options["tau"]) - 1, "path": path, "tokens": ids, **times}
        with self.record.open("a") as file:
            file.write(json.dumps(record) + "\n")

    def on_profile(self, line: dict) -> None:
        if not self.options["profile_steps"]:
            raise ProtocolError("unsupported", "the fake engine takes no profiles")
        if line["on"] and self.record is not None:
            raise ProtocolError("bad_request", "steps are being recorded")
        self.profile, self.profiled = (Path(os.environ["TMPDIR"]) / line["file"] if line["on"] else None), 0
        if self.profile is not None:
            self.profile.touch()
        self.send("ok", to="profile")

    def note_profile(self, *phases: str) -> None:
        """Counts a step, and writes the rows of a window that is whole; a prefill is one of its own."""
        if self.profile is None:
            return
        steps = 1 if phases == ("prefill",) else int(self.options["profile_steps"])
        self.profiled += phases != ("prefill",)
        if self.profiled % steps:
            return
        times = {"wall_us": 9.0, "profiled_us": 10.0, "residual_us": 1.0}
        classes = {"gemm": {"us": 5.0, "calls": 2.0}, "gaps": {"us": 3.0, "calls": 0.0}}
        shape = {"steps": steps, "rows": self.options["tau"], "context": 8.0, "batch": len(self.open)}
        rows = [{"v": 1, "kind": "profile", "phase": phase, **shape, **times, "classes": classes} for phase in phases]
        with self.profile.open("a") as file:
            file.write("".join(json.dumps(row) + "\n" for row in rows))

    def on_stats(self, line: dict) -> None:
        self.send("stats", counters=self.counters)

    def on_shutdown(self, line: dict) -> None:
        self.send("ok", to="shutdown")
        sys.exit(0)

    def handle(self, text: bytes) -> None:
        try:
            line = json.loads(text)
            operation = line["op"] if isinstance(line, dict) and line.get("v") == 1 else None
        except (ValueError, KeyError):
            operation = None
        if operation is None:
            raise ProtocolError("malformed", "not an object with v 1 and op")
        if operation not in FIELDS:
            raise ProtocolError("unknown_op", f"unknown operation '{operation}'")
        name = line.get("id") if isinstance(line.get("id"), str) else None
        if line.keys() - {"v", "op"} != FIELDS[operation]:
            wrong = sorted((line.keys() - {"v", "op"}) ^ FIELDS[operation])
            raise ProtocolError("malformed", f"unknown or missing keys: {', '.join(wrong)}", name)
        if self.options is None and operation not in ("load", "prepare", "shutdown"):
            raise ProtocolError("not_loaded", "no model is loaded", name)
        getattr(self, f"on_{operation}")(line)


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--in-fd", type=int, required=True)
    parser.add_argument("--out-fd", type=int, required=True)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="another default")
    arguments = parser.parse_args()
    out = os.fdopen(arguments.out_fd, "wb", buffering=0)
    lines: queue.Queue[bytes | None] = queue.Queue()
    sent = 0

    def read() -> None:
        with os.fdopen(arguments.in_fd, "rb") as source:
            while line := source.readline(MAX_LINE + 1):
                lines.put(line)
        lines.put(None)

    def send(operation: str, **fields: object) -> None:
        nonlocal sent
        sent += 1
        options = engine.options or {}
        if options.get("stray"):
            print("stray line on standard output", flush=True)
            print("stray line on standard error", file=sys.stderr, flush=True)
        if options.get("bad_line") and sent >= options["bad_line"]:
            out.write(b"{not json\n")
        out.write(json.dumps({"v": 1, "op": operation, **fields}).encode() + b"\n")

    defaults = defaults_with(word.split("=") for word in arguments.set)
    engine = Engine(send, defaults)
    declared = {
        name: {"type": {int: "int", float: "float", str: "string"}[type(default)], "default": defaults[name],
               "values" if isinstance(default, str) else "range": bounds, "owner": "fake", "meaning": meaning}
        for name, (default, bounds, meaning) in OPTIONS.items()
    }  # fmt: skip
    send("hello", engine="fake", version="1", options=declared)
    threading.Thread(target=read, daemon=True).start()
    while True:
        try:
            text = lines.get(block=not engine.open)
        except queue.Empty:
            engine.step()
            continue
        if text is None:
            sys.exit(0)
        try:
            engine.handle(text)
        except ProtocolError as error:
            send("error", id=error.request, code=error.code, message=error.message)


if __name__ == "__main__":
    main()

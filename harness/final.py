"""`python -m harness rehearse`, `draw` and `final`: the last word on a system, on requests that nobody has seen.

Whatever can fail is tried first (`rehearse`), then the seal is spent on the requests (`draw`), then the system is timed
against `b` and against autoregressive decoding, and every token of it is forced, with stock's own answers to as many
requests beside it (`final`).  What it comes to is a function of `DIR/samples.jsonl` (harness/final_verdict.py).
"""

import datetime
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from harness.arena import Arena, check_arms, open_arena, open_grounds
from harness.campaign import Course, check_timed
from harness.client import Engine, Start
from harness.command import Emit, deadline_after
from harness.conversation import ANSWER_TOK, Conversation
from harness.errors import HarnessError, Usage, Violation
from harness.final_verdict import SORTS, final_verdict, next_unit, sort_of
from harness.generator import FINAL, SEALED_FAMILIES
from harness.job import Arm, Job, read_job
from harness.request import Request
from harness.requests import Wanted, check_generator, check_seal, write_requests
from harness.rules import DEMO, PAIRED, Shape, rule_named
from harness.scoring import CHUNK, STOCK, SYSTEM, Work
from harness.supply import Supply
from harness.text import Text, load_text

__all__ = ["AR", "SIZES", "Sizes", "draw", "final", "rehearse"]

ARMS = ("a", "b", "stock")
AR = {"draft": "none"}  # the option that makes stock decode autoregressively
RESERVE = 1.5  # for units that are void, and groups that repeat themselves
DEMO_RESERVE = 6.0  # of so few, one that does not fit or repeats itself is a large share
ROOM = 2  # times the longest prompt, as the generator counts, is kept free: tokenizers differ


@dataclass(frozen=True)
class Sizes:
    """How much a final measures; of every sort of request stock answers as many of its own."""

    stock_units: int = 10
    ar_units: int = 5
    sessions: int = 60
    sampled: int = 100  # long answers at temperature 1
    greedy: int = 25  # long answers
    answer_tok: int = 4096  # of a long answer, EOS ignored
    session_tok: int = 5120  # the context that a session fills
    prompt_tok: int = 512  # about the longest prompt of a long answer
    shape: Shape = PAIRED.shape
    reserve: float = RESERVE

    @property
    def context_tok(self) -> int:
        """What the deployment's context must hold."""
        return max(self.session_tok, ROOM * self.prompt_tok + self.answer_tok)

    def timed(self, devices: int) -> int:
        """Requests that arm a answers in counting groups."""
        return (self.stock_units + self.ar_units) * (self.shape.half_requests - self.shape.warm_up) * devices

    def supply(self, devices: int) -> int:
        """Requests to time with."""
        return round(self.reserve * (self.stock_units + self.ar_units) * self.shape.half_requests * devices)

    def asked_tok(self, devices: int) -> dict[str, int]:
        """The most tokens that all arms are asked for, by what for."""
        long = (self.sampled + self.greedy) * self.answer_tok + self.sessions * self.session_tok
        timed = self.timed(devices) * self.shape.answer_tok
        return {"timed": 2 * timed, "forced": long, "reference": timed + long}

    def parts(self, devices: int, families: Sequence[str]) -> list[Wanted]:
        """What is drawn: of each sort two shares, the first one the system's."""
        single = Wanted(FINAL, None, 2 * self.supply(devices), families=families)
        long = replace(single, fixed_tok=self.answer_tok, longest_tok=self.prompt_tok)
        sampled = replace(long, first=single.count, count=2 * self.sampled, temperature=1.0)
        greedy = replace(long, first=sampled.first + sampled.count, count=2 * self.greedy, temperature=0.0)
        sessions = Wanted(
            FINAL, None, 2 * self.sessions, sessions=True, context_tok=self.session_tok, families=families
        )
        return [part for part in (single, sessions, sampled, greedy) if part.count]


SIZES = {
    "full": Sizes(),
    "smoke": Sizes(stock_units=2, ar_units=1, sessions=2, sampled=2, greedy=2, answer_tok=256, session_tok=1024),
}


def sizes_of(job: Job) -> Sizes:
    """The sizes of a final; the rule `demo` has a smaller small one, and no other."""
    sizes = SIZES[job.sizes]
    if rule_named(job.rule) is not DEMO:
        return sizes
    if job.sizes == "full":
        raise Usage("by the rule 'demo' there is no full final", "what it promotes is a raw ratio: --smoke")
    small = replace(sizes, stock_units=1, sampled=1, greedy=1, answer_tok=64, session_tok=384, prompt_tok=96)
    return replace(small, shape=DEMO.shape, reserve=DEMO_RESERVE)


# --- before the seal is spent ---


def rehearse(
    job_file: Path,
    out: Path,
    emit: Emit,
    *,
    sandbox: bool = True,
    devices: Sequence[str] = (),
    start: Start = Engine.start,
) -> None:
    """Tries all of a final that can fail before there are requests: every arm prepares and loads, and none is asked.

    `emit` gets the event `plan`: the sizes, and how many tokens will be asked for.
    """
    job = _read(job_file)
    load_text(Path(job.deployment.target.path))
    sizes = sizes_of(job)
    count = max(1, len(devices))
    emit({"event": "plan", "sizes": asdict(sizes), "asked_tok": sizes.asked_tok(count)})
    with open_grounds(_with_ar(job), out, sandbox=sandbox, devices=devices, start=start) as grounds:
        trusted = grounds.ready("stock")
        for name in ("a", "b", "ar"):
            if not grounds.ready(name).same_model(trusted):
                raise Violation(f"arm '{name}' tells another vocabulary, context or stop ids than stock")


def draw(job_file: Path, seal: Path, key: str, families: Sequence[str], devices: int, now: datetime.datetime) -> None:
    """Spends the seal: writes the requests of the final into the file that the job names.

    `families` restrict the open ones; the sealed ones come in any case.  The job with this key may draw again.
    """
    job = _read(job_file)
    load_text(Path(job.deployment.target.path))
    check_generator(check_seal(seal, _commitment(job)))
    every = (*families, *SEALED_FAMILIES) if families else ()
    write_requests(sizes_of(job).parts(devices, every), job.requests, seal, key, now)


def _read(job_file: Path) -> Job:
    """The job, with all that can be said against it before anything is started."""
    job = read_job(job_file)
    check_timed(job)
    check_arms(job, ARMS)
    for arm in job.arms.values():
        arm.check()
    _commitment(job)
    sizes = sizes_of(job)
    needed = sizes.context_tok
    if job.deployment.context < needed:
        raise Usage(
            f"the deployment's context of {job.deployment.context} is too small for a final, which needs {needed}: "
            f"sessions of {sizes.session_tok}, and {sizes.answer_tok} new tokens after their prompt",
            f"set 'context: {needed}' in the deployment",
        )
    return job


def _commitment(job: Job) -> str:
    if job.commitment is None:
        raise Usage("the job names no commitment", "the job of a final names the one of its seal")
    return job.commitment


def _with_ar(job: Job) -> Job:
    """The job with the arm `ar`: stock without drafts, and without a drafter in memory."""
    stock = job.arms["stock"]
    return replace(job, arms={**job.arms, "ar": Arm("ar", stock.folder, stock.tree, {**stock.options, **AR}, False)})


# --- the final ---


@dataclass(frozen=True)
class Shares:
    """The requests of a final, by what becomes of them; what does not fit the context is left out."""

    timed: list[Request]  # the system's, and `b`'s
    forced: list[Request]  # the system's
    reference: list[Request]  # stock's own

    @classmethod
    def of(cls, requests: Sequence[Request], sizes: Sizes, devices: int, fits: Callable[[Request], bool]) -> "Shares":
        """Of each sort the first half is the system's, the second stock's; Usage where these are not a final's."""
        sorts: dict[str, list[Request]] = {sort: [] for sort in SORTS}
        for request in requests:
            sorts[_sort(request)].append(request)
        wanted = {"sessions": sizes.sessions, "sampled": sizes.sampled, "greedy": sizes.greedy}
        wanted |= {"timed": sizes.supply(devices)}
        for sort, count in wanted.items():
            if len(sorts[sort]) != 2 * count:
                raise Usage(
                    f"these are not the requests of a final on {devices} devices: {len(sorts[sort])} are '{sort}', "
                    f"not {2 * count}"
                )
        halves = {sort: (found[: len(found) // 2], found[len(found) // 2 :]) for sort, found in sorts.items()}
        forced, reference = (
            [request for sort in SORTS[1:] for request in halves[sort][side] if fits(request)] for side in (0, 1)
        )
        singles = [
            replace(request, max_tokens=_timed_tok(request, sizes.shape.answer_tok))
            for request in halves["timed"][1]
            if fits(request)
        ]
        return cls(halves["timed"][0], forced, [*singles[: sizes.timed(devices)], *reference])


def _sort(request: Request) -> str:
    temperature = 0.0 if request.sampling is None else request.sampling.temperature
    return sort_of(session=request.session, ignore_eos=request.ignore_eos, temperature=temperature)


def _timed_tok(request: Request, answer_tok: int) -> int:
    return min(request.max_tokens or answer_tok, answer_tok)


def _fits(request: Request, text: Text | None, context: int) -> bool:
    """Whether the first prompt and its answer fit; a session ends by itself."""
    return len(Conversation(request).prompt(text)) + (request.max_tokens or ANSWER_TOK) <= context


def final(
    job_file: Path,
    out: Path,
    minutes: float | None,
    emit: Emit,
    *,
    sandbox: bool = True,
    devices: Sequence[str] = (),
    start: Start = Engine.start,
) -> dict[str, Any]:
    """Measures a final whose requests are drawn, and returns the verdict; the same command goes on.

    `emit` gets the events of `time` and `force` (docs/judge.md).  Raises `HarnessError` when the time is up.
    """
    job = _read(job_file)
    if not job.requests.stat().st_size:
        raise Usage(
            f"the requests of '{job_file}' are not drawn yet", "`python -m harness draw` spends the seal on them"
        )
    with open_arena(job_file, out, ARMS, sandbox=sandbox, devices=devices, start=start) as arena:
        arena.job = _with_ar(arena.job)
        deadline_s = deadline_after(minutes)
        _measure(arena, sizes_of(job), emit, deadline_s)
        verdict = final_verdict(arena.writer.read())
        emit({"event": "verdict", "verdict": verdict})
        return verdict


def _measure(arena: Arena, sizes: Sizes, emit: Emit, deadline_s: float | None) -> None:
    """All of it, as far as the system does not end it by a fault."""
    context = arena.job.deployment.context
    count = len(arena.devices)
    shares = Shares.of(arena.requests, sizes, count, lambda request: _fits(request, arena.text, context))
    _begin(arena, sizes, shares)
    supply = Supply(shares.timed, arena.asked(), arena.text, sizes.shape.answer_tok)
    of: Mapping[str, int] = {"stock": sizes.stock_units, "ar": sizes.ar_units}
    sides = {"stock": ("a", "b"), "ar": ("a", "ar")}
    samples = Course(arena, supply, emit, next_unit, sides, of).run(deadline_s)
    if next_unit(samples) is not None:
        return  # a fault, or too many voids: nothing more is asked for
    system, stock = (Work(arena, side, emit, deadline_s) for side in (SYSTEM, STOCK))
    if not system.answer(shares.forced):
        return
    if not stock.answer(shares.reference):
        raise HarnessError("stock failed in its own share of the final", f"'{arena.writer.path}' says how")
    for work in (stock, system):
        work.score()
    for work in (stock, system):
        work.recheck(arena.writer.read())


def _begin(arena: Arena, sizes: Sizes, shares: Shares) -> None:
    """Writes how much will be measured, before anything is; a process that goes on finds it there."""
    told = {
        "commitment": arena.job.commitment,
        "stock_units": sizes.stock_units,
        "ar_units": sizes.ar_units,
        "force_units": -(-len(shares.forced) // CHUNK),
        "reference_units": -(-len(shares.reference) // CHUNK),
        "full": arena.job.sizes == "full",
    }
    found = arena.writer.read().final
    if found is None:
        arena.writer.add("final", **told)
    elif differing := [name for name, value in told.items() if found[name] != value]:
        raise Usage(f"'{arena.writer.path}' holds another final: its '{differing[0]}' differs", "give another folder")

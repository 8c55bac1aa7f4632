"""The gates, in order: each looks at a candidate and says whether it passes, and why.

What is cheap comes first, and only the judge's timing and forcing promote; the others can only decline.
"""

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from spt.campaign import DEMO
from spt.checks import run_commands
from spt.errors import SptError, Unsupported
from spt.formats import canonical
from spt.gains import LEAST_GAIN
from spt.git.tree import compare
from spt.job import HarnessFailed
from spt.round.bench import Bench
from spt.round.budget import Waiting
from spt.round.direction import Candidate, Direction, Figure, SystemOf, Verdict
from spt.round.runs import Asked
from spt.round.scope import check_scope
from spt.verdicts import NO

__all__ = [
    "GATES",
    "PROMOTING",
    "Ask",
    "Gates",
    "Subject",
    "compare_answers",
    "default",
    "exact",
    "quick",
    "scope",
    "timing",
]


@dataclass(frozen=True)
class Subject:
    """What a gate looks at.

    trusted: the candidate was composed in the controller, of entries and options.  checks: its contract's commands.
    """

    bench: Bench
    direction: Direction
    candidate: Candidate
    trusted: bool
    checks: tuple[str, ...] = ()

    @property
    def system(self) -> SystemOf:
        return self.candidate.system

    @property
    def base(self) -> SystemOf:
        return self.direction.base


Gate = Callable[[Subject], Verdict]


# --- what asks no engine ---


def scope(subject: Subject) -> Verdict:
    """Whether it touches only what a patch may, and its options are ones that its tree declares."""
    objects = subject.bench.store.objects
    try:
        subject.bench.arm(subject.system)
    except SptError as error:
        return Verdict("scope", False, error.message)
    if subject.trusted:
        return Verdict("scope", True, "composed in the controller, of entries and declared options")
    reasons = check_scope(objects, subject.base.tree, subject.system.tree)
    if reasons:
        return Verdict("scope", False, "; ".join(reasons[:3]))
    rows = compare(objects, subject.base.tree, subject.system.tree).rows
    return Verdict("scope", True, f"{len(rows)} files, all where a patch may be")


def checks(subject: Subject) -> Verdict:
    """The author's own checks, in a sandbox: they can only decline."""
    done = run_commands(subject.bench.store.objects, subject.system.tree, subject.checks)
    failed = next((result for result in done if not result.passed), None)
    if failed is not None:
        words = failed.output.strip().splitlines()[-1:] or ["it said nothing"]
        return Verdict("checks", False, f"'{failed.command}' failed: {words[0][:200]}")
    return Verdict("checks", True, f"{len(done)} of the author's own passed" if done else "the contract has none")


# --- what the judge asks in exact mode ---


def default(subject: Subject) -> Verdict:
    """Whether its tree, with every option at its default, is stock: ids and logits, bit for bit."""
    plain = SystemOf(subject.system.tree)
    if plain == subject.bench.stock:
        return Verdict("default", True, "the tree is stock's own")
    return _exactly(subject, "default", plain, digests=True)


def exact(subject: Subject) -> Verdict:
    """Whether it says what stock says, token for token."""
    if subject.bench.arm(subject.system).system == subject.bench.arm(subject.bench.stock).system:
        return Verdict("exact", True, "the system is stock")
    return _exactly(subject, "exact", subject.system, digests=False)


def _exactly(subject: Subject, gate: str, system: SystemOf, *, digests: bool) -> Verdict:
    sizes, seed = subject.bench.settings.sizes, subject.bench.settings.seed
    asked = Asked(sizes.exact, seed, sizes.exact_tok, exact=True)
    try:
        stock = subject.bench.answers(subject.bench.stock, asked)
    except Waiting:
        with contextlib.suppress(Waiting, HarnessFailed):
            subject.bench.answers(system, asked)  # so that both are carried together
        raise
    try:
        said = subject.bench.answers(system, asked)
    except HarnessFailed as error:
        return _fault(gate, error)
    tokens = sum(len(answer["ids"]) for answer in stock)
    problem = compare_answers(stock, said, digests=digests)
    if problem is not None:
        return Verdict(gate, False, problem)
    what = "ids and logits are" if digests else "ids are"
    return Verdict(gate, True, f"{what} stock's in exact mode: {len(stock)} answers, {tokens} tokens")


def compare_answers(stock: list[dict[str, Any]], said: list[dict[str, Any]], *, digests: bool) -> str | None:
    """The first difference between two systems' answers to the same requests, in words; None where there is none."""
    theirs = {(answer["request"], answer["turn"]): answer for answer in said}
    for answer in stock:
        name, other = answer["request"], theirs.get((answer["request"], answer["turn"]))
        if other is None:
            return f"'{name}' has no answer"
        if other["ids"] != answer["ids"]:
            pairs = zip(answer["ids"], other["ids"], strict=False)
            at = next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(answer["ids"]), len(other["ids"])))
            return f"the answer to '{name}' is not stock's from token {at} on"
        if digests and other["logits_sha256"] != answer["logits_sha256"]:
            return f"the logits of '{name}' are not stock's, though its tokens are"
    return None


# --- what the judge asks in the deployment's own mode ---


def development(subject: Subject) -> Verdict:
    """Forcing on a handful of development requests: it can only decline."""
    try:
        verdict = subject.bench.forced_quickly(subject.system, subject.base)
    except HarnessFailed as error:
        return _fault("development", error)
    words = f"{verdict['answer']} on {verdict['tokens']} tokens: {verdict['reason']}"
    return Verdict("development", verdict["answer"] not in NO, words)


def predicted(subject: Subject) -> Verdict:
    """Whether it promises enough to be worth a campaign, by a quick measurement of both."""
    try:
        measured = quick(subject.bench, subject.system, subject.base)
    except HarnessFailed as error:
        return _fault("predicted", error)
    gain = measured["ratio"] - 1
    reason = f"{gain:+.1%} on {measured['requests']} development requests, and at least {LEAST_GAIN:.0%} are wanted"
    return Verdict("predicted", gain >= LEAST_GAIN, reason, Figure(gain=1 + gain))


def quick(bench: Bench, system: SystemOf, base: SystemOf) -> dict[str, Any]:
    """Both systems on the same few development requests; advice, never evidence.

    {ratio: time of the base over time of the system, a token; tau and base_tau; ms_tok and base_ms_tok; same: share of
    answers with equal ids; requests}
    """
    sizes, named = bench.settings.sizes, canonical(bench.arm(system).system)
    asked = Asked(sizes.quick, bench.settings.seed, sizes.quick_tok, beside=named if sizes.beside else "")
    before, after = bench.both_answers(base, system, asked)
    (base_s, base_tau), (own_s, own_tau) = _pace(before), _pace(after)
    ids = {(answer["request"], answer["turn"]): answer["ids"] for answer in before}
    same = sum(ids.get((answer["request"], answer["turn"])) == answer["ids"] for answer in after)
    return {
        "ratio": base_s / own_s,
        "tau": own_tau,
        "base_tau": base_tau,
        "ms_tok": 1e3 * own_s,
        "base_ms_tok": 1e3 * base_s,
        "same": same / len(after),
        "requests": len(after),
    }


def _pace(answers: list[dict[str, Any]]) -> tuple[float, float]:
    """(seconds a token, prefill included; tokens a step after prefill's first)."""
    seconds = math.fsum(answer["prefill_s"] + answer["decode_s"] for answer in answers)
    tokens = sum(len(answer["ids"]) for answer in answers)
    steps = sum(len(answer["lines"]) - 1 for answer in answers)
    return max(seconds, 1e-9) / max(tokens, 1), (tokens - len(answers)) / max(steps, 1)


# --- what promotes ---


def timing(subject: Subject) -> Iterator[Verdict]:
    """The judge's timing against the base: the screen where the rule has one, then the confirmation.

    Unsupported where no candidate was measured, as on a machine that is too noisy: that says nothing of this one.
    """
    verdict = subject.bench.timed(subject.system, subject.base)
    if verdict["answer"] == "refused":
        raise Unsupported(f"the timing is refused: {verdict['reason']}", "a steadier machine can be asked again")
    screened = verdict["look"] == 0 and subject.bench.settings.rule != DEMO
    passed, figure = verdict["answer"] == "promote", _figure(verdict)
    if subject.bench.settings.rule != DEMO:
        words = verdict["reason"] if screened else "the screen passed"
        yield Verdict("screen", not screened, words, figure if screened else None, verdict["key"])
    if not screened:
        yield Verdict("confirm", passed, f"{verdict['answer']}: {verdict['reason']}", figure, verdict["key"])


def force(subject: Subject) -> Verdict:
    """Forcing of the very tokens that were timed; by the rule `demo` it is too small to accept, and can only reject."""
    verdict = subject.bench.forced(subject.system, subject.base)
    demo = subject.bench.settings.rule == DEMO
    passed = verdict["answer"] == "accept" or (demo and verdict["answer"] == "smoke")
    words = f"{'rule demo, ' if demo else ''}{verdict['answer']} on {verdict['tokens']} tokens: {verdict['reason']}"
    return Verdict("force", passed, words, None, verdict["key"])


def _figure(verdict: Mapping[str, Any]) -> Figure:
    low, high = verdict["interval"] or (None, None)
    gain, low, high = (None if value is None else 1 + value for value in (verdict["gain"], low, high))
    return Figure(gain, low, high, verdict["noise"])


def _fault(gate: str, error: HarnessFailed) -> Verdict:
    """A candidate whose engine fails declines itself; errors of the user's own (exit codes above 1) are not its."""
    if error.exit_code != 1:
        raise error
    return Verdict(gate, False, f"its engine failed: {error.message[:300]}")


def _alone(gate: Gate) -> Callable[[Subject], Iterator[Verdict]]:
    def run(subject: Subject) -> Iterator[Verdict]:
        yield gate(subject)

    return run


Ask = Callable[[Subject], Iterator[Verdict]]
Gates = tuple[tuple[tuple[str, ...], Ask], ...]  # (the names that a step gives verdicts of, the step)

PROMOTING: Gates = ((("screen", "confirm"), timing), (("force",), _alone(force)))
GATES: Gates = (
    (("scope",), _alone(scope)),
    (("default",), _alone(default)),
    (("exact",), _alone(exact)),
    (("checks",), _alone(checks)),
    (("development",), _alone(development)),
    (("predicted",), _alone(predicted)),
    *PROMOTING,
)

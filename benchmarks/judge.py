"""How often the judge is right: simulated campaigns and forcing runs, decided by the code that decides.

    python -m benchmarks.judge [--size 1.0] [--seed 0] [--json]

Nothing is timed and no engine runs: units and mismatches are drawn, `harness.promotion.decide` and
`harness.forcing.decide` answer.
Each figure is printed with its limit; the exit code is 1 when one is missed.
`--size` scales the number of simulated runs.
"""

import argparse
import itertools
import json
import math
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.table import Table

from harness import forcing, promotion, statistics
from harness.forcing import Run
from harness.promotion import Outcome
from harness.units import Reading

PATCHES = 486
NOISES = (0.001, 0.005, 0.02)
RATES = (0.0065, 0.01, 0.015)
SESSION_TOK = 500
CORRELATION = 2 / (SESSION_TOK - 1)  # of tokens within a session: design effect 3 at 500 tokens
CALIBRATION_TOK = 100_000
SECOND_LOOK = 4  # a second look asks for at most so many times the tokens of the first

# What a power calculation says (one-sided 95 % bound, noncentral t): units for 80, 90 and 95 % power.
# Rule, SD of a unit, true gain, units.
POWER = [
    ("> 0", 0.001, 0.01, (2, 2, 2)),
    ("> 0", 0.005, 0.01, (4, 4, 5)),
    ("> 0", 0.005, 0.015, (3, 3, 4)),
    ("> 0", 0.005, 0.02, (3, 3, 3)),
    ("> 0", 0.02, 0.01, (27, 36, 45)),
    ("> 0", 0.02, 0.015, (13, 17, 21)),
    ("> 0", 0.02, 0.02, (8, 11, 13)),
    ("> 0", 0.02, 0.03, (5, 6, 7)),
    ("> 0", 0.02, 0.05, (3, 4, 4)),
    ("> 1 %", 0.001, 0.015, (3, 3, 3)),
    ("> 1 %", 0.005, 0.015, (8, 11, 13)),
    ("> 1 %", 0.005, 0.02, (4, 4, 5)),
    ("> 1 %", 0.02, 0.015, (101, 139, 175)),
    ("> 1 %", 0.02, 0.02, (27, 36, 45)),
    ("> 1 %", 0.02, 0.03, (8, 11, 13)),
    ("> 1 %", 0.02, 0.05, (4, 4, 5)),
    ("> 1 % + 2 SD", 0.001, 0.015, (3, 3, 4)),
    ("> 1 % + 2 SD", 0.001, 0.02, (2, 2, 3)),
    ("> 1 % + 2 SD", 0.005, 0.03, (4, 4, 5)),
    ("> 1 % + 2 SD", 0.005, 0.05, (2, 3, 3)),
    ("> 1 % + 2 SD", 0.02, 0.08, (5, 6, 7)),
    ("> 3 %", 0.005, 0.05, (3, 3, 3)),
    ("> 3 %", 0.02, 0.05, (8, 11, 13)),
    ("> 3 %", 0.02, 0.08, (3, 4, 4)),
]
# SD, units, the smallest true gain that the bound at 95 % puts above 1 % + 2 SD nine times in ten.
SMALLEST = [
    (0.001, 5, 0.0136),
    (0.001, 10, 0.0130),
    (0.001, 20, 0.0127),
    (0.005, 5, 0.0280),
    (0.005, 10, 0.0250),
    (0.005, 20, 0.0234),
    (0.02, 5, 0.082),
    (0.02, 10, 0.070),
    (0.02, 20, 0.064),
]


@dataclass(frozen=True)
class Figure:
    """One measured figure; without a limit it is there to be read."""

    section: str
    name: str
    value: float
    limit: float | None = None
    above: bool = False  # the limit is a lower one
    percent: bool = True

    @property
    def holds(self) -> bool:
        """Whether the limit is kept."""
        if self.limit is None:
            return True
        return self.value >= self.limit if self.above else self.value <= self.limit

    def shown(self, value: float) -> str:
        return f"{value:.2%}" if self.percent else f"{value:,.6g}"


def main() -> int:
    """Prints all figures; 1 where one misses its limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=float, default=1.0, help="scales the number of simulated runs")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="one line of JSON a figure")
    arguments = parser.parse_args()
    figures = list(measure(arguments.size, arguments.seed))
    if arguments.json:
        for figure in figures:
            print(json.dumps({**asdict(figure), "holds": figure.holds}))
    else:
        Console().print(table(figures))
    missed = [figure for figure in figures if not figure.holds]
    for figure in missed:
        print(f"missed: {figure.section}: {figure.name}", file=sys.stderr)
    return bool(missed)


def table(figures: Sequence[Figure]) -> Table:
    """All figures with their limits beside them."""
    made = Table("figure", "value", "limit", "")
    section = ""
    for figure in figures:
        if figure.section != section:
            made.add_section()
            made.add_row(f"[bold]{figure.section}[/]")
            section = figure.section
        limit = "" if figure.limit is None else f"{'≥' if figure.above else '≤'} {figure.shown(figure.limit)}"
        mark = "" if figure.limit is None else "ok" if figure.holds else "[red]missed[/]"
        made.add_row(figure.name, figure.shown(figure.value), limit, mark)
    return made


def measure(size: float = 1.0, seed: int = 0) -> Iterator[Figure]:
    """All figures, each section from a seed of its own."""
    streams = [np.random.default_rng([seed, section]) for section in range(8)]
    for noise in NOISES:
        yield from campaigns(noise, round(20 * size) or 1, streams[0])
    yield from edges(round(4000 * size), streams[1])
    yield from shapes(round(2000 * size), streams[6])
    yield from power(round(20_000 * size), streams[2])
    for rate in RATES:
        yield from looks(rate, round(3000 * size), streams[3])
    for rate in RATES:
        yield from final(rate, round(1000 * size), streams[4])
    yield from final_events(round(1000 * size) or 1, streams[7])
    for rate in RATES:
        yield from mixes(rate, round(500 * size), streams[5])
    yield from events()


# Timing


def campaigns(noise: float, count: int, random: np.random.Generator) -> Iterator[Figure]:
    """`count` campaigns of 486 patches: 80 % do nothing, 12 % harm, 8 % gain 0.3 to 6 %; the noise refusal is off.

    A promotion is false when the patch does not gain, and undeserved when its gain is not above 1 % + 2 noise.
    """
    section = f"campaigns of {PATCHES} patches, noise {noise:.1%}"
    found: Counter[str] = Counter()
    overclaim = 0.0
    for _ in range(count):
        calibrate = random.normal(0, noise, promotion.CALIBRATE_UNITS).tolist()
        for gain in mixture(random):
            outcome = campaign(calibrate, gain, noise, random)
            worth = "deserved" if gain > 0.01 + 2 * noise else "undeserved" if gain > 0 else "false"
            found["large"] += gain >= 0.03
            if outcome.answer == "promote" and outcome.gain is not None:
                found[worth] += 1
                found["large found"] += gain >= 0.03
                overclaim += outcome.gain - gain
    patches, promoted = count * PATCHES, found["false"] + found["undeserved"] + found["deserved"]
    yield Figure(section, "false promotions a patch (stated: 0.5 % a look, two looks)", found["false"] / patches, 0.01)
    yield Figure(section, "false promotions a campaign", found["false"] / count, 0.5, percent=False)
    yield Figure(section, "undeserved promotions a patch", (found["false"] + found["undeserved"]) / patches, 0.01)
    yield Figure(section, "promotions a campaign", promoted / count, percent=False)
    yield Figure(section, "of gains of 3 % and more promoted", found["large found"] / found["large"])
    yield Figure(section, "gain claimed too much, summed over a campaign", overclaim / count)


def mixture(random: np.random.Generator) -> list[float]:
    """The true gains of a campaign's patches."""
    kinds = random.choice(3, PATCHES, p=[0.8, 0.12, 0.08])
    sizes = random.uniform(0.003, 0.06, PATCHES)
    return [float((0, -1, 1)[kind] * size) for kind, size in zip(kinds, sizes, strict=True)]


def campaign(calibrate: Sequence[float], gain: float, noise: float, random: np.random.Generator) -> Outcome:
    """One patch through the rule, with normal units."""
    return follow(calibrate, random.normal(gain, noise, promotion.SCREEN_UNITS + promotion.LOOKS[-1]))


def follow(calibrate: Sequence[float], units: npt.NDArray[np.float64]) -> Outcome:
    """The outcome for a patch whose units have these values, in this order; the rule takes as many as it asks for."""
    drawn = iter(units.tolist())
    measured: dict[str, list[Reading]] = {"screen": [], "confirm": []}
    step = promotion.decide(calibrate, [], [], refuse_noise=False)
    while not isinstance(step, Outcome):
        missing = promotion.SCREEN_UNITS if step == "screen" else promotion.LOOKS[0]
        measured[step] += [Reading(next(drawn)) for _ in range(missing)]
        step = promotion.decide(calibrate, measured["screen"], measured["confirm"], refuse_noise=False)
    return step


def edges(count: int, random: np.random.Generator) -> Iterator[Figure]:
    """Patches whose gain is exactly the campaign's threshold, canaries, and what peeking would cost."""
    section = "the rule at its edges"
    for noise in NOISES:
        promoted = 0
        for _ in range(count):
            calibrate = random.normal(0, noise, promotion.CALIBRATE_UNITS).tolist()
            threshold = promotion.threshold_of(promotion.noise_of(calibrate), False)
            promoted += campaign(calibrate, threshold, noise, random).answer == "promote"
        yield Figure(section, f"a gain of exactly the threshold promoted, noise {noise:.1%}", promoted / count, 0.01)
    for gain, limit, above in ((0.03, 0.99, True), (0.0, 0.0, False)):
        promoted = sum(
            campaign(random.normal(0, 0.0005, 8).tolist(), gain, 0.0005, random).answer == "promote"
            for _ in range(count)
        )
        yield Figure(section, f"canary of {gain:.0%} promoted, noise 0.05 %", promoted / count, limit, above)
    values = random.normal(0, 1, (10 * count, 20))
    peeked = np.zeros(len(values), dtype=bool)
    for n in range(5, 21):
        peeked |= statistics.mean_lower(values[:, :n], promotion.PUBLISHED) > 0
    yield Figure(section, "no gain passes a 95 % bound looked at after each of 5 to 20 units (16.3 %)", peeked.mean())
    for noise in (0.0005, 0.001, 0.003, 0.005):
        yield Figure(
            section, f"smallest gain promoted 9 times in 10, noise {noise:.2%}", smallest(noise, count, random)
        )


def tailed(random: np.random.Generator, noise: float, count: int) -> npt.NDArray[np.float64]:
    """Units with the SD `noise` and the tails of Student's t with 3 degrees of freedom."""
    return random.standard_t(3, count) * noise / math.sqrt(3)


def drifting(random: np.random.Generator, noise: float, count: int) -> npt.NDArray[np.float64]:
    """Units of a machine whose pace goes up or down by 5 % in all, and wanders besides; SD near `noise`.

    A unit is the mean of three quartets A B B A: a steady drift leaves it, and of steps of a SD w between groups the
    part 2 w^2 / 4 a quartet stays, which is made half of the variance.
    """
    groups = (count, 3, 4)
    step = noise * math.sqrt(3)  # (w^2 / 2) / 3 is half of noise^2
    pace = random.choice([-1, 1]) * np.linspace(0, 0.05, math.prod(groups)) + np.cumsum(
        random.normal(0, step, math.prod(groups))
    )
    seconds = pace.reshape(groups) + random.normal(0, noise * math.sqrt(1.5), groups)
    a1, b1, b2, a2 = np.moveaxis(seconds, 2, 0)
    return np.asarray(((b1 - a1) + (b2 - a2)).mean(axis=1) / 2)


def related(random: np.random.Generator, noise: float, count: int) -> npt.NDArray[np.float64]:
    """Units each of which takes half of its error from the one before."""
    values = random.normal(0, noise, count)
    for at in range(1, count):
        values[at] = 0.5 * values[at - 1] + math.sqrt(0.75) * values[at]
    return values


def shapes(count: int, random: np.random.Generator) -> Iterator[Figure]:
    """Noise from 8 A/A units where units are not independent and normal; patches of no gain, and at the threshold.

    What is told of related units has no limit: nothing that sees single units holds there, so each one has processes
    of its own.
    """
    section = f"noise from {promotion.CALIBRATE_UNITS} units that are not normal"
    units = promotion.CALIBRATE_UNITS + promotion.SCREEN_UNITS + promotion.LOOKS[-1]
    kinds = {"tails of t with 3 degrees": tailed, "a drifting machine": drifting, "each half the one before": related}
    for (name, draw), noise in itertools.product(kinds.items(), NOISES):
        nothing = edge = 0
        for _ in range(count):
            calibrate, rest = np.split(draw(random, noise, units), [promotion.CALIBRATE_UNITS])
            threshold = promotion.threshold_of(promotion.noise_of(calibrate.tolist()), False)
            nothing += follow(calibrate.tolist(), rest).answer == "promote"
            edge += follow(calibrate.tolist(), rest + threshold).answer == "promote"
        yield Figure(section, f"nothing promoted, {name}, noise {noise:.1%}", nothing / count, 0.01)
        limit = None if draw is related else 0.01
        yield Figure(section, f"the threshold promoted, {name}, noise {noise:.1%}", edge / count, limit)


def smallest(noise: float, count: int, random: np.random.Generator) -> float:
    """The least true gain, to 0.05 points, that the whole rule promotes at least 90 times in 100."""
    runs = max(50, count // 10)
    gain = 0.01
    while True:
        promoted = sum(
            campaign(random.normal(0, noise, 8).tolist(), gain, noise, random).answer == "promote" for _ in range(runs)
        )
        if promoted >= 0.9 * runs:
            return gain
        gain += 0.0005


def power(count: int, random: np.random.Generator) -> Iterator[Figure]:
    """The power tables of a bound at 95 %: units needed as a noncentral t says, and our bound's power at them."""
    section = "power of the published bound"
    yield Figure(section, "cells of units needed that differ", sum(_differs(*cell) for cell in POWER), 0, percent=False)
    cells = [(rule, noise, gain, units[1]) for rule, noise, gain, units in POWER]
    cells += [("> 1 % + 2 SD", noise, gain, units) for noise, units, gain in SMALLEST]
    worst = max(abs(_simulated_power(*cell, count, random) - exact_power(*cell)) for cell in cells)
    yield Figure(section, "power of our bound from the exact one, at most", worst, 2.5 / math.sqrt(count))
    rounded = max(abs(exact_power(*cell) - 0.9) for cell in cells[len(POWER) :])
    yield Figure(section, "power at the smallest gains of the table from 90 %, at most", rounded, 0.03)


def _floor(rule: str, noise: float) -> float:
    return {"> 0": 0.0, "> 1 %": 0.01, "> 3 %": 0.03}.get(rule, 0.01 + 2 * noise)


def exact_power(rule: str, noise: float, gain: float, units: int) -> float:
    """P(bound > floor) from the noncentral t distribution."""
    from scipy.stats import nct

    needed = statistics.student(promotion.PUBLISHED, units - 1)
    return float(nct.sf(needed, units - 1, math.sqrt(units) * (gain - _floor(rule, noise)) / noise))


def _differs(rule: str, noise: float, gain: float, units: tuple[int, ...]) -> bool:
    """Whether the fewest units for 80, 90 and 95 % are not those of the table."""
    fewest = []
    for target in (0.8, 0.9, 0.95):
        n = 2
        while exact_power(rule, noise, gain, n) < target:
            n += 1
        fewest.append(n)
    return tuple(fewest) != units


def _simulated_power(
    rule: str, noise: float, gain: float, units: int, count: int, random: np.random.Generator
) -> float:
    values = random.normal(gain, noise, (count, units))
    return float((statistics.mean_lower(values, promotion.PUBLISHED) > _floor(rule, noise)).mean())


# Forcing


Cells = dict[tuple[int, int], int]  # (bucket of position, bucket of output): tokens a session


def drawn(random: np.random.Generator, name: str, tokens: Cells, rates: Sequence[float], sessions: int) -> Run:
    """Sessions of `tokens` that mismatch at `rates`, one a cell.

    Within a session the tokens of a cell correlate (beta-binomial), and so do cells: one quantile draws them all.
    """
    from scipy.special import betaincinv

    spread, luck = 1 / CORRELATION - 1, random.uniform(size=sessions)
    wrong, counts = (np.zeros((sessions, 4, 4), dtype=np.int64) for _ in range(2))
    for (cell, count), rate in zip(tokens.items(), rates, strict=True):
        wrong[:, *cell] += random.binomial(count, betaincinv(rate * spread, (1 - rate) * spread, luck))
        counts[:, *cell] += count
    return Run(tuple(f"{name}{index}" for index in range(sessions)), wrong, counts)


def looks(rate: float, count: int, random: np.random.Generator) -> Iterator[Figure]:
    """Two looks at systems with an excess of 0, 0.5 and 1 points, with the tokens that the tool asks for."""
    section = f"forcing, stock at {rate:.2%}, design effect 3"
    cell = {(0, 0): SESSION_TOK}
    answers: dict[float, Counter[str]] = {excess: Counter() for excess in (0.0, 0.005, 0.01)}
    first: Counter[str] = Counter()
    runs_of = {0.0: count, 0.005: 3 * count, 0.01: count}  # the limit that is nearest to its figure gets most
    asked = []
    for excess, found in answers.items():
        for _ in range(runs_of[excess]):
            stock = drawn(random, "s", cell, [rate], CALIBRATION_TOK // SESSION_TOK)
            wanted = forcing.wanted_tok(stock)
            if wanted is None:
                found["no size"] += 1
                continue
            asked.append(wanted)
            runs = [drawn(random, "a", cell, [rate + excess], math.ceil(wanted / SESSION_TOK))]
            decision = forcing.decide(runs, stock)
            first[f"{excess} {decision.answer}"] += 1
            if not decision.final:
                more = min(decision.needed_tok or math.inf, SECOND_LOOK * wanted)
                runs.append(drawn(random, "b", cell, [rate + excess], math.ceil(more / SESSION_TOK)))
                decision = forcing.decide(runs, stock)
            found[decision.answer] += 1
    yield Figure(section, "tokens of the first look", float(np.median(asked)), percent=False)
    yield Figure(section, "sessions of the first look", float(np.median(asked)) / SESSION_TOK, percent=False)
    yield Figure(section, "honest accepted at the first look", first["0.0 accept"] / count)
    yield Figure(section, "honest accepted", answers[0.0]["accept"] / count, 0.99, above=True)
    yield Figure(section, "honest rejected", answers[0.0]["reject"] / count)
    yield Figure(section, "+0.5 points accepted", answers[0.005]["accept"] / runs_of[0.005], 0.05)
    yield Figure(section, "+1 point rejected at the first look", first["0.01 reject"] / count)
    yield Figure(section, "+1 point rejected", answers[0.01]["reject"] / count, 0.95, above=True)


# 100 answers of 4,096 tokens to prompts of 100: cells of (position, output).
FINAL: Cells = {(0, 0): 412, (1, 0): 100, (1, 1): 1436, (2, 1): 100, (2, 2): 1948, (3, 2): 100}
FINAL_ANSWERS = 100


def final(rate: float, count: int, random: np.random.Generator) -> Iterator[Figure]:
    """A fault after 2,048 tokens of output in 100 answers of 4,096, the greedy ones being looped and left out.

    The calibration holds as many answers of stock, as a final asks for; smaller ones are shown for what they cost.
    """
    section = f"the final's 100 answers of 4,096 tokens, stock at {rate:.2%}"
    for calibration in (FINAL_ANSWERS, 50, 25):
        limited = calibration == FINAL_ANSWERS
        words = "" if limited else f", calibration of {calibration} answers"
        for excess, limit in ((0.02, 0.99), (0.01, 0.9)):
            rates = [rate + (excess if output == 2 else 0) for _, output in FINAL]
            rejected = sum(
                forcing.decide_final(
                    [drawn(random, half, FINAL, rates, FINAL_ANSWERS // 2) for half in "ab"],
                    drawn(random, "s", FINAL, [rate] * len(FINAL), calibration),
                ).answer
                == "reject"
                for _ in range(count)
            )
            name = f"+{excess * 100:.0f} points after token 2,048 rejected{words}"
            yield Figure(section, name, rejected / count, limit if limited else None, above=True)
    answers = Counter(
        forcing.decide_final(
            [drawn(random, half, FINAL, [rate] * len(FINAL), FINAL_ANSWERS // 2) for half in "ab"],
            drawn(random, "s", FINAL, [rate] * len(FINAL), FINAL_ANSWERS),
        ).answer
        for _ in range(count)
    )
    yield Figure(section, "honest rejected", answers["reject"] / count, 0.01)
    yield Figure(section, "honest accepted", answers["accept"] / count)


def final_events(count: int, random: np.random.Generator) -> Iterator[Figure]:
    """The event rule in every bucket of a final; nothing else mismatches."""
    section = "the final's events, 100 answers of 4,096 tokens"
    none = [1e-6] * len(FINAL)  # as good as nothing: the rate is not what is asked here

    def with_events(name: str, answers: int, rates: Sequence[float]) -> Run:
        run = drawn(random, name, FINAL, none, answers)
        tokens = run.tokens.sum(axis=0)
        found = np.zeros_like(tokens)
        for (cell, size), rate in zip(FINAL.items(), rates, strict=True):
            found[cell] = random.poisson(rate * size * answers)
        places = [np.stack([counts.sum(axis=1), counts.sum(axis=0)]) for counts in (found, tokens)]
        return replace(run, events=int(found.sum()), placed_events=places[0], placed_tok=places[1])

    def rejected(own: float, rates: Sequence[float]) -> float:
        stock = [own] * len(FINAL)
        return (
            sum(
                forcing.decide_final(
                    [with_events(half, FINAL_ANSWERS // 2, rates) for half in "ab"],
                    with_events("s", FINAL_ANSWERS, stock),
                ).answer
                == "reject"
                for _ in range(count)
            )
            / count
        )

    for own in (4e-6, 1e-5, 1e-4, 1e-3):
        yield Figure(section, f"honest rejected, {own:g} events a token", rejected(own, [own] * len(FINAL)), 0.01)
    late = [1e-5 + (1e-3 if output == 2 else 0) for _, output in FINAL]
    yield Figure(section, "1e-3 events a token after token 2,048 rejected", rejected(1e-5, late), 0.99, above=True)


# Single requests, of short and of long prompts, as they are timed; sessions that fill 5,120 tokens.
SHORT: Cells = {(0, 0): 100}
LONG: Cells = {(1, 0): 100}
SESSION: Cells = {(0, 0): 200, (1, 0): 600, (2, 0): 800, (3, 0): 400}
LATER = (1.0, 1.5, 2.0, 3.0)  # stock's rate by bucket of positions, as a multiple of the first one's


def mixed(
    random: np.random.Generator, name: str, rate: float, excess: float, short: int, long: int, sessions: int
) -> Run:
    """So many of each kind, with rates that grow with the position, and `excess` everywhere."""
    made = None
    for kind, (cells, count) in enumerate(((SHORT, short), (LONG, long), (SESSION, sessions))):
        if count:
            rates = [rate * LATER[position] + excess for position, _ in cells]
            part = drawn(random, f"{name}{kind}-", cells, rates, count)
            made = part if made is None else made + part
    assert made is not None
    return made


def mixes(rate: float, count: int, random: np.random.Generator) -> Iterator[Figure]:
    """One look at systems whose tokens lie elsewhere than the calibration's, which are half sessions, half singles."""
    section = f"forcing in other mixes of positions, stock at {rate:.2%} where a context begins"
    kinds = {"timed singles": (600, 200, 0), "sessions": (0, 0, 60)}  # 80,000 and 120,000 tokens
    answers: Counter[tuple[str, float, bool, str]] = Counter()
    for _ in range(count):
        stock = mixed(random, "s", rate, 0.0, 800, 400, 60)
        for words, counts in kinds.items():
            for excess in (0.0, 0.005, 0.01):
                system = mixed(random, "a", rate, excess, *counts)
                for standard in (True, False):
                    answers[words, excess, standard, forcing.decide([system], stock, standard=standard).answer] += 1
    for words in kinds:
        share = {key[1:]: number / count for key, number in answers.items() if key[0] == words}
        yield Figure(section, f"{words}: honest accepted at once", share.get((0.0, True, "accept"), 0.0))
        yield Figure(section, f"{words}: honest rejected", share.get((0.0, True, "reject"), 0.0), 0.01)
        yield Figure(section, f"{words}: +0.5 points accepted", share.get((0.005, True, "accept"), 0.0), 0.05)
        yield Figure(section, f"{words}: +1 point rejected at once", share.get((0.01, True, "reject"), 0.0))
        yield Figure(section, f"{words}: +1 point accepted", share.get((0.01, True, "accept"), 0.0), 0.001)
        yield Figure(section, f"{words}, pooled: honest accepted at once", share.get((0.0, False, "accept"), 0.0))
        yield Figure(section, f"{words}, pooled: +0.5 points accepted", share.get((0.005, False, "accept"), 0.0))


def events() -> Iterator[Figure]:
    """The event rule with 25,000 tokens a run against 100,000 of stock's, exactly: both of two runs must reject."""
    from scipy.stats import poisson

    section = "events, 25,000 tokens a run"
    stock_events = np.arange(60)
    least = [next(k for k in range(99) if statistics.event_p(k, 25_000, int(s), 100_000) <= 0.01) for s in stock_events]

    def rejected(stock_rate: float, rate: float) -> float:
        once = poisson.sf(np.array(least) - 1, rate * 25_000)
        return float((poisson.pmf(stock_events, stock_rate * 100_000) * once**2).sum())

    for stock_rate in (4e-6, 1e-5, 1e-4):
        yield Figure(section, f"honest rejected, {stock_rate:g} events a token", rejected(stock_rate, stock_rate), 0.01)
    yield Figure(section, "1e-3 events a token rejected, stock 1e-5", rejected(1e-5, 1e-3), 0.99, above=True)


if __name__ == "__main__":
    sys.exit(main())

"""benchmarks/judge.py: its figures hold; small here, at full size in the full run."""

import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks import judge
from harness import forcing

ROOT = Path(__file__).parents[2]


def random():
    return np.random.default_rng(0)


def missed(figures, runs=None):
    """The figures beyond their limits, or further than `runs` simulated ones at the limit would stray (3 SD)."""
    limited = [figure for figure in figures if figure.limit is not None]
    assert limited
    stray = {figure.name: 3 * math.sqrt(figure.limit * (1 - figure.limit) / runs) if runs else 0 for figure in limited}
    return [
        figure.name for figure in limited if not figure.holds and abs(figure.value - figure.limit) > stray[figure.name]
    ]


@pytest.mark.parametrize("noise", judge.NOISES)
def test_campaign_of_many_patches(noise):
    """486 patches, most of them worthless: no false promotion, with the noise refusal switched off."""
    assert missed(judge.campaigns(noise, 1, random())) == []


def test_power_tables():
    """The units that a power calculation asks for are the table's, and the bound has the power that it should."""
    assert missed(judge.power(2000, random())) == []


def test_two_looks_of_forcing():
    """At a stock rate of 1 % honest systems pass and bad ones do not, with the tokens that the tool asks for."""
    assert missed(judge.looks(0.01, 60, random()), 60) == []


def test_faults_late_in_long_answers():
    """A fault after 2,048 tokens is found in the final's answers."""
    assert missed(judge.final(0.01, 20, random()), 20) == []


def test_other_mixes_of_positions():
    """Systems whose tokens lie elsewhere than stock's are judged by the same rates; pooled, they are misjudged."""
    figures = list(judge.mixes(0.01, 30, random()))
    assert missed(figures, 30) == []
    found = {figure.name: figure.value for figure in figures}

    assert found["sessions: honest accepted at once"] > 0.6
    assert found["sessions, pooled: honest accepted at once"] < 0.2
    assert found["timed singles: +0.5 points accepted"] < 0.2
    assert found["timed singles, pooled: +0.5 points accepted"] > 0.5


def test_event_rule():
    """Two runs of events, summed exactly."""
    assert missed(judge.events()) == []


def test_drawn_sessions_have_the_design_effect():
    """The simulated sessions are as correlated as stated."""
    run = judge.drawn(random(), "a", {(0, 0): judge.SESSION_TOK}, [0.01], 20_000)
    wrong, tokens = run.placed

    assert wrong.sum() / tokens.sum() == pytest.approx(0.01, rel=0.03)
    assert forcing.statistics.design_effect(wrong, tokens) == pytest.approx(3, abs=0.15)


def test_a_missed_limit_is_seen():
    """A figure beyond its limit does not hold, on either side; one without a limit always does."""
    assert not judge.Figure("", "", 0.02, 0.01).holds
    assert judge.Figure("", "", 0.02, 0.01, above=True).holds
    assert not judge.Figure("", "", 0.98, 0.99, above=True).holds
    assert judge.Figure("", "", 0.98).holds


@pytest.mark.full
def test_all_figures_at_full_size():
    """The whole benchmark ends with 0."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.judge"], cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr


def test_events_in_the_buckets_of_a_final():
    """Nine tests an answer reject no honest system, and find what errs after 2,048 tokens alone."""
    assert missed(judge.final_events(40, random()), 40) == []

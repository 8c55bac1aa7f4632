"""benchmarks/profile.py on a CPU: a profile that `spt ceiling` reads."""

import pytest

from spt.profile import read_profile
from tests.benchmarks.conftest import run


def profile(tiny, out, *arguments):
    """benchmarks.profile on the tiny models, on a CPU in float32."""
    return run(
        "profile",
        *("--device", "cpu", "--dtype", "float32", "--context", "128", "--ignore-eos", "--out", out),
        *("--target", tiny / "target", "--drafter", tiny / "drafter", "--requests", tiny / "requests.jsonl"),
        *arguments,
    )


def test_a_profile_is_read_by_the_cost_model(tiny, tmp_path):
    """The phases of stock's chain, with products and attention where they belong."""
    done = profile(tiny, tmp_path / "profile.jsonl", "--tokens", "50")
    assert done.returncode == 0, done.stderr
    found = read_profile(tmp_path / "profile.jsonl")

    assert {"gemm", "attention", "head", "drafter", "glue", "gaps"} <= found.us.keys()
    assert found.wall_us == pytest.approx(sum(found.us.values()) + found.residual_us)
    assert found.steps >= 8


@pytest.mark.full
def test_too_few_steps_are_said(tiny, tmp_path):
    """A profile of nothing has exit code 1."""
    done = profile(tiny, tmp_path / "profile.jsonl", "--tokens", "3", "--count", "1")

    assert done.returncode == 1
    assert "no window of steps was finished" in done.stderr

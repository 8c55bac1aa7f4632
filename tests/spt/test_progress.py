"""Progress of campaigns where there is no terminal."""

import pytest

from spt.cli import progress


@pytest.fixture
def clock(monkeypatch):
    """A clock that tests set."""
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_a_long_unit_is_not_silent(clock, capsys):
    """Within a unit a line is said where none was for a minute, and no more than that."""
    shown = progress.Progress()
    for turn in range(1, 15):
        clock[0] += 25.0
        shown({"event": "turn", "phase": "screen", "unit": 2, "turns": turn, "of": 14})
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "screen, unit 2: 3 of 14 turns"
    assert len(said) == 4

    clock[0] += 50.0
    shown({"event": "unit", "phase": "screen", "unit": 2, "units": 3, "of": 5, "gain": None})
    shown({"event": "turn", "phase": "screen", "unit": 3, "turns": 1, "of": 14})
    assert capsys.readouterr().err.splitlines() == ["screen: 3 of 5"]


def test_a_profile_is_not_silent(clock, capsys):
    """How many answers a profile has taken where it takes long, and what came of it always."""
    shown = progress.Progress()
    for count in (1, 2, 3):
        clock[0] += 40.0
        shown({"event": "profiling", "answers": count, "of": 8})
    shown({"event": "profiled", "steps": 24})
    shown({"event": "unprofiled", "reason": "short", "message": "no profile: too short"})
    assert capsys.readouterr().err.splitlines() == [
        "profile, 2 of at most 8 answers",
        "profile: 24 steps",
        "note: no profile: too short",
    ]


def test_who_interrupts_is_told_that_it_goes_on(capsys):
    """Ctrl-C loses nothing of a campaign, and that is said; other errors speak for themselves."""
    with pytest.raises(KeyboardInterrupt), progress.Progress():
        raise KeyboardInterrupt
    assert "the same command goes on from there" in capsys.readouterr().err

    with pytest.raises(ValueError, match="other"), progress.Progress():
        raise ValueError("other")
    assert capsys.readouterr().err == ""

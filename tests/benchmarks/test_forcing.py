"""benchmarks/forcing.py: requests are kept apart, sessions are drawn whole, and a run goes on where it was."""

import argparse
import json
import random

import numpy as np
import pytest

from benchmarks import forcing, perturbed
from harness.forcing import Run
from tests.stock.tiny import drafter_config, target_config, write_drafter, write_target


def ids_file(folder, count):
    dice = random.Random(1)
    rows = [{"id": f"r{at}", "ids": [dice.randrange(3, 64) for _ in range(9)], "max_tokens": 12} for at in range(count)]
    (folder / "ids.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder / "ids.jsonl"


def test_no_request_stands_on_both_sides(tmp_path):
    """Of a file as of generated sessions: what stock was calibrated on says nothing new of a system."""
    asked = argparse.Namespace(calibrate=4, force=3, seed=1, context=512)
    for file in (ids_file(tmp_path, 7), None):
        asked.requests = file
        sides = [{json.dumps(row.get("turns", row.get("ids"))) for row in rows}
                 for rows in forcing.requests_of(asked).values()]  # fmt: skip
        assert [len(side) for side in sides] == [4, 3]
        assert not sides[0] & sides[1]

    asked.requests, asked.force = ids_file(tmp_path, 6), 3
    with pytest.raises(SystemExit, match="holds 6 requests, and 7 are wanted"):
        forcing.requests_of(asked)


def test_sessions_are_drawn_whole():
    """Mismatches stay with their session's tokens, and a worse run has its excess added."""
    dice = np.random.default_rng(1)
    tokens = np.zeros((20, 2, 4), dtype=np.int64)
    tokens[:, :, 0] = 1000 + np.arange(20)[:, None]
    wrong = np.where(tokens > 0, tokens - 995, 0)  # 5 to 24
    run = Run(tuple(map(str, range(20))), wrong, tokens, events=4)

    drawn = forcing.again(run, 400, dice)
    assert len(drawn.sessions) == 400
    assert (drawn.wrong[:, 0, 0] == drawn.tokens[:, 0, 0] - 995).all()
    assert set(drawn.tokens[:, 0, 0]) == set(tokens[:, 0, 0])
    assert 40 < drawn.events < 130

    added = (forcing.worse(run, 0.01, dice).wrong - wrong)[:, 0].sum() / tokens[:, 0].sum()
    assert added == pytest.approx(0.01, abs=0.003)


@pytest.mark.full
def test_a_run_goes_on_where_it_was(tmp_path, monkeypatch, capsys):
    """A second call measures nothing, a system more is measured alone, and another target is refused."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    config = target_config("llama", num_hidden_layers=2, max_position_embeddings=1024)
    target, drafter = write_target(tmp_path / "target", config), write_drafter(tmp_path / "d", drafter_config(config))
    words = ["x", "--target", target, "--drafter", drafter, "--requests", ids_file(tmp_path, 6), "--calibrate", 3]
    words += ["--force", 3, "--context", 64, "--dtype", "float32", "--no-sandbox", "--scale", 0.0001, "--draws", 2]

    def run(*more):
        monkeypatch.setattr("sys.argv", [str(word) for word in (*words, "--out", tmp_path / "out", *more)])
        forcing.main()
        rows = [json.loads(line) for line in (tmp_path / "out/rows.jsonl").read_text().splitlines()]
        return [(row["kind"], row.get("system")) for row in rows if row["kind"] not in ("about", "pace")]

    first = run("--systems", "honest")
    assert first == [("calibrated", None), ("forced", "honest")]
    assert run("--systems", "honest") == first
    assert run("--systems", "honest", "fp8-cache") == [*first, ("forced", "fp8-cache")]
    told = capsys.readouterr().out
    assert "same texts" in told
    assert "fp8-cache" in told
    with pytest.raises(SystemExit, match="widen"):
        run("--widen", 2)


@pytest.mark.parametrize("name", sorted(set(forcing.SYSTEMS) - {"honest"}))
def test_every_system_differs_from_stock(name):
    """Each change finds its place in the system tree as it stands."""
    files = perturbed.shipped()
    changed = forcing.SYSTEMS[name](files)

    assert {path for path in files if changed[path] != files[path]}
    assert changed.keys() == files.keys()

"""`harness verdict --text` and `harness key`: events in words that steer no terminal, and the key before measuring."""

import json
import subprocess
import sys
from pathlib import Path

from harness.audit import BEFORE_TOK, in_words
from harness.text import load_text
from harness.verdict import forcing_verdict, key_of
from tests.harness import campaigns, toys
from tests.harness.campaigns import answer, complete, folded, forced, head, line
from tests.harness.schemas import validator

ROOT = Path(__file__).parents[2]


def harness(*arguments):
    command = [sys.executable, "-m", "harness", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def lines_with_event(ids, prompt):
    """Samples in which the last token of an answer is far from stock's."""
    lines = head()
    for phase, arm, wrong in (("reference", "stock", ()), ("force", "a", (len(ids) - 1,))):
        said = answer(phase, 0, arm, f"{phase}0", ids, prompt=prompt)
        lines += [said, *[forced(said, name, wrong=wrong, margin=9.0) for name in ("fp32", "model")]]
        if wrong:
            lines.append(line("recheck", arm=arm, request=f"{phase}0", at=wrong[0], stock=1, shape=ids[-1] + 1))
        lines.append(complete(phase, 0, [arm]))
    return lines


def test_events_are_told_in_words(tmp_path):
    """Each event has the words before it, the token that was said and the one that stock would have said."""
    target = toys.write_folder(toys.FAMILIES["smollm"], tmp_path / "model")
    text = load_text(target)
    hostile = text.encode("\x1b[31m red\n")
    ids = [*hostile, *text.encode(" the fox")]
    prompt = text.encode("The quick brown fox jumps over the lazy dog, and 12345 dogs don't care")
    path = campaigns.write(tmp_path / "samples.jsonl", lines_with_event(ids, prompt))
    found = json.loads(harness("verdict", path, "--what", "forcing", "--text", target).stdout)
    plain = json.loads(harness("verdict", path, "--what", "forcing").stdout)
    [event] = found["audit"]

    validator("verdict").validate(found)
    assert event["given_text"] == text.decode(ids[-1:])
    assert event["best_text"].strip() == text.decode([ids[-1] + 1]).strip()
    whole = text.decode([*prompt, *ids][:-1][-BEFORE_TOK:])
    assert event["before"] == whole.replace("\x1b", " ").replace("\n", "\\n")
    assert "\x1b" in whole and event["before"].isprintable()
    words = {"before", "given_text", "best_text"}
    assert plain["audit"] == [{name: value for name, value in event.items() if name not in words}]


def test_a_target_without_words_leaves_the_verdict(tmp_path):
    """Where requests are ids and the target has no tokenizer, events stay numbers."""
    samples = folded(lines_with_event([5, 6, 7], [1, 2, 3]))
    verdict = forcing_verdict(samples)
    (tmp_path / "model").write_bytes(b"x")

    assert len(verdict["audit"]) == 1
    assert in_words(verdict, samples, tmp_path / "model") == verdict


def test_the_key_is_known_before_anything_is_measured(tmp_path):
    """The key of a job, on the card of this machine, is the one of the verdict on its samples."""
    folder = tmp_path / "job"
    folder.mkdir()
    (folder / "requests.jsonl").touch()
    deployment = {
        "name": "toy",
        "target": {"path": "/nowhere", "widen": 1, "jitter": 0},
        "drafter": None,
        "sampling": campaigns.GREEDY,
        "dtype": "float32",
        "mode": "fast",
        "device": "cpu",
        "engine": {"kind": "stock"},
        "context": 64,
        "load": {"concurrency": 1, "arrival": "closed"},
    }
    systems = head()[0]["arms"]
    job = {
        "v": 1,
        "kind": "job",
        "arms": {name: {"dir": name, **system} for name, system in systems.items()},
        "deployment": deployment,
        "deployment_digest": "d" * 64,
        "requests": "requests.jsonl",
        "seed": 5,
        "rule": "paired-1",
        "phase": "screen",
        "units": 0,
    }
    (folder / "job.json").write_text(json.dumps(job))
    found = json.loads(harness("key", "--job", folder / "job.json").stdout)
    campaign, card = head()
    card["card"] = {**found["of"]["card"], "harness": found["of"]["harness"]}
    samples = folded([campaign, card])

    assert found["key"] == key_of(samples)
    assert found["of"]["a"] == systems["a"]

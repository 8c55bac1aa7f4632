"""A deployment repository whose engine is the fake one, and made-up verdicts on its systems."""

import importlib.util
import json
import random
import subprocess
import sys
from pathlib import Path

from harness.text import load_text
from spt.verdicts import named
from tests.harness import campaigns, toys
from tests.spt.toys import make_root, spt

ROOT = Path(__file__).parents[2]
ENGINE = ROOT / "tests/fakes/engine.py"
FAST = {"step_ms": "0", "prefill_ms": "0", "stop_rate": "0"}


def fake_command(**changes):
    """What starts the fake engine; `changes` are of its options' defaults, as text."""
    changed = [word for name, text in changes.items() for word in ("--set", f"{name}={text}")]
    return [sys.executable, "-P", "-s", str(ENGINE), *changed]


def fake_options(**changes):
    """What the fake engine declares, as an options file of a system tree; `changes` are of its defaults, as text."""
    spec = importlib.util.spec_from_file_location("fake_engine", ENGINE)
    engine = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(engine)
    kinds, defaults = {int: "int", float: "float", str: "string"}, engine.defaults_with(changes.items())
    return "".join(
        f'[{name}]\ntype = "{kinds[type(default)]}"\ndefault = {json.dumps(defaults[name])}\nmeaning = "{meaning}"\n'
        for name, (default, _, meaning) in engine.OPTIONS.items()
    )


def ids(path, count, tokens):
    """Writes requests of bare ids."""
    rng = random.Random(count)
    rows = [
        {"id": f"r{number}", "ids": [rng.randrange(3, 600) for _ in range(5)], "max_tokens": tokens}
        for number in range(count)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def make_deployment(folder):
    """A deployment repository in `folder`, with option files `fast` and `far`, and requests for both judgements."""
    root = make_root(folder / "root")
    (root / "stock/options/fake.toml").write_text(fake_options())
    toys.write_folder(toys.FAMILIES["smollm"], folder / "model")
    made = folder / "deployment"
    assert spt("init", made, "--from", root, cwd=folder).code == 0
    with (made / ".git/info/exclude").open("a") as file:
        file.write("/*.yaml\n/*.jsonl\n")
    for name, more in (("fast", {}), ("far", {"far": "0.02", "tau": "8"}), ("seed", {"seed": "5"})):
        (made / f"{name}.yaml").write_text(json.dumps(FAST | more))
    ids(made / "many.jsonl", 2000, 2)
    ids(made / "few.jsonl", 12, 60)
    value = {
        "spt": "1",
        "name": "toy",
        "target": {"path": "../model"},
        "dtype": "float32",
        "mode": "exact",
        "context": "512",
        "engine": {"kind": "command", "command": fake_command()},
        "requests": {"file": "few.jsonl"},
    }
    (made / "deployment.yaml").write_text(json.dumps(value))
    return made


def harness(*arguments):
    """What a command of the harness prints, read."""
    command = [sys.executable, "-P", "-s", "-m", "harness", *map(str, arguments)]
    done = subprocess.run(command, env={"PYTHONPATH": str(ROOT)}, capture_output=True, check=True)
    return json.loads(done.stdout)


def made_up_samples(folder, to, gain, system="stock@fast.yaml"):
    """Samples of a campaign of a system against stock on this very machine, with a gain that a test wants."""
    job_folder = to.parent / f"{to.name}-job"
    made = spt("job", "make", "time", system, "-o", job_folder, "--requests", "few.jsonl", cwd=folder)
    assert made.code == 0, made.err
    job = json.loads((job_folder / "job.json").read_text())
    of = harness("key", "--job", job_folder / "job.json")["of"]
    arms = {name: {"tree": arm["tree"], "options": arm["options"]} for name, arm in job["arms"].items()}
    campaign, card = campaigns.head(**arms)
    campaign |= {"deployment": job["deployment_digest"], "seed": job["seed"]}
    when = {"date": "2026-11-30T12:00:00+00:00", "sandbox": "made up"}
    card["card"] = {**of["card"], "harness": of["harness"], **when, **dict.fromkeys(("host", "uuid"), "some-name")}
    stops = sorted({2, *load_text(Path(job["deployment"]["target"]["path"])).stop_ids})
    lines = [
        {**each, "stop_ids": stops} if each["type"] == "answer" else each
        for each in campaigns.timed_campaign(5, 10, gain=gain)[2:]
    ]
    return campaigns.write(to, [campaign, card, *lines])


def forcing(timing, answer="accept", *, timed=True, **of):
    """A forcing verdict on the tokens of a timing verdict, or not on them, or on what is said to differ from it."""
    digest = timing["samples"] if timed is True else timed
    identity = {**timing["of"], **({"timed": digest} if digest else {}), **of}
    numbers = {"gain": None, "interval": None, "noise": None, "threshold": None, "mismatch": 0.01, "events": 0}
    numbers |= {"stock_mismatch": 0.01, "excess": {"value": 0.0, "lower": -0.002, "upper": 0.002}, "sessions": 110}
    numbers |= {"look": 1, "needed_tok": 0, "looped_tok": 300, "buckets": [], "uncovered": [], "event_tests": []}
    numbers |= {"audit": [], "malformed": []}
    return {
        **{name: timing[name] for name in ("v", "kind", "rule", "stock", "samples", "date")},
        **numbers,
        "key": named(identity),
        "of": identity,
        "what": "forcing",
        "answer": answer,
        "reason": "made up",
        "units": 10,
        "tokens": 60_000,
        "timed": digest,
        "timed_tok": 60_300 if digest else 0,
        "compared_tok": 60_000,
    }

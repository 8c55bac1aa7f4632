"""A deployment on the fake engine, with entries that a round must promote and others that it must not."""

import json
import random
import subprocess
import sys

from tests.harness import toys
from tests.harness.enclosures import works
from tests.spt.judged import ENGINE, fake_options
from tests.spt.toys import make_root, spt, write_entry

SANDBOX = [] if works() else ["--no-sandbox"]  # a kernel may refuse namespaces, and the toys are trusted
# Steps of 2 ms are long beside what a busy machine adds to one.
START = ["round", "start", "--rule", "demo", "--no-cost-model", *SANDBOX]
FROM = "stock@slow.yaml"
SLOW = {"step_ms": 2.0}
SLOWER = "stock@slower.yaml"  # where two gains multiply, and the time that is left is to be long too
CHECK = "python checks/{0}/run.py"


def entry(root, name, options, check="pass\n", more=(), **fields):
    """An entry that adds a check and files, and is switched on by options of the fake engine."""
    files = {f"checks/{name}/run.py": check, f"kernels/{name.replace('-', '_')}.py": f"# {name}\n"}
    files |= {path: text.format(name) for path, text in dict(more).items()}
    variants = [{"name": "any", "card": "any", "options": options}]
    write_entry(root, name, files, checks=[CHECK.format(name)], variants=variants, **fields)


def make_round_deployment(folder, entries, more=()):
    """A deployment repository whose stock is the fake engine; `entries` are calls of `entry` without the root, `more`
    further files of stock with their text."""
    root = make_root(folder / "root", entries=False)
    (root / "stock/options/fake.toml").write_text(fake_options())
    for path, text in dict(more).items():
        (root / path).write_text(text)
    for name, options, fields in entries:
        entry(root, name, options, **fields)
    toys.write_folder(toys.FAMILIES["smollm"], folder / "model")
    made = folder / "deployment"
    ran = spt("init", made, "--from", root, cwd=folder)
    assert ran.code == 0, ran.err
    with (made / ".git/info/exclude").open("a") as file:
        file.write("/*.yaml\n/*.jsonl\n")
    rng = random.Random(3)
    rows = [
        {"id": f"r{number}", "ids": [rng.randrange(3, 600) for _ in range(5)], "max_tokens": 16} for number in range(60)
    ]
    (made / "some.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    value = {
        "spt": "1",
        "name": "toy",
        "target": {"path": str(folder / "model")},
        "dtype": "float32",
        "mode": "exact",
        "context": "512",
        "engine": {"kind": "command", "command": [sys.executable, "-P", "-s", str(ENGINE)]},
        "requests": {"file": "some.jsonl"},
    }
    (made / "deployment.yaml").write_text(json.dumps(value))
    (made / "slow.yaml").write_text(json.dumps({name: str(value) for name, value in SLOW.items()}))
    (made / "slower.yaml").write_text(json.dumps({"step_ms": "6.0"}))
    return made


CANARY = ("canary", {"tau": "16"}, {})
NOOP = ("noop", {"seed": "5"}, {})
WRONG = ("wrong", {"tau": "4", "mismatch": "0.5"}, {})
UNCHECKED = ("unchecked", {"tau": "4"}, {"check": "raise SystemExit('the contract is broken')\n"})


def copied(pristine, folder):
    """A copy of a deployment repository, to write to."""
    subprocess.run(["cp", "-r", pristine, folder], check=True)
    return folder

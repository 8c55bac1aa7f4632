"""`spt walk`: tables, JSON and pictures of recorded lattices, and what is said where there is nothing to walk."""

import itertools
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from spt.lattice import read_lattice
from spt.policy import Chain, Tree
from spt.walk import Walker, walk
from tests.fakes.lattice import write_lattice, write_measurement, write_summary
from tests.spt.toys import errors_well, spt
from tests.spt.walks import DEPTHS, RANKS, VOCABULARY, lattice, request

ROOT = Path(__file__).parents[2]
NAMES, LENGTH = ("a", "b", "c"), 80


def measured(folder, policy, options=None):
    """A folder of a measurement: three answers, and the steps that a system of this policy takes."""
    made = {name: request(f"{name}#0", LENGTH, seed=7, repeat=name == "c") for name in NAMES}
    walked = walk([lattice(*made.values())], policy).walks
    answers, ranks = {}, {}
    for (name, each), one in zip(made.items(), walked, strict=True):
        ids = each.tokens[each.start :].tolist()
        bounds = np.concatenate(([0, 1], 1 + np.cumsum(one.tokens)))
        lines = [ids[first:last] for first, last in itertools.pairwise(bounds)]
        answers[name] = (each.tokens[: each.start].tolist(), lines)
        ranks[name] = (each.ids, each.half)
    write_measurement(folder, answers, DEPTHS, RANKS, VOCABULARY, ranks)
    rows = [json.loads(line) for line in (folder / "steps.jsonl").read_text().splitlines()]
    nodes, accepted = ([count for one in walked for count in getattr(one, name)] for name in ("nodes", "accepted"))
    for row, count, length in zip(rows, nodes, accepted, strict=True):
        row |= {"nodes": int(count), "path": [0] * int(length)}
    write_steps(folder, rows, options or {})
    return folder


def write_steps(folder, rows, options):
    """Puts other steps into a measurement, of a system with these options."""
    (folder / "steps.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    write_summary(folder, LENGTH * len(NAMES), DEPTHS, RANKS)
    summary = json.loads((folder / "measurement.json").read_text())
    summary["system"]["options"] = options
    (folder / "measurement.json").write_text(json.dumps(summary))


@pytest.fixture
def folder(tmp_path):
    return measured(tmp_path / "m", Chain(0))


def test_json_has_all_figures(folder):
    """What the library counts stands in the JSON under the words of the policies, and talk is on standard error."""
    ran = spt("walk", folder, "-p", "chain", "-p", "tree:9:0:4", "-p", "levels:1:0.5:chain:2", "--json", cwd=folder)
    told = json.loads(ran.out)
    walker = Walker([read_lattice(folder)])

    assert ran.code == 0
    assert (told["requests"], told["tokens"]) == (3, 240)
    assert told["looped_tokens"] > 0
    assert [each["policy"] for each in told["policies"]] == ["chain:0", "tree:9:0:4", "levels:1:0.5:chain:2"]
    assert told["policies"][0] == walker.walk(Chain(0)).as_json()
    assert told["policies"][1] == walker.walk(Tree(9, 0, 4)).as_json()
    assert ran.err.startswith("3 requests, 240 tokens, ")


def test_a_table_says_the_same(folder):
    """A row a policy with its tau, and beneath how often how many drafts were accepted."""
    ran = spt("walk", folder, "-p", "tree:9:0:4", "-p", "shared:9:2:0:4", cwd=folder)
    walked = Walker([read_lattice(folder)]).walk(Tree(9, 0, 4))

    assert ran.code == 0
    [row] = [line for line in ran.out.splitlines() if line.split()[:1] == ["tree:9:0:4"]]
    assert row.split()[1:] == [f"{walked.tau:.3f}", f"{walked.tau_all:.3f}", *[str(walked.steps)] * 2, "9.0", "10.0"]
    assert f"{walked.histogram[0] / walked.steps:.1%}" in ran.out
    assert "shared:9:2:0:4" in ran.out


def test_a_grid_and_its_picture(folder, tmp_path):
    """The grid has each budget and number of positions, and the picture a line for each, byte for byte again."""
    words = ("--grid", "--nodes", "2,8", "--positions", "2,5", "--width", 4, "--plot", tmp_path / "tau.svg")
    ran = spt("walk", folder, *words, cwd=folder)
    drawn = (tmp_path / "tau.svg").read_bytes()
    told = json.loads(spt("walk", folder, *words, "--json", cwd=folder).out)

    assert ran.code == 0
    wanted = [f"tree:{nodes}:{positions}:4" for positions in (2, 5) for nodes in (2, 8)]
    assert [each["policy"] for each in told["grid"]] == wanted
    for each in told["grid"]:
        assert f"{each['tau']:.3f}" in ran.out
    assert drawn.startswith(b"<?xml")
    assert b"2 positions" in drawn
    assert b"5 positions" in drawn
    assert drawn == (tmp_path / "tau.svg").read_bytes()


@pytest.mark.parametrize("ids", [[5], [5] * 40], ids=["one token", "a loop"])
def test_answers_without_a_step_that_counts(tmp_path, ids):
    """They have no tau: tables have none, and there is no picture of nothing."""
    folder = write_measurement(tmp_path / "m", {"r": ([3, 4], [[each] for each in ids])})
    ran = spt("walk", folder, "--grid", "--width", 4, cwd=tmp_path)
    drawn = spt("walk", folder, "--grid", "--width", 4, "--plot", tmp_path / "z.svg", cwd=tmp_path)

    assert ran.code == 0
    assert "the whole chain has tau -" in ran.out
    assert errors_well(drawn, 2, "there is no tau to draw")
    assert not (tmp_path / "z.svg").exists()


@pytest.mark.parametrize(
    ("policy", "options"),
    [
        (Chain(0), {}),
        (Chain(2), {"chain_positions": 2}),
        (Tree(7, 0, 4), {"select": "best_first", "best_first_nodes": 7, "best_first_width": 4}),
    ],
    ids=str,
)
def test_a_walk_is_what_ran(tmp_path, policy, options):
    """The walk of the system that ran is its steps, one by one; any step that differs is named."""
    folder = measured(tmp_path / "m", policy, options)
    ran = spt("walk", folder, "--check", cwd=tmp_path)

    assert ran.code == 0
    assert ran.out.startswith(f"'{policy}' walks as it ran, step by step: ")
    rows = [json.loads(line) for line in (folder / "steps.jsonl").read_text().splitlines()]
    rows[3]["nodes"] = 1
    write_steps(folder, rows, options)
    again = spt("walk", folder, "--check", "--json", cwd=tmp_path)
    assert errors_well(again, 1, f"'{policy}' walks otherwise than it ran: step 3 of 'a#0' has", "nodes 1 ran")
    assert again.out == ""


def test_of_the_wrong_policy_the_first_other_step_is_named(tmp_path):
    """Options that are not those that ran make another walk."""
    folder = measured(tmp_path / "m", Chain(0), {"chain_positions": 1})
    assert errors_well(spt("walk", folder, "--check", cwd=tmp_path), 1, "'chain:1' walks otherwise than it ran")


def test_the_published_curve(tmp_path):
    """Its four policies stand beside its figures, where the drafter has that many positions and ranks."""
    random = np.random.default_rng(1)
    tokens = random.integers(0, 500, 60)
    ids = random.random((50, 15, 500)).argsort(-1)[..., :16]
    ids[:-1, 0, 0] = tokens[11:]
    logprobs = -np.sort(random.exponential(2, (50, 15, 16)), -1)
    write_lattice(tmp_path / "a.lattice", tokens, 10, ids, logprobs.astype(np.float16), 500)
    ran = spt("walk", tmp_path / "a.lattice", "--published", cwd=tmp_path)
    told = json.loads(spt("walk", tmp_path / "a.lattice", "--published", "--json", cwd=tmp_path).out)

    assert ran.code == 0
    assert [row.split()[3] for row in ran.out.splitlines() if ":" in row] == ["4.25", "5.38", "5.85", "6.25"]
    policies = ["chain:0", "tree:32:8:16", "tree:32:0:16", "tree:63:0:16"]
    assert [each["policy"] for each in told["published"]] == policies


def test_a_selection_of_requests(folder):
    """Requests are chosen by the id of the answer, by their own, or by their family."""

    def count(*names):
        words = [word for name in names for word in ("--only", name)]
        return json.loads(spt("walk", folder, "-p", "chain", *words, "--json", cwd=folder).out)["requests"]

    assert (count("a#0"), count("a"), count("a", "b#0"), count("toy"), count()) == (1, 1, 2, 3, 3)
    assert errors_well(spt("walk", folder, "--only", "nobody", cwd=folder), 2, "'nobody' selects nothing")


def test_ranks_that_are_not_there(folder):
    """A tree that wants them is an error that says the way out, and with --bounds an interval."""
    ran = spt("walk", folder, "-p", "tree:300:0:16", cwd=folder)
    assert errors_well(ran, 2, "'tree:300:0:16' wants 16 ranks, and the lattice holds 6", "bounds")
    ran = spt("walk", folder, "-p", "tree:300:0:16", "--bounds", "--json", cwd=folder)
    [told] = json.loads(ran.out)["bounds"]
    assert 1 <= told["tau_at_least"] < told["tau_at_most"]
    assert "tau at least" in spt("walk", folder, "-p", "tree:300:0:16", "--bounds", cwd=folder).out
    assert errors_well(spt("walk", folder, "--bounds", cwd=folder), 2, "bounds are of trees that are named")


def test_agreement_is_read_from_a_file(folder, tmp_path):
    """Recorded agreement has a line a request; full agreement is the probability 1."""
    file = tmp_path / "agree.jsonl"
    file.write_text("".join(json.dumps({"request": f"{name}#0", "agrees": [True] * LENGTH}) + "\n" for name in NAMES))
    words = ("-p", "levels:1:recorded:chain", "-p", "levels:1:1:chain", "--agreement", file, "--json")
    one, other = json.loads(spt("walk", folder, *words, cwd=folder).out)["policies"]
    assert one.pop("policy") != other.pop("policy")
    assert one == other

    for text, said in (
        ("[]\n", "is not an object of"),
        ('{"request": "a#0", "agrees": [1]}\n', "is not an object of"),
        ('{"request": "a#0", "agrees": []}\n' * 2, "'a#0' was there before"),
        ('{"request": "a#0", "agrees": []}\n', "has 0 tokens, and its answer 80"),
        ("", "no agreement was recorded for 'a#0'"),
    ):
        file.write_text(text)
        assert errors_well(spt("walk", folder, *words, cwd=folder), 2, said)
    file.unlink()
    assert errors_well(spt("walk", folder, *words, cwd=folder), 4, "no agreement at")


def test_lattices_that_cannot_be_walked(folder, tmp_path):
    """Not there, cut, of another target, without steps to check, or there twice: refused, and nothing is printed."""
    first = sorted((folder / "lattices").iterdir())[0]
    other = tmp_path / "other.lattice"
    each = request("o#0", 9)
    told = {"request": "o#0", "target": {"digest": "f" * 64, "widen": 1, "jitter": 0}}
    write_lattice(other, each.tokens, each.start, each.ids, each.half, VOCABULARY, header=told)
    runs = [
        (spt("walk", tmp_path / "none", cwd=tmp_path), 4, "no lattice at"),
        (spt("walk", first, other, cwd=tmp_path), 2, "is a lattice of another target"),
        (spt("walk", first, "--check", cwd=tmp_path), 4, "holds no 'measurement.json'"),
        (spt("walk", first, first, cwd=tmp_path), 2, "'a#0' is there 2 times"),
        (spt("walk", first, "-p", "tee:8", cwd=tmp_path), 2, "there is no policy 'tee'"),
        (spt("walk", first, "--plot", tmp_path / "tau.png", cwd=tmp_path), 2, "it ends in .svg"),
        (spt("walk", first, "--plot", tmp_path / "no" / "tau.svg", cwd=tmp_path), 4, "is not there"),
        (spt("walk", first, "--nodes", "8,x", cwd=tmp_path), 2, "'8,x' is not whole numbers"),
    ]
    first.write_bytes(first.read_bytes()[:-5])
    runs.append((spt("walk", first, cwd=tmp_path), 2, "is cut"))
    runs.append((spt("walk", folder, "--json", cwd=tmp_path), 2, "is cut"))
    for ran, code, said in runs:
        assert errors_well(ran, code, said)
        assert ran.out == ""


def test_walking_imports_no_engine(folder):
    """A walk needs neither torch nor, without a picture, what draws."""
    words = ["walk", str(folder), "-p", "tree:6"]
    code = f"import sys\nfrom spt.cli import main\ntry:\n main({words!r})\nexcept SystemExit:\n pass\n"
    code += "sys.exit(bool({'torch', 'triton', 'scipy', 'matplotlib', 'pygit2'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=False)

    assert done.returncode == 0, done.stderr
    assert b"tree:6:0:8" in done.stdout

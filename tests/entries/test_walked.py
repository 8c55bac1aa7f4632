"""The walk of a policy is what the engine does with it: every step of every answer, on lattices that stock made."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from harness.generator import Set
from harness.tau import tally
from harness.text import load_text
from spt.lattice import read_lattice
from spt.policy import Chain, Confident, Tree, running_policy
from spt.steps import read_steps
from spt.walk import walk
from spt.walk_check import first_difference
from tests.smollm2 import gguf
from tests.stock.talk import GREEDY, ROOT, Worker, generate, load

RUNNING = {
    "chain": {},
    "short chain": {"chain_positions": 2},
    "nothing": {"select": "best_first", "best_first_nodes": 0},
    "tree": {"select": "best_first", "best_first_nodes": 15, "best_first_width": 4},
    "wide tree": {"select": "best_first", "best_first_nodes": 90, "best_first_width": 64},
    "shallow tree": {"select": "best_first", "best_first_nodes": 20, "best_first_positions": 2},
    "confident": {"select": "confident", "best_first_nodes": 40, "confident_floor": 0.02},
    "nothing is confident": {"select": "confident", "confident_floor": 1.0},
}
# Answers end by length, by length within a draft, by a stop id, and with prefill's token alone; and the long one loops.
ASKED = [
    {"prompt": [1, 2, 3, 4, 5, 6, 7, 8, 9], "max_tokens": 70},
    {"prompt": [9, 1, 1], "max_tokens": 8},
    {"prompt": [7, 2, 8, 8, 4], "max_tokens": 40, "stop_ids": [2, 5], "ignore_eos": False},
    {"prompt": [5], "max_tokens": 1},
]


@pytest.fixture(scope="module")
def stock(tmp_path_factory):
    """A worker of stock with a writable folder."""
    room = tmp_path_factory.mktemp("stock")
    with Worker(room=room) as worker:
        yield worker, room


@pytest.fixture(scope="module")
def system(composed, tmp_path_factory):
    """The same of all entries composed."""
    room = tmp_path_factory.mktemp("composed")
    with Worker(system=composed, room=room) as worker:
        yield worker, room


def answered(engine, models, options, asked, **how):
    """The ids of each line of each answer, and the recorded steps of all."""
    (worker, room), (target, drafter), lines = engine, models, []
    assert worker.ask(load(target, drafter, **how, **options))["op"] == "ready"
    worker.ask({"op": "record", "on": True, "file": "steps.jsonl"})
    for number, each in enumerate(asked):
        worker.send(generate(id=f"{number}#0", digest=False, **each))
        *tokens, _ = worker.read_through()
        lines.append([line["ids"] for line in tokens])
    worker.ask({"op": "record", "on": False, "file": None})
    return lines, read_steps(room / "steps.jsonl")


def lattices_of(engine, models, asked, lines, name="greedy", **how):
    """The lattice of each finished answer; files are mapped, so that each name is written once."""
    (worker, room), (target, drafter) = engine, models
    assert worker.ask(load(target, drafter, **how))["op"] == "ready"
    for number, (each, own) in enumerate(zip(asked, lines, strict=True)):
        told = {"ids": each["prompt"] + [*itertools.chain(*own)], "start": len(each["prompt"])}
        about = {"op": "lattice", "id": f"{number}#0", "sampling": each.get("sampling", GREEDY)}
        assert worker.ask({**about, **told, "file": f"{name}{number}.lattice"})["op"] == "lattice"
    return [read_lattice(room / f"{name}{number}.lattice") for number in range(len(asked))]


def walked_as_ran(lattices, options, lines, steps):
    """The walk of a system's policy; asserts that it is what ran, step by step and in the judge's counts."""
    policy = running_policy(options)
    walked = walk(lattices, policy)
    total = None
    for one, made, own in zip(walked.walks, lattices, lines, strict=True):
        each = replace(made.requests[0], lines=np.array([*map(len, own)]), steps=steps.get(one.request))
        assert first_difference(policy, one, each) is None
        assert one.tokens.tolist() == [len(line) for line in own[1:]]
        counts = tally([*itertools.chain(*own)], [*map(len, own)])
        total = counts if total is None else total + counts
    names = ("tokens", "looped_tokens", "steps", "step_tokens", "kept_steps", "kept_tokens", "tau", "tau_all")
    assert {name: getattr(walked, name) for name in names} == {name: getattr(total, name) for name in names}
    return walked


@pytest.fixture(scope="module")
def said(stock, models):
    """Lines of stock's answers, and their lattices."""
    lines, _ = answered(stock, models, {}, ASKED)
    return lines, lattices_of(stock, models, ASKED, lines)


@pytest.mark.parametrize("name", RUNNING)
def test_a_walk_is_what_the_engine_does(name, system, models, said):
    """Starts, nodes, accepted drafts, tokens and tau of a composed system are those of its walk on stock's lattice."""
    lines, steps = answered(system, models, RUNNING[name], ASKED)
    assert [[*itertools.chain(*own)] for own in lines] == [[*itertools.chain(*own)] for own in said[0]]
    walked = walked_as_ran(said[1], RUNNING[name], lines, steps)
    assert walked.looped_tokens > 0
    assert (walked.tau == 1) == name.startswith("nothing")


def test_a_walk_at_a_temperature_is_what_the_engine_does(stock, system, models):
    """Sampled answers are walked as greedy ones: the lattice has the noise of their request."""
    sampling = {"temperature": 0.8, "top_p": 0.95, "top_k": 9, "seed": 2**63 + 5}
    asked = [{**each, "sampling": sampling} for each in ASKED[1:3]]
    lines, steps = answered(system, models, RUNNING["tree"], asked)
    lattices = lattices_of(stock, models, asked, lines, "sampled")
    assert walked_as_ran(lattices, RUNNING["tree"], lines, steps).tau > 1


def test_other_policies_are_not_what_ran(system, models, said):
    """The comparison sees a tree of another size, width, depth or floor, and a chain."""
    _, steps = answered(system, models, RUNNING["tree"], ASKED)
    requests = [replace(made.requests[0], steps=steps.get(made.requests[0].request)) for made in said[1]]
    for policy in (Tree(14, 0, 4), Tree(15, 0, 3), Tree(15, 3, 4), Chain(0), Confident(15, 0, 4, 0.05)):
        walks = walk(said[1], policy).walks
        pairs = [pair for pair in zip(walks, requests, strict=True) if pair[1].steps is not None]
        assert any(first_difference(policy, *pair) for pair in pairs)


@pytest.fixture(scope="module")
def real():
    """SmolLM2 with the shipped drafter, and 64 generated requests for it."""
    target = gguf()
    text, source = load_text(target), Set("development", 5, longest_tok=40)
    asked = [
        {
            "prompt": text.chat(source.single(index)["turns"]),
            "max_tokens": 24,
            "stop_ids": list(text.stop_ids),
            "ignore_eos": False,
        }
        for index in range(64)
    ]
    return (target, ROOT / "drafters" / "smollm2-135m-dflash-b16"), asked


@pytest.mark.full
def test_a_walk_is_what_the_engine_does_with_a_real_model(stock, system, real):
    """On 64 answers of SmolLM2 the steps of the chain and of a tree are those of their walks on one lattice."""
    models, asked = real
    limits = {"context": 256, "requests": 1}
    lines, steps = answered(stock, models, {}, asked, limits=limits)
    lattices = lattices_of(stock, models, asked, lines, "real", limits=limits)
    chain = walked_as_ran(lattices, {}, lines, steps)
    lines, steps = answered(system, models, RUNNING["tree"], asked, limits=limits)
    tree = walked_as_ran(lattices, RUNNING["tree"], lines, steps)
    assert (chain.requests, 1 < chain.tau < tree.tau) == (64, True)

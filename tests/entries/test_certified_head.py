"""certified-lm-head in the engine: the full head's tokens, its logits where they are asked for, and clear words."""

import pytest

from tests.entries.test_composed import ROOT, SAMPLED
from tests.entries.test_w12_engine import CONFIG, rounded
from tests.smollm2 import gguf
from tests.stock.talk import GREEDY, Worker, generate, load
from tests.stock.tiny import drafter_config, target_config, write_drafter, write_target

HOT = {"temperature": 0.9, "top_p": 1, "top_k": 0, "seed": 2**63 + 5}
CERTIFIED = {"linear": "w12", "head": "certified"}
WIDE = {**CONFIG, "vocab_size": 300}
SETTINGS = {
    "chain": {},
    "tree": {"select": "best_first", "best_first_nodes": 30, "best_first_width": 8},
    "confident": {"select": "confident", "best_first_nodes": 20, "confident_floor": 0.02},
    "few rows": {"certified_rows": 4},
}


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    """A target whose head is worth packing, and a drafter for it."""
    folder = tmp_path_factory.mktemp("wide")
    drafter = write_drafter(folder / "drafter", drafter_config(WIDE))
    return write_target(folder / "target", WIDE, rounded(WIDE)), drafter


def spoken(system, models, *samplings, drafting=True, tokens=40, options=None, **how):
    """Tokens of an answer for each sampling, without a digest, which asks for all logits; and the worker's counters."""
    target, drafter = models
    found = []
    with Worker(system=system) as worker:
        assert worker.ask(load(target, drafter if drafting else None, options=options or {}, **how))["op"] == "ready"
        for sampling in samplings or (GREEDY, HOT):
            worker.send(generate(prompt=[3, 4, 5, 6], max_tokens=tokens, sampling=sampling, digest=False))
            *lines, _ = worker.read_through()
            found.append([token for line in lines for token in line["ids"]])
        return found, worker.ask({"op": "stats"})["counters"]


@pytest.mark.parametrize(("name", "dtype"), [*((name, "float32") for name in SETTINGS), ("chain", "float64")])
def test_exact_mode_says_stocks_tokens(name, dtype, composed, wide):
    """With any selection the ids that the certificate leaves are enough for every token of stock's."""
    wanted, _ = spoken(ROOT, wide, drafting=False, dtype=dtype)
    found, told = spoken(composed, wide, options={**CERTIFIED, **SETTINGS[name]}, dtype=dtype)

    assert found == wanted
    assert told["certified_calls"] > 0 and told["certified_full"] == 0
    assert 0 < told["certified_candidates"] < 150 * told["certified_calls"]
    assert (told["certified_rows"] == told["certified_calls"]) == (name == "few rows")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_fast_mode_on_a_cpu_says_what_the_full_head_says(dtype, composed, wide):
    """In fast mode, and in BF16, tokens are those of the full head."""
    certified, full = (
        spoken(composed, wide, options=options, mode="fast", dtype=dtype)[0]
        for options in (CERTIFIED, {"linear": "w12"})
    )
    assert certified == full


def test_what_needs_all_logits_gets_them(composed, wide):
    """Cuts, digests and log-probabilities come from the full head, bit for bit, and are not certified."""
    target, drafter = wide
    said = []
    for system, how in ((ROOT, {}), (composed, CERTIFIED)):
        with Worker(system=system) as worker:
            worker.ask(load(target, drafter, options=how))
            worker.send(generate(sampling=SAMPLED, digest=False))
            replies = worker.read_through()
            worker.send(generate(digest=True, logprobs=True))
            replies += worker.read_through()
            said.append([{key: reply.get(key) for key in ("ids", "logprobs", "logits_sha256")} for reply in replies])
            counters = worker.ask({"op": "stats"})["counters"]
    assert said[0] == said[1]
    assert counters["certified_calls"] == 0


def test_scoring_is_stocks(composed, wide):
    """The head that scores keeps its own weights, and says what stock's says."""
    about = {"op": "score", "id": "a", "ids": [3, 4, 5, 6, 7, 8, 9], "start": 3, "sampling": GREEDY}
    scores = []
    for system, how in ((ROOT, {}), (composed, CERTIFIED)):
        with Worker(system=system) as worker:
            worker.ask(load(wide[0], head="fp32", options=how))
            scores.append(worker.ask(about))
    assert scores[0] == scores[1]


def test_ready_counts_the_bounds(composed, wide):
    """`ready` reports the bytes of gains, reaches and counts beside those of the packed weights."""
    told = {}
    with Worker(system=composed) as worker:
        for head in ("full", "certified"):
            told[head] = worker.ask(load(wide[0], options={"linear": "w12", "head": head}))["bytes"]
    assert 0 < told["certified"] - told["full"] - 300 * 8 - 301 * 4 <= 32 + 6 * 300


def test_a_head_that_is_not_packed(composed, wide, tmp_path):
    """Dense weights, and heads that do not pay, are one line and an error of the option; the full head still works."""
    narrow = write_target(tmp_path / "narrow", target_config("llama", vocab_size=12))
    with Worker(system=composed) as worker:
        for target, how, problem in (
            (wide[0], {"head": "certified"}, "head 'certified' reads packed weights: linear is 'dense'"),
            (narrow, CERTIFIED, "head 'certified' reads a packed head: "),
            (wide[0], {**CERTIFIED, "w12_least_mb": 1}, "w12_least_mb is 1"),
            (wide[0], {**CERTIFIED, "certified_rows": 129}, "certified_rows"),
        ):
            error = worker.ask(load(target, options=how))
            assert (error["op"], error["code"]) == ("error", "bad_option")
            assert problem in error["message"] and "\n" not in error["message"]
        assert worker.ask(load(narrow, linear="w12"))["op"] == "ready"


@pytest.mark.full
def test_real_model(composed):
    """SmolLM2 with the shipped drafter: with a tree and packed weights no token differs from stock's."""
    models = gguf(), ROOT / "drafters" / "smollm2-135m-dflash-b16"
    how = {"dtype": "bfloat16", "mode": "fast"}  # BF16 holds its weights as they are loaded
    tree = {"select": "best_first", "best_first_nodes": 15, "best_first_width": 4}
    wanted, _ = spoken(composed, models, options=tree, **how)
    found, told = spoken(composed, models, options={**CERTIFIED, **tree}, **how)
    assert found == wanted
    assert told["certified_full"] == 0 and told["certified_candidates"] < 0.05 * 49152 * told["certified_calls"]


@pytest.mark.device
@pytest.mark.parametrize("name", ["chain", "tree"])
def test_on_a_gpu(name, composed, wide):
    """In captured graphs tokens are those of the full head with the same packed weights, and replays count."""
    how = {"mode": "fast", "dtype": "bfloat16", "device": "cuda"}
    options = {**CERTIFIED, **SETTINGS[name]}
    found, told = spoken(composed, wide, options=options, **how)
    assert found == spoken(composed, wide, options={**options, "head": "full"}, **how)[0]
    assert found == spoken(composed, wide, options={**options, "graphs": False}, **how)[0]
    assert told["certified_calls"] > 2
    assert 0 < told["certified_candidates"] < 300 * told["certified_calls"]

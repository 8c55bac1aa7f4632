"""The engine on an NVIDIA GPU: exact mode, kernels and captured graphs say what the CPU says."""

import json
from dataclasses import replace

import pytest
import torch

from stock.engine import Request
from stock.lattice import LatticePass
from stock.record import StepRecorder
from stock.sampling import Sampling
from stock.score import Scorer
from stock.select.chain import Chain
from stock.target import load_target
from tests.fakes.draft import ScriptedDraft
from tests.fakes.select import RandomTree
from tests.stock.drive import decode, engine_with, load
from tests.stock.tiny import drafter_config, target_config, write_drafter, write_target

pytestmark = pytest.mark.device

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3]
SAMPLINGS = {
    "greedy": Sampling(),
    "sampled": Sampling(temperature=0.9, seed=2**63 + 7),
    "cut": Sampling(temperature=1.1, top_p=0.8, top_k=7, seed=11),
}


@pytest.fixture(scope="module", params=["llama", "qwen2", "qwen3"])
def paths(request, tmp_path_factory):
    """A tiny target of each family and a drafter whose guesses are right now and then."""
    folder = tmp_path_factory.mktemp(request.param)
    config = target_config(request.param, vocab_size=17)
    window = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 16}
    drafter = drafter_config(config, **(window if request.param == "qwen3" else {}))
    return write_target(folder / "target", config), write_drafter(folder / "drafter", drafter)


class DraftOnDevice(ScriptedDraft):
    """The fake's lattices, made on the host and moved."""

    def __call__(self, contexts, ranks):
        lattices = super().__call__(contexts, ranks)
        return [replace(each, ids=each.ids.cuda(), logprobs=each.logprobs.cuda()) for each in lattices]


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
def test_exact_mode(sampling, paths):
    """On a GPU too speculation equals autoregressive decoding bit for bit, whatever share of drafts is right."""
    alone = load(paths[0], device="cuda")
    single = decode(alone, PROMPT, 40, sampling, ignore_eos=True)
    drafted = decode(load(*paths, device="cuda"), PROMPT, 40, sampling, ignore_eos=True)
    draft = DraftOnDevice(PROMPT + single.ids, 6, 17, wrong=range(12, 50, 5))
    guided = decode(engine_with(alone.system, draft, select=Chain(0)), PROMPT, 40, sampling, ignore_eos=True)

    assert drafted.ids == guided.ids == single.ids
    assert drafted.digest == guided.digest == single.digest
    assert guided.steps < 15


@pytest.mark.parametrize("graphs", [False, True], ids=["eager", "captured"])
@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
def test_kernels_say_what_the_cpu_says(sampling, graphs, paths):
    """FP32 through kernels, eagerly and in graphs: the CPU's tokens, step by step, and its logits to rounding."""
    there = decode(load(*paths, device="cuda", mode="fast", graphs=graphs), PROMPT, 40, sampling, ignore_eos=True)
    here = decode(load(*paths, mode="fast"), PROMPT, 40, sampling, ignore_eos=True)

    assert there.lines == here.lines
    # Float32 sums over at most 48 terms and three layers: a few hundred ulp of logits around 10.
    torch.testing.assert_close(torch.tensor(there.logits), torch.tensor(here.logits), rtol=0, atol=2e-3)
    torch.testing.assert_close(torch.tensor(there.logprobs), torch.tensor(here.logprobs), rtol=0, atol=2e-3)


def test_graphs_change_no_bit(paths):
    """BF16 in captured graphs and eagerly: the same tokens and logits, in any order of requests and settings."""
    captured, eager = (load(*paths, device="cuda", mode="fast", dtype="bfloat16", graphs=on) for on in (True, False))
    for length, sampling in ((40, "greedy"), (7, "sampled"), (25, "cut"), (40, "greedy"), (3, "sampled")):
        prompt = PROMPT * (1 + length % 4)
        ours, theirs = (decode(one, prompt, length, SAMPLINGS[sampling], ignore_eos=True) for one in (captured, eager))

        assert ours.lines == theirs.lines
        assert ours.digest == theirs.digest
        assert ours.logprobs == theirs.logprobs


class TreesOnDevice(RandomTree):
    """The fake's trees, made on the host and moved."""

    def __call__(self, lattices):
        return [
            replace(tree, token=tree.token.cuda(), parent=tree.parent.cuda(), depth=tree.depth.cuda())
            for tree in super().__call__(lattices)
        ]


@pytest.mark.parametrize("nodes", [5, 70, 300])
def test_trees_through_kernels(nodes, paths):
    """Random trees, of more rows than the kernels take too, say what autoregressive decoding says."""
    single = load(paths[0], device="cuda", mode="fast")
    alone = decode(single, PROMPT, 40, ignore_eos=True)
    draft = ScriptedDraft(PROMPT + alone.ids, 6, 17, right_rank=1)
    drafting = engine_with(single.system, draft, select=TreesOnDevice(nodes, nodes, 3))
    drafting.phases.graphs = False  # the fakes build their trees on the host
    answer = decode(drafting, PROMPT, 40, ignore_eos=True)

    assert answer.ids == alone.ids
    assert answer.steps < alone.steps


def test_float64_runs_without_kernels(paths):
    """Float64 has no kernels: it decodes on plain torch, in the CPU's tokens."""
    there = decode(load(*paths, device="cuda", mode="fast", dtype="float64"), PROMPT, 20, ignore_eos=True)
    here = decode(load(*paths, mode="fast", dtype="float64"), PROMPT, 20, ignore_eos=True)

    assert there.lines == here.lines


def test_own_answer_scores_zero(paths):
    """A scoring engine with the FP32 head finds the same engine's BF16 answer within a near tie of its own choice."""
    engine = load(*paths, device="cuda", mode="fast", dtype="bfloat16")
    answer = decode(engine, PROMPT, 60, ignore_eos=True)
    scorer = Scorer(load(paths[0], device="cuda", mode="fast", dtype="bfloat16", head="fp32").system)
    scores = scorer.score(PROMPT + answer.ids, len(PROMPT), Sampling())

    assert max(scores.margin) < 0.5
    assert sum(margin == 0 for margin in scores.margin) >= 50


def test_widened_weights_are_the_same_everywhere(paths):
    """Widening and jitter give the same bits on a GPU as on a CPU."""
    there, here = (load_target(paths[0], torch.bfloat16, torch.device(where), 4, 9) for where in ("cuda", "cpu"))

    assert there.weights.keys() == here.weights.keys()
    assert all(torch.equal(weight.cpu(), here.weights[name]) for name, weight in there.weights.items())


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
def test_lattices_through_kernels(sampling, paths):
    """Many blocks a pass through the kernels: the CPU's ranks, and its log-probabilities to rounding."""
    tokens, found = (PROMPT * 20)[:60], []
    for device in ("cuda", "cpu"):
        made = LatticePass(load(*paths, device=device, mode="fast").system)(tokens, 3, sampling)
        found.append([torch.cat(part).cpu() for part in zip(*made, strict=True)])
    (there_ids, there), (here_ids, here) = found
    assert float((there_ids != here_ids).float().mean()) < 0.01  # near ties may stand the other way round
    torch.testing.assert_close(there, here, rtol=0, atol=2e-2)


def test_a_recorded_run_runs_ahead(paths, tmp_path):
    """Records of captured passes that were asked for ahead are those of an engine that waits, times apart."""
    texts = []
    for ahead in (True, False):
        engine = load(*paths, device="cuda", mode="fast")
        engine.runs_ahead, engine.times.on = ahead, True
        engine.on_step = StepRecorder(tmp_path / "steps.jsonl")
        engine.open(Request("test", PROMPT, 40, frozenset(), True, SAMPLINGS["greedy"]))
        while engine.requests:
            engine.step()
        engine.on_step.close()
        rows = [json.loads(line) for line in (tmp_path / "steps.jsonl").read_text().splitlines()]
        texts.append([{key: value for key, value in row.items() if not key.endswith("_us")} for row in rows])
        assert all(row["verify_us"] > 0 for row in rows)
    assert texts[0] == texts[1]

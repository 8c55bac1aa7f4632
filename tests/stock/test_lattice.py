"""Lattices of finished sequences: a step's own numbers at every step start, in files that the other side reads."""

import hashlib
from dataclasses import replace

import numpy as np
import pytest
import torch

from spt.deployment import content_digest as spt_digest
from spt.lattice import Origin, read_lattice
from stock.digest import content_digest
from stock.engine import Request
from stock.errors import EngineError
from stock.lattice import RANKS, LatticePass
from stock.lattice_file import part_path, write_lattice
from stock.sampling import Sampling
from stock.system import System
from tests.stock.drive import GREEDY, engine_with, load
from tests.stock.tiny import drafter_config, drafter_weights, target_config, write_drafter, write_target

PROMPT = [5, 9, 33, 17, 2, 60]
INNER = {"mask_token_id": 1, "target_layer_ids": [0, 1]}
SLIDING = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 9}
DRAFTERS = {
    "plain": {},
    "next token": {"dflash_config": {**INNER, "sample_from_anchor": True}},
    "sliding, causal": SLIDING,
    "sliding, not causal": {**SLIDING, "is_causal": False},
    "all causal": {"is_causal": True},
    "soft cap": {"dflash_config": {**INNER, "output_multiplier": 0.5, "final_logit_softcapping": 2.0}},
}
SAMPLINGS = {"greedy": GREEDY, "sampled": Sampling(1.3, seed=5), "cut": Sampling(0.7, top_p=0.9, top_k=9, seed=3)}


class Watched:
    """A draft module that keeps what it proposes with all ranks, and gives the best alone."""

    def __init__(self, inner):
        self.inner, self.depths, self.taps = inner, inner.depths, inner.taps
        self.open, self.prefill = inner.open, inner.prefill
        self.seen = {}

    def __call__(self, contexts, ranks):
        lattices = self.inner(contexts, RANKS)
        for context, lattice in zip(contexts, lattices, strict=True):
            self.seen[int(context.start)] = lattice.ids.clone(), lattice.logprobs.clone()
        return [replace(each, ids=each.ids[:, :ranks], logprobs=each.logprobs[:, :ranks]) for each in lattices]


def watched_answer(engine, prompt, length, sampling):
    """All ids of a request, and {position of an anchor: what its step proposed}."""
    draft = Watched(engine.system.draft)
    engine = engine_with(engine.system, draft)
    request = Request("test", list(prompt), length, frozenset(), True, sampling)
    engine.open(request)
    while engine.requests:
        engine.step()
    return prompt + request.emitted, draft.seen


def lattice_of(engine, ids, start, sampling=GREEDY):
    """Ids and log-probabilities [position, depth, rank] of a pass."""
    ids, logprobs = zip(*LatticePass(engine.system)(ids, start, sampling), strict=True)
    return torch.cat(ids), torch.cat(logprobs)


def tiny(folder, **changes):
    """Folders of a tiny target and a drafter for it."""
    config = target_config("qwen3")
    target = write_target(folder / "target", config)
    return target, write_drafter(folder / "drafter", drafter_config(config, **changes))


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    return tiny(tmp_path_factory.mktemp("lattice"))


def assert_agree(engine, prompt, length, sampling):
    """The pass has a step's own bits at each step start; returns how many there were."""
    tokens, seen = watched_answer(engine, prompt, length, sampling)
    ids, logprobs = lattice_of(engine, tokens, len(prompt), sampling)
    assert len(ids) == length
    for start, (online_ids, online_logprobs) in seen.items():
        assert torch.equal(ids[start - len(prompt)], online_ids)
        assert torch.equal(logprobs[start - len(prompt)], online_logprobs)
    return len(seen)


@pytest.mark.parametrize("name", DRAFTERS)
def test_a_step_and_the_lattice_have_the_same_bits(name, tmp_path):
    """In exact mode, for every layout of block, window and head."""
    assert assert_agree(load(*tiny(tmp_path, **DRAFTERS[name])), PROMPT, 20, GREEDY) > 5


def test_more_anchors_than_fit_into_a_pass(paths):
    """The next pass goes on behind the last; no length has to be a multiple."""
    engine = load(*paths)
    assert 1 < engine.system.drafter.most_blocks < 46
    assert assert_agree(engine, PROMPT[:2], 46, GREEDY) > 5


@pytest.mark.parametrize("name", ["sampled", "cut"])
def test_drafts_with_noise_agree_too(name, paths):
    """At a temperature a lattice has the target's noise in it, as the drafts of a step have."""
    assert assert_agree(load(*paths), PROMPT, 20, SAMPLINGS[name]) > 5


def test_a_vocabulary_of_the_drafters_own(tmp_path):
    """Ids are the target's, by the map of the drafter's head; a small head gives all the ranks that it has."""
    config = target_config("qwen3")
    settings = drafter_config(config)
    head = torch.randn(24, 32, generator=torch.Generator().manual_seed(3))
    own = {"lm_head.weight": head, "d2t": torch.arange(24)}  # id i of the head is 2 i of the target
    drafter = write_drafter(tmp_path / "drafter", settings, {**drafter_weights(settings), **own})
    engine = load(write_target(tmp_path / "target", config), drafter)
    assert assert_agree(engine, PROMPT, 20, GREEDY) > 5
    ids, _ = lattice_of(engine, [*PROMPT, 3, 4], len(PROMPT))
    assert ids.shape == (2, 4, 24)
    assert ids.sort(-1).values.unique(dim=1).tolist() == [[list(range(0, 48, 2))]] * 2


@pytest.mark.full
def test_a_step_and_the_lattice_of_a_real_model_have_the_same_bits(smollm2, shipped_drafter):
    """SmolLM2 with the shipped drafter."""
    from tests.stock.test_smollm2 import PROMPTS

    engine = load(smollm2, shipped_drafter, context=512)
    assert assert_agree(engine, PROMPTS[9]["ids"], 32, GREEDY) >= 4


def test_fast_mode_differs_by_rounding_alone(paths):
    """Many blocks a pass, masked together: the same ranks as one block a pass, in float64."""
    exact, fast = (load(*paths, dtype="float64", mode=mode) for mode in ("exact", "fast"))
    tokens = [*PROMPT, *range(3, 60)]
    ours, theirs = lattice_of(fast, tokens, 3), lattice_of(exact, tokens, 3)
    assert torch.equal(ours[0], theirs[0])
    assert float((ours[1] - theirs[1]).abs().max()) <= 2**-7  # one float16 ulp below 8, where a sum lay on an edge


def test_passes_of_kernels_are_filled_up(paths, monkeypatch):
    """A prompt that goes through passes of fixed sizes leaves the drafter the same context."""
    engine = load(*paths, dtype="float64", mode="fast")
    tokens = [*PROMPT, *range(3, 60)]
    plain = lattice_of(engine, tokens, 3)
    monkeypatch.setattr(System, "has_kernels", True)
    filled = lattice_of(engine, tokens, 3)
    assert torch.equal(plain[0], filled[0])
    assert float((plain[1] - filled[1]).abs().max()) <= 2**-7


def test_a_second_sequence_equals_the_first(paths):
    """A pass leaves nothing behind: neither a context nor a block that lies over one."""
    ranker = LatticePass(load(*paths).system)
    tokens = [*PROMPT, *range(3, 40)]
    first, _, second = (
        torch.cat([logprobs for _, logprobs in ranker(each, 4, GREEDY)]) for each in (tokens, tokens[::-1], tokens)
    )
    assert torch.equal(first, second)


def test_a_context_may_be_full(paths):
    """The last anchor's block lies behind the longest sequence, and nothing is written over."""
    engine = load(*paths, context=64)
    ids, _ = lattice_of(engine, list(range(64)), 1)
    assert len(ids) == 63
    longer, _ = lattice_of(load(*paths, context=128), list(range(64)), 1)
    assert torch.equal(ids, longer)


def test_no_drafter_no_lattice(paths):
    """Without drafts of blocks there is nothing to rank."""
    for engine in (load(paths[0]), load(*paths, draft="none")):
        with pytest.raises(EngineError, match="drafter of blocks"):
            LatticePass(engine.system)


@pytest.mark.parametrize("part_bytes", [1 << 24, 12_000])
def test_files_are_read_by_the_other_side(part_bytes, paths, tmp_path):
    """Header, ranks and tokens come through, in one part or several, each below the bound."""
    ranker = LatticePass(load(*paths).system)
    tokens, path = [*PROMPT, *range(3, 40)], tmp_path / "a.lattice"
    sampling = {"temperature": 0, "top_p": 1, "top_k": 0, "seed": 0}
    about = {**ranker.origin, "request": "a#0", "sampling": sampling}
    shape = ranker.depths, ranker.ranks
    written = write_lattice(path, about, tokens, 4, shape, ranker(tokens, 4, GREEDY), part_bytes)
    files = [part_path(path, part) for part in range(written["parts"])]
    assert (len(files) > 1) == (part_bytes < 1 << 20)
    assert all(file.stat().st_size < part_bytes for file in files)
    assert hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest() == written["digest"]
    assert all(file.read_bytes().index(b"\n", 14) % 64 == 63 for file in files)

    origin = Origin(content_digest(paths[0]), 1, 0, content_digest(paths[1]))
    lattice = read_lattice(path, origin)
    [request] = lattice.requests
    ids, logprobs = map(torch.cat, zip(*ranker(tokens, 4, GREEDY), strict=True))
    np.testing.assert_array_equal(request.ids, ids.numpy())
    np.testing.assert_array_equal(request.logprobs, logprobs.numpy())
    assert (request.request, request.start, request.tokens.tolist()) == ("a#0", 4, tokens)
    assert (lattice.mode, lattice.dtype, lattice.block, lattice.vocabulary) == ("exact", "float32", 5, 64)


def test_models_are_named_as_deployments_name_them(paths):
    """The engine's digest of a model is the deployment's."""
    for path in paths:
        assert content_digest(path) == spt_digest(path)
    file = paths[0] / "model.safetensors"
    assert content_digest(file) == spt_digest(file)

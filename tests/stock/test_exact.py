"""Exact mode: speculation equals autoregressive decoding in tokens, log-probabilities and bits of logits.

Random tiny models, drafters, prompts and settings; one and two threads; chains and trees; FP32 and FP64.
"""

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from stock.engine import Engine
from stock.sampling import Sampling
from tests.fakes.draft import ScriptedDraft
from tests.fakes.select import RandomTree
from tests.stock.drive import decode, engine_with, load, run_chain
from tests.stock.tiny import (
    drafter_config,
    drafter_weights,
    target_config,
    target_weights,
    write_drafter,
    write_target,
)


@dataclass
class Case:
    """A model, a request and how it is decoded."""

    family: str
    vocabulary: int
    hidden: int
    block: int
    seed: int
    dtype: str
    threads: int
    prompt: list[int]
    sampling: Sampling
    windowed: bool


SAMPLINGS = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 0.3, 1.0, 4.0]),
    top_p=st.sampled_from([0.5, 0.95, 1.0]),
    top_k=st.sampled_from([0, 1, 5]),
    seed=st.integers(0, 2**64 - 1),
)
CASES = st.builds(
    Case,
    family=st.sampled_from(["llama", "qwen2", "qwen3"]),
    vocabulary=st.sampled_from([7, 11, 29, 64]),
    hidden=st.sampled_from([32, 40, 64]),
    block=st.sampled_from([2, 4, 8]),
    seed=st.integers(0, 1000),
    dtype=st.sampled_from(["float32", "float32", "float64"]),
    threads=st.sampled_from([1, 1, 1, 2]),
    prompt=st.lists(st.integers(0, 6), min_size=1, max_size=70),
    sampling=SAMPLINGS,
    windowed=st.booleans(),
)


class Loaded:
    """The case's engine with its random drafter, and one without, for as long as the block lasts."""

    def __init__(self, case: Case) -> None:
        self.case, self.folder = case, Path(tempfile.mkdtemp())

    def __enter__(self) -> tuple[Engine, Engine]:
        case = self.case
        torch.set_num_threads(case.threads)
        target = target_config(case.family, vocab_size=case.vocabulary, hidden_size=case.hidden, num_hidden_layers=2)
        window = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 16}
        drafter = drafter_config(target, block_size=case.block, **(window if case.windowed else {}))
        paths = (
            write_target(self.folder / "target", target, target_weights(target, case.seed)),
            write_drafter(self.folder / "drafter", drafter, drafter_weights(drafter, case.seed + 1)),
        )
        return load(*paths, dtype=case.dtype), load(paths[0], dtype=case.dtype)

    def __exit__(self, *caught: object) -> None:
        shutil.rmtree(self.folder)
        torch.set_num_threads(1)


def assert_same(drafted, single):
    assert drafted.ids == single.ids
    assert drafted.logprobs == single.logprobs
    assert drafted.digest == single.digest


@given(CASES)
@examples(max_examples=12)
def test_drafter_changes_no_bit(case):
    """Chains of a random drafter, at any temperature: the same tokens, log-probs and logits digest."""
    with Loaded(case) as engines:
        answers = [decode(each, case.prompt, 14, case.sampling, ignore_eos=True) for each in engines]

    assert_same(*answers)


@given(CASES, st.integers(0, 10**6), st.integers(1, 40), st.integers(1, 4))
@examples(max_examples=16)
def test_trees_change_no_bit(case, seed, nodes, ranks):
    """Random trees around the true continuation, whose siblings and order mean nothing for what is said."""
    with Loaded(case) as (_, single):
        alone = decode(single, case.prompt, 14, case.sampling, ignore_eos=True)
        draft = ScriptedDraft(case.prompt + alone.ids, 6, case.vocabulary, right_rank=seed % ranks)
        drafting = engine_with(single.system, draft, select=RandomTree(seed, nodes, ranks))
        answer = decode(drafting, case.prompt, 14, case.sampling, ignore_eos=True)

    assert_same(answer, alone)


@given(CASES)
@examples(max_examples=4)
def test_spine_only_tree_is_the_chain(case):
    """A tree with one child a node that does not say it is a chain accepts what the chain accepts, pass by pass."""
    with Loaded(case) as (engine, _):
        draft = engine.system.draft
        spine = engine_with(engine.system, draft, select=RandomTree(0, draft.depths, 1, spine=True))
        answers = [decode(each, case.prompt, 14, case.sampling, ignore_eos=True) for each in (spine, engine)]

    assert_same(*answers)
    assert answers[0].lines == answers[1].lines


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@torch.inference_mode()
def test_width_of_a_pass_changes_no_bit(family, dtype, tmp_path):
    """A row's logits and keys are the same whether it runs alone, among 64, or in a prompt's second piece."""
    engine = load(write_target(tmp_path / "target", target_config(family)), dtype=dtype, context=200)
    token = torch.randint(0, 64, (130,), generator=torch.Generator().manual_seed(1))
    runs = []
    for width in (1, 3, 16, 130):
        cache = engine.system.new_cache()
        rows = [passed.hidden for piece in token.split(width) for passed in run_chain(engine.system, piece, cache)]
        hidden = torch.cat(rows)
        runs.append((hidden, engine.system.product(hidden), cache.kv[:, :, :130].clone()))

    for run in runs[1:]:
        assert all(torch.equal(one, other) for one, other in zip(run, runs[0], strict=True))


@pytest.mark.full
@given(CASES, st.integers(0, 10**6), st.integers(1, 63), st.integers(1, 6))
@examples(max_examples=150, derandomize=False)
def test_many_trees_change_no_bit(case, seed, nodes, ranks):
    """As above, over examples that differ from run to run."""
    with Loaded(case) as (engine, single):
        alone = decode(single, case.prompt, 30, case.sampling, ignore_eos=True)
        answers = [decode(engine, case.prompt, 30, case.sampling, ignore_eos=True)]
        draft = ScriptedDraft(case.prompt + alone.ids, 12, case.vocabulary, right_rank=seed % ranks)
        drafting = engine_with(single.system, draft, select=RandomTree(seed, nodes, ranks))
        answers.append(decode(drafting, case.prompt, 30, case.sampling, ignore_eos=True))

    for answer in answers:
        assert_same(answer, alone)

"""`score`: what the engine would have said, and by how much it was missed, against an independent computation."""

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import settings as examples
from hypothesis import strategies as st

from stock import score
from stock.sampling import Noise, Sampling
from stock.score import Scorer, _score_rows
from tests.stock import reference
from tests.stock.drive import GREEDY, decode, load
from tests.stock.test_sampling import LOGITS, SEEDS, TEMPERATURES, TOP_K, TOP_P
from tests.stock.test_target import logits_of
from tests.stock.tiny import drafter_config, target_config, write_drafter, write_target

PROMPT = [5, 9, 33, 17, 60, 2, 11]
SAMPLINGS = {
    "greedy": GREEDY,
    "plain": Sampling(0.75, seed=3),
    "top-k": Sampling(1.5, top_k=4, seed=3),
    "top-p": Sampling(1.5, top_p=0.6, seed=3),
    "both": Sampling(2.0, top_p=0.8, top_k=9, seed=2**64 - 1),
}


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    folder = tmp_path_factory.mktemp("score")
    config = target_config("qwen3")
    return load(write_target(folder / "target", config), write_drafter(folder / "drafter", drafter_config(config)))


@pytest.mark.parametrize("name", SAMPLINGS)
def test_own_answer_scores_zero(name, engine):
    """What the engine itself said, by speculation, has margin 0 everywhere and is its own argmax."""
    sampling = SAMPLINGS[name]
    answer = decode(engine, PROMPT, 60, sampling, ignore_eos=True)  # over the seam of two pieces

    scores = Scorer(engine.system).score(PROMPT + answer.ids, len(PROMPT), sampling)

    assert scores.argmax == answer.ids
    assert scores.margin == [0.0] * 60
    assert all(scores.kept)
    own = answer.logits[np.arange(60), answer.ids]
    assert scores.logit == own.tolist()
    assert scores.rank == [int((row > best).sum()) for row, best in zip(answer.logits, own, strict=True)]


@pytest.mark.parametrize("name", SAMPLINGS)
@pytest.mark.parametrize("elements", [1, 64 * 7])
def test_chunks(elements, name, engine, monkeypatch):
    """However few rows are scored at once, the scores are the same."""
    ids = [token % 64 for token in range(3, 93)]
    scorer = Scorer(engine.system)
    whole = scorer.score(ids, 9, SAMPLINGS[name])
    monkeypatch.setitem(score._CHUNK_ELEMENTS, "cpu", elements)
    rows = []
    real = score._score_rows
    monkeypatch.setattr(score, "_score_rows", lambda logits, *rest: rows.append(len(logits)) or real(logits, *rest))

    assert scorer.score(ids, 9, SAMPLINGS[name]) == whole
    assert max(rows) == max(1, elements // 64)


@pytest.mark.parametrize("start", [1, 5, 63, 64, 65, 89])
def test_start(start, engine):
    """Any start gives the tail of the scores from 1; pieces of 64 rows leave no seam."""
    ids = [token % 64 for token in range(3, 93)]
    scorer = Scorer(engine.system)
    whole, tail = (scorer.score(ids, at, SAMPLINGS["both"]) for at in (1, start))

    assert len(tail.argmax) == len(ids) - start
    for name in ("argmax", "margin", "rank", "logit", "kept"):
        assert getattr(tail, name) == getattr(whole, name)[start - 1 :]


def test_logits_are_those_of_the_prefix(engine):
    """A position is scored from the logits of the row before it."""
    ids = [*PROMPT, 7, 7, 1]
    scores = Scorer(engine.system).score(ids, 1, GREEDY)
    logits = logits_of(engine, ids)

    assert scores.argmax == logits[:-1].argmax(1).tolist()
    assert scores.logit == [float(logits[at - 1, ids[at]]) for at in range(1, len(ids))]


def scored(logits, token, position, sampling):
    """_score_rows of one float64 row: argmax, margin, rank, kept."""
    row = torch.tensor([logits], dtype=torch.float64)
    noise = Noise.of(sampling, torch.device("cpu"))
    columns = _score_rows(row, torch.tensor([position]), torch.tensor([token]), sampling, noise)
    argmax, margin, rank, _, kept = (column.item() for column in columns)
    return argmax, margin, rank, kept


@given(st.data(), LOGITS, st.one_of(st.just(0.0), TEMPERATURES), TOP_P, TOP_K, SEEDS)
@examples(max_examples=300)
def test_margin_is_the_smallest_raise(data, logits, temperature, top_p, top_k, seed):
    """With a hair more than the margin the token wins, with a hair less it does not, by an independent choice.

    An id that ties with a lower one has margin 0 and does not win.
    """
    token = data.draw(st.integers(0, len(logits) - 1))
    row, position = np.array(logits), 17
    noise = np.array([reference.gumbel(seed, position, each) for each in range(len(row))], np.float64)

    argmax, margin, rank, kept = scored(logits, token, position, Sampling(temperature, top_p, top_k, seed))

    def wins(raised):
        return reference.wins_when_raised(row, noise, token, raised, temperature, top_k, top_p)

    hair = 1e-6
    assert (argmax == token) == wins(0.0)
    assert margin == 0.0 or argmax != token
    assert wins(margin + hair)
    assert margin < hair or not wins(margin - hair)
    assert rank == sum(other > row[token] or (other == row[token] and each < token) for each, other in enumerate(row))
    allowed = reference.kept(row / temperature, top_k, top_p) if temperature else {token}
    assert kept == (token in allowed)


def test_margin_across_the_cut_of_top_p():
    """An id just outside the nucleus is a small raise away, although the smallest kept logit is far.

    Masses 0.5, 0.3, 0.2 at p = 0.5: raising the second id by log(r) makes the first one's mass 0.5 / (0.7 + 0.3 r),
    which is below p as soon as r > 1; that it is 0.5 nats below the first one's logit does not matter.
    """
    logits = np.log([0.5, 0.3, 0.2]).tolist()
    for seed in range(50):
        noise = [reference.gumbel(seed, 4, token) for token in range(3)]
        if logits[1] + noise[1] > logits[0] + noise[0]:
            break
    _, margin, _, kept = scored(logits, 1, 4, Sampling(1.0, top_p=0.4999, seed=seed))
    needed = 0.5 / 0.4999 - 0.7  # the mass that the second id must have

    assert not kept
    assert margin == pytest.approx(np.log(needed / 0.3), abs=1e-6)


@given(LOGITS, st.integers(1, 5))
@example([3.0, 3.0, 3.0, 1.0], 2)
def test_margin_across_the_cut_of_top_k(logits, top_k):
    """With top-k alone an id is admitted when its logit reaches the k-th largest."""
    token = int(np.argmin(logits))
    sampling = Sampling(1.0, top_k=top_k, seed=8)
    _, margin, _, kept = scored(logits, token, 6, sampling)
    smallest = sorted(logits, reverse=True)[min(top_k, len(logits)) - 1]

    assert margin >= max(smallest - logits[token], 0) - 1e-9
    assert kept == (logits[token] >= smallest)


def test_fp32_head_scores_bf16(tmp_path):
    """The FP32 head on BF16 weights: exact products, summed and returned in float32.

    Logits lie within BF16's own rounding (2^-8 of the largest) of the model's BF16 logits, but are not rounded to it.
    """
    path = write_target(tmp_path / "target", target_config("llama", hidden_size=64, head_dim=16))
    ids = PROMPT * 3
    plain, wide = (
        Scorer(load(path, dtype="bfloat16", mode="fast", head=head).system).score(ids, 1, GREEDY)
        for head in ("model", "fp32")
    )
    rounded = torch.tensor(wide.logit).bfloat16().float().tolist()

    assert plain.logit == torch.tensor(plain.logit).bfloat16().float().tolist()
    assert wide.logit != rounded
    assert np.abs(np.array(plain.logit) - rounded).max() <= 2**-8 * np.abs(rounded).max()

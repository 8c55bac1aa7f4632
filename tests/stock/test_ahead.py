"""Passes asked for before the one before is read, and prompts that are filled up to captured sizes."""

import pytest
import torch

from stock.engine import Request
from stock.sampling import Sampling
from stock.select.chain import Chain
from stock.system import System
from tests.fakes.draft import ScriptedDraft
from tests.stock.drive import GREEDY, decode, engine_with, load, run_chain
from tests.stock.tiny import drafter_config, target_config, write_drafter, write_target

PROMPT = [5, 9, 33, 17]
SAMPLINGS = {"greedy": Sampling(), "sampled": Sampling(1.3, seed=5), "cut": Sampling(1.1, top_p=0.8, top_k=9, seed=3)}


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ahead")
    config = target_config("llama", max_position_embeddings=1024)
    return write_target(folder / "target", config), write_drafter(folder / "drafter", drafter_config(config))


def request(name, prompt, max_tokens, sampling=GREEDY, stop_ids=()):
    return Request(name, list(prompt), max_tokens, frozenset(stop_ids), not stop_ids, sampling)


def run(engine, *requests):
    """The lines of each request, in the order in which the engine gives them."""
    for each in requests:
        engine.open(each)
    lines = {each.id: [] for each in requests}
    while engine.requests:
        for progress in engine.step():
            lines[progress.request.id].append((progress.ids, progress.reason))
    return lines


def both(paths, **changes):
    """An engine that reads each pass before the next, and one that runs ahead."""
    plain, ahead = (load(*paths, context=200, **changes) for _ in range(2))
    ahead.runs_ahead = True
    return plain, ahead


def count_passes(engine):
    """Counts the passes of the target in a list."""
    passes, verify = [], engine.system.verify

    def counted(trees, caches):
        passes.append(len(trees[0].token))
        return verify(trees, caches)

    engine.system.verify = counted
    return passes


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
@pytest.mark.parametrize("length", [1, 2, 8, 9, 40])
def test_running_ahead_changes_no_line(length, sampling, paths):
    """Tokens, lines, reasons, steps and counters are those of an engine that waits, also for the requests after."""
    plain, ahead = both(paths)
    for prompt in (PROMPT, PROMPT * 5, [7]):
        asked = [request("one", prompt, length, sampling) for _ in range(2)]
        assert run(plain, asked[0]) == run(ahead, asked[1])
        assert asked[0].steps == asked[1].steps
    assert plain.counters == ahead.counters


def test_no_pass_is_made_where_the_length_may_be_reached(paths):
    """An answer that ends by its length costs no pass in vain; one that meets a stop id costs one at most."""
    plain, ahead = both(paths)
    counts = count_passes(plain), count_passes(ahead)
    text = run(plain, request("long", PROMPT, 60))["long"]
    run(ahead, request("long", PROMPT, 60))
    assert counts[0] == counts[1]

    stop = text[4][0][-1]
    before = [len(each) for each in counts]
    asked = [request("stops", PROMPT, 60, stop_ids=[stop]) for _ in range(2)]
    assert run(plain, asked[0]) == run(ahead, asked[1])
    assert len(counts[1]) - before[1] - (len(counts[0]) - before[0]) in (0, 1)


@pytest.mark.parametrize("room", range(12))
def test_nothing_is_written_behind_a_context(room, paths):
    """Drafts that are all accepted up to the last row of a full context: an engine that runs ahead has the room."""
    plain = load(paths[0], context=40)
    length = 40 - len(PROMPT) - room
    text = decode(plain, PROMPT, length, ignore_eos=True).ids
    engine = engine_with(plain.system, ScriptedDraft(PROMPT + text + [0] * 40, 7, 64), select=Chain(0))
    engine.runs_ahead = True
    asked = request("full", PROMPT, length)
    run(engine, asked)
    assert asked.emitted == text


def test_requests_side_by_side(paths):
    """A request that comes, goes or is cancelled while a pass is under way loses no token and disturbs no other."""
    plain, ahead = both(paths)
    expected = {
        name: run(plain, request(name, prompt, 30))[name] for name, prompt in (("a", PROMPT), ("b", PROMPT * 3))
    }
    one, two = request("a", PROMPT, 30), request("b", PROMPT * 3, 30)
    lines = {"a": [], "b": []}
    ahead.open(one)
    for step in range(200):
        if step == 3:
            ahead.open(two)
        if step == 4:
            lost = request("c", PROMPT, 30)
            ahead.open(lost)
        if step == 6:
            ahead.close(lost)
        for progress in ahead.step() if ahead.requests else ():
            lines[progress.request.id].append((progress.ids, progress.reason))
    assert lines == expected

    ahead.open(one := request("a", PROMPT, 30))
    for _ in range(3):
        ahead.step()
    ahead.close(one)  # cancelled, with a pass under way
    ahead.open(request("b", PROMPT * 3, 30))
    lines = []
    while ahead.requests:
        lines += [(progress.ids, progress.reason) for progress in ahead.step() if progress.request.id == "b"]
    assert lines == expected["b"]


@pytest.mark.parametrize("length", [1, 15, 16, 17, 63, 64, 65, 200, 257, 300])
def test_prompts_filled_up_to_sizes_of_passes(length, paths, monkeypatch):
    """Prompts of any length go through passes of a few sizes; what stands behind the real rows reaches none of them."""
    plain, filled = (load(*paths, context=700, dtype="float64", mode="fast") for _ in range(2))
    monkeypatch.setattr(System, "has_kernels", True)
    prompt = [(3 * at + at // 7) % 64 for at in range(length)]
    sizes = count_passes(filled)
    ours = decode(filled, prompt, 12, ignore_eos=True)
    assert set(sizes[: -(-length // 256)]) <= {16, 64, 128, 256}
    monkeypatch.undo()
    theirs = decode(plain, prompt, 12, ignore_eos=True)
    assert ours.lines == theirs.lines
    torch.testing.assert_close(torch.tensor(ours.logits), torch.tensor(theirs.logits), rtol=0, atol=1e-6)


def test_pieces_of_another_length(paths, monkeypatch):
    """`prefill_rows` bounds the passes of kernels too, and a sequence may go on behind what was run before."""
    engine = load(*paths, context=700, dtype="float64", mode="fast", prefill_rows=100)
    token = torch.arange(230) % 64
    whole = torch.cat([each.hidden.clone() for each in run_chain(engine.system, token, engine.system.new_cache())])
    monkeypatch.setattr(System, "has_kernels", True)
    cache, sizes = engine.system.new_cache(), count_passes(engine)
    passed = [each.hidden.clone() for part in token.split(90) for each in run_chain(engine.system, part, cache)]
    assert set(sizes) <= {16, 64, 100}
    torch.testing.assert_close(torch.cat(passed), whole, rtol=0, atol=1e-9)

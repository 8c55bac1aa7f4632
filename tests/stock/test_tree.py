"""The parts that a draft tree passes through: ancestors, attention, acceptance, compaction, positions."""

import dataclasses
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from stock.ops.accept import accept
from stock.ops.attention import Heads, Layer, Rows, attend, attend_exact, visible_rows
from stock.ops.compact import compact
from stock.ops.top_ranks import top_ranks
from stock.rope import Rope
from stock.tree import DraftTree, chain_tree
from tests.stock.drive import load, run_chain
from tests.stock.tiny import target_config, write_target

CPU = torch.device("cpu")


@st.composite
def trees(draw, vocabulary=4, rows=14):
    """Draft trees of up to `rows` rows in any legal order, siblings with distinct tokens."""
    token, parent, depth = [draw(st.integers(0, vocabulary - 1))], [-1], [0]
    for _ in range(draw(st.integers(0, rows - 1))):
        above = draw(st.integers(0, len(token) - 1))
        taken = {token[row] for row, each in enumerate(parent) if each == above}
        if len(taken) < vocabulary:
            token.append(draw(st.sampled_from(sorted(set(range(vocabulary)) - taken))))
            parent.append(above)
            depth.append(depth[above] + 1)
    limit = max(depth) + draw(st.integers(0, 3))
    return DraftTree(*(torch.tensor(each) for each in (token, parent, depth)), chain=False, depth_limit=limit)


def ancestors(tree, row):
    """The rows from the anchor to `row`."""
    path = [row]
    while (above := int(tree.parent[path[-1]])) >= 0:
        path.append(above)
    return path[::-1]


@given(trees())
def test_visible_rows_are_ancestors(tree):
    """Each row sees its path from the anchor and itself, nothing else."""
    for row, seen in enumerate(visible_rows(tree.parent)):
        assert seen.nonzero().flatten().tolist() == ancestors(tree, row)


@given(trees(), st.lists(st.integers(0, 3), min_size=14, max_size=14))
def test_acceptance_follows_the_target(tree, choice):
    """The path goes from the anchor to a child that holds the target's choice, as long as there is one."""
    rows = len(tree.token)
    accepted = accept(tree, torch.tensor(choice[:rows]))
    count = int(accepted.count)
    path = accepted.path[:count].tolist()

    assert path[0] == 0
    assert path == ancestors(tree, path[-1])
    assert all(int(tree.token[below]) == choice[above] for above, below in pairwise(path))
    children = [row for row in range(rows) if int(tree.parent[row]) == path[-1]]
    assert choice[path[-1]] not in [int(tree.token[row]) for row in children]
    assert accepted.emitted[:count].tolist() == [choice[row] for row in path]
    assert len(accepted.path) == len(accepted.emitted) == tree.depth_limit + 1
    assert set(accepted.path[count:].tolist()) <= {path[-1]}


@given(trees(), st.lists(st.integers(0, 3), min_size=14, max_size=14), st.integers(0, 3))
def test_compaction_moves_the_path(tree, choice, start):
    """The accepted rows stand behind the context in order, and the context is untouched."""
    accepted = accept(tree, torch.tensor(choice[: len(tree.token)]))
    cache = torch.arange(20.0).view(1, 1, 20, 1, 1).repeat(2, 2, 1, 3, 1)
    compact(cache, torch.tensor([start], dtype=torch.int32), accepted.path, accepted.count)
    kept = start + int(accepted.count)

    expected = [*range(start), *(start + row for row in accepted.path[: int(accepted.count)].tolist())]
    assert cache[1, 1, :kept, 2, 0].tolist() == expected


def naive_attention(q, k, v, seen):
    """Softmax attention of one query [heads, dim] over the rows of k, v [rows, key heads, dim] that it sees."""
    group = len(q) // k.shape[1]
    rows = [row for row, each in enumerate(seen) if each]
    out = []
    for head, query in enumerate(q):
        keys, values = (each[rows, head // group] for each in (k, v))
        weights = torch.softmax(keys @ query / len(query) ** 0.5, 0)
        out.append(weights @ values)
    return torch.cat(out)


@pytest.mark.parametrize("mode", [attend, attend_exact])
@given(tree=trees(rows=9), context=st.integers(0, 6), window=st.sampled_from([None, 1, 3, 5]), full=st.booleans())
def test_attention_sees_what_it_should(mode, tree, context, window, full):
    """Rows see the context within their window and, of the new rows, their path (or, in a draft block, all).

    Positions are start + depth: siblings stand at the same place.  Keys are rotated once, when they are appended.
    """
    generator = torch.Generator().manual_seed(len(tree.token))
    cos, sin = Rope(8, 100.0).table(40, CPU)
    heads = Heads(4, 2, 8, 1e-6, cos.double(), sin.double())
    cache = torch.randn(2, 40, 2, 8, dtype=torch.float64, generator=generator)
    qkv = torch.randn(len(tree.token), 64, dtype=torch.float64, generator=generator)
    position = context + tree.depth
    visible = visible_rows(tree.parent)
    visible = torch.ones_like(visible) if full else visible

    def rotated(x):
        first, second = x.chunk(2, -1)
        turn_cos, turn_sin = (table[position][:, None] for table in (heads.cos, heads.sin))
        return torch.cat((first * turn_cos - second * turn_sin, second * turn_cos + first * turn_sin), -1)

    q, k, v = (part.unflatten(1, (-1, 8)) for part in qkv.split(heads.split, 1))
    keys, values = torch.cat((cache[0, :context], rotated(k))), torch.cat((cache[1, :context], v))
    places = torch.cat((torch.arange(context), position))
    expected = []
    for row in range(len(qkv)):
        seen = torch.cat((torch.ones(context, dtype=torch.bool), visible[row]))
        if window is not None:
            seen &= position[row] - places < window
        expected.append(naive_attention(rotated(q)[row], keys, values, seen))

    out = mode(qkv, heads, Layer(cache, window=window), Rows(torch.tensor([context]), position, visible))

    torch.testing.assert_close(out, torch.stack(expected), rtol=0, atol=1e-12)
    torch.testing.assert_close(cache[0, : len(keys)], keys, rtol=0, atol=1e-14)
    torch.testing.assert_close(cache[1, : len(values)], values, rtol=0, atol=0)


@torch.inference_mode()
def test_nodes_are_verified_at_their_depth(tmp_path):
    """A node's logits are those of its path alone: a span's index as position would move every later sibling."""
    system = load(write_target(tmp_path / "target", target_config("llama"))).system
    prompt = torch.arange(3, 23)
    token = torch.tensor([7, 8, 9, 10, 11, 12])
    parent = torch.tensor([-1, 0, 0, 1, 2, 2])
    depth = torch.tensor([0, 1, 1, 2, 2, 2])
    tree = DraftTree(token, parent, depth, chain=False, depth_limit=2)
    cache = system.new_cache()
    list(run_chain(system, prompt, cache))

    ((hidden, _),) = system.verify([tree], [cache])

    for row in range(len(token)):
        alone = system.new_cache()
        list(run_chain(system, prompt, alone))
        path = token[ancestors(tree, row)]
        ((chain, _),) = system.verify([chain_tree(path, torch.arange(len(path)))], [alone])
        assert torch.equal(hidden[row], chain[-1])
    assert int(cache.start) == len(prompt)
    cache.rollback()
    assert int(cache.start) == len(prompt)


@torch.inference_mode()
def test_rejected_rows_leave_no_trace(tmp_path):
    """Verifying a tree and rolling back, any number of times, changes nothing of what comes after."""
    system = load(write_target(tmp_path / "target", target_config("qwen3"))).system
    prompt, after = torch.arange(3, 23), torch.arange(40, 50)
    caches = [system.new_cache(), system.new_cache()]
    for cache in caches:
        list(run_chain(system, prompt, cache))
    for token in (torch.tensor([1, 2, 3]), torch.arange(30)):
        system.verify([chain_tree(token, torch.arange(len(token)))], [caches[1]])
        caches[1].rollback()

    hidden = [torch.cat([passed.hidden for passed in run_chain(system, after, cache)]) for cache in caches]

    assert torch.equal(*hidden)
    assert torch.equal(*(cache.kv[:, :, :30] for cache in caches))


@given(
    st.lists(st.lists(st.integers(-2, 2), min_size=9, max_size=9), min_size=1, max_size=3),
    st.sampled_from([1, 2, 3, 9, 12]),
    st.sampled_from([torch.float32, torch.bfloat16, torch.float64]),
)
def test_top_ranks(rows, ranks, dtype):
    """Logit descending, id ascending on ties; log-probabilities of the whole softmax; no more ranks than ids."""
    logits = torch.tensor(rows, dtype=dtype)
    ids, logprobs = top_ranks(logits, ranks)

    expected = [sorted(range(9), key=lambda each: (-row[each], each))[:ranks] for row in rows]
    assert ids.tolist() == expected
    whole = F.log_softmax(torch.tensor(rows, dtype=torch.float64), 1)
    torch.testing.assert_close(logprobs.double(), whole.gather(1, ids), rtol=0, atol=2**-20)


def test_chain_tree():
    """A chain is a tree with one child a node."""
    tree = chain_tree(torch.tensor([4, 5, 6]), torch.arange(3))

    assert (tree.parent.tolist(), tree.depth.tolist()) == ([-1, 0, 1], [0, 1, 2])
    assert (tree.chain, tree.depth_limit) == (True, 2)
    assert dataclasses.replace(tree, chain=False).parent is tree.parent

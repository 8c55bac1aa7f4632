"""Made-up answers with lattices, and a walk that builds each tree with a heap."""

import heapq
from dataclasses import replace

import numpy as np

from spt.lattice import Lattice, Origin, RequestLattice

ORIGIN = Origin("a" * 64, 1, 0, "b" * 64)
DEPTHS, RANKS, VOCABULARY = 5, 6, 40


def request(name, length, seed=0, ties=False, repeat=False, right=0.7):
    """An answer of `length` tokens, of which the lattice has `right` at a rank that falls off geometrically."""
    random = np.random.default_rng([seed, *name.encode()])
    answer = random.integers(0, VOCABULARY, length)
    if repeat:
        answer = np.resize(answer[:30], length)
    tokens = np.concatenate((random.integers(0, VOCABULARY, 3), answer))
    ids = random.random((length, DEPTHS, VOCABULARY)).argsort(-1)[..., :RANKS].astype(np.uint16)
    for position, depth in np.ndindex(length, DEPTHS):
        at = position + depth + 1
        if at < length and random.random() < right and answer[at] not in ids[position, depth]:
            ids[position, depth, min(random.geometric(0.6) - 1, RANKS - 1)] = answer[at]
    logprobs = -np.sort(random.exponential(2, (length, DEPTHS, RANKS)), -1)
    half = (np.round(logprobs) if ties else logprobs).astype(np.float16)
    return RequestLattice(name, None, {}, tokens, 3, ids, half)


def lattice(*requests, **changes):
    made = Lattice(ORIGIN, "exact", "float32", DEPTHS + 1, VOCABULARY, DEPTHS, RANKS, requests)
    return replace(made, **changes)


def some(seed=0, ties=False, lengths=(40, 1, 23, 2, 70)):
    return lattice(*(request(f"r{i}#0", n, seed, ties, repeat=i == 4) for i, n in enumerate(lengths)))


# --- the slow walk ---


def tree_at(each, position, nodes, positions, width):
    """[(score, depth, path of token ids)] in the order of growth: a heap, as the entry has it."""
    table = each.half[position].astype(float).tolist()
    ids = each.ids[position].tolist()
    grown, heap = [(0.0, 0, ())], [(-table[0][0], 1, 0, 0, 0.0)] if nodes else []
    while heap and len(grown) <= nodes:
        negative, depth, parent, rank, above = heapq.heappop(heap)
        if rank + 1 < width:
            heapq.heappush(heap, (-(above + table[depth - 1][rank + 1]), depth, parent, rank + 1, above))
        if depth < positions:
            heapq.heappush(heap, (negative - table[depth][0], depth + 1, len(grown), 0, -negative))
        grown.append((-negative, depth, (*grown[parent][2], ids[depth - 1][rank])))
    return grown[1:]


def accepted_of(tree, following):
    """The longest path of a tree that `following` begins with."""
    return max((depth for _, depth, path in tree if list(path) == following[:depth]), default=0)


def slow_steps(each, tree_of):
    """[(start, nodes, accepted, tokens)] of one answer; tree_of(position, steps so far) makes a tree."""
    answer, position, steps = each.tokens[each.start :].tolist(), 0, []
    while position < len(answer) - 1:
        tree, following = tree_of(position, steps), answer[position + 1 :]
        accepted = accepted_of(tree, following)
        emitted = min(accepted + 1, len(following))
        steps.append((each.start + position, len(tree), accepted, emitted))
        position += emitted
    return steps


def fast_steps(one):
    return list(zip(*(part.tolist() for part in (one.start, one.nodes, one.accepted, one.tokens)), strict=True))

"""Walks are the engine's steps: held against a walk that builds every tree, token by token, with a heap."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.tau import tally
from spt.errors import Usage
from spt.lattice import Origin
from spt.policy import Chain, Confident, Length, Levels, Shared, Tree
from spt.walk import Walker, walk
from tests.spt.walks import (
    DEPTHS,
    RANKS,
    VOCABULARY,
    accepted_of,
    fast_steps,
    lattice,
    request,
    slow_steps,
    some,
    tree_at,
)


def same(walked, lattice, tree_of):
    """Whether each step of each answer is the slow walk's, and the counts are those of the harness."""
    total = None
    for each, one in zip(lattice.requests, walked.walks, strict=True):
        steps = slow_steps(each, lambda position, steps, each=each: tree_of(each, position, steps))
        assert fast_steps(one) == steps
        counts = tally(each.tokens[each.start :].tolist(), [1, *(step[3] for step in steps)])
        total = counts if total is None else total + counts
    names = ("tokens", "looped_tokens", "steps", "step_tokens", "kept_steps", "kept_tokens", "tau", "tau_all")
    assert {name: getattr(walked, name) for name in names} == {name: getattr(total, name) for name in names}
    assert sum(walked.histogram) == walked.steps
    return True


SEEDS, TIES = st.integers(0, 2**32 - 1), st.booleans()


@settings(max_examples=25, deadline=None)
@given(SEEDS, TIES, st.integers(0, 40), st.integers(0, DEPTHS), st.integers(1, RANKS))
def test_trees_step_by_step(seed, ties, nodes, positions, width):
    """Starts, nodes, accepted lengths and tokens of each step are those of the heap's trees, ties included."""
    made, depth = some(seed, ties), positions or DEPTHS
    walked = walk([made], Tree(nodes, positions, width))
    assert same(walked, made, lambda each, position, _: tree_at(each, position, nodes, depth, width))


@settings(max_examples=15, deadline=None)
@given(SEEDS, st.integers(0, DEPTHS))
def test_chains_step_by_step(seed, positions):
    """A chain is the first ranks; it is a tree of one rank, but that drafts no more nodes than it is told to."""
    made, depth = some(seed), positions or DEPTHS
    walked = walk([made], Chain(positions))
    assert same(walked, made, lambda each, position, _: tree_at(each, position, depth, depth, 1))
    assert fast_steps(walked.walks[0]) == fast_steps(walk([made], Tree(depth, depth, 1)).walks[0])


@settings(max_examples=15, deadline=None)
@given(SEEDS, TIES, st.sampled_from([0.0, 1e-6, 0.02, 0.05, 0.3, math.exp(-2), 1.0]))
def test_a_floor_cuts_the_tail(seed, ties, floor):
    """Nodes whose path probability is below the floor are neither verified nor accepted."""
    made, least = some(seed, ties), math.log(floor) if floor else -math.inf

    def cut(each, position, _):
        return [node for node in tree_at(each, position, 25, DEPTHS, 4) if node[0] >= least]

    assert same(walk([made], Confident(25, 0, 4, floor)), made, cut)


@settings(max_examples=15, deadline=None)
@given(SEEDS, st.integers(1, 3), st.integers(3, DEPTHS))
def test_each_request_finds_its_length(seed, shortest, longest):
    """A chain that was accepted whole makes the next two longer, another one shorter, within the limits."""
    made = some(seed)

    def chain(each, position, steps):
        length = longest
        for _, nodes, accepted, _ in steps:
            length = min(max(nodes + 2 if accepted == nodes else nodes - 1, shortest), longest)
        return tree_at(each, position, length, length, 1)

    assert same(walk([made], Length(shortest, longest)), made, chain)


@settings(max_examples=15, deadline=None)
@given(SEEDS, TIES, st.integers(0, 30), st.integers(1, 4))
def test_a_budget_is_shared_by_the_requests_of_a_step(seed, ties, nodes, together):
    """The best nodes over all requests of a pass are verified, ties to the earlier one; who ends makes room."""
    made = some(seed, ties)
    walked = walk([made], Shared(nodes, together, 0, 4))
    ahead, steps, passes = [0] * len(made.requests), [[] for _ in made.requests], 0
    queue = [index for index, each in enumerate(made.requests) if each.positions > 1]
    served, queue = queue[:together], queue[together:]
    while served:
        passes += 1
        trees = {i: tree_at(made.requests[i], ahead[i], nodes, DEPTHS, 4) for i in served}
        ranked = sorted((-node[0], served.index(i), row) for i in served for row, node in enumerate(trees[i]))
        for i in list(served):
            own = trees[i][: sum(served[place] == i for _, place, _ in ranked[:nodes])]
            following = made.requests[i].tokens[made.requests[i].start :].tolist()[ahead[i] + 1 :]
            accepted = accepted_of(own, following)
            steps[i].append((3 + ahead[i], len(own), accepted, min(accepted + 1, len(following))))
            ahead[i] += accepted + 1
        served = [i for i in served if ahead[i] < made.requests[i].positions - 1]
        served, queue = served + queue[: together - len(served)], queue[together - len(served) :]
    assert [fast_steps(one) for one in walked.walks] == steps
    assert walked.passes == passes
    assert walked.nodes <= nodes * passes


def test_one_request_has_the_budget_for_itself():
    """Served one at a time, a shared budget is each request's own tree."""
    made = some()
    alone, tree = walk([made], Shared(12, 1, 0, 4)), walk([made], Tree(12, 0, 4))
    assert [fast_steps(one) for one in alone.walks] == [fast_steps(one) for one in tree.walks]
    assert (alone.passes, alone.rows_per_pass) == (tree.steps, 13)


def test_policies_together_are_those_one_by_one():
    """What policies share changes none of them, in whatever order they come."""
    made = some()
    policies = [Tree(5, 0, 4), Tree(33, 0, 4), Confident(9, 3, 4, 0.1), Chain(2), Tree(0), Shared(7, 2, 0, 4)]
    policies += [Levels(1, 0.9, 0.8, Tree(7, 0, 4)), Tree(12, 3, 4), Length(1, 3)]
    together = [walked.as_json() for walked in Walker([made]).walk_all(policies)]
    assert together == [walk([made], policy).as_json() for policy in policies]


# --- two levels ---


def recorded(made, agrees):
    random = np.random.default_rng(5)
    return {each.request: (random.random(each.positions) < agrees).tolist() for each in made.requests}


@pytest.mark.parametrize("draft", [Chain(0), Tree(12, 0, 4)])
def test_without_cheap_passes_two_levels_are_one(draft):
    """No cheap pass, or one that never agrees, leaves at most what the draft itself accepts."""
    made = some()
    plain, none = walk([made], draft), walk([made], Levels(0, 0.5, 0.5, draft))
    figures = ("steps", "step_tokens", "kept_steps", "kept_tokens", "nodes", "passes", "tau", "cheap_passes")
    assert [getattr(none, name) for name in figures] == [getattr(plain, name) for name in figures]
    assert none.histogram == plain.histogram
    assert walk([made], Levels(2, 0.0, 0.0, draft)).tau_all == 1.0


def test_a_cheap_pass_that_always_agrees_adds_its_whole_draft():
    """With full agreement a cycle emits what the steps of n + 1 drafts emit, in one exact pass."""
    made, draft = some(), Tree(12, 0, 4)
    plain, walked = walk([made], draft), walk([made], Levels(2, 1.0, 1.0, draft))
    wanted = sum(math.ceil(len(one.tokens) / 3) for one in plain.walks)
    assert (walked.steps, walked.step_tokens) == (wanted, plain.step_tokens)
    assert walked.cheap_passes == sum(len(one.tokens) - len(one.tokens) // 3 for one in plain.walks)


@pytest.mark.parametrize("passes", [1, 2])
def test_recorded_agreement_step_by_step(passes):
    """A cycle ends behind the first token that a cheap pass says otherwise, which the exact pass mends."""
    made, draft = some(), Chain(0)
    agreement = recorded(made, 0.8)
    walked = walk([made], Levels(passes, None, None, draft), agreement)
    steps = tokens = 0
    for each in made.requests:
        answer, agrees, position = each.tokens[each.start :].tolist(), agreement[each.request], 0
        while position < len(answer) - 1:
            at = position
            for level in range(passes + 1):
                following = answer[at + 1 :]
                end = at + min(accepted_of(tree_at(each, at, DEPTHS, DEPTHS, 1), following) + 1, len(following))
                other = next((t for t in range(at + 1, end + 1) if level < passes and not agrees[t]), None)
                at = end if other is None else other
                if other is not None:
                    break
            steps, tokens, position = steps + 1, tokens + at - position, at
    assert (walked.steps, walked.step_tokens) == (steps, tokens)


def test_a_given_agreement_is_the_mean_of_recorded_ones():
    """Expected steps are what random agreement of that probability comes to, within three standard errors."""
    made, draft = some(lengths=(400,)), Chain(0)
    drawn = []
    for seed in range(60):
        agrees = np.random.default_rng(seed).random(400) < 0.85
        drawn.append(walk([made], Levels(1, None, None, draft), {"r0#0": agrees.tolist()}).steps)
    expected = walk([made], Levels(1, 0.85, 0.85, draft)).steps
    assert abs(np.mean(drawn) - expected) < 3 * np.std(drawn) / math.sqrt(len(drawn))


def test_tokens_an_exact_pass_follow_the_known_formula():
    """E = E_m[sum of A^(j-1) up to m + A^(m-1) (1 - p) tau], A the agreement on drafts and 1 - p on bonus tokens."""
    made = some(lengths=(2000,))
    agreed, bonus = 0.977, 0.866
    plain, walked = walk([made], Chain(0)), walk([made], Levels(1, agreed, bonus, Chain(0)))
    lengths, tau = plain.walks[0].tokens, plain.tau_all
    expected = np.mean(
        [sum(agreed ** (j - 1) for j in range(1, m + 1)) + agreed ** (m - 1) * bonus * tau for m in lengths]
    )
    assert walked.tau_all == pytest.approx(expected, rel=0.03)


# --- what is refused, and corners ---


def test_zero_accepted_tokens_are_a_figure():
    """Where no draft is ever right tau is 1; where no step is left there is no tau."""
    wrong = lattice(request("a#0", 20, right=0))
    wrong.requests[0].ids[:] = VOCABULARY - 1  # not in the answer, or nearly so
    wrong.requests[0].tokens[:] = 0
    assert walk([wrong], Tree(20, 0, 4)).histogram[:1] == (19,)
    single = walk([lattice(request("a#0", 1))], Tree(20, 0, 4))
    assert (single.tau, single.tau_all, single.steps, single.histogram) == (None, None, 0, ())


def test_ranks_that_were_not_stored_are_an_error():
    """A tree that could use an unstored rank is refused; one that is too small to use it, or knows all ids, is not."""
    made = some()
    with pytest.raises(Usage, match="wants 7 ranks, and the lattice holds 6"):
        walk([made], Tree(20, 0, 7))
    small = walk([made], Tree(6, 0, 64))
    assert same(small, made, lambda each, position, _: tree_at(each, position, 6, DEPTHS, 6))
    whole = replace(made, vocabulary=RANKS)
    assert walk([whole], Tree(20, 0, 64)).tau == walk([made], Tree(20, 0, 6)).tau
    assert walk([whole], Tree(20, 1, 64)).nodes_per_step == 6


BEYOND = [Chain(6), Tree(9, 6, 4), Confident(9, 6, 4, 0.1), Length(1, 6), Shared(9, 2, 6, 4)]


@pytest.mark.parametrize("policy", BEYOND, ids=str)
def test_positions_that_were_not_stored_are_an_error(policy):
    """A policy that looks farther than the drafter is refused in its own words."""
    with pytest.raises(Usage, match=f"'{policy}' wants 6 positions, and the lattice holds 5"):
        walk([some()], policy)


def test_lattices_of_unlike_things_are_refused():
    """Another target, another mode, no request, and a request that is there twice."""
    here = some()
    for name, other in (("origin", Origin("c" * 64, 1, 0, "b" * 64)), ("mode", "fast"), ("ranks", 5)):
        with pytest.raises(Usage, match=f"lattices differ in {name}"):
            Walker([here, replace(here, **{name: other})])
    with pytest.raises(Usage, match="no answer"):
        Walker([lattice()])
    with pytest.raises(Usage, match="'r0#0' is there 2 times"):
        Walker([here, here])


def test_agreement_that_does_not_fit_is_refused():
    """Recorded agreement has a word for each token of each answer."""
    made, policy = some(), Levels(1, None, None, Chain(0))
    with pytest.raises(Usage, match="no agreement was recorded for 'r0#0'"):
        walk([made], policy)
    with pytest.raises(Usage, match="has 3 tokens, and its answer 40"):
        walk([made], policy, {"r0#0": [True] * 3})

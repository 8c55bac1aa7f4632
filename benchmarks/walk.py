"""How fast policies are walked, on made-up lattices of 64 answers x 512 tokens, 15 positions, 32 ranks.

    python -m benchmarks.walk [--requests 64] [--tokens 512] [--limit-s 60]

The drafter's first rank is right as often as a good drafter's is, and less often at each position; so walks have as
many steps as real ones, and what is not found among the ranks costs nothing, as in real ones.  Forty policies of all
kinds are walked together, each kind alone, and one tree after the other with nothing shared.

The rate is positions x policies a second.  Its limit beside it: a policy reads each lattice once, so the bytes of ids
and log-probabilities over the time that this machine takes to read them.  The exit code is 1 where all forty take
longer than the limit.
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence

import numpy as np
from rich.console import Console
from rich.table import Table

from spt.lattice import Lattice, Origin, RequestLattice
from spt.policy import Chain, Confident, Length, Levels, Policy, Shared, Tree
from spt.walk import Walker

DEPTHS, RANKS, VOCABULARY = 15, 32, 49_152
KINDS: dict[str, list[Policy]] = {
    "chains": [Chain(4), Chain(8), Chain(0), Length(2, 15)],
    "trees": [Tree(nodes, at, wide) for nodes in (16, 32, 63, 128) for at in (8, 0) for wide in (8, 16)],
    "trees of 255": [Tree(255, at, wide) for at, wide in ((0, 8), (0, 16), (0, 32), (8, 32))],
    "confident": [Confident(nodes, 0, 16, floor) for nodes in (31, 63) for floor in (0.02, 0.05)],
    "shared": [Shared(nodes, requests, 0, 8) for nodes in (64, 128, 255) for requests in (4, 16)],
    "levels": [Levels(n, 0.98, 0.95, draft) for n in (1, 2) for draft in (Chain(), Tree(32), Tree(63))],
}


def lattice(requests: int, tokens: int) -> Lattice:
    """Lattices in which rank r of depth d is right with a probability that falls in both."""
    made = []
    for number in range(requests):
        random = np.random.default_rng(number)
        answer = random.integers(0, VOCABULARY, tokens)
        ids = random.integers(0, VOCABULARY, (tokens, DEPTHS, RANKS), dtype=np.uint16)
        rank = random.geometric(np.linspace(0.78, 0.35, DEPTHS), (tokens, DEPTHS)) - 1
        at = np.arange(tokens)[:, None] + np.arange(1, DEPTHS + 1)
        where = np.nonzero((rank < RANKS) & (at < tokens))
        ids[*where, rank[where]] = answer[at[where]]
        logits = np.sort(random.exponential(2.5, (tokens, DEPTHS, RANKS)), axis=2)[:, :, ::-1]
        half = (logits - np.log(np.exp(logits).sum(axis=2, keepdims=True))).astype(np.float16)
        made.append(RequestLattice(f"{number}#0", None, {}, np.concatenate(([0], answer)), 1, ids, half))
    origin = Origin("0" * 64, 1, 0, "0" * 64)
    return Lattice(origin, "exact", "float32", DEPTHS + 1, VOCABULARY, DEPTHS, RANKS, tuple(made))


def timed(work: Callable[[], object]) -> float:
    """Seconds of work."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def read_s(made: Lattice, repeats: int = 5) -> tuple[int, float]:
    """Bytes of ids and log-probabilities, and the least time to read them all."""
    arrays = [part.view(np.uint16) for each in made.requests for part in (each.ids, each.half)]
    return sum(part.nbytes for part in arrays), min(
        timed(lambda: [int(part.max()) for part in arrays]) for _ in range(repeats)
    )


def main() -> int:
    """Prints a row a kind, then all of them, then the limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--limit-s", type=float, default=60, help="the most that all forty may take")
    arguments = parser.parse_args()
    made = lattice(arguments.requests, arguments.tokens)
    size, floor_s = read_s(made)
    policies = [policy for kind in KINDS.values() for policy in kind]
    rows = Table("what", "policies", "s", "positions x policies / s", "over reading", "tau")
    rows.title = f"{arguments.requests} answers x {arguments.tokens} tokens, {size / 2**20:.0f} MiB of lattices"
    for kind, some in KINDS.items():
        walker = Walker([made])
        taus: list[float] = []
        taken_s = timed(lambda some=some, walker=walker, taus=taus: taus.extend(tau(walker, some)))  # type: ignore[misc]
        add(rows, kind, walker.positions, len(some), taken_s, floor_s, f"{min(taus):.2f} to {max(taus):.2f}")
    trees = [policy for policy in policies if isinstance(policy, Tree)]
    apart_s = timed(lambda: [Walker([made]).walk(policy) for policy in trees])
    add(rows, "all trees, nothing shared", walker.positions, len(trees), apart_s, floor_s, "")
    rows.add_section()
    all_s = timed(lambda: Walker([made]).walk_all(policies))
    add(rows, "all together", walker.positions, len(policies), all_s, floor_s, "")
    rows.caption = f"reading takes {floor_s * 1e3:.1f} ms, {size / floor_s / 1e9:.1f} GB/s"
    Console(width=110).print(rows)
    if all_s > arguments.limit_s:
        print(f"{len(policies)} policies took {all_s:.1f} s, more than {arguments.limit_s:g} s", file=sys.stderr)
        return 1
    return 0


def tau(walker: Walker, policies: Sequence[Policy]) -> list[float]:
    return [walked.tau or 0.0 for walked in walker.walk_all(policies)]


def add(rows: Table, what: str, positions: int, policies: int, taken_s: float, floor_s: float, taus: str) -> None:
    rate, over = positions * policies / taken_s, taken_s / (policies * floor_s)
    rows.add_row(what, str(policies), f"{taken_s:.2f}", f"{rate:,.0f}", f"{over:.1f}", taus)


if __name__ == "__main__":
    sys.exit(main())

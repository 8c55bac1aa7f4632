"""Whether a walk of the system that ran is what it did, step by step."""

from pathlib import Path

from spt.errors import Differs, Missing, Usage
from spt.formats import check, read_file, read_json
from spt.lattice import Lattice, RequestLattice
from spt.policy import Confident, Policy, running_policy
from spt.walk import Walk, Walked, walk

__all__ = ["check_walk", "first_difference", "policy_that_ran"]


def check_walk(lattice: Lattice, policy: Policy) -> Walked:
    """The walk of a policy, if it is what the recorded steps say; raises Differs with both where it is not."""
    walked = walk([lattice], policy)
    for one, each in zip(walked.walks, lattice.requests, strict=True):
        if difference := first_difference(policy, one, each):
            raise Differs(
                f"'{policy}' walks otherwise than it ran: {difference}",
                None if lattice.mode == "exact" else "only exact mode promises one lattice online and offline",
            )
    return walked


def first_difference(policy: Policy, one: Walk, each: RequestLattice) -> str | None:
    """The first step that was walked otherwise than it ran, in words; None where all are the same."""
    if each.steps is None:
        if each.lines is None:
            raise Usage(f"no steps were recorded for '{each.request}'", "name the folder of a measurement")
        return None if len(one.start) == 0 else f"'{each.request}' has {len(one.start)} steps, and 0 ran"
    ran = each.steps
    if len(one.start) != len(ran.start):
        return f"'{each.request}' has {len(one.start)} steps, and {len(ran.start)} ran"
    for number, path in enumerate(ran.path):
        tokens = len(ran.tokens[number])
        # What the engine accepted behind the end of an answer is not in the answer.
        did = {"start": int(ran.start[number]), "accepted": min(len(path), tokens), "tokens": tokens}
        walks = {name: int(getattr(one, name)[number]) for name in did}
        # A captured pass of a GPU fills a tree that a floor has cut with padding.
        padded = isinstance(policy, Confident) and ran.nodes[number] == policy.nodes
        if not padded:
            did["nodes"], walks["nodes"] = int(ran.nodes[number]), int(one.nodes[number])
        if walks != did:
            return f"step {number} of '{each.request}' has {_words(walks)}, and {_words(did)} ran"
    return None


def _words(step: dict[str, int]) -> str:
    return ", ".join(f"{name} {value}" for name, value in step.items())


def policy_that_ran(folder: Path) -> Policy:
    """The policy of the system that a measurement was made with."""
    file = folder / "measurement.json"
    if not file.is_file():
        raise Missing(f"'{folder}' holds no 'measurement.json'", "name the folder of a finished measurement")
    summary = read_json(read_file(file), f"'{file}'")
    check(summary, "measurement", f"'{file}'")
    return running_policy(summary["system"]["options"])

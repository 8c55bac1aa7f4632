"""A timing verdict as evidence of an entry: one line, and the samples that it came from (docs/records.md).

The line says what the ledger says, of the entry as it is now; the samples name no machine.
"""

import hashlib
import re
from collections.abc import Mapping
from typing import Any

from spt.campaign import RULE, ask_harness, digest_of, scratch
from spt.deployment import Deployment
from spt.errors import Conflict, Differs, Missing, SptError, Usage
from spt.evidence import measured_system
from spt.formats import check
from spt.memory import Memory
from spt.verdicts import Ledger, read_samples

__all__ = ["file_of", "line_of"]

SAMPLES_BYTES = 8 << 20  # compressed: they travel with the entry, and stay in its history
_DAY = re.compile("[0-9]{4}-[0-9]{2}-[0-9]{2}")
_FORCING = ("key", "answer", "mismatch", "stock_mismatch", "tokens", "sessions")


def file_of(line: Mapping[str, Any], deployment: Deployment) -> str:
    """Where a line of evidence belongs in its entry's folder; Usage where its card has no date."""
    day = str(line["card"].get("date"))[:10]
    if not _DAY.fullmatch(day):
        raise Usage(f"the card of the samples has no date, but '{day}'", "the harness writes one: time again")
    return f"evidence/{day}-{deployment.name}.jsonl"


def line_of(
    memory: Memory, ledger: Ledger, deployment: Deployment, name: str, key: str, system: str | None = None
) -> tuple[dict[str, Any], bytes]:
    """The line of evidence of entry `name` that the timing verdict whose key begins with `key` makes, and its samples.

    system: ENTRY+ENTRY, what the verdict's system `a` is made of, where that is none of the usual (`measured_system`).
    Raises Differs where `a` is of another tree, Usage where the deployment is another or the samples are too large, and
    Missing where the verdict, its samples or its stock is not here.
    """
    verdict = ledger.timing(key)
    if verdict["rule"] != RULE:
        raise Usage(
            f"the verdict '{key}' is of the rule '{verdict['rule']}'",
            "what it promotes is a raw ratio, and no evidence",
        )
    of = verdict["of"]
    stock, entries = _held(memory, ledger, verdict, name, system)
    if of["deployment"] != digest_of(ledger, deployment):
        raise Usage(f"the verdict '{key}' is of another deployment", "--deployment FILE names it")
    told, samples = _samples(ledger, deployment, verdict)
    digest = hashlib.sha256(samples).hexdigest()
    line = {
        "v": 1,
        "evidence": "judged",
        "verdict": {field: verdict[field] for field in ("key", "answer", "samples")},
        "rule": verdict["rule"],
        "deployment": of["deployment"],
        "stock_tree": stock,
        "delta_id": memory.entry(name).delta.id,
        "system_tree": of["a"]["tree"],
        "entries": entries,
        "options": of["a"]["options"],
        "baseline": of["b"],
        "card": told["card"],
        "harness": of["harness"],
        "units": verdict["units"],
        "requests": _requests(told),
        "gain": verdict["gain"],
        "interval": verdict["interval"],
        "noise": verdict["noise"],
        "tau": told["tau"],
        "forcing": _forcing(ledger, verdict),
        "samples": {"path": f"evidence/samples/{digest[:16]}.jsonl.gz", "sha256": digest},
    }
    check(line, "evidence", "evidence")
    return line, samples


def _held(
    memory: Memory, ledger: Ledger, verdict: Mapping[str, Any], name: str, system: str | None
) -> tuple[str, list[str]]:
    """The stock tree that the verdict's system `a` stands on, and the entries that make it."""
    memory.entry(name)
    of, common = verdict["of"], ledger.store.common
    if common is not None:
        memory.objects.lend(common / "objects")  # an older stock may be known where it was judged
    problem: SptError | None = None
    for stock in dict.fromkeys((verdict["stock"]["tree"], of["b"]["tree"])):
        if stock != memory.stock and stock not in memory.objects:
            problem = problem or Missing(
                f"the stock tree {stock[:12]} of the verdict is not in this repository",
                "record it in the repository where it was judged; --entries DIR names the checkout's entries/",
            )
            continue
        try:
            return stock, measured_system(memory, name, of["a"]["tree"], system, stock, "the verdict is")
        except (Conflict, Differs) as error:
            problem = problem or error
    assert problem is not None
    raise problem


def _samples(ledger: Ledger, deployment: Deployment, verdict: Mapping[str, Any]) -> tuple[dict[str, Any], bytes]:
    """What the harness tells of the verdict's samples, and the samples as they travel."""
    kept = ledger.raw(verdict["samples"])
    if not kept.is_file():
        raise Missing(
            f"the samples {verdict['samples'][:12]} of the verdict are not here",
            "`spt verdict add SAMPLES` keeps them",
        )
    if hashlib.sha256(read_samples(kept)).hexdigest() != verdict["samples"]:
        raise Differs(f"'{kept}' does not hold the samples that it is named by", "`spt verdict add SAMPLES` keeps them")
    with scratch() as folder:
        [told] = ask_harness(deployment, "evidence", kept.absolute(), "--out", folder / "samples.gz")
        if (size := (folder / "samples.gz").stat().st_size) > SAMPLES_BYTES:
            raise Usage(
                f"the samples are {size} bytes, and beside an entry {SAMPLES_BYTES} at most may lie",
                "evidence travels with its entry: time again with shorter requests",
            )
        return told, (folder / "samples.gz").read_bytes()


def _requests(told: Mapping[str, Any]) -> str:
    if not told["requests"]:
        return "none that counts"
    cap = f"to {told['max_tokens']} tokens" + (", stop ids ignored" if told["ignore_eos"] else " or a stop id")
    return f"{told['requests']} requests, {cap}; seconds a request, prefill included"


def _forcing(ledger: Ledger, verdict: Mapping[str, Any]) -> dict[str, Any] | None:
    found = ledger.forcing(verdict)
    return None if found is None else {**{name: found[name] for name in _FORCING}, "timed": found.get("timed")}

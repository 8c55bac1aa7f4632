"""Samples of made-up campaigns: lines that `harness.samples` reads, with times and tokens as a test wants them."""

import json
import random
from pathlib import Path

from harness import samples

CARD = {
    "gpu": None,
    "driver": None,
    "torch": "2.13.0",
    "triton": None,
    "cuda": None,
    "harness": "0.1.0",
    "power_cap_w": None,
    "date": "2026-11-30T12:00:00+00:00",
}
GREEDY = {"temperature": 0, "top_p": 1, "top_k": 0, "seed": 0}
SYSTEM = {"tree": "a" * 40, "options": {}}


def line(kind, **fields):
    return {"v": 1, "kind": "samples", "type": kind, **fields}


def head(**arms):
    """The first two lines of a file."""
    systems = {"a": {**SYSTEM, "tree": "c" * 40}, "b": SYSTEM, "stock": {**SYSTEM, "tree": "0" * 40}, **arms}
    campaign = line("campaign", arms=systems, deployment="d" * 64, rule="paired-1", seed=7, requests="e" * 64)
    return [campaign, line("card", card=CARD)]


def answer(phase, unit, arm, request, ids, *, half=0, **fields):
    """An answer of `ids` that ended at its length."""
    return line(
        "answer",
        phase=phase,
        unit=unit,
        half=half,
        arm=arm,
        request=request,
        **{
            "session": request,
            "prompt": [1, 2, 3],
            "ids": ids,
            "reason": "length",
            "lines": [1] * len(ids),
            "max_tokens": len(ids),
            "stop_ids": [0],
            "ignore_eos": False,
            "sampling": GREEDY,
            **fields,
        },
    )


def forced(said, head="fp32", wrong=(), margin=0.5, **fields):
    """Scores of an answer line: its own tokens are the best but at the places in `wrong`."""
    count = len(said["ids"])
    margins = [margin if at in wrong else 0.0 for at in range(count)]
    return line(
        "forced",
        **{name: said[name] for name in ("phase", "unit", "arm", "request", "session")},
        **{
            "head": head,
            "start": len(said["prompt"]),
            "argmax": [token + 1 if at in wrong else token for at, token in enumerate(said["ids"])],
            "margin": margins,
            "rank": [int(each > 0) for each in margins],
            "kept": [True] * count,
            **fields,
        },
    )


def unit(phase, number, gain=0.0, *, noise=0.0, seed=0, diverge=False, halves=1, quartets=3, requests=2, slow=1.0):
    """All lines of a unit whose value is `gain` (ln), but for request noise of relative SD `noise`."""
    dice = random.Random(f"{phase} {number} {seed}")
    lines, leads = [], []
    for half in range(halves):
        leads.append([dice.choice("ab") for _ in range(quartets)])
        for quartet, leader in enumerate(leads[half]):
            other = "b" if leader == "a" else "a"
            for slot, (arm, which) in enumerate([(leader, 0), (other, 0), (other, 1), (leader, 1)]):
                group = 2 * (half * quartets + quartet) + which
                names = [f"{phase}/{number}/{group}/{index}" for index in range(requests)]
                ids = [5, 6, 7, 8 if diverge and arm == "a" else 9]
                for name in names:
                    lines.append(answer(phase, number, arm, name, ids, half=half))
                base = slow * 2.718281828459045 ** (-gain if arm == "a" else 0)
                seconds = [base * dice.lognormvariate(0, noise) if noise else base for _ in names]
                lines.append(
                    line(
                        "group",
                        phase=phase,
                        unit=number,
                        half=half,
                        quartet=quartet,
                        slot=slot,
                        arm=arm,
                        group=group,
                        requests=names,
                        seconds=seconds,
                        decode_seconds=[0.9 * each for each in seconds],
                        tokens=[len(ids)] * len(names),
                        clocks_mhz=None,
                        throttle=None,
                    )
                )
    lines.append(complete(phase, number, ["a"] * halves, leads))
    return lines


def complete(phase, number, first=("a",), leads=((),)):
    return line("unit", phase=phase, unit=number, first=list(first), leads=[list(half) for half in leads])


def void(phase, number, arm=None, cause="throttle", reason="the clocks fell"):
    return line("void", phase=phase, unit=number, arm=arm, cause=cause, reason=reason)


def timed_campaign(screen=0, confirm=0, gain=0.0, sigma=0.002, calibrate=8, **options):
    """A campaign's lines: units whose values have SD `sigma` around `gain`."""
    dice = random.Random(5)
    lines = head()
    for phase, count, mean in (("calibrate", calibrate, 0.0), ("screen", screen, gain), ("confirm", confirm, gain)):
        for number in range(count):
            lines += unit(phase, number, mean + dice.gauss(0, sigma), **options)
    return lines


def folded(lines):
    """What counts of these lines, each held to its shape."""
    for each in lines:
        samples.check(each)
    return samples.fold(lines, Path("samples.jsonl"), "f" * 64)


def write(path, lines):
    path.write_text("".join(json.dumps(each) + "\n" for each in lines))
    return path

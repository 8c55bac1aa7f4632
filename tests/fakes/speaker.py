"""An engine without a process that can be timed and scored: long answers cost no time, on a virtual clock.

What is best at a place is a function of the first id of the context and the place, so that any instance can score what
another said.  A mismatch is the token after the best one, with a margin that is the place's own.
"""

import random
from dataclasses import dataclass, field
from functools import cache

import numpy as np

from harness.answer import Answer
from harness.errors import Crashed, Refused
from harness.wire import Generate, Hello, Option, Ready, Scores

VOCABULARY, CONTEXT = 1000, 8192
OPTIONS = {
    "speed": Option("float", 1.0, "fake", "how much faster than stock"),
    "mismatch": Option("float", 0.0, "fake", "share of tokens that are not the best"),
    "late": Option("float", 0.0, "fake", "the same share, from the index in `after` on"),
    "after": Option("int", 2048, "fake", "where `late` begins"),
    "far": Option("float", 0.0, "fake", "share of tokens that are far from the best"),
    "warm": Option("float", 0.0, "fake", "share of tokens that are not the best at a temperature above 0"),
    "short": Option("bool", False, "fake", "whether its answers end with a stop id where EOS was to be ignored"),
    "fails": Option("string", "never", "fake", "what it crashes at: timed, long or never"),
    "draft": Option("string", "dflash", "fake", "none: one token a step, three times slower"),
    "seed": Option("int", 0, "fake", "of its mismatches"),
    "prefill_rows": Option("int", 512, "fake", "no effect"),
}
STEP_S = 0.002
TAU = 3


@cache
def language(first: int) -> tuple[np.ndarray, np.ndarray]:
    """Best token and margin of the runner-up at every place of contexts that begin so."""
    rng = np.random.default_rng(first)
    return rng.integers(3, VOCABULARY - 20, CONTEXT), rng.exponential(1.0, CONTEXT)


@dataclass
class Speakers:
    """Starts engines; `start` is used where `Engine.start` is.  `loads` are the settings of all that were loaded."""

    noise: float = 0.0005
    started: int = 0
    asked: list[tuple[str, str]] = field(default_factory=list)  # (draft, id)
    loads: list = field(default_factory=list)

    def start(self, command, folder, cache=None, enclosure=None):
        self.started += 1
        return Speaker(self, random.Random(self.started))


class Speaker:
    def __init__(self, speakers: Speakers, rng: random.Random) -> None:
        self.speakers, self.random = speakers, rng
        self.hello = Hello("speaker", "1", OPTIONS)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def watch(self, check):
        check()

    def prepare(self, settings, folder, patience_s, inside):
        raise Refused("unsupported", "nothing to prepare", None)

    def load(self, settings, patience_s=0.0):
        self.options = {name: option.default for name, option in OPTIONS.items()} | settings.options
        self.rng = np.random.default_rng([self.options["seed"], self.speakers.started])
        self.speakers.loads.append(settings)
        return Ready(0.1, 100, VOCABULARY, [2], settings.context)

    def generate(self, request: Generate) -> Answer:
        self.speakers.asked.append((self.options["draft"], request.id))
        if self.options["fails"] == ("long" if request.ignore_eos else "timed"):
            raise Crashed("the engine ended with status 7", "")
        ids, start = self._said(request), len(request.prompt)
        tau = 1 if self.options["draft"] == "none" else TAU
        rest = len(ids) - 1
        lines = [1, *[tau] * (rest // tau), *([rest % tau] if rest % tau else [])]
        slow = 1 if tau == TAU else 3
        took_s = STEP_S * len(ids) * slow / self.options["speed"] * (1 + self.random.gauss(0, self.speakers.noise))
        answer = Answer(request.id, start, ids=ids, reason="length", lines=lines)
        answer.read_ns = [int(STEP_S * 1e9)] * len(lines)
        answer.done_ns = int(took_s * 1e9)
        return answer

    def _said(self, request: Generate) -> list[int]:
        options, start = self.options, len(request.prompt)
        best, _ = language(request.prompt[0])
        ids = best[start : start + request.max_tokens].copy()
        share = np.full(len(ids), options["mismatch"])
        share[options["after"] :] += options["late"]
        if request.sampling.temperature:
            share += options["warm"]
        draw = self.rng.uniform(size=len(ids))
        ids[draw < share] += 1
        ids[(draw >= share) & (draw < share + options["far"])] += 7
        if options["short"] and request.ignore_eos:
            ids = ids[:5]
        return ids.tolist()

    def score(self, ids, start, sampling) -> Scores:
        best, gap = (column[start : len(ids)] for column in language(ids[0]))
        given = np.array(ids[start:])
        scale = sampling.temperature or 1.0
        margin = np.where(given == best, 0.0, np.where(given == best + 1, gap, gap + 10)) / scale
        count = len(given)
        return Scores(start, best.tolist(), margin.tolist(), [int(each > 0) for each in margin], [0.0] * count,
                      [True] * count)  # fmt: skip

    def freeze(self):
        pass

    def thaw(self):
        pass

    def kill(self):
        pass

"""An engine without a process, on a virtual clock: decisions on time can be tested to the digit, on a busy machine."""

import random
from dataclasses import dataclass, field

from harness.answer import Answer
from harness.errors import Crashed, Refused
from harness.wire import Generate, Hello, Option, Ready

OPTIONS = {
    "speed": Option("float", 1.0, "fake", "how much faster than the current best"),
    "other": Option("int", 0, "fake", "which language it speaks"),
    "loops": Option("float", 0.0, "fake", "share of requests that it answers with one token again and again"),
    "fails": Option("bool", False, "fake", "whether it crashes at its second request"),
    "refuses": Option("bool", False, "fake", "whether it finds its 30th request too long"),
    "late": Option("float", 0.0, "fake", "seconds that its first request takes longer"),
    "lingers": Option("bool", False, "fake", "whether it leaves the device at work, which slows the other arm"),
    "slow": Option("float", 0.0, "fake", "by how much the whole machine is slower from the 20th start on"),
}
STEP_S = 0.002


@dataclass
class Metronome:
    """Starts engines (`start` is used where `Engine.start` is) whose requests take `noise` around their time."""

    noise: float = 0.0005
    seed: int = 1
    started: int = 0
    log: list[tuple[str, int]] = field(default_factory=list)  # (what, which engine)
    asked: dict[int, list[str]] = field(default_factory=dict)
    lingering: int | None = None  # the engine whose work the device still does

    def start(self, command, folder, cache=None, enclosure=None):
        self.started += 1
        self.log.append(("start", self.started))
        return Arm(self, self.started, random.Random(f"{self.seed} {self.started}"))


class Arm:
    def __init__(self, metronome: Metronome, number: int, rng: random.Random) -> None:
        self.metronome, self.number, self.random = metronome, number, rng
        self.hello = Hello("metronome", "1", OPTIONS)
        self.frozen = False
        self.options: dict = {}
        metronome.asked[number] = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()

    def watch(self, check):
        check()

    def prepare(self, settings, folder, patience_s, inside):
        raise Refused("unsupported", "nothing to prepare", None)

    def load(self, settings, patience_s):
        self.options = {name: option.default for name, option in OPTIONS.items()} | settings.options
        return Ready(0.1, 100, 1000, [2], 512)

    def generate(self, request: Generate) -> Answer:
        assert not self.frozen
        asked = self.metronome.asked[self.number]
        asked.append(request.id)
        self.metronome.log.append(("generate", self.number))
        if self.options["fails"] and len(asked) == 2:
            raise Crashed("the engine ended with status 7", "")
        if self.options["refuses"] and len(asked) == 30:
            raise Refused("too_long", "no room", request.id)
        words = random.Random(f"{request.id} {self.options['other']}")
        looping = words.random() < self.options["loops"]
        ids = [5] * 96 if looping else [words.randrange(3, 1000) for _ in range(request.max_tokens)]
        ids = ids[: request.max_tokens]
        slower = 1 + (self.options["slow"] if self.number > 20 else 0.0)
        slower *= 1.05 if self.metronome.lingering not in (None, self.number) else 1.0
        took_s = STEP_S * len(ids) / self.options["speed"] * slower * (1 + self.random.gauss(0, self.metronome.noise))
        took_s += self.options["late"] if len(asked) == 1 else 0.0
        answer = Answer(request.id, len(request.prompt), ids=ids, reason="length", lines=[1] * len(ids))
        answer.read_ns = [int(STEP_S * 1e9)] * len(ids)
        answer.done_ns = int(took_s * 1e9)
        if self.options["lingers"]:
            self.metronome.lingering = self.number
        return answer

    def freeze(self):
        assert not self.frozen
        self.frozen = True
        self.metronome.log.append(("freeze", self.number))

    def thaw(self):
        assert self.frozen
        self.frozen = False
        self.metronome.log.append(("thaw", self.number))

    def kill(self):
        if self.metronome.lingering == self.number:
            self.metronome.lingering = None
        self.metronome.log.append(("kill", self.number))

"""The engine: one loop of draft, select, verify, accept.

A step drafts a lattice for each scheduled request, selects a draft tree from it, runs the target over the tree in one
exact pass, and keeps the path that the target's own choices confirm.  Autoregressive decoding is the same loop with
empty drafts.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from stock.context import Context, Pending
from stock.graph import HostCopy, Phases
from stock.head import Chosen, Wanted
from stock.ops.accept import Accepted, accept
from stock.prefill import Prefill
from stock.record import Marks, Seen, StepTimes
from stock.sampling import Noise, Sampling
from stock.system import System
from stock.tree import DraftTree, Lattice
from stock.verify import Verified

__all__ = ["Engine", "OnStep", "Outcome", "Progress", "Request"]


@dataclass(eq=False)
class Request:
    """One open request: what is asked for, and what came of it so far."""

    id: str
    prompt: list[int]
    max_tokens: int
    stop_ids: frozenset[int]
    ignore_eos: bool
    sampling: Sampling
    logprobs: bool = False
    digest: bool = False
    emitted: list[int] = field(default_factory=list)
    steps: int = 0
    context: Context | None = None
    logits_hash: "hashlib._Hash" = field(default_factory=hashlib.sha256)

    @property
    def wanted(self) -> Wanted:
        return Wanted(self.logprobs, self.digest)


@dataclass
class Progress:
    """The tokens of one request from one exact pass; reason is None while it goes on."""

    request: Request
    ids: list[int]
    logprobs: list[float] | None
    reason: str | None


@dataclass
class Outcome:
    """What the accept phase leaves on the device for one request.

    packed: int64 [depth + 2], the emitted tokens and, last, how many of them count.
    """

    packed: Tensor
    accepted: Accepted
    chosen: Chosen


@dataclass
class Launch:
    """An exact pass that the device was asked for.

    Outcomes are valid until the next one is asked for; `packed` and `seen` are the host's own copies.
    """

    requests: Sequence[Request]
    outcomes: Sequence[Outcome]
    packed: Sequence[HostCopy]
    seen: Sequence[Seen] | None  # None where nobody wanted to see it
    marks: Marks


# on_step(progress, seen, times): one item for each request of a pass, and its `<phase>_us`.
OnStep = Callable[[Sequence[Progress], Sequence[Seen], dict[str, float]], None]


class Engine:
    """A loaded system and the open requests."""

    def __init__(self, system: System) -> None:
        self.system = system
        self.phases = Phases(system.device, system.options["graphs"] and system.has_kernels)
        self.requests: list[Request] = []
        self.free: list[Context] = []
        self.counters = {"requests": 0, "steps": 0, "tokens": 0}
        self.times = StepTimes(system.device)
        self.serving: Sequence[Request] = ()  # whom the last step was about: a fault in it is theirs
        self.on_step: OnStep | None = None
        self.runs_ahead = self.phases.graphs  # a pass is asked for before the tokens of the one before are read
        self._ahead: Launch | None = None

    @torch.inference_mode()
    def step(self) -> list[Progress]:
        """One prefill, or one exact pass over the scheduled requests."""
        self.times.start()
        launch, self._ahead = self._ahead, None
        if launch is None or set(self.requests).isdisjoint(launch.requests):  # nobody waits for it any more
            self.serving = list(self.requests)
            self.serving = requests = self.system.schedule(self.requests)
            for request in requests:
                if request.context is None:
                    self.serving = [request]
                    with self.times.phase("prefill"):
                        return [self._prefill(request)]
            launch = self._launch(requests)
        self.serving = launch.requests
        if self._may_run_ahead(launch.requests):
            self._ahead = self._launch(launch.requests)
        passed = zip(launch.requests, launch.outcomes, launch.packed, strict=True)
        progress = [self._progress(*each) for each in passed if each[0] in self.requests]
        if self.on_step is not None and launch.seen is not None and len(progress) == len(launch.requests):
            self.on_step(progress, launch.seen, self.times.take(launch.marks))
        return progress

    def _may_run_ahead(self, requests: Sequence[Request]) -> bool:
        """Whether the next pass can be asked for before this one is read, so that the device never waits for the host.

        Everything that it starts from stays on the device.  Not where this pass can reach a request's length, since
        what lies behind has no room in the cache; nor where the host reads more of a pass than its tokens.  A pass
        behind a stop id is made in vain.
        """
        most = self.system.limits.depth + 1
        return (
            self.runs_ahead
            and set(requests) == set(self.requests)
            and all(
                len(request.emitted) + most < request.max_tokens and not request.logprobs and not request.digest
                for request in requests
            )
        )

    def _launch(self, requests: Sequence[Request]) -> Launch:
        contexts = [_context(request) for request in requests]
        variant = tuple(map(id, contexts)), tuple(map(_variant, requests))
        with self.times.phase("draft"):
            lattices, trees = self.phases.run(("draft", variant), self._draft, contexts)
        with self.times.phase("verify"):
            verified = self.phases.run(("verify", variant), self._verify, trees, contexts)
        with self.times.phase("accept"):
            wanted = [request.wanted for request in requests]
            outcomes = self.phases.run(("accept", variant), self._accept, trees, verified, contexts, wanted)
        packed = [HostCopy(outcome.packed) for outcome in outcomes]
        seen = None
        if self.on_step is not None:
            passed = zip(lattices, trees, outcomes, packed, strict=True)
            seen = [
                Seen(each, HostCopy(lattice.ids), HostCopy(tree.token), HostCopy(outcome.accepted.path))
                for lattice, tree, outcome, each in passed
            ]
        return Launch(list(requests), outcomes, packed, seen, self.times.launched())

    def _draft(self, contexts: Sequence[Context]) -> tuple[list[Lattice], list[DraftTree]]:
        lattices = self.system.draft(contexts, self.system.select.ranks)
        return lattices, self.system.select(lattices)

    def _verify(self, trees: Sequence[DraftTree], contexts: Sequence[Context]) -> list[Verified]:
        return self.system.verify(trees, [context.cache for context in contexts])

    def _accept(
        self,
        trees: Sequence[DraftTree],
        verified: Sequence[Verified],
        contexts: Sequence[Context],
        wanted: Sequence[Wanted],
    ) -> list[Outcome]:
        return [self._accept_one(*each) for each in zip(trees, verified, contexts, wanted, strict=True)]

    def _accept_one(self, tree: DraftTree, verified: Verified, context: Context, wanted: Wanted) -> Outcome:
        hidden, taps = verified
        position = context.start + tree.depth + 1
        chosen = self.system.head(hidden, position, context.sampling, context.noise, wanted)
        accepted = accept(tree, chosen.token)
        context.cache.commit(tree, accepted)
        context.pending.put(taps, accepted.path, accepted.count)
        last = (accepted.count - 1).long()
        context.anchor.copy_(accepted.emitted[last])
        return Outcome(torch.cat((accepted.emitted, accepted.count.long())), accepted, chosen)

    def _progress(self, request: Request, outcome: Outcome, packed: HostCopy) -> Progress:
        """Reads a pass's tokens, trims them at a stop id or the length, and closes a request that is done."""
        *emitted, count = packed.read()
        request.steps += 1
        self.counters["steps"] += 1
        return self._emit(request, emitted[:count], outcome.chosen, outcome.accepted.path)

    def _emit(self, request: Request, ids: list[int], chosen: Chosen, path: Tensor) -> Progress:
        ids, reason = _trimmed(request, ids)
        request.emitted += ids
        self.counters["tokens"] += len(ids)
        logprobs = None
        rows = path[: len(ids)].long() if request.logprobs or request.digest else path
        if request.logprobs:
            assert chosen.logprob is not None
            logprobs = chosen.logprob[rows].tolist()
        if request.digest:
            assert chosen.logits is not None
            kept = chosen.logits[rows].float().cpu().contiguous()
            request.logits_hash.update(kept.numpy().tobytes())
        if reason is not None:
            self.close(request)
        return Progress(request, ids, logprobs, reason)

    def _prefill(self, request: Request) -> Progress:
        """Runs the prompt through target and drafter, and chooses the first token."""
        context = self._open(request)
        prompt = torch.tensor(request.prompt, device=self.system.device)
        hidden = self._run_prompt(prompt, context)
        position = context.start.long()
        chosen = self.system.head(hidden, position, context.sampling, context.noise, request.wanted)
        context.anchor.copy_(chosen.token)
        context.pending.count.zero_()
        self.counters["requests"] += 1
        return self._emit(request, chosen.token.tolist(), chosen, torch.zeros(1, dtype=torch.int64))

    def _run_prompt(self, prompt: Tensor, context: Context) -> Tensor:
        """Hidden state [1, hidden] of the last prompt row."""
        *_, last = context.prefill(prompt)
        return last.hidden[-1:]

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Allocates the first context, and on a GPU captures a greedy step, which most requests take.

        The first request that samples, cuts, or asks for log-probabilities or a digest captures its own kind of step,
        within its prefill: what a deployment is going to ask for is not known yet.
        """
        request = Request("", [0], 1, frozenset(), True, Sampling())
        self._open(request)
        self.requests.append(request)
        self.close(request)

    def resident_bytes(self) -> int:
        """Bytes of weights and caches."""
        caches = [cache for context in self.free for cache in (context.cache, context.draft_cache) if cache is not None]
        return self.system.resident_bytes() + sum(cache.resident_bytes() for cache in caches)

    def open(self, request: Request) -> None:
        """Takes a request in; it is served when the schedule picks it."""
        self.requests.append(request)

    def close(self, request: Request) -> None:
        """Lets a request go, finished or cancelled, and keeps its memory for the next."""
        self.requests.remove(request)
        if request.context is not None:
            self.free.append(request.context)
            request.context = None

    def _open(self, request: Request) -> Context:
        if not self.free:
            self.free.append(self._new_context())
        context = request.context = self.free.pop()
        context.sampling = request.sampling
        context.noise.set(request.sampling)
        variant = ((id(context),), (_variant(request),))
        if self.phases.graphs and ("draft", variant) not in self.phases:
            self._capture(variant, context, request.wanted)
        self._reset(context)
        return context

    def _new_context(self) -> Context:
        system, device = self.system, self.system.device
        like = system.target.weights["norm"]
        rows = system.limits.depth + 1
        width = len(system.draft.taps) * system.target.tap_width
        pending = Pending(
            torch.zeros(rows, width, dtype=like.dtype, device=device),
            torch.zeros(1, dtype=torch.int32, device=device),
            torch.arange(rows, device=device),
        )
        anchor = torch.zeros(1, dtype=torch.int64, device=device)
        greedy, cache = Sampling(), system.new_cache()

        def take(taps: Tensor, position: Tensor, count: Tensor | None) -> None:
            system.draft.prefill(context, taps, position, count)

        prefill = Prefill(system, cache, self.phases, take)
        context = Context(anchor, cache, pending, greedy, Noise.of(greedy, device), prefill)
        prefill.capture(lambda: self._reset(context))
        return context

    def _reset(self, context: Context) -> None:
        context.cache.reset()
        context.pending.count.zero_()
        self.system.draft.open(context)

    def _capture(self, variant: object, context: Context, wanted: Wanted) -> None:
        """Captures a step's phases for a context, on a short sequence that is then forgotten."""
        prompt = torch.zeros(min(2, self.system.context), dtype=torch.int64, device=self.system.device)
        for run in (_eagerly, _eagerly, self.phases.capture):
            self._reset(context)  # each run accepts some rows, and a short context has no room for three
            self._run_prompt(prompt, context)
            context.anchor.zero_()
            _, trees = run(("draft", variant), self._draft, [context])
            verified = run(("verify", variant), self._verify, trees, [context])
            run(("accept", variant), self._accept, trees, verified, [context], [wanted])


def _context(request: Request) -> Context:
    assert request.context is not None
    return request.context


def _eagerly(key: object, phase: Callable[..., Any], *arguments: Any) -> Any:
    return phase(*arguments)


def _variant(request: Request) -> tuple[bool, ...]:
    """What changes the operations of a step, beside the tensors they read."""
    return request.sampling.greedy, request.sampling.cuts, request.logprobs, request.digest


def _trimmed(request: Request, ids: list[int]) -> tuple[list[int], str | None]:
    """The ids up to the first stop id or the length, and the reason if the request ends there."""
    room = request.max_tokens - len(request.emitted)
    for index, token in enumerate(ids[:room]):
        if not request.ignore_eos and token in request.stop_ids:
            return ids[: index + 1], "stop"
    return (ids[:room], "length") if len(ids) >= room else (ids, None)

"""The capture of a step, with graphs that only remember that they were captured: what it writes, and where."""

from collections.abc import Callable, Hashable
from typing import Any

import pytest
import torch

from stock.graph import Phases
from tests.stock.drive import decode, load
from tests.stock.tiny import drafter_config, target_config, write_drafter, write_target


class Remembered(Phases):
    """Phases that run eagerly and keep the keys they would have captured."""

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"), graphs=False)
        self.graphs = True
        self.keys: set[Hashable] = set()

    def __contains__(self, key: Hashable) -> bool:
        return key in self.keys

    def capture(self, key: Hashable, phase: Callable[..., Any], *arguments: Any) -> Any:
        """Runs the phase, as a replay will."""
        self.keys.add(key)
        return phase(*arguments)


@pytest.mark.parametrize("drafts", [False, True])
@pytest.mark.parametrize("context", [1, 2, 3, 8, 40])
def test_capture_stays_inside_its_caches(context, drafts, tmp_path, monkeypatch):
    """However short the context is, a capture writes no row that the caches do not have, and leaves nothing behind.

    On a CPU a write behind the end is an error; on a GPU it would be somebody else's memory.
    """
    config = target_config("llama")
    drafter = write_drafter(tmp_path / "drafter", drafter_config(config)) if drafts else None
    engine = load(write_target(tmp_path / "target", config), drafter, context=context)
    plain = decode(engine, [3], context - 1, ignore_eos=True).ids if context > 1 else []
    engine.free.clear()
    engine.phases = phases = Remembered()
    accept = type(engine)._accept_one
    steps = []

    def accept_all(self, tree, verified, context, wanted):
        """The target agrees with every draft: then a step takes the most room."""
        outcome = accept(self, tree, verified, context, wanted)
        context.cache.start += tree.depth_limit + 1 - outcome.accepted.count
        steps.append(tree)
        return outcome

    monkeypatch.setattr(type(engine), "_accept_one", accept_all)
    engine.warm_up()
    monkeypatch.undo()

    assert len(phases.keys) == 3
    assert len(steps) == 3
    assert int(engine.free[0].start) == 0
    assert context == 1 or decode(engine, [3], context - 1, ignore_eos=True).ids == plain

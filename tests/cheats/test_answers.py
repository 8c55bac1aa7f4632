"""Answers that were known before: caches, tables, leaks.  Nothing that is asked was asked, or could be read, before.

A kept answer comes in two lines, the second of which holds more tokens than any draft: `hits` counts these.
"""

import dataclasses
import json
import time
from pathlib import Path

import pytest

from benchmarks import perturbed
from harness.errors import Usage, Violation
from harness.job import Arm
from harness.prepared import Store, fill, stored
from harness.tree import tree_id
from harness.wire import Generate
from spt import deployment
from tests.cheats import catalogue, system
from tests.cheats.conftest import fresh
from tests.cheats.worlds import in_both_worlds
from tests.stock.talk import Worker, load

TOKENS = 24


def hits(answers) -> int:
    return sum(answer.lines == [1, TOKENS - 1] for answer in answers)


def wires(asked: list[Generate]) -> list[dict]:
    """The fields of the wire that decide an answer."""
    return [{"prompt": each.prompt, "max_tokens": each.max_tokens, "sampling": vars(each.sampling)} for each in asked]


def again(engine, asked: list[Generate]):
    """The naive judge's measure: known requests, once more."""
    return [engine.generate(dataclasses.replace(each, id=f"{each.id}+")) for each in asked]


def test_in_process_cache(runner, cheating, known):
    """Requests that are timed after a warm-up with the same ones are won; ours never come twice, under no name."""
    asked, said = known
    doubled = [*fresh(1, 6), *(dataclasses.replace(each, id=each.id + "-again") for each in fresh(1, 6))]
    with runner.open(cheating(catalogue.in_process_cache)) as engine:
        for each in asked:
            engine.generate(each)
        naive = again(engine, asked)
        judged = runner.judged(engine, doubled)
        resumed = runner.judged(engine, [*doubled, *fresh(2, 2)], seen={"f1-0", "f1-1", "f1-2", "f1-3", "f1-4", "f1-5"})

    assert hits(naive) == len(asked)
    assert [answer.ids for answer in naive] == said
    assert (len(judged), hits(judged)) == (6, 0)
    assert (len(resumed), hits(resumed)) == (2, 0)


@in_both_worlds
def test_cross_run_cache(runner, cheating, known):
    """A second run that finds what the first wrote is won; an enclosed one can write nowhere that outlives it."""
    asked, said = known
    folder = cheating(catalogue.cross_run_cache)
    before = tree_id(folder)
    first, second = [], []
    for answers in (first, second):
        with runner.enclosed(folder) as engine:
            answers += [engine.generate(each) for each in asked]
    assert (hits(first), hits(second)) == (0, 0)
    assert tree_id(folder) == before

    for _ in range(2):
        with runner.open(folder) as engine:
            naive = [engine.generate(each) for each in asked]
    assert hits(naive) == len(asked)
    assert [answer.ids for answer in naive] == said
    assert tree_id(folder) != before  # which ours rehashes before every use


def test_cache_in_prepare(runner, cheating, known, models, tmp_path):
    """Known answers that `prepare` hides are found on known requests; on ours none is, and none can be added."""
    asked, said = known
    folder = cheating(catalogue.hidden_in_prepare(wires(asked), said))
    arm = Arm("a", folder, tree_id(folder), {})
    store = fill(arm, system.deployment_of(models), tmp_path / "store", system.enclosure(models), 8 << 20)
    with runner.open(folder, prepared=str(store.files)) as engine:
        naive = again(engine, asked)
        runner.judged(engine, fresh(3, 2))
    assert hits(naive) == len(asked)
    assert [answer.ids for answer in naive] == said
    with pytest.raises(Violation, match="has changed"):
        store.check()  # it has learnt two answers more

    store = fill(arm, system.deployment_of(models), tmp_path / "other", system.enclosure(models), 8 << 20)
    with runner.enclosed(folder, store) as engine:
        judged = runner.judged(engine, fresh(3, 6))
    assert hits(judged) == 0
    assert Store.open(tmp_path / "other") == store


def test_hunt_for_the_requests(runner, cheating, models, tmp_path):
    """An engine that finds the file of requests answers before it is asked; an enclosed one finds none."""
    job = tmp_path / "job"
    folder = cheating(catalogue.hunt)
    job.mkdir()
    asked = [system.generate(prompt, f"s-{at}") for at, prompt in enumerate(system.prompts(50, 3))]
    (job / "requests.jsonl").write_text("".join(json.dumps({"wire": wire}) + "\n" for wire in wires(asked)))
    with runner.open(folder) as engine:
        naive = [engine.generate(each) for each in asked]
    with runner.enclosed(folder) as engine:
        judged = [engine.generate(each) for each in asked]

    assert hits(naive) == len(asked)
    assert hits(judged) == 0
    assert [answer.ids for answer in naive] == [answer.ids for answer in judged]


def test_table_of_development_answers(runner, cheating, known):
    """Answers that a patch brings along are right and at once, on the requests that its author saw."""
    asked, said = known
    with runner.enclosed(cheating(catalogue.table_of(wires(asked), said))) as engine:
        naive = again(engine, asked)
        judged = runner.judged(engine, fresh(4, 6))

    assert hits(naive) == len(asked)
    assert [answer.ids for answer in naive] == said
    assert hits(judged) == 0


@in_both_worlds
def test_drafter_that_leaks_the_answer(runner, cheating, known, stock):
    """Drafts from a table say nothing wrong, and need fewer passes on known requests alone: not one less on ours."""
    asked, said = known
    with runner.enclosed(cheating(catalogue.leaking_drafter(wires(asked), said))) as engine:
        naive = again(engine, asked)
        judged = runner.judged(engine, fresh(5, 6))
    with runner.enclosed(stock) as engine:
        plain, honest = again(engine, asked), runner.judged(engine, fresh(5, 6))

    assert [answer.ids for answer in naive] == said
    assert sum(len(answer.lines) for answer in naive) < sum(len(answer.lines) for answer in plain) / 2
    assert [answer.lines for answer in judged] == [answer.lines for answer in honest]


def test_swapped_drafter_is_another_deployment(models, tmp_path):
    """Other weights at the drafter's path make another deployment, so that no calibration or verdict carries over."""
    target, drafter = models
    words = {"target": {"path": str(target)}, "drafter": {"path": str(tmp_path / "drafter")}, "spt": "1", "name": "x"}
    digests = []
    for weights in ((drafter / "model.safetensors").read_bytes(), b"the answers"):
        (tmp_path / "drafter").mkdir(exist_ok=True)
        (tmp_path / "drafter" / "config.json").write_bytes((drafter / "config.json").read_bytes())
        (tmp_path / "drafter" / "model.safetensors").write_bytes(weights)
        digests.append(deployment.parse(words, "deployment.yaml", tmp_path).digest())

    assert digests[0] != digests[1]


def test_answers_before_they_are_asked(runner, cheating, models):
    """Who reads whatever comes next takes it for an answer, and at once; ours ends an engine that was not asked."""
    folder = cheating(catalogue.answers_before_asked)
    with Worker(system=folder) as naive:
        naive.ask(load(*models, mode="fast"))
        took_s = []
        for name in ("x-0", "x-1"):
            ask = {"op": "generate", **dataclasses.asdict(system.generate([5, 6, 7], name, 48))}
            begin_s = time.perf_counter()
            assert naive.ask(ask)["op"] == "done"
            took_s.append(time.perf_counter() - begin_s)
    assert took_s[1] < took_s[0] / 3

    with runner.enclosed(folder) as engine:
        engine.generate(system.generate([5, 6, 7], "x-0", 48))
        time.sleep(0.05)
        with pytest.raises(Violation, match="answered before it was asked"):
            engine.generate(system.generate([5, 6, 7], "x-1", 48))


def test_link_to_the_requests(stock, models, tmp_path):
    """A tree with a link would read what it leads to; it is no system, whatever it was when it was hashed."""
    folder, sealed = tmp_path / "candidate", tmp_path / "requests.jsonl"
    sealed.write_text("sealed\n")
    perturbed.write(perturbed.shipped(), folder)
    arm = Arm("a", folder, tree_id(folder), {})
    (folder / "stock" / "cache.md").symlink_to(sealed)
    assert Path(folder / "stock" / "cache.md").read_text() == "sealed\n"

    with pytest.raises(Usage, match="neither a plain file nor a folder"):
        stored(arm, system.deployment_of(models), tmp_path / "store", system.enclosure(models))

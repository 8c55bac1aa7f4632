"""Other words than stock's, by a little or a lot: each passes a short comparison, and none passes forcing.

Limits are the judge's own parameter, lowered to what a tiny model says in seconds; stock itself is accepted at them.
A rejection needs no limit at all: whatever `LIMITS` lets through, real ones let through with more tokens only.
"""

import dataclasses

import pytest

from benchmarks.perturbed import fp8_cache, int8_weights
from harness.client import Engine
from harness.conversation import ANSWER_TOK, converse
from harness.forced import judge
from harness.forcing import Limits
from harness.job import read_job
from harness.prepared import stored
from harness.request import Request
from harness.samples import Writer, read
from harness.scoring import calibrate, force
from harness.supply import Supply
from harness.wire import Sampling
from tests.cheats import catalogue, system
from tests.cheats.worlds import in_both_worlds
from tests.fakes.metronome import Metronome

LIMITS = Limits(sessions=20, tokens=400, bucket_tokens=200, reference_tokens=1000)
SHORT_TOK = 4  # what a naive judge compares
# In exact mode stock's answers and its scores are the same bits, so that rounding in its head is all that there is.
MODES = {"float32": "fast", "bfloat16": "exact"}


class Kept(Engine):
    """An engine that outlives what it was started for: trusted stock need not start for every question."""

    def __exit__(self, *_: object) -> None:
        pass

    def end(self) -> None:
        Engine.kill(self)


class Pool:
    """Starts engines as `Engine.start` does, but keeps those of stock, one a model."""

    def __init__(self, stock):
        self.stock, self.kept = stock, {}

    def start(self, command, folder, cache=None, enclosure=None):
        if folder != self.stock:
            return Engine.start(command, folder, cache, enclosure)
        if self.kept.get(enclosure.reads) is None:
            self.kept[enclosure.reads] = Kept.start(command, folder, cache, enclosure)
        return self.kept[enclosure.reads]


@pytest.fixture(scope="module")
def pool(stock):
    made = Pool(stock)
    yield made
    for engine in made.kept.values():
        engine.end()


@pytest.fixture(scope="module")
def forcing(world, models, stock, pool, tmp_path_factory):
    """The verdict on the system in a folder, and the folder of its samples; without a folder, stock's calibration."""
    root = tmp_path_factory.mktemp("forcing")
    targets = {"float32": (models[0], None), "bfloat16": (system.write_models(root / "wide", common=40.0)[0], None)}

    def run(candidate, asked, dtype="float32", units=0):
        folder = root / f"run{len(list(root.iterdir()))}"
        arms = {"a": candidate or stock, "b": stock, "stock": stock}
        job = write(folder, arms, asked, dtype, units)
        out = folder / "out"
        if candidate is None:
            calibrate(job, out, None, lambda event: None, start=pool.start)
            return out / "samples.jsonl"
        reference = calibration(dtype)
        return force(job, out, reference, None, lambda event: None, start=pool.start, limits=LIMITS), out

    def write(folder, arms, asked, dtype, units):
        told = {"dtype": dtype, "mode": MODES[dtype], "temperature": world.temperature, "units": units}
        job = system.write_job(folder, arms, targets[dtype], asked, **told)
        made = read_job(job)
        for name in ("a", "stock"):  # none of these prepares anything, and a process each would be long
            place = folder / "out" / "prepared" / name
            place.parent.mkdir(parents=True, exist_ok=True)
            stored(made.arms[name], made.deployment, place, system.enclosure(targets[dtype]), Metronome().start)
        return job

    known: dict = {}

    def calibration(dtype):
        if dtype not in known:
            asked = world.rows("stock", long=12) if dtype == "float32" else world.rows("stock", 24)
            known[dtype] = run(None, asked, dtype)
        return known[dtype]

    run.calibration, run.targets = calibration, targets
    return run


@pytest.fixture(scope="module")
def naive_answers(world, runner):
    """What the system in a folder says to a naive judge, who asks a few prompts in the open."""

    def ask(folder):
        with runner.open(folder) as engine:
            asked = [system.generate(prompt, f"n{at}", 40) for at, prompt in enumerate(world.naive)]
            return [engine.generate(dataclasses.replace(each, ignore_eos=False)) for each in asked]

    return ask


@pytest.fixture(scope="module")
def stock_answers(naive_answers, stock):
    return naive_answers(stock)


def begin_alike(answers, others):
    """The naive judge's test of losslessness."""
    return [each.ids[:SHORT_TOK] for each in answers] == [each.ids[:SHORT_TOK] for each in others]


def test_stock_is_accepted(world, forcing, cheating):
    """Another tree with stock's words: without this none of the rejections would mean anything."""
    verdict, _ = forcing(cheating(lambda files: {**files, "stock/notes.md": "another tree\n"}), world.rows("fresh"))

    assert verdict["answer"] == "accept", verdict["reason"]
    assert (verdict["malformed"], verdict["events"]) == ([], 0)


# The change, and how many prompts show it.
CHEATS = {
    "skip_by_length": lambda world: (world.skip_by_length, world.few),
    "early_eos": lambda world: (catalogue.early_eos, world.few),
    "masked_eos": lambda world: (catalogue.masked_eos, world.few),
    "int8_weights": lambda world: (int8_weights, world.count),
}


@pytest.fixture
def rejected(world, forcing, cheating, naive_answers, stock_answers):
    """Makes sure that a cheat is alike on a few known prompts, and rejected on all that it says to others."""

    def check(change, count):
        folder = cheating(change)
        assert begin_alike(naive_answers(folder), stock_answers)

        verdict, _ = forcing(folder, world.rows("fresh", count))
        assert verdict["answer"] == "reject", verdict["reason"]
        assert "the mismatch exceeds stock's" in verdict["reason"]
        assert any(event["explanation"] is None for event in verdict["audit"])

    return check


@in_both_worlds
@pytest.mark.parametrize("name", CHEATS)
def test_other_words(name, world, rejected):
    """Words that differ now and then, or end elsewhere, are no words of stock's."""
    rejected(*CHEATS[name](world))


def test_fp8_keys_and_values(world, rejected):
    """A cache in eight bits says other words too."""
    rejected(fp8_cache, world.count)


@in_both_worlds
def test_skipping_is_fast_where_it_is_not_compared(world, cheating, runner):
    """What the naive judge times, prompts of other lengths, is answered without a pass of the model."""
    with runner.open(cheating(world.skip_by_length)) as engine:
        answer = engine.generate(system.generate(system.prompts(9, 1, tokens=13)[0], "long", 40))
    assert answer.lines == [1, 39]


@pytest.mark.parametrize("name", ["honest_where_forced", "honest_by_id"])
def test_honest_only_where_it_is_forced(name, world, forcing, cheating, runner):
    """A judge that times `id` to 128 tokens and forces `id#0` to 256 sees a fast system and an honest one.

    Ours asks both alike, so that a system that knows forcing by either is rejected, or is honest where it is timed.
    """
    folder = cheating(getattr(catalogue, name))
    [request] = [Request("x", ids=tuple(system.prompts(9, 1)[0]))]
    naive = {"x": ANSWER_TOK, "x#0": 2 * ANSWER_TOK}
    with runner.open(folder) as engine:
        skipped, honest = (engine.generate(system.generate(list(request.ids), *each)).lines for each in naive.items())
        timed = Supply([request], (), None).take(1, engine.ready, Sampling(1.0))
        forced = list(converse(engine, engine.ready, None, request, Sampling(1.0), ANSWER_TOK))
    assert skipped == [1, ANSWER_TOK - 1]
    assert len(honest) > ANSWER_TOK // 8  # no draft is so long

    assert timed == [asked for asked, _ in forced]
    [lines] = [answer.lines for _, answer in forced]
    if name == "honest_by_id":
        assert len(lines) > len(skipped)  # it runs the model where it is timed
    else:
        assert forcing(folder, world.rows("alike", world.few))[0]["answer"] == "reject"


@in_both_worlds
def test_shorter_answers_look_faster(world, cheating, naive_answers, stock_answers):
    """An early end saves passes, and what was said is what stock says: a test of prefixes finds nothing."""
    answers = naive_answers(cheating(catalogue.early_eos))
    for mine, theirs in zip(answers, stock_answers, strict=True):
        assert mine.ids[:-1] == theirs.ids[: len(mine.ids) - 1]
    assert sum(len(each.ids) for each in answers) < sum(len(each.ids) for each in stock_answers)


@in_both_worlds
def test_late_bias(world, forcing, cheating, naive_answers, stock_answers):
    """A fault that starts late passes short comparisons and the pooled rate; only its bucket rejects it."""
    folder = cheating(world.late_bias)
    naive = naive_answers(folder)
    assert [each.ids for each in naive] == [each.ids for each in stock_answers]

    verdict, out = forcing(folder, world.rows("fresh", long=12))
    pooled = judge(read(out / "samples.jsonl"), read(forcing.calibration("float32")), LIMITS, by_bucket=False)
    assert pooled.decision.answer != "reject"
    assert verdict["answer"] == "reject"
    assert world.late_bucket in verdict["reason"]


def test_loops_do_not_hide_words(world, forcing, cheating, naive_answers, stock_answers):
    """What repeats itself is left out of the mismatch rate, but its events count, in both of two looks."""
    folder = cheating(catalogue.looping)
    assert begin_alike(naive_answers(folder), stock_answers)
    asked = world.rows("looping", 60, tokens=60)
    for row in asked:
        row["ignore_eos"] = True
    verdict, _ = forcing(folder, asked, units=30)

    assert verdict["mismatch"] < 0.002
    assert verdict["looped_tok"] >= 60 * 25
    assert (verdict["answer"], verdict["look"]) == ("reject", 2)
    assert verdict["reason"].startswith("events:")


def test_candidate_that_lies_about_the_model(world, forcing, cheating, runner):
    """Common tokens that are told to end answers would keep them short; what ends them is stock's to say."""
    folder = cheating(catalogue.lying_ready)
    with runner.open(folder) as engine:
        asked = dataclasses.replace(system.generate([5, 6, 7], "n", 40), stop_ids=engine.ready.stop_ids)
        assert len(engine.generate(dataclasses.replace(asked, ignore_eos=False)).ids) < 40

    verdict, _ = forcing(folder, world.rows("few", 2))
    assert (verdict["answer"], verdict["reason"]) == (
        "reject",
        "the candidate broke the protocol while its answers were asked",
    )


def test_candidate_that_fails_while_it_loads(world, forcing, cheating):
    """It is rejected, and forcing goes to its end."""
    verdict, _ = forcing(cheating(catalogue.failing_load), world.rows("few", 2))
    assert (verdict["answer"], verdict["reason"]) == ("reject", "the candidate crashed while its answers were asked")


def test_fp32_head_is_necessary(world, forcing, cheating, pool):
    """In BF16 an honest system whose head rounds less than stock's is rejected by stock's own head, not by FP32's."""
    verdict, out = forcing(cheating(catalogue.exact_head), world.rows("exact", 24), dtype="bfloat16")
    assert verdict["answer"] != "reject", verdict["reason"]

    file = out / "samples.jsonl"
    said = [(unit, each) for unit in read(file).of("force") for each in unit.answers]
    verifier = pool.kept[forcing.targets["bfloat16"][:1]]
    verifier.load(system.settings(forcing.targets["bfloat16"], dtype="bfloat16", mode=MODES["bfloat16"]))
    with Writer(file) as writer:
        for unit, each in said:
            scores = verifier.score(each["prompt"] + each["ids"], len(each["prompt"]), Sampling(**each["sampling"]))
            told = {name: each[name] for name in ("arm", "request", "session")}
            lists = {name: getattr(scores, name) for name in ("start", "argmax", "margin", "rank", "kept")}
            writer.add("forced", phase=unit.phase, unit=unit.number, head="model", **told, **lists)
    samples, reference = read(file), read(forcing.calibration("bfloat16"))
    by_model = judge(samples, reference, LIMITS, head="model").decision
    assert by_model.answer == "reject"

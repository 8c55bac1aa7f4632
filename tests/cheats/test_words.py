"""Other words than stock's, by a little or a lot: each passes a short comparison, and none passes forcing.

Limits are the judge's own parameter, lowered to what a tiny model says in seconds; stock itself is accepted at them.
A rejection needs no limit at all: whatever `LIMITS` lets through, real ones let through with more tokens only.
"""

import dataclasses
import random

import pytest

from harness.client import Engine
from harness.conversation import ANSWER_TOK, converse
from harness.forcing import Limits, judge
from harness.job import read_job
from harness.prepared import stored
from harness.request import Request
from harness.samples import Writer, read
from harness.scoring import calibrate, force
from harness.supply import Supply
from harness.wire import Sampling
from tests.cheats import catalogue, system
from tests.fakes.metronome import Metronome

LIMITS = Limits(sessions=20, tokens=400, bucket_tokens=200, reference_tokens=1000)
SHORT_TOK = 4  # what a naive judge compares
LATE_TOK = 2052
NAIVE = system.prompts(77, 6)[2:]
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


def rows(seed, short=40, late=12, tokens=40, late_tok=20):
    """Short prompts of any length, and long ones whose answers lie behind position 2,048."""
    dice = random.Random(seed)
    sizes = [(dice.randrange(9, 24), tokens) for _ in range(short)] + [(LATE_TOK, late_tok)] * late
    return [
        {
            "id": f"w{seed}-{at}",
            "ids": [dice.randrange(3, system.VOCABULARY) for _ in range(size)],
            "max_tokens": most,
        }
        for at, (size, most) in enumerate(sizes)
    ]


@pytest.fixture(scope="module")
def forcing(models, stock, pool, tmp_path_factory):
    """The verdict on the system in a folder, and the file of its samples; `nobody` is stock's calibration."""
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
        job = system.write_job(folder, arms, targets[dtype], asked, dtype=dtype, mode=MODES[dtype], units=units)
        made = read_job(job)
        for name in ("a", "stock"):  # none of these prepares anything, and a process each would be long
            place = folder / "out" / "prepared" / name
            place.parent.mkdir(parents=True, exist_ok=True)
            stored(made.arms[name], made.deployment, place, system.enclosure(targets[dtype]), Metronome().start)
        return job

    known: dict = {}

    def calibration(dtype):
        if dtype not in known:
            known[dtype] = run(None, rows(1) if dtype == "float32" else rows(1, short=24, late=0), dtype)
        return known[dtype]

    run.calibration, run.targets = calibration, targets
    return run


def naive_answers(runner, folder):
    """What a naive judge asks: a few known prompts, in the open."""
    with runner.open(folder) as engine:
        asked = [system.generate(prompt, f"n{at}", 40) for at, prompt in enumerate(NAIVE)]
        return [engine.generate(dataclasses.replace(each, ignore_eos=False)) for each in asked]


@pytest.fixture(scope="module")
def stock_answers(runner, stock):
    return naive_answers(runner, stock)


def begin_alike(answers, others):
    """The naive judge's test of losslessness."""
    return [each.ids[:SHORT_TOK] for each in answers] == [each.ids[:SHORT_TOK] for each in others]


def test_stock_is_accepted(forcing, cheating):
    """Another tree with stock's words: without this none of the rejections would mean anything."""
    verdict, _ = forcing(cheating(lambda files: {**files, "stock/notes.md": "another tree\n"}), rows(2, late=0))

    assert verdict["answer"] == "accept", verdict["reason"]
    assert (verdict["malformed"], verdict["events"]) == ([], 0)


CHEATS = ("skip_by_length", "early_eos", "masked_eos", "int8_weights")


@pytest.mark.parametrize("name", CHEATS)
def test_other_words(name, forcing, cheating, runner, stock_answers):
    """Alike on a few known prompts, and rejected on all that it says to others."""
    folder = cheating(getattr(catalogue, name))
    assert begin_alike(naive_answers(runner, folder), stock_answers)

    verdict, _ = forcing(folder, rows(2, late=0))
    assert verdict["answer"] == "reject"
    assert "the mismatch exceeds stock's" in verdict["reason"]
    assert any(event["explanation"] is None for event in verdict["audit"])


def test_skipping_is_fast_where_it_is_not_compared(cheating, runner):
    """What the naive judge times, prompts of other lengths, is answered without a pass of the model."""
    with runner.open(cheating(catalogue.skip_by_length)) as engine:
        answer = engine.generate(system.generate(system.prompts(9, 1, tokens=13)[0], "long", 40))
    assert answer.lines == [1, 39]


@pytest.mark.parametrize("name", ["honest_where_forced", "honest_by_id"])
def test_honest_only_where_it_is_forced(name, forcing, cheating, runner):
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
        assert forcing(folder, rows(2, late=0))[0]["answer"] == "reject"


def test_shorter_answers_look_faster(cheating, runner, stock_answers):
    """An early end saves passes, and what was said is what stock says: a test of prefixes finds nothing."""
    answers = naive_answers(runner, cheating(catalogue.early_eos))
    for mine, theirs in zip(answers, stock_answers, strict=True):
        assert mine.ids[:-1] == theirs.ids[: len(mine.ids) - 1]
    assert sum(len(each.ids) for each in answers) < sum(len(each.ids) for each in stock_answers)


def test_bias_after_2048_tokens(forcing, cheating, runner, stock_answers):
    """A fault that starts late passes short comparisons and the pooled rate; only its bucket rejects it."""
    folder = cheating(catalogue.late_bias)
    naive = naive_answers(runner, folder)
    assert [each.ids for each in naive] == [each.ids for each in stock_answers]

    verdict, out = forcing(folder, rows(2))
    pooled = judge(read(out / "samples.jsonl"), read(forcing.calibration("float32")), LIMITS, by_bucket=False)
    assert pooled.decision.answer != "reject"
    assert verdict["answer"] == "reject"
    assert "at position 2048-4096" in verdict["reason"]


def test_loops_do_not_hide_words(forcing, cheating, runner, stock_answers):
    """What repeats itself is left out of the mismatch rate, but its events count, in both of two looks."""
    folder = cheating(catalogue.looping)
    assert begin_alike(naive_answers(runner, folder), stock_answers)
    asked = rows(3, short=60, late=0, tokens=60)
    for row in asked:
        row["ignore_eos"] = True
    verdict, _ = forcing(folder, asked, units=30)

    assert verdict["mismatch"] < 0.002
    assert verdict["looped_tok"] >= 60 * 25
    assert (verdict["answer"], verdict["look"]) == ("reject", 2)
    assert verdict["reason"].startswith("events:")


def test_candidate_that_lies_about_the_model(forcing, cheating, runner):
    """Common tokens that are told to end answers would keep them short; what ends them is stock's to say."""
    folder = cheating(catalogue.lying_ready)
    with runner.open(folder) as engine:
        asked = dataclasses.replace(system.generate([5, 6, 7], "n", 40), stop_ids=engine.ready.stop_ids)
        assert len(engine.generate(dataclasses.replace(asked, ignore_eos=False)).ids) < 40

    verdict, _ = forcing(folder, rows(4, short=2, late=0))
    assert (verdict["answer"], verdict["reason"]) == (
        "reject",
        "the candidate broke the protocol while its answers were asked",
    )


def test_candidate_that_fails_while_it_loads(forcing, cheating):
    """It is rejected, and forcing goes to its end."""
    verdict, _ = forcing(cheating(catalogue.failing_load), rows(4, short=2, late=0))
    assert (verdict["answer"], verdict["reason"]) == ("reject", "the candidate crashed while its answers were asked")


def test_fp32_head_is_necessary(forcing, cheating, pool):
    """In BF16 an honest system whose head rounds less than stock's is rejected by stock's own head, not by FP32's."""
    verdict, out = forcing(cheating(catalogue.exact_head), rows(5, short=24, late=0), dtype="bfloat16")
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

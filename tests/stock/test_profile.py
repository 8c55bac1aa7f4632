"""Profiles: phases that sum to the step, classes by name and by the call that launched a kernel, tokens unchanged."""

import json

import pytest
import torch

from stock.engine import Request
from stock.profile import MOST_TRACES, PLAIN_STEPS, PROFILED_STEPS, WARM_STEPS, Profiler, phase_times
from stock.sampling import Sampling
from tests.stock.drive import load
from tests.stock.talk import Worker, generate, validator
from tests.stock.talk import load as load_line
from tests.stock.tiny import drafter_config, target_config, write_drafter, write_target

FULL = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000))"  # less than a trace
STEP = ("draft", "verify", "accept", "host")
ROW = validator("profile.json")


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    """A tiny target and drafter."""
    folder = tmp_path_factory.mktemp("profile")
    config = target_config("llama")
    return write_target(folder / "target", config), write_drafter(folder / "drafter", drafter_config(config))


def run(engine, profiler, answers, tokens=32):
    """Decodes with a profiler, or without; returns all tokens."""
    said = []
    engine.on_step, engine.times.on = (profiler.on_step, True) if profiler else (None, False)
    for index in range(answers):
        engine.open(Request(f"r{index}", [3, 1, 4, index], tokens, frozenset(), True, Sampling()))
        while engine.requests:
            said += [each.ids for each in (profiler.step(engine) if profiler else engine.step())]
    return said


def test_a_profile_sums_to_the_step(paths, tmp_path):
    """Each phase's classes and its residual are its wall clock, and what is said is what is said without a profile."""
    engine = load(*paths, mode="fast", context=128)
    profiler = Profiler(tmp_path / "profile.jsonl", torch.device("cpu"))
    said = run(engine, profiler, 3)
    profiler.close(engine)
    rows = [json.loads(line) for line in (tmp_path / "profile.jsonl").read_text().splitlines()]

    assert said == run(engine, None, 3)
    for row in rows:
        ROW.validate(row)
        explained_us = sum(each["us"] for each in row["classes"].values())
        assert row["wall_us"] == pytest.approx(explained_us + row["residual_us"])
    assert {row["phase"] for row in rows} == {"prefill", *STEP}
    verify = next(row for row in rows if row["phase"] == "verify")
    assert (verify["steps"], verify["batch"]) == (PROFILED_STEPS, 1)
    assert verify["rows"] == 1 + engine.system.limits.depth
    assert verify["classes"]["gemm"]["calls"] == 4 * engine.system.target.config.layers
    assert verify["classes"]["attention"]["calls"] == engine.system.target.config.layers
    by_phase = {row["phase"]: row["classes"] for row in rows}
    assert by_phase["accept"]["head"]["calls"] == 1
    assert "drafter" in by_phase["draft"]
    assert "gemm" not in by_phase["draft"]
    assert list(tmp_path.iterdir()) == [tmp_path / "profile.jsonl"]  # traces leave nothing behind


def test_the_last_trace_ends_with_its_window(paths, tmp_path):
    """No more windows than are wanted, each as long as the others, and behind them steps are plain ones."""
    engine = load(*paths, mode="fast", context=128)
    profiler = Profiler(tmp_path / "profile.jsonl", torch.device("cpu"))
    run(engine, profiler, 4, tokens=100)
    profiler.close(engine)
    rows = [json.loads(line) for line in (tmp_path / "profile.jsonl").read_text().splitlines()]

    assert engine.counters["steps"] > MOST_TRACES * (PLAIN_STEPS + PROFILED_STEPS + 1) + 20
    for phase in STEP:
        assert [row["steps"] for row in rows if row["phase"] == phase] == [PROFILED_STEPS] * MOST_TRACES


def test_too_few_steps_make_no_row(paths, tmp_path):
    """A window that was not profiled is no measurement; the engine is as it was."""
    engine = load(*paths, mode="fast", context=128)
    profiler = Profiler(tmp_path / "profile.jsonl", torch.device("cpu"))
    engine.on_step, engine.times.on = profiler.on_step, True
    engine.open(Request("r", [3, 1, 4], 100, frozenset(), True, Sampling()))
    for _ in range(1 + WARM_STEPS + PLAIN_STEPS // 2):
        profiler.step(engine)
    profiler.close(engine)

    assert (tmp_path / "profile.jsonl").read_bytes() == b""
    assert engine.times.prefix is None


def event(category, name, begin_us, us, correlation=None, thread=1):
    arguments = {} if correlation is None else {"correlation": correlation}
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "ts": begin_us,
        "dur": us,
        "pid": 1,
        "tid": thread,
        "args": arguments,
    }


def test_kernels_of_a_graph_belong_to_the_phase_that_launched_it():
    """One replay hides its operators: its kernels, which run long after the launch, are told apart by its range."""
    events = [
        event("user_annotation", "spt-warm:verify", 0, 5),
        event("cuda_runtime", "cudaGraphLaunch", 1, 2, 6),
        event("kernel", "nvjet_tst_64x8", 50, 900, 6),
        event("user_annotation", "spt:draft", 100, 10),
        event("user_annotation", "spt:verify", 110, 10),
        event("user_annotation", "spt:accept", 120, 10),
        event("cuda_runtime", "cudaGraphLaunch", 101, 5, 7),
        event("cuda_runtime", "cudaGraphLaunch", 111, 5, 8),
        event("cuda_runtime", "cudaGraphLaunch", 121, 5, 9),
        event("cuda_runtime", "cudaMemcpyAsync", 131, 1, 10),
        # The device comes to them after all ranges have ended.
        event("kernel", "gemv_kernel", 1000, 40, 7),
        event("kernel", "best_first_kernel", 1045, 10, 7),
        event("kernel", "nvjet_tst_128x8_splitK", 1060, 100, 8),
        event("kernel", "void cublasLt::splitKreduce_kernel", 1160, 10, 8),
        event("kernel", "tree_attention_kernel", 1180, 20, 8),
        event("kernel", "merge_splits_kernel", 1195, 15, 8),  # begins before the one before it ends
        event("kernel", "silu_mul_kernel", 1210, 5, 8),
        event("kernel", "nvjet_tst_64x8", 1220, 30, 9),
        event("kernel", "chunk_sample_kernel", 1250, 4, 9),
        event("gpu_memcpy", "Memcpy DtoH", 1260, 2, 10),
        event("kernel", "somebody_elses", 1270, 9, 99),
    ]
    found = phase_times(events)

    assert {phase: each.runs for phase, each in found.items()} == {"draft": 1, "verify": 1, "accept": 1, "host": 0}
    assert found["draft"].us == {"drafter": 40, "glue": 10, "gaps": 5}
    assert found["verify"].us == {"gemm": 110, "attention": 35, "glue": 5, "gaps": 10}
    assert found["verify"].calls == {"gemm": 2, "attention": 2, "glue": 1, "gaps": 0}
    assert found["accept"].us == {"head": 30, "glue": 4, "gaps": 0}
    assert found["host"].us == {"memcpy": 2}


def test_operators_that_nest_count_once():
    """Without a device a product takes what is inside it, another operator its own time, and the rest is a gap."""
    events = [
        event("user_annotation", "spt:verify", 0, 100),
        event("cpu_op", "aten::linear", 10, 40),
        event("cpu_op", "aten::addmm", 15, 30),
        event("cpu_op", "aten::to", 60, 20),
        event("cpu_op", "aten::copy_", 65, 10),
        event("cpu_op", "aten::scaled_dot_product_attention", 85, 10),
        event("cpu_op", "aten::bmm", 86, 5),
        event("cpu_op", "aten::linear", 20, 30, thread=2),  # not the engine's thread
        event("cpu_op", "aten::linear", 120, 30),  # behind the phase
    ]
    verify = phase_times(events)["verify"]

    assert verify.us == {"gaps": 30, "gemm": 40, "glue": 10, "memcpy": 10, "attention": 10}
    assert sum(verify.us.values()) == verify.span_us == 100
    assert verify.calls == {"gaps": 0, "gemm": 1, "glue": 1, "memcpy": 1, "attention": 1}


def test_the_verb(paths, tmp_path):
    """`profile` writes while requests run, in the schema; a record beside it is refused, and a load goes on with it."""
    with Worker(room=tmp_path) as worker:
        worker.ask(load_line(*paths, mode="fast"))
        assert worker.ask({"op": "profile", "on": True, "file": "profile.jsonl"}) == {
            "v": 1,
            "op": "ok",
            "to": "profile",
        }
        for verb, other in (("record", True), ("record", False)):
            reply = worker.ask({"op": verb, "on": other, "file": "steps.jsonl" if other else None})
            assert reply["op"] == ("error" if other else "ok")
        for name in "abcd":
            assert worker.ask(generate(id=name, max_tokens=32))["op"] == "done"
        assert worker.ask({"op": "profile", "on": False, "file": None})["op"] == "ok"
        rows = [json.loads(line) for line in (tmp_path / "profile.jsonl").read_text().splitlines()]
        assert worker.ask(generate(id="e"))["op"] == "done"

    assert {row["phase"] for row in rows} >= set(STEP)
    for row in rows:
        ROW.validate(row)


def test_a_profile_on_a_full_disk(paths, tmp_path):
    """A profile that cannot be written ends with an error; the requests go on, and another profile may begin."""
    with Worker(FULL, room=tmp_path) as worker:
        worker.ask(load_line(*paths, mode="fast"))
        assert worker.ask({"op": "profile", "on": True, "file": "profile.jsonl"})["op"] == "ok"
        replies = []
        for name in "ab":
            worker.send(generate(id=name, max_tokens=32))
            while not replies or replies[-1]["op"] != "done" or replies[-1]["id"] != name:
                replies.append(worker.read())

    errors = [reply for reply in replies if reply["op"] == "error"]
    assert [reply["code"] for reply in errors] == ["record_ended"]
    assert [reply["id"] for reply in replies if reply["op"] == "done"] == ["a", "b"]


@pytest.mark.device
def test_a_profile_of_captured_graphs(paths, tmp_path):
    """On a GPU the kernels of replayed graphs are told apart by phase, and explain most of each phase's time."""
    engine = load(*paths, mode="fast", context=128, device="cuda", dtype="bfloat16")
    engine.warm_up()
    profiler = Profiler(tmp_path / "profile.jsonl", engine.system.device)
    run(engine, profiler, 3)
    profiler.close(engine)
    rows = [json.loads(line) for line in (tmp_path / "profile.jsonl").read_text().splitlines()]
    by_phase = {row["phase"]: row for row in rows}

    assert by_phase.keys() >= set(STEP)
    assert {"gemm", "attention", "glue"} <= by_phase["verify"]["classes"].keys()
    assert "drafter" in by_phase["draft"]["classes"]
    assert "head" in by_phase["accept"]["classes"]
    verify = by_phase["verify"]
    assert abs(verify["residual_us"]) < 0.3 * verify["wall_us"]
    assert verify["classes"]["attention"]["calls"] >= engine.system.target.config.layers

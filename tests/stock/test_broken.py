"""Files that cannot be served: each is EngineError `bad_model`, in one line that names what is wrong."""

import json
import shutil
import struct

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from stock.errors import EngineError
from tests.stock.drive import decode, load
from tests.stock.gguf_file import write_gguf
from tests.stock.tiny import (
    drafter_config,
    drafter_weights,
    target_config,
    target_weights,
    write_drafter,
    write_target,
)

JSON_VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 70),
    st.sampled_from([2**31 - 1, 10**30, 10**400, 5e-324, 1e300]),
    st.floats(allow_nan=False, width=32),
    st.sampled_from(["", "64", "full_attention", "yarn"]),
    st.lists(st.integers(-1, 5), max_size=3),
    st.dictionaries(st.sampled_from(["rope_type", "factor", "type"]), st.integers(0, 2), max_size=2),
)


def refused(target, drafter=None, **changes):
    """The message of the error that loading gives."""
    with pytest.raises(EngineError) as caught:
        load(target, drafter, **changes)
    assert caught.value.code == "bad_model"
    assert "\n" not in caught.value.message
    return caught.value.message


@pytest.fixture
def folder(tmp_path):
    return write_target(tmp_path / "target", target_config("qwen3"))


def change_config(folder, **changes):
    config = json.loads((folder / "config.json").read_text())
    config.update(changes)
    (folder / "config.json").write_text(json.dumps(config))


def change_weights(folder, **changes):
    """Replaces tensors by name; None removes one."""
    weights = load_file(folder / "model.safetensors")
    for name, tensor in changes.items():
        weights.pop(name, None)
        if tensor is not None:
            weights[name] = tensor
    save_file(weights, folder / "model.safetensors")


def shard(folder, missing=False):
    """Splits the one file in two with an index; perhaps the second is not there."""
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(weights)
    parts = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, part in parts.items():
        save_file({name: weights[name] for name in part}, folder / file)
    index = {"weight_map": {name: file for file, part in parts.items() for name in part}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    if missing:
        (folder / "b.safetensors").unlink()


def test_nothing_there(tmp_path):
    """A path that does not exist, an empty folder, a folder without weights, a text file."""
    assert "does not exist" in refused(tmp_path / "no")
    assert "config.json" in refused(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(target_config("llama")))
    assert "no safetensors" in refused(tmp_path)
    (tmp_path / "model.gguf").write_text("this is not a model")
    assert "not a readable GGUF file" in refused(tmp_path / "model.gguf")


@pytest.mark.parametrize("text", ["", "{", "[]", "7", '{"architectures": 3}', '{"architectures": [["a"]]}', "\udcff"])
def test_config_is_no_config(text, folder):
    """A config.json that is empty, cut, no object, or not UTF-8."""
    (folder / "config.json").write_bytes(text.encode(errors="surrogateescape"))
    assert refused(folder)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"architectures": ["MixtralForCausalLM"]}, "MixtralForCausalLM"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"use_sliding_window": True}, "sliding"),
        ({"quantization_config": {"bits": 4}}, "quantised"),
        ({"partial_rotary_factor": 0.5}, "partial"),
        ({"rope_scaling": {"rope_type": "longrope", "factor": 2}}, "longrope"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 2}}, "low_freq_factor"),
        ({"rope_scaling": {"rope_type": "linear"}}, "factor"),
        ({"rope_scaling": {"rope_type": "linear", "factor": "two"}}, "factor"),
        ({"vocab_size": None}, "vocab_size"),
        ({"num_attention_heads": 0}, "num_attention_heads"),
        ({"num_attention_heads": 3}, "num_attention_heads"),
        ({"num_hidden_layers": 2.5}, "num_hidden_layers"),
        ({"num_hidden_layers": 4}, "layers.3"),
        ({"hidden_size": "32"}, "hidden_size"),
        ({"head_dim": 7}, "head_dim"),
        ({"rms_norm_eps": "small"}, "rms_norm_eps"),
        ({"max_position_embeddings": -1}, "max_position_embeddings"),
        ({"eos_token_id": "two"}, "eos_token_id"),
        ({"intermediate_size": 47}, "mlp.gate_proj"),
    ],
)
def test_config_says_another_model(changes, words, folder):
    """What the engine does not know, or what does not fit the tensors, is refused by name and never ignored."""
    change_config(folder, **changes)
    assert words in refused(folder)


@given(key=st.sampled_from([*sorted(target_config("qwen3")), "rope_scaling", "rope_parameters"]), value=JSON_VALUES)
@examples(max_examples=60)
def test_config_with_any_value(key, value, tmp_path_factory):
    """Whatever stands in config.json, loading works or says `bad_model`: no other error, and no other text.

    A value that loads may be a model of its own (another eps); what must not happen is a fault in the middle.
    """
    folder = tmp_path_factory.mktemp("fuzz")
    write_target(folder, {**target_config("qwen3"), key: value}, target_weights(target_config("qwen3")))
    try:
        engine = load(folder, context=8)
    except EngineError as error:
        assert error.code in ("bad_model", "bad_request")
    else:
        assert len(decode(engine, [3, 4], 2, ignore_eos=True).ids) == 2
    finally:
        shutil.rmtree(folder)


SCALING = {
    "rope_theta": 10000.0,
    "factor": 2.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = ["beta_fast", "beta_slow", "attention_factor", "mscale", "mscale_all_dim", "truncate"]


@given(
    kind=st.sampled_from(["linear", "llama3", "yarn"]),
    key=st.sampled_from([*SCALING, *YARN]),
    value=st.one_of(JSON_VALUES, st.sampled_from([1, 0.1, 1e-30])),
)
@examples(max_examples=150)
def test_scaling_with_any_value(kind, key, value, tmp_path_factory):
    """Whatever stands in a RoPE scaling, loading gives finite tables or `bad_model`."""
    folder = tmp_path_factory.mktemp("rope")
    config = {**target_config("llama"), "rope_scaling": {"rope_type": kind, **SCALING, key: value}}
    write_target(folder, config)
    try:
        answer = decode(load(folder, context=8), [3, 4], 2, ignore_eos=True)
    except EngineError as error:
        assert error.code in ("bad_model", "bad_request")
    else:
        assert np.isfinite(answer.logits).all()
    finally:
        shutil.rmtree(folder)


DRAFTER_KEYS = [*drafter_config(target_config("llama")), "layer_types", "sliding_window", "use_swa", "is_causal"]
INNER_KEYS = ["mask_token_id", "target_layer_ids", "block_size", "causal", "sample_from_anchor", "output_multiplier"]


@given(inner=st.booleans(), data=st.data(), value=st.one_of(JSON_VALUES, st.sampled_from([256, 257, 5000])))
@examples(max_examples=150)
def test_drafter_config_with_any_value(inner, data, value, tmp_path_factory):
    """Whatever stands in a drafter's config.json, it drafts to the end of the context or is `bad_model`."""
    folder = tmp_path_factory.mktemp("fuzz")
    target = target_config("llama")
    config = drafter_config(target)
    key = data.draw(st.sampled_from(INNER_KEYS if inner else DRAFTER_KEYS))
    changed = {"dflash_config": {**config["dflash_config"], key: value}} if inner else {key: value}
    write_drafter(folder / "drafter", {**config, **changed}, drafter_weights(config))
    try:
        engine = load(write_target(folder / "target", target), folder / "drafter", context=8)
    except EngineError as error:
        assert error.code == "bad_model"
    else:
        assert len(decode(engine, [3, 4], 6, ignore_eos=True).ids) == 6
    finally:
        shutil.rmtree(folder)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a": ' * 5_000, '{"a": ' + "1" * 5_000 + "}", "\ufeff{}"])
def test_json_that_no_reader_takes(text, folder):
    """Nesting without an end, a number of 5,000 digits, a byte order mark: of the config, the index, the drafter."""
    drafter = write_drafter(folder / "drafter", drafter_config(target_config("qwen3")))
    index = folder / "model.safetensors.index.json"
    for path in (drafter / "config.json", index, folder / "config.json"):
        path.write_text(text, encoding="utf-8")
        assert path.name in refused(folder, drafter)
        if path == index:
            path.unlink()


@pytest.mark.parametrize(
    "name",
    [
        "model.norm.weight",
        "lm_head.weight",
        "model.layers.1.self_attn.q_norm.weight",
        "model.layers.2.mlp.up_proj.weight",
    ],
)
def test_missing_tensor(name, folder):
    """Every tensor that the family has must be there: without its q norm a Qwen3 would run and say other things."""
    change_weights(folder, **{name: None})
    assert name in refused(folder)


def test_missing_bias(tmp_path):
    """A Qwen2 without its biases, or with some of them."""
    folder = write_target(tmp_path / "target", target_config("qwen2"))
    change_weights(folder, **{"model.layers.0.self_attn.k_proj.bias": None})
    assert "bias" in refused(folder)
    weights = {name: None for name in target_weights(target_config("qwen2")) if name.endswith(".bias")}
    change_weights(folder, **weights)
    assert "bias" in refused(folder)


def test_wrong_shape(folder):
    """A matrix that is transposed or too small is named with both shapes."""
    name = "model.layers.0.self_attn.q_proj.weight"
    change_weights(folder, **{name: torch.zeros(32, 64)})
    message = refused(folder)
    assert name in message
    assert "(32, 64)" in message
    assert "(64, 32)" in message


def test_shards(folder):
    """A sharded folder is read as the single file was; a missing shard, and an index of nothing, are named."""
    before = decode(load(folder), [3, 4], 5, ignore_eos=True)
    shard(folder)
    assert decode(load(folder), [3, 4], 5, ignore_eos=True).digest == before.digest

    (folder / "b.safetensors").unlink()
    assert "b.safetensors" in refused(folder)
    for text in ("{}", '{"weight_map": 3}', '{"weight_map": {"a": 4}}', '{"weight_map": {}}'):
        (folder / "model.safetensors.index.json").write_text(text)
        assert "index.json" in refused(folder)


def test_index_stays_in_its_folder(folder):
    """An index names files of its own folder: a path leads to weights that nobody digests."""
    shutil.copy(folder / "model.safetensors", folder.parent / "other.safetensors")
    for file in ("../other.safetensors", str(folder.parent / "other.safetensors"), "", "..", "a/../model.safetensors"):
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"lm_head.weight": file}}))
        assert "no file of the folder" in refused(folder)


def test_tensor_that_stands_twice(folder):
    """Two files with one tensor: which of them is meant is not for the engine to guess."""
    save_file({"lm_head.weight": torch.zeros(64, 32)}, folder / "a.safetensors")
    message = refused(folder)
    assert "lm_head.weight" in message
    assert "a.safetensors" in message


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_weight_that_is_no_number(value, folder, tmp_path):
    """One NaN or infinity in target or drafter is refused by the tensor's name: every token after it would be wrong."""
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        weight = torch.zeros(48, 32, dtype=dtype)
        weight[47, 31] = value
        change_weights(folder, **{"model.layers.1.mlp.up_proj.weight": weight})
        assert "layers.1.mlp.up_proj.weight" in refused(folder)
    target = target_config("llama")
    drafter = write_drafter(tmp_path / "drafter", drafter_config(target))
    change_weights(drafter, **{"hidden_norm.weight": torch.full((32,), value)})
    assert "hidden_norm.weight" in refused(write_target(tmp_path / "llama", target), drafter)


def test_weights_in_eight_bits_without_scales(folder):
    """Float8 means nothing without the scales that a quantised checkpoint keeps beside it."""
    name = "model.layers.0.mlp.up_proj.weight"
    change_weights(folder, **{name: torch.ones(48, 32).to(torch.float8_e4m3fn)})
    assert "float8" in refused(folder)


@pytest.mark.parametrize("kept", [0, 4, 100, 0.5, 0.999])
def test_truncated_safetensors(kept, folder):
    """A file that was cut in its header or in its data."""
    path = folder / "model.safetensors"
    data = path.read_bytes()
    path.write_bytes(data[: kept if kept >= 1 else int(len(data) * kept)])
    assert "model.safetensors" in refused(folder)


@pytest.mark.parametrize("kept", [0, 3, 20, 200, 0.3, 0.7, 0.999])
def test_truncated_gguf(kept, tmp_path):
    """A GGUF file that was cut anywhere."""
    config = target_config("llama")
    path = write_gguf(tmp_path / "model.gguf", config, target_weights(config))
    data = path.read_bytes()
    path.write_bytes(data[: kept if kept >= 1 else int(len(data) * kept)])
    assert "model.gguf" in refused(path)


@pytest.mark.parametrize("name", ["blk.0.weight", "blk..weight", "blk.", "blk.0", "blk.x.attn_q.weight", "", "."])
def test_gguf_tensor_of_another_name(name, tmp_path):
    """A tensor that the engine has no name for is left alone."""
    config = target_config("llama")
    more = {name: torch.ones(2, 2).numpy()}
    load(write_gguf(tmp_path / "model.gguf", config, target_weights(config), extra=more), context=8)


@pytest.mark.parametrize("factor", [0.0, -1.0, float("nan"), float("inf")])
def test_gguf_frequency_factors_that_are_no_numbers(factor, tmp_path):
    """A factor that frequencies cannot be divided by is refused."""
    config = target_config("llama")
    factors = {"rope_freqs.weight": torch.full((4,), factor).numpy()}
    path = write_gguf(tmp_path / "model.gguf", config, target_weights(config), extra=factors)
    assert "rope factor" in refused(path)


@pytest.mark.parametrize("item", [7, "a word"])
def test_gguf_list_that_is_longer_than_the_file(item, tmp_path):
    """A length that lies is found at the end of the file, not after 2^50 items that are not there."""
    config = target_config("llama")
    path = write_gguf(tmp_path / "model.gguf", config, target_weights(config), fields={"llama.marks": [item] * 3})
    data = bytearray(path.read_bytes())
    at = data.index(b"llama.marks") + len(b"llama.marks") + 8  # behind the types of the list and of its items
    assert struct.unpack_from("<Q", data, at) == (3,)
    struct.pack_into("<Q", data, at, 1 << 50)
    path.write_bytes(data)
    assert "ends" in refused(path)


@given(at=st.integers(0, 1500), byte=st.integers(0, 255))
@examples(max_examples=60)
def test_damaged_gguf(at, byte, tmp_path_factory):
    """One wrong byte in the metadata of a GGUF file loads or is `bad_model`."""
    config = target_config("llama")
    path = write_gguf(tmp_path_factory.mktemp("damaged") / "model.gguf", config, target_weights(config))
    data = bytearray(path.read_bytes())
    data[at] = byte
    path.write_bytes(data)
    try:
        load(path, context=8)
    except EngineError as error:
        assert error.code in ("bad_model", "bad_request")


def test_gguf_of_another_kind(tmp_path):
    """An architecture that is not known, experts, partial RoPE, a scaling that is not known, missing numbers."""
    config = target_config("llama")
    weights = target_weights(config)

    def file(**fields):
        given = {key.replace("__", "."): value for key, value in fields.items()}
        return write_gguf(tmp_path / "model.gguf", config, weights, fields=given)

    assert "mixture" in refused(file(llama__expert_count=4))
    assert "longrope" in refused(file(llama__rope__scaling__type="longrope"))
    assert "factor" in refused(file(llama__rope__scaling__type="linear"))
    assert "scale_linear" in refused(file(llama__rope__scale_linear=4.0))
    rope = {"rope_freqs.weight": torch.ones(3).numpy()}
    assert "3 rope factors" in refused(write_gguf(tmp_path / "model.gguf", config, weights, extra=rope))
    del weights["model.embed_tokens.weight"]
    assert "token_embd" in refused(file())
    config["head_dim"] = 6
    assert "bad" not in refused(write_gguf(tmp_path / "model.gguf", config, target_weights(target_config("llama"))))
    config["model_type"] = "gemma"
    assert "gemma" in refused(file())


DRAFTER_MISFITS = {
    "other target": ({"num_target_layers": 4}, "4 layers"),
    "tap beyond the target": ({"dflash_config": {"mask_token_id": 1, "target_layer_ids": [0, 3]}}, "taps"),
    "tap below zero": ({"dflash_config": {"mask_token_id": 1, "target_layer_ids": [-1, 1]}}, "taps"),
    "no taps": ({"dflash_config": {"mask_token_id": 1, "target_layer_ids": []}}, "target_layer_ids"),
    "taps of another type": ({"dflash_config": {"mask_token_id": 1, "target_layer_ids": "all"}}, "target_layer_ids"),
    "no mask": ({"dflash_config": {"target_layer_ids": [0, 1]}}, "mask_token_id"),
    "mask out of range": ({"dflash_config": {"mask_token_id": 64, "target_layer_ids": [0, 1]}}, "mask id 64"),
    "vocabulary": ({"vocab_size": 65}, "65"),
    "hidden size": ({"hidden_size": 16}, "16"),
    "block beyond a pass": ({"block_size": 257}, "block of 257"),
    "architectures of another type": ({"architectures": 7}, "architectures"),
    "alignment of another type": ({"sample_from_anchor": "no"}, "sample_from_anchor"),
    "block of one": ({"block_size": 1}, "block"),
    "no block": ({"block_size": None}, "block_size"),
    "layers that are not there": ({"num_hidden_layers": 3}, "layers.2"),
    "DFlash 2": ({"architectures": ["DFlash2DraftModel"]}, "DFlash 2"),
    "layer kinds": ({"layer_types": ["full_attention"]}, "layer_types"),
    "unknown layer kind": ({"layer_types": ["full_attention", "chunked_attention"]}, "layer_types"),
    "window without a size": ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding_window"),
    "window below the block": ({"layer_types": ["sliding_attention"] * 2, "sliding_window": 4}, "sliding_window"),
    "inner config of another type": ({"dflash_config": [1, 2]}, "dflash_config"),
}


@pytest.mark.parametrize("name", DRAFTER_MISFITS)
def test_drafter_for_another_target(name, tmp_path):
    """A drafter that was made for another target is refused by what differs."""
    changes, words = DRAFTER_MISFITS[name]
    target = target_config("llama")
    config = drafter_config(target)
    folder = write_drafter(tmp_path / "drafter", {**config, **changes}, drafter_weights(config))
    assert words in refused(write_target(tmp_path / "target", target), folder)


@pytest.mark.parametrize(
    "name", ["fc.weight", "hidden_norm.weight", "layers.1.self_attn.k_norm.weight", "layers.0.mlp.down_proj.weight"]
)
def test_drafter_misses_a_tensor(name, tmp_path):
    """Every tensor of a drafter must be there: a missing one would only lower tau, which nobody would see."""
    target = target_config("llama")
    folder = write_drafter(tmp_path / "drafter", drafter_config(target))
    change_weights(folder, **{name: None})
    assert name in refused(write_target(tmp_path / "target", target), folder)


def packed(weight):
    """Rows in 8 bits, and their scales."""
    scale = weight.abs().amax(1) / 127
    return (weight / scale[:, None]).round().to(torch.int8), scale


def test_drafter_8_bit_scales(tmp_path):
    """An 8-bit matrix without its scales, with too few, or with a matrix of them."""
    target = target_config("llama")
    config = drafter_config(target)
    folder = write_drafter(tmp_path / "drafter", config)
    quantised, scale = packed(drafter_weights(config)["fc.weight"])
    path = write_target(tmp_path / "target", target)
    for scales in (None, scale[:5], scale[:1], scale[:, None]):
        change_weights(folder, **{"fc.weight": quantised, "fc.weight_scale": scales})
        assert "fc.weight" in refused(path, folder)
    change_weights(folder, **{"fc.weight_scale": scale})
    load(path, folder)


@pytest.mark.parametrize(
    ("head", "offsets", "words"),
    [
        (torch.zeros(20, 32), None, "d2t"),
        (torch.zeros(20, 31), torch.zeros(20), "head"),
        (torch.zeros(20, 32), torch.zeros(19), "d2t"),
        (torch.zeros(20, 32), torch.full((20,), 45), "id 64"),
        (torch.zeros(20, 32), torch.full((20,), -1), "id -1"),
        (torch.zeros(65, 32), None, "d2t"),
        (torch.zeros(20, 32), torch.arange(20) % 2, "one id twice"),
    ],
)
def test_drafter_with_a_bad_head(head, offsets, words, tmp_path):
    """A reduced vocabulary needs its map, and the map stays inside the target's vocabulary on both sides."""
    target = target_config("llama")
    folder = write_drafter(tmp_path / "drafter", drafter_config(target))
    change_weights(folder, **{"lm_head.weight": head, "d2t": None if offsets is None else offsets.long()})
    assert words in refused(write_target(tmp_path / "target", target), folder)


@pytest.mark.parametrize("factor", [0, 3, 6, -2, 2**17, 2**50, 2**300])
def test_widening_by_no_power_of_two(factor, folder):
    """Only powers of two divide exactly, and a factor beyond any machine is a mistake."""
    assert "power of two" in refused(folder, widen=factor)


def test_weights_that_are_not_numbers(folder):
    """A checkpoint of integers that nobody scaled is refused, not read as if they were weights."""
    change_weights(folder, **{"model.layers.0.mlp.up_proj.weight": torch.ones(48, 32, dtype=torch.int8)})
    assert "up_proj" in refused(folder)


@pytest.mark.parametrize(
    ("value", "dtype", "words"),
    [(1e200, "float32", "float32"), (-1e200, "bfloat16", "bfloat16"), (3.4e38, "bfloat16", "bfloat16")],
)
def test_weights_beyond_the_engines_type(value, dtype, words, folder):
    """A number that the checkpoint holds and the engine's type does not is refused, not turned into infinity."""
    name = "model.layers.0.mlp.up_proj.weight"
    weight = torch.zeros(48, 32, dtype=torch.float64)
    weight[3, 4] = value
    change_weights(folder, **{name: weight})

    assert words in refused(folder, dtype=dtype)
    load(folder, dtype="float64")


def test_header_that_lies(folder):
    """A header whose length exceeds the file."""
    path = folder / "model.safetensors"
    path.write_bytes(struct.pack("<Q", 1 << 40) + path.read_bytes()[8:])
    assert "model.safetensors" in refused(folder)

"""Checkpoints: the same model from one file, from shards and from GGUF in every type is the same tensors."""

import numpy as np
import pytest
import torch

from stock.checkpoint import open_checkpoint
from stock.errors import EngineError
from tests.stock.blocks import BLOCKS
from tests.stock.drive import decode, load
from tests.stock.gguf_file import quantised_weights, write_gguf
from tests.stock.tiny import target_config, target_weights, write_target

PROMPT = [5, 9, 33, 17, 60]
WIDE = {"hidden_size": 256, "intermediate_size": 256, "head_dim": 64, "num_hidden_layers": 1, "vocab_size": 64}


def same_answer(first, second):
    """Both files decode to the same tokens and the same bits of logits."""
    answers = [decode(load(path), PROMPT, 6, ignore_eos=True) for path in (first, second)]
    return answers[0].ids == answers[1].ids and np.array_equal(answers[0].logits, answers[1].logits)


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("tied", [False, True])
def test_gguf_is_the_folder_it_came_from(family, tied, tmp_path):
    """A FP32 GGUF file has every tensor of its folder, bit for bit, q and k rows back in rotate-half order."""
    config = target_config(family, tie_word_embeddings=tied)
    weights = target_weights(config)
    folder = write_target(tmp_path / "folder", config, weights)
    file = write_gguf(tmp_path / "model.gguf", config, weights)

    read = open_checkpoint(file)

    for name, weight in weights.items():
        assert torch.equal(read.read(name), weight), name
    assert same_answer(folder, file)


@pytest.mark.parametrize("count", [3, 4096, 4097, 6000])
@pytest.mark.parametrize("item", ["a piece of text", 7, 0.5])
def test_gguf_lists_of_any_length(count, item, tmp_path):
    """What stands behind a list in the metadata is read right, however long the list is and whatever it holds."""
    config = target_config("llama")
    weights = target_weights(config)
    fields = {"tokenizer.list": [item] * count, "general.behind": "the next field"}

    read = open_checkpoint(write_gguf(tmp_path / "model.gguf", config, weights, fields=fields))

    assert read.fields["general.behind"] == "the next field"
    assert all(torch.equal(read.read(name), weight) for name, weight in weights.items())


@pytest.mark.parametrize("kind", ["F16", "BF16"])
def test_gguf_16_bit(kind, tmp_path):
    """F16 and BF16 matrices are widened without rounding."""
    dtype = {"F16": torch.float16, "BF16": torch.bfloat16}[kind]
    config = target_config("llama")
    weights = {
        name: weight.to(dtype).float() if weight.dim() == 2 else weight
        for name, weight in target_weights(config).items()
    }
    read = open_checkpoint(write_gguf(tmp_path / "model.gguf", config, weights, kind=kind))

    for name, weight in weights.items():
        assert torch.equal(read.read(name), weight), name


@pytest.mark.parametrize("kind", BLOCKS)
def test_gguf_quantised(kind, tmp_path):
    """Blocks of every supported type mean the values that were packed, to one rounding of float32."""
    config = target_config("llama", **WIDE)
    weights, raw = quantised_weights(config, target_weights(config), kind)
    read = open_checkpoint(write_gguf(tmp_path / "model.gguf", config, weights, raw=raw))

    for name, weight in weights.items():
        torch.testing.assert_close(read.read(name), weight, rtol=2**-22, atol=2**-24, msg=name)
    answer = decode(load(read.path), PROMPT, 4, ignore_eos=True)
    expected = decode(load(write_target(tmp_path / "folder", config, weights)), PROMPT, 4, ignore_eos=True)
    assert answer.ids == expected.ids
    np.testing.assert_allclose(answer.logits, expected.logits, rtol=0, atol=1e-3)


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_transformers_shards(family, tmp_path, oracle):
    """A folder that transformers itself wrote, in shards with an index, is read as it reads it."""
    config = target_config(family)
    del config["architectures"]
    ids = list(range(3, 40))
    logits = oracle.ask("save", config=config, path=tmp_path / "saved", seed=3, shard_size="20KB", ids=ids)["logits"]

    ours = decode(load(tmp_path / "saved"), ids, 1, ignore_eos=True)

    assert len(list((tmp_path / "saved").glob("*.safetensors"))) > 2
    np.testing.assert_allclose(ours.logits[0], logits[-1], rtol=0, atol=2**-15 * float(logits.abs().max()))


def test_stop_ids(tmp_path):
    """Stop ids come from generation_config.json, else config.json, else GGUF's eos and eot, each once."""
    config = target_config("llama", eos_token_id=[7, 8])
    folder = write_target(tmp_path / "folder", config)
    assert load(folder).system.target.config.stop_ids == (7, 8)

    (folder / "generation_config.json").write_text('{"eos_token_id": 9}')
    assert load(folder).system.target.config.stop_ids == (9,)

    config = target_config("llama")
    fields = {"tokenizer.ggml.eot_token_id": 11}
    file = write_gguf(tmp_path / "model.gguf", config, target_weights(config), fields=fields)
    assert load(file).system.target.config.stop_ids == (2, 11)


def test_untied_head_is_read(tmp_path):
    """A checkpoint that ties its head ignores a stray lm_head; one that does not needs it."""
    config = target_config("llama", tie_word_embeddings=True)
    weights = target_weights(config)
    stray = {**weights, "lm_head.weight": torch.ones(64, 32)}

    assert same_answer(write_target(tmp_path / "a", config, weights), write_target(tmp_path / "b", config, stray))


def test_names_and_types(tmp_path):
    """A checkpoint lists what it has, and gives integers where either kind is asked for, but no NaN."""
    config = target_config("llama")
    weights = {**target_weights(config), "table": torch.arange(3), "spoilt": torch.tensor([torch.nan])}
    read = open_checkpoint(write_target(tmp_path / "folder", config, weights))

    assert read.names == sorted(weights)
    assert torch.equal(read.read("table", floating=None), weights["table"])
    assert torch.equal(read.read("model.norm.weight", floating=None), weights["model.norm.weight"])
    with pytest.raises(EngineError, match=r"'spoilt'.* holds what is no finite number"):
        read.read("spoilt", floating=None)
    with pytest.raises(EngineError, match=r"'table'.* holds torch\.int64"):
        read.read("table")

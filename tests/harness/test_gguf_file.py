"""harness/gguf_file.py: the library's reader says the same, and a damaged file ends in an error and in time."""

import time

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.gguf_file import open_gguf

WORDS = st.lists(st.text(st.characters(codec="utf-8"), max_size=5), min_size=1, max_size=9)


def write(path, words=("a", ""), numbers=(1, -2), shares=(0.5,), flags=(True, False), order=gguf.GGUFEndian.LITTLE):
    writer = gguf.GGUFWriter(path, "llama", endianess=order)
    writer.add_string("general.name", "a toy")
    writer.add_uint32("tokenizer.ggml.eos_token_id", 2)
    for name, values in (("words", words), ("numbers", numbers), ("shares", shares), ("flags", flags)):
        writer.add_array(f"tokenizer.{name}", list(values))
    writer.add_tensor("token_embd.weight", np.arange(12, dtype=np.float32).reshape(3, 4))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def told(reader):
    fields = {name: field.contents() for name, field in reader.fields.items()}
    return fields, [(each.name, each.shape.tolist(), each.n_elements, each.data_offset) for each in reader.tensors]


@given(words=WORDS, numbers=st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=9))
@settings(max_examples=30, deadline=None)
def test_it_says_what_the_library_says(tmp_path_factory, words, numbers):
    """Fields, lists of words and of numbers among them, and tensors."""
    path = write(tmp_path_factory.mktemp("gguf") / "toy.gguf", words, numbers)
    assert told(open_gguf(path)) == told(gguf.GGUFReader(path))
    assert open_gguf(path).fields["tokenizer.words"].contents() == words


def test_a_file_of_the_other_byte_order(tmp_path):
    """Big-endian files, which some machines write, are read alike."""
    path = write(tmp_path / "toy.gguf", ("ab", "c"), (7, 8), order=gguf.GGUFEndian.BIG)
    assert told(open_gguf(path)) == told(gguf.GGUFReader(path))


def test_a_real_vocabulary(smollm2):
    """SmolLM2's 49,152 words and as many merges, letter for letter."""
    fields, _ = told(open_gguf(smollm2))
    assert fields == told(gguf.GGUFReader(smollm2))[0]
    assert len(fields["tokenizer.ggml.tokens"]) == 49152


def test_a_damaged_file_ends_in_an_error_and_in_time(tmp_path):
    """Wherever it is cut, and whatever length a list states, it is read no longer than the file is."""
    data = write(tmp_path / "toy.gguf", ["word"] * 50).read_bytes()
    for cut in range(0, data.index(b"token_embd.weight"), 7):
        (tmp_path / "cut.gguf").write_bytes(data[:cut])
        with pytest.raises(Exception):  # noqa: B017 - of whatever kind numpy and the library raise
            open_gguf(tmp_path / "cut.gguf")
    for name in (b"tokenizer.words", b"tokenizer.numbers"):
        at = data.index(name) + len(name) + 8  # behind the kind of the list and of its items
        (tmp_path / "long.gguf").write_bytes(data[:at] + (2**62).to_bytes(8, "little") + data[at + 8 :])
        begun_s = time.monotonic()
        with pytest.raises(ValueError, match="it ends within its metadata"):
            open_gguf(tmp_path / "long.gguf")
        assert time.monotonic() - begun_s < 5

"""harness/text.py against transformers: the same ids, the same prompts, the same text back."""

import json
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from harness.errors import HarnessError, Missing, Unsupported, Usage
from harness.text import Text, load_text
from tests.harness import toys

ROOT = Path(__file__).parents[2]
SAMPLES = {
    "digits": "12345 3.14159 1,000,000 2024-11-30 7up x10y 0x1F",
    "fractions": "½ 1½ x² ③ Ⅳ ¾-cup",
    "spaced digits": "a  12\n\n1. one\n\n2. two\t\t3",
    "code": "def f(x):\n\treturn [i ** 2 for i in x]  # squares\n\nif f(3) != [0, 1, 4]:\r\n    raise ValueError\n",
    "cjk": "日本語のテキスト、中文文本,包括標點。 한국어 문장도 있습니다.",
    "emoji": "🙂 👩‍👩‍👧‍👦 🇩🇪☃️ it's 5 o'clock 🦙🦙",
    "special": "<|im_start|>user\n<|im_end|><|endoftext|> <|begin_of_text|><|eot_id|><think> </think> <|im_start",
    "spaces": "  two,   three,\t\ttabs \n\n\n lines \u00a0 \u3000 end  ",
    "accents": "déjà vu De\u0301ja\u0300 vu Å \u212b ﬁ naïve Ελληνικά हिन्दी",
    "contractions": "I'm you're they've he'd it's DON'T we'll 'S 'quote'",
    "empty": "",
}
# Runs of white space, digits, letters of several scripts and special tokens, in any order.
PIECES = st.one_of(
    st.text(max_size=6),
    st.text(alphabet=" \t\n\r", min_size=1, max_size=4),
    st.text(alphabet="0123456789", min_size=1, max_size=7),
    st.sampled_from([*(word for family in toys.FAMILIES.values() for word in family.special + family.plain)]),
    st.sampled_from(["zyzzyva", " syzygy", "'ll", "e\u0301", "The answer is", "日本語", "🙂", "'T"]),
)
TEXTS = st.lists(PIECES, max_size=8).map("".join)
NAMES = sorted(toys.FAMILIES)


@pytest.fixture(scope="session")
def texts(toy_paths):
    return {name: (load_text(folder), load_text(file)) for name, (folder, file) in toy_paths.items()}


@pytest.fixture(scope="session")
def real(smollm2):
    return load_text(smollm2)


@pytest.fixture(scope="session")
def published(real, tmp_path_factory):
    """SmolLM2's vocabulary as its authors publish it: the cut at digits, then GPT-2's."""
    folder = tmp_path_factory.mktemp("published") / "smollm2"
    return toys.write_published(json.loads(real.tokenizer.to_str()), toys.FAMILIES["smollm"], folder)


def test_oracle_does_not_see_our_kernels(oracle):
    """transformers runs where the repository's folder `kernels/` cannot be imported, wherever its environment lies."""
    assert ROOT not in [Path(place).resolve() for place in oracle.facts["path"]]
    assert oracle.facts["kernels"] is None or ROOT / "kernels" not in Path(oracle.facts["kernels"]).parents


def test_text_imports_nothing_of_ours_and_no_transformers(toy_paths):
    """Loading a model's text side imports neither transformers nor torch, nor another of our packages."""
    code = (
        "import json, sys; from pathlib import Path; from harness.text import load_text; load_text(Path(sys.argv[1]));"
        "print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"
    )
    command = [sys.executable, "-P", "-s", "-c", code, str(toy_paths["smollm"][1])]
    done = subprocess.run(command, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=True)

    assert not {"transformers", "torch", "triton", "spt", "stock", "kernels"} & set(json.loads(done.stdout))


@pytest.mark.parametrize("sample", SAMPLES)
@pytest.mark.parametrize("name", NAMES)
def test_toy_ids_equal_transformers(name, sample, texts, toy_paths, oracle):
    """Folder and GGUF file give the ids that transformers gives for the folder."""
    text = SAMPLES[sample]
    expected = oracle.encode(toy_paths[name][0], text)

    assert [source.encode(text) for source in texts[name]] == [expected, expected]


@settings(max_examples=120, deadline=None)
@given(text=TEXTS, name=st.sampled_from(NAMES))
def test_toy_ids_equal_transformers_on_any_text(text, name, texts, toy_paths, oracle):
    """The same, for texts made to be awkward."""
    expected = oracle.encode(toy_paths[name][0], text)

    assert [source.encode(text) for source in texts[name]] == [expected, expected]


@pytest.mark.parametrize("sample", SAMPLES)
def test_smollm2_ids_equal_transformers(sample, real, published, oracle):
    """SmolLM2's GGUF file gives the ids that transformers gives for the published tokenizer, and decodes alike."""
    ids = oracle.encode(published, SAMPLES[sample])

    assert real.encode(SAMPLES[sample]) == ids
    assert real.decode(ids) == oracle.ask(published, ids=ids)


@settings(max_examples=60, deadline=None)
@given(text=TEXTS)
def test_smollm2_ids_equal_transformers_on_any_text(text, real, published, oracle):
    """The same, for texts made to be awkward."""
    assert real.encode(text) == oracle.encode(published, text)


@pytest.mark.parametrize("sample", sorted(SAMPLES.keys() - {"fractions", "spaced digits"}))
def test_smollm2_ids_equal_transformers_own_gguf_reader(sample, real, smollm2, oracle):
    """transformers' GGUF reader agrees where the cut at digits makes no difference."""
    assert real.encode(SAMPLES[sample]) == oracle.encode(smollm2, SAMPLES[sample])


def test_smollm2_cuts_digits_off_as_it_was_trained(real, smollm2, oracle):
    """A blank line before a digit is one token: transformers' GGUF reader, which ignores `tokenizer.ggml.pre`,
    says two, but no token of the vocabulary joins a digit with anything, so it was trained with the cut.
    """
    tokens = [real.decode([token]) for token in range(real.tokenizer.get_vocab_size())]

    assert not [token for token in tokens if len(token) > 1 and any(char.isdecimal() for char in token)]
    assert [real.decode([token]) for token in real.encode("\n\n1")] == ["\n\n", "1"]
    assert len(oracle.encode(smollm2, "\n\n1")) == 3


CHATS = {
    "one turn": (["What is 12 + 30?"], [], None),
    "three turns": (["Hi", " spaces ", "again <|im_end|>"], ["Hello.", "<|eot_id|>é"], None),
    "system": (["Hi"], [], "Be brief."),
}


@pytest.mark.parametrize("chat", CHATS)
@pytest.mark.parametrize("name", [*NAMES, "smollm2"])
def test_chat_equals_transformers(name, chat, texts, real, toy_paths, smollm2, oracle):
    """The chat template gives transformers' prompt, its default system prompt included."""
    turns, answers, system = CHATS[chat]
    messages = [{"role": "system", "content": system}] if system else []
    for turn, answer in zip(turns, [*answers, None], strict=True):
        messages.append({"role": "user", "content": turn})
        messages += [{"role": "assistant", "content": answer}] if answer is not None else []
    sources, path = ([real], smollm2) if name == "smollm2" else (texts[name], toy_paths[name][0])
    expected = oracle.ask(path, messages=messages, variables={})

    assert [source.chat(turns, answers, system) for source in sources] == [expected] * len(sources)


def test_template_variables_reach_the_template(texts, toy_paths, oracle):
    """A template's own switches can be set."""
    variables = {"date_string": "1 Jan 2030"}
    messages = [{"role": "user", "content": "Hi"}]

    assert texts["llama3"][1].chat(["Hi"], **variables) == oracle.ask(
        toy_paths["llama3"][0], messages=messages, variables=variables
    )


def template_folder(tmp_path, template):
    folder = toys.write_folder(toys.FAMILIES["gpt2"], tmp_path / "model")
    (folder / "chat_template.jinja").write_text(template)
    return load_text(folder)


def test_template_file_goes_before_the_config(tmp_path):
    """`chat_template.jinja` wins over the template inside tokenizer_config.json, and marks for training vanish."""
    text = template_folder(
        tmp_path, "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}"
    )

    assert text.render(["Hi"]) == "Hi"


def test_template_tells_a_fixed_date(tmp_path):
    """A prompt is the same tomorrow: the date that Llama 3's templates fall back to."""
    assert template_folder(tmp_path, "{{ strftime_now('%d %b %Y') }}").render(["Hi"]) == "26 Jul 2024"


def test_template_keeps_html(tmp_path):
    """tojson writes text as it is, not escaped for HTML."""
    assert template_folder(tmp_path, "{{ messages[0].content | tojson }}").render(["<é>"]) == '"<é>"'


@pytest.mark.parametrize(
    ("template", "error", "words"),
    [
        ("{% for i in range(99999) %}{{ 'x' * 1000 }}{% endfor %}", Usage, "over 16777216 characters"),
        ("{{ raise_exception('no system role') }}", Usage, "no system role"),
        ("{{ messages[0].content + 1 }}", Usage, "refuses the turns"),
        ("{{ ''.__class__.__mro__ }}", Usage, "unsafe"),
        ("{% for %}", Unsupported, "not valid"),
    ],
)
def test_bad_template_is_one_line(tmp_path, template, error, words):
    """A template that refuses, fails or reaches for Python's insides is a one-line error."""
    with pytest.raises(error) as caught:
        template_folder(tmp_path, template).render(["Hi"])

    assert words in caught.value.message
    assert "\n" not in caught.value.message


# Any ids at all: half characters, special tokens, ids that the vocabulary does not have.
IDS = st.lists(st.integers(0, 720), max_size=40)


@settings(max_examples=150, deadline=None)
@given(ids=IDS, cuts=st.lists(st.integers(1, 5), min_size=1), name=st.sampled_from(NAMES))
def test_stream_joins_to_decode(ids, cuts, name, texts):
    """However ids arrive, the pieces join to the decoding of all of them."""
    text, at, pieces = texts[name][0], 0, []
    stream = text.stream()
    for turn in range(len(ids)):
        pieces.append(stream.push(ids[at : at + cuts[turn % len(cuts)]]))
        at += cuts[turn % len(cuts)]
    pieces.append(stream.finish())

    assert "".join(pieces) == text.decode(ids)


@settings(max_examples=60, deadline=None)
@given(words=st.text(alphabet=st.characters(exclude_categories=["Cs"], exclude_characters="\ufffd"), max_size=12))
def test_stream_never_shows_half_a_character(words, texts):
    """Whole characters only: U+FFFD never shows while valid text streams, token by token, and nothing is held back."""
    text = texts["smollm"][0]
    ids = text.encode(words)
    stream = text.stream()
    pieces = [stream.push([token]) for token in ids]

    assert not any("\ufffd" in piece for piece in pieces)
    assert "".join(pieces) == words
    assert stream.finish() == ""


@pytest.fixture(scope="module")
def byte_fallback(tmp_path_factory):
    """A model whose decoder looks at its neighbours, and seven words of it, some of several tokens."""
    folder = tmp_path_factory.mktemp("byte-fallback")
    names = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "▁b"]
    model = models.BPE({name: index for index, name in enumerate(names)}, [], unk_token="<unk>", byte_fallback=True)
    tokenizer = Tokenizer(model)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    euro, smile = ([names.index(f"<0x{byte:02X}>") for byte in word.encode()] for word in ("€", "🙂"))
    return load_text(folder), [[261], [260], euro, [259], smile, [261, 260], [259, 259]]


def test_stream_of_another_decoder_joins_to_decode(byte_fallback):
    """A decoder that looks at its neighbours (a sentence piece's leading space) streams as it decodes."""
    text, words = byte_fallback
    euro = words[2]
    ids = [261, 260, *euro, 259, 261, euro[0], 260]
    stream = text.stream()
    pieces = [stream.push([token]) for token in ids] + [stream.finish()]

    assert pieces == ["b", "a", "", "", "€", " ", " b", "", "\ufffda", ""]
    assert "".join(pieces) == text.decode(ids)


@settings(max_examples=30, deadline=None)
@given(tail=st.lists(st.integers(0, 6), min_size=0, max_size=40), sizes=st.lists(st.integers(1, 9), min_size=1))
def test_stream_of_another_decoder_is_bounded(tail, sizes, byte_fallback):
    """A long answer of such a decoder streams as it decodes, and no push decodes more than a window."""
    text, words = byte_fallback
    ids = [token for index in [*range(300), *tail, *range(300)] for token in words[index % 7]]
    decoded = []

    class Counted(Text):
        def decode(self, ids):
            decoded.append(len(ids))
            return super().decode(ids)

    stream, pieces, at = Counted(text.tokenizer, None, ()).stream(), [], 0
    while at < len(ids):
        size = sizes[at % len(sizes)]
        pieces.append(stream.push(ids[at : at + size]))
        at += size

    assert "".join([*pieces, stream.finish()]) == text.decode(ids)
    assert max(decoded) < 100


def edit_config(folder, **changes):
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_tokens_named_in_the_config_alone_equal_transformers(tmp_path, oracle):
    """Special tokens that only tokenizer_config.json lists become pieces of their own, as transformers has it."""
    folder = toys.write_folder(toys.FAMILIES["smollm"], tmp_path / "model")
    listed = {"content": "<listed>", "lstrip": True, "rstrip": False, "normalized": False, "single_word": False}
    decoder = {"701": {**listed, "special": False}}
    edit_config(folder, pad_token="<pad>", added_tokens_decoder=decoder, additional_special_tokens=["<extra>"])
    text = load_text(folder)
    sample = "a <pad>b  <listed> c<extra>d"

    assert text.encode(sample) == oracle.encode(folder, sample)
    assert {"<pad>", "<listed>", "<extra>"} <= {text.decode([token]) for token in text.encode(sample)}


def test_stop_ids(texts, real, tmp_path):
    """Stop ids come from generation_config.json, else config.json, else the EOS token; in GGUF from its fields."""
    folder = toys.write_folder(toys.FAMILIES["gpt2"], tmp_path / "model")
    (folder / "generation_config.json").write_text('{"eos_token_id": [9, 7]}')
    several = load_text(folder).stop_ids
    (folder / "generation_config.json").unlink()
    (folder / "config.json").unlink()
    named = load_text(folder).stop_ids
    (folder / "config.json").write_text('{"eos_token_id": 5}')

    assert [text.decode(text.stop_ids) for text in texts["qwen2"]] == ["<|im_end|>", "<|im_end|>"]
    assert real.stop_ids == (2,)
    assert several == (7, 9)
    assert named == texts["gpt2"][0].stop_ids
    assert load_text(folder).stop_ids == (5,)


@pytest.mark.parametrize(
    ("change", "words"),
    [({"pre": "default"}, "'default'"), ({"pre": "tekken"}, "'tekken'"), ({"model": "llama"}, "type 'llama'")],
)
def test_unknown_gguf_vocabulary_is_refused(tmp_path, change, words):
    """A cut or a model type whose ids cannot be promised is refused with a way out."""
    with pytest.raises(Unsupported) as caught:
        load_text(toys.write_gguf(toys.FAMILIES["gpt2"], tmp_path / "toy.gguf", **change))

    assert words in caught.value.message
    assert "Hugging Face folder" in caught.value.hint


@pytest.mark.parametrize("keep", [0, 3, 30, 600])
def test_torn_gguf_is_refused(tmp_path, toy_paths, keep):
    """A file that is no GGUF file, or a torn one, is a one-line error."""
    torn = tmp_path / "torn.gguf"
    torn.write_bytes(toy_paths["gpt2"][1].read_bytes()[:keep])
    with pytest.raises(Unsupported) as caught:
        load_text(torn)

    assert "\n" not in caught.value.message


def test_gguf_list_that_is_longer_than_the_file(tmp_path, toy_paths):
    """A length that lies is found at the end of the file, not after 2^50 items that are not there."""
    data = bytearray(toy_paths["gpt2"][1].read_bytes())
    name = b"tokenizer.ggml.token_type"
    at = data.index(name) + len(name) + 8  # behind the types of the list and of its items
    struct.pack_into("<Q", data, at, 1 << 50)
    (tmp_path / "toy.gguf").write_bytes(data)
    with pytest.raises(Unsupported, match="not a GGUF file"):
        load_text(tmp_path / "toy.gguf")


@given(at=st.integers(0, 18_000), byte=st.integers(0, 255))
@settings(max_examples=60, deadline=None)
def test_damaged_gguf(at, byte, toy_paths, tmp_path_factory):
    """One wrong byte anywhere gives a tokenizer or an error of one line."""
    data = bytearray(toy_paths["llama3"][1].read_bytes())
    data[at % len(data)] = byte
    path = tmp_path_factory.getbasetemp() / "damaged.gguf"
    path.write_bytes(data)
    chat_or_one_line(path)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 700) | st.sampled_from([1.5, 10**30, "", "x", "7", "<|eot_id|>"]),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(["content", "name", "template", "default", "7"]), inner, max_size=2)
    ),
    max_leaves=4,
)
KEYS = ["bos_token", "eos_token", "chat_template", "added_tokens_decoder", "extra_special_tokens", "eos_token_id"]


@given(name=st.sampled_from(KEYS), value=VALUES)
@settings(max_examples=60, deadline=None)
def test_config_with_any_value(name, value, toy_paths, tmp_path_factory):
    """Whatever stands in a folder's configs gives a tokenizer or an error of one line."""
    folder = tmp_path_factory.getbasetemp() / "any"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(toy_paths["llama3"][0], folder)
    file = folder / ("generation_config.json" if name == "eos_token_id" else "tokenizer_config.json")
    file.write_text(json.dumps({**json.loads(file.read_text()), name: value}))
    text = chat_or_one_line(folder)
    assert text is None or all(type(token) is int and token >= 0 for token in text.stop_ids)


@pytest.mark.parametrize("file", ["config.json", "tokenizer_config.json", "tokenizer.json", "chat_template.jinja"])
@pytest.mark.parametrize("content", [b"", b"[" * 100_000, b"7", b"\xff\xfe", b'{"a": ' + b"1" * 5000 + b"}"])
def test_file_that_is_no_file_of_its_kind(file, content, toy_paths, tmp_path):
    """Nesting without an end, bytes that are no text: an error of one line, whichever file it is."""
    folder = shutil.copytree(toy_paths["qwen2"][0], tmp_path / "model")
    (folder / "generation_config.json").unlink()
    (folder / file).write_bytes(content)
    chat_or_one_line(folder)


def chat_or_one_line(path):
    """The text side, which has rendered a conversation; None where that was refused in one line."""
    try:
        text = load_text(path)
        text.chat(["Hi there", "again"], ["hello"])
    except HarnessError as error:
        assert "\n" not in error.message
        assert len(error.message) < 600
        return None
    return text


@pytest.mark.parametrize(
    "template",
    [
        "{{ 1 / 0 }}",
        "{% for i in range(10**9) %}x{% endfor %}",
        "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}",
        "{{ messages[9].content.x }}",
        "{{ [].pop() }}",
        "{{ raise_exception(3) }}",
    ],
)
def test_template_that_fails_is_one_line(tmp_path, template):
    """A template is a program; whatever it raises is the template's refusal."""
    folder = toys.write_folder(toys.FAMILIES["gpt2"], tmp_path / "model")
    edit_config(folder, chat_template=template)
    with pytest.raises(Usage, match="chat template refuses"):
        load_text(folder).chat(["Hi"])


@pytest.mark.parametrize("words", ["\udcff", "a \ud83d b"])
def test_half_a_surrogate_pair_is_refused(words, texts):
    """What is no text has no ids."""
    with pytest.raises(Usage, match="surrogate"):
        texts["gpt2"][0].encode(words)


def test_missing_files_are_named(tmp_path):
    """No model, and a folder without a tokenizer, say what is missing."""
    with pytest.raises(Missing, match="no model at"):
        load_text(tmp_path / "nowhere")
    with pytest.raises(Missing, match=r"tokenizer\.json"):
        load_text(tmp_path)


def test_no_template_is_said(tmp_path):
    """Turns without a chat template are refused, never sent bare."""
    folder = toys.write_folder(toys.FAMILIES["gpt2"], tmp_path / "model")
    edit_config(folder, chat_template=None)
    with pytest.raises(Unsupported, match="no chat template"):
        load_text(folder).chat(["Hi"])

"""Small tokenizers of the families that the harness reads, written as a Hugging Face folder and as a GGUF file.

The patterns are written out here again, so that a slip in the harness cannot hide behind a shared constant.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import gguf
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

CORPUS = """The quick brown fox jumps over the lazy dog, and 12345 dogs don't care; they're 3.14159 times lazier.
def add(left: int, right: int) -> int:
    return left + right  # 1,000,000 sums
for index in range(10):
        print(f"{index:>3} {add(index, 2024)}")

if __name__ == "__main__":\r\n\tmain()
Wir müssen früh aufstehen, déjà vu, naïve façade, Ελληνικά, Русский язык, العربية, हिन्दी
日本語のテキストと漢字かな交じり文、中文文本,包括標點。 한국어 문장도 있습니다.
🙂 👩‍👩‍👧‍👦 🇩🇪 emoji ☃️ ½ ² ③ Ⅳ 1st 2nd 42nd
The answer is 42. The answer is that there are 7 steps:\n\n1. Think.\n2. Then think again.\n
"""

CHAT_ML = (
    "{% for message in messages %}"
    "{% if loop.first and message['role'] != 'system' %}<|im_start|>system\nBe a toy.<|im_end|>\n{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LLAMA_CHAT = """\
{{- bos_token }}
{%- if not date_string is defined %}
    {%- set date_string = "26 Jul 2024" %}
{%- endif %}
{#- a comment #}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\nToday is " + date_string + "<|eot_id|>" }}
{%- for message in messages %}
    {%- if message.content is not string %}{% continue %}{% endif %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
    {{- message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""
CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
LETTERS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


@dataclass(frozen=True)
class Family:
    """One way of cutting text, as the models that use it publish it."""

    pre: str
    architecture: str
    tokenizer_class: str
    template: str
    special: tuple[str, ...]
    bos: str | None
    eos: str
    pattern: str | None = None
    digits: bool = False
    composed: bool = False
    ignore_merges: bool = False
    plain: tuple[str, ...] = ()


FAMILIES = {
    "qwen2": Family(
        "qwen2", "qwen2", "Qwen2Tokenizer", CHAT_ML, ("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
        None, "<|im_end|>",
        pattern=rf"{CONTRACTIONS}|{LETTERS}|\p{{N}}|{REST}", composed=True, plain=("<think>", "</think>"),
    ),
    "llama3": Family(
        "llama-bpe", "llama", "PreTrainedTokenizerFast", LLAMA_CHAT,
        ("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
        "<|begin_of_text|>", "<|eot_id|>",
        pattern=rf"{CONTRACTIONS}|{LETTERS}|\p{{N}}{{1,3}}|{REST}", ignore_merges=True,
    ),
    "smollm": Family(
        "smollm", "llama", "PreTrainedTokenizerFast", CHAT_ML, ("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
        "<|im_start|>", "<|im_end|>", digits=True,
    ),
    "gpt2": Family("gpt-2", "gpt2", "GPT2Tokenizer", CHAT_ML, ("<|endoftext|>",), "<|endoftext|>", "<|endoftext|>"),
}  # fmt: skip


def train(family: Family, size: int = 700) -> Tokenizer:
    """A byte-level BPE tokenizer of this family, trained on the corpus above; the same for every call."""
    tokenizer = _with_steps(family, Tokenizer(models.BPE(ignore_merges=family.ignore_merges)))
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, min_frequency=1, show_progress=False)
    tokenizer.train_from_iterator(CORPUS.split("\n"), trainer)
    return _with_unreachable(tokenizer) if family.ignore_merges else tokenizer


def _with_steps(family: Family, tokenizer: Tokenizer) -> Tokenizer:
    if family.composed:
        tokenizer.normalizer = normalizers.NFC()
    steps = [pre_tokenizers.Digits(individual_digits=True)] if family.digits else []
    if family.pattern is not None:
        steps.append(pre_tokenizers.Split(Regex(family.pattern), behavior="isolated"))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=family.pattern is None))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _with_unreachable(tokenizer: Tokenizer) -> Tokenizer:
    """Adds words that no merge reaches: only a tokenizer that looks whole words up first finds them."""
    raw = json.loads(tokenizer.to_str())
    for word in ("zyzzyva", "Ġsyzygy"):
        raw["model"]["vocab"][word] = len(raw["model"]["vocab"])
    return Tokenizer.from_str(json.dumps(raw))


def write_folder(family: Family, folder: Path) -> Path:
    """Writes the family's toy as a Hugging Face folder."""
    return _save(family, train(family), family.special, folder)


def _save(family: Family, tokenizer: Tokenizer, special: Sequence[str], folder: Path) -> Path:
    folder.mkdir(parents=True)
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in special])
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in family.plain])
    if family.ignore_merges:
        bos = [(family.bos, tokenizer.token_to_id(family.bos))]
        tokenizer.post_processor = processors.TemplateProcessing(single=f"{family.bos} $A", special_tokens=bos)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": family.tokenizer_class,
        "bos_token": family.bos,
        "eos_token": family.eos,
        "chat_template": family.template,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "config.json").write_text(json.dumps({"model_type": family.architecture, "max_position_embeddings": 512}))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": tokenizer.token_to_id(family.eos)}))
    return folder


def write_published(raw: dict, family: Family, folder: Path) -> Path:
    """The Hugging Face folder of a tokenizer's vocabulary (`raw`, its JSON), cut as the family publishes it."""
    merges = [tuple(pair) for pair in raw["model"]["merges"]]
    tokenizer = _with_steps(family, Tokenizer(models.BPE(raw["model"]["vocab"], merges)))
    return _save(family, tokenizer, [token["content"] for token in raw["added_tokens"]], folder)


def write_gguf(family: Family, path: Path, **changes: str) -> Path:
    """Writes the family's toy as a GGUF file without weights; `changes` overwrite `model` and `pre`."""
    tokenizer = train(family)
    model = json.loads(tokenizer.to_str())["model"]
    names = [name for name, _ in sorted(model["vocab"].items(), key=lambda item: item[1])]
    types = [gguf.TokenType.NORMAL] * len(names)
    types += [gguf.TokenType.CONTROL] * len(family.special) + [gguf.TokenType.USER_DEFINED] * len(family.plain)
    names += [*family.special, *family.plain]
    writer = gguf.GGUFWriter(path, family.architecture)
    writer.add_context_length(512)
    writer.add_tokenizer_model(changes.get("model", "gpt2"))
    writer.add_tokenizer_pre(changes.get("pre", family.pre))
    writer.add_token_list(names)
    writer.add_token_types(types)
    writer.add_token_merges([" ".join(pair) for pair in model["merges"]])
    if family.bos is not None:
        writer.add_bos_token_id(names.index(family.bos))
    writer.add_eos_token_id(names.index(family.eos))
    writer.add_chat_template(family.template)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path

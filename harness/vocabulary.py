"""Reads a model's vocabulary into a tokenizer: from a Hugging Face folder, or from a GGUF file.

A GGUF file holds tokens, merges and the *name* of the way text is cut before merging (`tokenizer.ggml.pre`).
What that name stands for is a fact about the models that carry it; `_CUTS` has those whose published
`tokenizer.json` it is known to equal, and any other name is refused.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from harness.errors import Missing, Unsupported
from harness.gguf_file import open_gguf

__all__ = ["Vocabulary", "from_folder", "from_gguf"]

TOKEN_NAMES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


@dataclass(frozen=True)
class Vocabulary:
    """A tokenizer, the special tokens by name, the chat template's source, and the ids that end an answer."""

    tokenizer: Tokenizer
    tokens: Mapping[str, str]
    template: str | None
    stop_ids: tuple[int, ...]


# --- Hugging Face folders -------------------------------------------------------------------------------------


def from_folder(folder: Path) -> Vocabulary:
    """The vocabulary of a folder with `tokenizer.json`."""
    source = folder / "tokenizer.json"
    if not source.is_file():
        raise Missing(f"no 'tokenizer.json' in '{folder}'", "save the tokenizer of the model in that form")
    tokenizer = _parse(source)
    config = _json(folder / "tokenizer_config.json")
    tokens = {name: _content(config[name]) for name in TOKEN_NAMES if config.get(name) is not None}
    _add_tokens(tokenizer, config, tokens)
    if config.get("split_special_tokens"):
        tokenizer.encode_special_tokens = True
    return Vocabulary(tokenizer, tokens, _folder_template(folder, config), _folder_stop_ids(folder, tokenizer, tokens))


def _parse(source: Path) -> Tokenizer:
    try:
        return Tokenizer.from_file(str(source))
    except Exception as error:  # noqa: BLE001 - the library raises bare Exception
        raise Unsupported(f"'{source}' is not a tokenizer that can be read: {error}") from None


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise Unsupported(f"'{path}' is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise Unsupported(f"'{path}' is not a JSON object")
    return value


def _content(token: Any) -> str:
    return str(token["content"] if isinstance(token, dict) else token)


def _add_tokens(tokenizer: Tokenizer, config: Mapping[str, Any], tokens: Mapping[str, str]) -> None:
    """Adds what the config names and `tokenizer.json` does not know as a token of its own."""
    known = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    listed = config.get("added_tokens_decoder") or {}
    for _, token in sorted(listed.items(), key=lambda item: int(item[0])):
        if token["content"] not in known:
            flags = {key: token[key] for key in ("single_word", "lstrip", "rstrip", "normalized") if key in token}
            add = tokenizer.add_special_tokens if token.get("special") else tokenizer.add_tokens
            add([AddedToken(token["content"], special=bool(token.get("special")), **flags)])
            known.add(token["content"])
    extra = config.get("extra_special_tokens") or config.get("additional_special_tokens") or []
    named = [*tokens.values(), *(_content(token) for token in (extra.values() if isinstance(extra, dict) else extra))]
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in named if token not in known]
    )


def _folder_template(folder: Path, config: Mapping[str, Any]) -> str | None:
    own_file = folder / "chat_template.jinja"
    if own_file.is_file():
        return own_file.read_text(encoding="utf-8")
    template = config.get("chat_template")
    if isinstance(template, list):
        template = {entry["name"]: entry["template"] for entry in template}.get("default")
    return template


def _folder_stop_ids(folder: Path, tokenizer: Tokenizer, tokens: Mapping[str, str]) -> tuple[int, ...]:
    for name in ("generation_config.json", "config.json"):
        ids = _json(folder / name).get("eos_token_id")
        if ids is not None:
            listed = ids if isinstance(ids, list) else [ids]
            if any(type(each) is not int or each < 0 for each in listed):
                raise Unsupported(f"'eos_token_id' of '{folder / name}' is not a token id or a list of them")
            return tuple(sorted(set(listed)))
    end = tokenizer.token_to_id(tokens["eos_token"]) if "eos_token" in tokens else None
    return () if end is None else (end,)


# --- GGUF files -----------------------------------------------------------------------------------------------

# The kinds of `tokenizer.ggml.token_type` that are whole pieces of any text; all others only come out of merging.
_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4

_LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN_2 = _LLAMA_3.replace(r"\p{N}{1,3}", r"\p{N}")


@dataclass(frozen=True)
class _Cut:
    """How a family of models cuts text before merging."""

    pattern: str | None  # None: GPT-2's own
    digits: bool = False  # each digit alone, before anything else
    composed: bool = False  # NFC first
    whole_words: bool = False  # a piece that is a token needs no merges


_LLAMA_3_CUT = _Cut(_LLAMA_3, whole_words=True)
_CUTS = {
    "llama-bpe": _LLAMA_3_CUT,
    "llama3": _LLAMA_3_CUT,
    "llama-v3": _LLAMA_3_CUT,
    "qwen2": _Cut(_QWEN_2, composed=True),  # Qwen2, Qwen2.5 and Qwen3
    "smollm": _Cut(None, digits=True),  # SmolLM and SmolLM2
    "gpt-2": _Cut(None),
}


def from_gguf(path: Path) -> Vocabulary:
    """The vocabulary in a GGUF file's `tokenizer.*` fields."""
    fields = _gguf_fields(path)
    model, cut_name = fields.get("ggml.model"), fields.get("ggml.pre")
    if model != "gpt2":
        raise Unsupported(
            f"'{path}' has a tokenizer of type '{model}', whose ids cannot be promised", "give the Hugging Face folder"
        )
    cut = _CUTS.get(str(cut_name))
    if cut is None:
        raise Unsupported(
            f"'{path}' cuts text the way '{cut_name}', which is not known",
            f"known are {', '.join(sorted(_CUTS))}; or give the Hugging Face folder",
        )
    for name in ("ggml.tokens", "ggml.merges", "ggml.token_type"):
        if name not in fields:
            raise Unsupported(f"'{path}' lacks the field 'tokenizer.{name}'", "give the Hugging Face folder")
    names: list[str] = fields["ggml.tokens"]
    tokenizer = _byte_level(names, fields["ggml.merges"], cut)
    _mark_added(tokenizer, names, fields["ggml.token_type"])
    ends = {fields.get(f"ggml.{name}_token_id") for name in ("eos", "eot", "eom")}
    stop_ids = tuple(sorted(int(end) for end in ends if end is not None))
    return Vocabulary(tokenizer, _named(fields, names), fields.get("chat_template"), stop_ids)


def _gguf_fields(path: Path) -> dict[str, Any]:
    """All `tokenizer.*` fields by what follows that prefix."""
    prefix = "tokenizer."
    try:
        fields = open_gguf(path).fields.items()
        return {name.removeprefix(prefix): field.contents() for name, field in fields if name.startswith(prefix)}
    except Missing:
        raise
    except Exception as error:  # the reader indexes into a memory map and raises whatever numpy raises
        raise Unsupported(f"'{path}' is not a GGUF file that can be read: {error}") from error


def _byte_level(names: list[str], merges: list[str], cut: _Cut) -> Tokenizer:
    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
    vocabulary = {name: index for index, name in enumerate(names)}
    tokenizer = Tokenizer(models.BPE(vocabulary, pairs, ignore_merges=cut.whole_words))
    if cut.composed:
        tokenizer.normalizer = normalizers.NFC()
    steps: list[pre_tokenizers.PreTokenizer] = []
    if cut.digits:
        steps.append(pre_tokenizers.Digits(individual_digits=True))
    if cut.pattern is not None:
        steps.append(pre_tokenizers.Split(Regex(cut.pattern), behavior="isolated"))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=cut.pattern is None))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _mark_added(tokenizer: Tokenizer, names: list[str], types: Iterable[int]) -> None:
    """Makes control and user-defined tokens whole pieces of any text, as their `tokenizer.json` does."""
    kinds = list(zip(names, types, strict=True))
    control = [name for name, kind in kinds if kind in (_CONTROL, _UNKNOWN)]
    user_defined = [name for name, kind in kinds if kind == _USER_DEFINED]
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in control])
    tokenizer.add_tokens([AddedToken(name, special=False, normalized=False) for name in user_defined])


def _named(fields: Mapping[str, Any], names: list[str]) -> dict[str, str]:
    ids = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
    found = {name: fields.get(f"ggml.{field}_token_id") for name, field in ids.items()}
    return {f"{name}_token": names[index] for name, index in found.items() if index is not None}

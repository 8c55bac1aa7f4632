"""Text to token ids and back: the only code that does it.

`load_text` reads what ships with a model, a Hugging Face folder or a GGUF file.
Its ids equal transformers'; where that cannot be promised it refuses instead of guessing.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.errors import HarnessError, Missing, Unsupported, Usage
from harness.request import Request

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from harness.template import ChatTemplate

__all__ = ["Stream", "Text", "load_text", "load_text_for"]

_WINDOW_TOK, _COMPANY_TOK = 64, 8
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


@dataclass(frozen=True)
class Text:
    """A model's tokenizer, chat template and stop ids."""

    tokenizer: "Tokenizer"
    template: "ChatTemplate | None"
    stop_ids: tuple[int, ...]

    def encode(self, text: str) -> list[int]:
        """Ids of `text` and nothing around it; special tokens written out in it become their ids."""
        try:
            ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False).ids
        except TypeError:  # what the library says of half a surrogate pair
            raise Usage("the prompt is not text: it holds half a surrogate pair") from None
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids`, special tokens written out; bytes that are not UTF-8 become U+FFFD."""
        text: str = self.tokenizer.decode(list(ids), skip_special_tokens=False)
        return text

    def render(
        self, turns: Sequence[str], answers: Sequence[str] = (), system: str | None = None, **variables: Any
    ) -> str:
        """The prompt text for user `turns` and the `answers` to all but the last, open for the next answer.

        Without `system` the template's own default holds, whatever that is.
        """
        if self.template is None:
            raise Unsupported("the target has no chat template", "give requests with 'ids' instead of 'turns'")
        if len(answers) != len(turns) - 1:
            raise ValueError(f"{len(turns)} turns want {len(turns) - 1} answers, not {len(answers)}")
        messages = [] if system is None else [{"role": "system", "content": system}]
        for index, turn in enumerate(turns):
            messages.append({"role": "user", "content": turn})
            if index < len(answers):
                messages.append({"role": "assistant", "content": answers[index]})
        return self.template.render(messages, **variables)

    def chat(
        self, turns: Sequence[str], answers: Sequence[str] = (), system: str | None = None, **variables: Any
    ) -> list[int]:
        """Prompt ids for a conversation, see `render`; the template writes its own special tokens."""
        return self.encode(self.render(turns, answers, system, **variables))

    def stream(self) -> "Stream":
        """A decoder for ids that come bit by bit."""
        return Stream(self)


class Stream:
    """Decodes ids as they come: whole characters only, and the pieces join to `Text.decode` of all ids."""

    def __init__(self, text: Text) -> None:
        self._text = text
        # Byte-level decoders map each token to bytes by itself, so decoding may start afresh between characters.
        self._forgets = type(text.tokenizer.decoder).__name__ == "ByteLevel"
        self._ids: list[int] = []  # of the text that is not yet left behind
        self._sent = 0  # characters of their text

    def push(self, ids: Sequence[int]) -> str:
        """The text that `ids` complete; perhaps empty."""
        self._ids.extend(ids)
        text = self._text.decode(self._ids)
        # A trailing U+FFFD may yet become a character, and nothing before it can change any more.
        stable = text.rstrip(_REPLACEMENT)
        piece, self._sent = stable[self._sent :], max(self._sent, len(stable))
        if self._forgets and len(stable) == len(text):
            self._ids, self._sent = [], 0
        elif len(self._ids) >= _WINDOW_TOK and self._sent == len(stable):
            self._leave_behind(text)
        return piece

    def _leave_behind(self, text: str) -> None:
        """Drops ids whose `text` cannot change any more, so that the work does not grow with the answer.

        Decoders look at a token's neighbours, so some stay as company for those to come; where a cut goes through a
        character, of at most four tokens, the next one does not.
        """
        for count in range(_COMPANY_TOK, _COMPANY_TOK + 4):
            company = self._ids[-count:]
            left = self._text.decode(company)
            unsent = len(text) - self._sent
            if len(left) > unsent and text.endswith(left):
                self._ids, self._sent = company, len(left) - unsent
                return

    def finish(self) -> str:
        """What is left: U+FFFD for bytes that never became characters."""
        piece = self._text.decode(self._ids)[self._sent :]
        self._ids, self._sent = [], 0
        return piece


def load_text(path: Path) -> Text:
    """The text side of the model at `path`, a Hugging Face folder or a GGUF file.

    Raises `Missing` where a file or a package is not there and `Unsupported` where exact ids cannot be promised.
    """
    try:
        from harness.template import ChatTemplate
        from harness.vocabulary import from_folder, from_gguf
    except ImportError as error:
        raise Missing(f"the package '{error.name}' is not installed here", "pip install specpilot") from None
    if not (path.is_dir() or path.is_file()):
        raise Missing(f"no model at '{path}'", "the target is a Hugging Face folder or a GGUF file")
    try:
        vocabulary = from_folder(path) if path.is_dir() else from_gguf(path)
    except HarnessError:
        raise
    except Exception as error:  # whatever a damaged file holds where a name, a list or a number belongs
        what = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise Unsupported(f"the tokenizer of '{path}' cannot be read: {what}") from error
    vocabulary.tokenizer.no_padding()
    vocabulary.tokenizer.no_truncation()
    source = vocabulary.template
    template = None if source is None else ChatTemplate(source, vocabulary.tokens)
    return Text(vocabulary.tokenizer, template, vocabulary.stop_ids)


def load_text_for(path: Path, requests: Iterable[Request]) -> Text | None:
    """The text side of a target for these requests; None where there is none and all of them are bare ids."""
    try:
        return load_text(path)
    except (Missing, Unsupported):
        if any(request.turns for request in requests):
            raise
        return None

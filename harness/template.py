"""Chat templates: the model's own Jinja program, run in a sandbox, as transformers runs it.

One thing differs on purpose: `strftime_now` tells a fixed date.
A prompt that changes at midnight would make timings and forced tokens of two days incomparable.
"""

import datetime
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

from harness.errors import Unsupported, Usage

__all__ = ["TODAY", "ChatTemplate"]

# The date that Llama 3's templates themselves fall back to where no clock is there.
TODAY = datetime.datetime(2024, 7, 26)

MAX_CHARACTERS = 16 << 20


class _Generation(jinja2.ext.Extension):
    """`{% generation %}` marks an answer for training; here it only lets its body through."""

    tags = {"generation"}  # noqa: RUF012 - jinja2's own declaration

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node | list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, **more: Any) -> str:
    # jinja2's own filter escapes HTML, which a prompt must not.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **more)


class ChatTemplate:
    """A compiled chat template; `tokens` are the names it may use, such as `bos_token`."""

    def __init__(self, source: str, tokens: Mapping[str, str]) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = TODAY.strftime
        self._tokens = dict(tokens)
        try:
            self._template = environment.from_string(source)
        except (jinja2.TemplateError, TypeError, ValueError, RecursionError) as error:
            raise Unsupported(f"the target's chat template is not valid: {_one_line(error)}") from None

    def render(self, messages: Sequence[Mapping[str, str]], **variables: Any) -> str:
        """The prompt for `messages` ({role, content}), open for the assistant's answer.

        `variables` are the template's own switches, such as `enable_thinking`.
        Raises `Usage` where the template refuses the messages.
        """
        try:
            pieces = self._template.generate(
                messages=[dict(message) for message in messages],
                tools=None,
                documents=None,
                add_generation_prompt=True,
                **{**self._tokens, **variables},
            )
            return _joined(pieces)
        except Exception as error:  # a program of its own: it may divide by zero, recurse or count too far
            raise Usage(f"the target's chat template refuses the turns: {_one_line(error)}") from error


def _joined(pieces: Iterable[str]) -> str:
    """The whole prompt, unless it grows longer than any line of the protocol."""
    kept, room = [], MAX_CHARACTERS
    for piece in pieces:
        room -= len(piece)
        if room < 0:
            raise jinja2.TemplateError(f"the prompt has over {MAX_CHARACTERS} characters")
        kept.append(piece)
    return "".join(kept)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())

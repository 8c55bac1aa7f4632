"""docs/cli.md, made from the commands' own help: `python -m spt.cli.reference > docs/cli.md`."""

from collections.abc import Iterator

import click

from spt.cli import LazyGroup, cli

__all__ = ["reference"]

_HEAD = """# Commands

Made from `--help` by `python -m spt.cli.reference`; a test holds it.
Data goes to standard output, talk to standard error; docs/memory.md lists the exit codes.
An error leaves standard output as it is, also with `--json`: there is no object that says error.
The exit code says of what kind it was, and standard error has a line `error:` and perhaps a line `hint:`.

A shell completes commands, options and the names of entries once its start-up file has one of these lines:

```
eval "$(_SPT_COMPLETE=bash_source spt)"
eval "$(_SPT_COMPLETE=zsh_source spt)"
_SPT_COMPLETE=fish_source spt | source
```
"""
_WIDTH = 100


def reference() -> str:
    """The reference page, in Markdown: a section a command, in the order of the groups' own lists."""
    context = click.Context(cli, info_name="spt", **cli.context_settings)
    return "\n".join([_HEAD, *(f"## {name}\n\n```\n{text}\n```\n" for name, text in _pages(cli, context))])


def _pages(command: click.Command, context: click.Context) -> Iterator[tuple[str, str]]:
    formatter = click.HelpFormatter(width=_WIDTH)
    command.format_help(context, formatter)
    yield context.command_path, formatter.getvalue().rstrip()
    if isinstance(command, LazyGroup):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from _pages(inner, click.Context(inner, info_name=name, parent=context))


if __name__ == "__main__":
    print(reference(), end="")

"""The judge's commands: `python -m harness run|requests|seal` (docs/harness.md, docs/requests.md)."""

import argparse
import datetime
import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from harness.errors import HarnessError
from harness.requests import Wanted, check_seal, make_seal, write_requests
from harness.run import run


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    chosen = _parser().parse_args(arguments)
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _end)
    try:
        chosen.action(chosen)
        sys.stdout.flush()
    except HarnessError as error:
        print(f"error: {error.message}", file=sys.stderr)
        if error.hint:
            print(f"hint: {error.hint}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader went away; at exit Python would try to write what is left.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _run(chosen: argparse.Namespace) -> None:
    counts = run(chosen.job, chosen.out, chosen.max_minutes, _emit if chosen.stream else lambda event: None)
    if not chosen.stream:
        tau = "none" if counts.tau is None else f"{counts.tau:.2f}"
        print(f"answers {counts.answers}\ntokens {counts.tokens}\nlooped_tokens {counts.looped_tokens}\ntau {tau}")


def _requests(chosen: argparse.Namespace) -> None:
    wanted = Wanted(**{name: getattr(chosen, name) for name in Wanted.__dataclass_fields__})
    write_requests(wanted, chosen.out, chosen.seal, chosen.job_key, datetime.datetime.now(datetime.UTC))


def _seal(chosen: argparse.Namespace) -> None:
    if chosen.check is None:
        print(f"commitment {make_seal(chosen.seal, chosen.seed)}")
    else:
        check_seal(chosen.seal, chosen.check)


def _end(number: int, frame: object) -> None:
    """Ends by an exception instead of on the spot, so that the engine goes with us."""
    sys.exit(143)


def _emit(event: dict[str, Any]) -> None:
    print(json.dumps(event), flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m harness", description=__doc__, allow_abbrev=False)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, action: Callable[[argparse.Namespace], None], help_: str) -> Callable[..., argparse.Action]:
        made = commands.add_parser(name, help=help_, allow_abbrev=False)
        made.set_defaults(action=action)
        return made.add_argument

    option = command("run", _run, "answer the requests of a job with its arm 'a'")
    option("--job", type=Path, required=True, metavar="JOB.json")
    option("--out", type=Path, required=True, metavar="DIR", help="where answers.jsonl lies or will lie")
    option("--max-minutes", type=float, metavar="M", help="stop after so long, and go on another time")
    option("--stream", action="store_true", help="JSON lines on standard output as text arrives")

    option = command("requests", _requests, "generate requests that nobody has seen")
    option("--set", required=True, metavar="NAME", help="warmup, development, confirmation, force or final")
    option("--seed", type=int, metavar="N", help="any number; a final's lies in its seal")
    option("--count", type=int, required=True, metavar="K")
    option("--first", type=int, default=0, metavar="I", help="the index of the first; 0")
    option("--sessions", action="store_true", help="sessions of many turns instead of single requests")
    option("--context-tok", type=int, metavar="N", help="the context that a session fills; 5120")
    option("--fixed-tok", type=int, metavar="N", help="answers of exactly N tokens, EOS ignored")
    option("--temperature", type=float, metavar="T", help="of each request; the deployment's where left out")
    option("--longest-tok", type=int, metavar="N", help="about the longest prompt; 1500")
    option("--families", nargs="+", default=[], metavar="F", help="all where left out")
    option("--seal", type=Path, metavar="FILE", help="the secret of a final")
    option("--job-key", metavar="KEY", help="of the one job that may draw the final")
    option("--out", type=Path, required=True, metavar="FILE")

    option = command("seal", _seal, "make the secret of a final and print its commitment, or check one")
    option("--seal", type=Path, required=True, metavar="FILE", help="the secret; a new file, unless it is checked")
    option("--seed", type=int, metavar="N", help="drawn where left out")
    option("--check", metavar="COMMITMENT", help="whether the secret is what was committed to")
    return parser


if __name__ == "__main__":
    sys.exit(main())

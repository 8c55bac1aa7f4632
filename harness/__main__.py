"""The judge's commands: `python -m harness run|prepare|time|verdict|probe` (docs/harness.md, docs/judge.md)."""

import argparse
import datetime
import json
import math
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.errors import HarnessError
from harness.run import run


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    chosen = _parser().parse_args(arguments)
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _end)
    try:
        status: int = chosen.act(chosen) or 0
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
    return status


def _run(chosen: argparse.Namespace) -> None:
    counts = run(chosen.job, chosen.out, chosen.max_minutes, _emit if chosen.stream else lambda event: None)
    if not chosen.stream:
        tau = "none" if counts.tau is None else f"{counts.tau:.2f}"
        print(f"answers {counts.answers}\ntokens {counts.tokens}\nlooped_tokens {counts.looped_tokens}\ntau {tau}")


def _verdict(chosen: argparse.Namespace) -> None:
    # What only measures needs no numpy.
    from harness.verdict import verdict

    _emit(verdict(chosen.what, chosen.samples, chosen.reference))


def _time(chosen: argparse.Namespace) -> int:
    from harness.campaign import time_arms

    verdict = time_arms(
        chosen.job,
        chosen.out,
        chosen.max_minutes,
        _emit if chosen.stream else lambda event: None,
        sandbox=not chosen.no_sandbox,
        devices=chosen.devices.split(",") if chosen.devices else (),
    )
    if not chosen.stream:
        _emit(verdict)
    return 0 if verdict["answer"] == "promote" else 1


def _calibrate(chosen: argparse.Namespace) -> None:
    from harness.scoring import calibrate

    emit = _emit if chosen.stream else lambda event: None
    calibrate(chosen.job, chosen.out, chosen.max_minutes, emit, sandbox=not chosen.no_sandbox)


def _force(chosen: argparse.Namespace) -> int:
    from harness.scoring import force

    emit = _emit if chosen.stream else lambda event: None
    verdict = force(chosen.job, chosen.out, chosen.reference, chosen.max_minutes, emit, sandbox=not chosen.no_sandbox)
    if not chosen.stream:
        _emit(verdict)
    return 0 if verdict["answer"] == "accept" else 1


def _prepare(chosen: argparse.Namespace) -> None:
    from harness.prepared import prepare

    _emit(prepare(chosen.job, chosen.out, sandbox=not chosen.no_sandbox))


def _probe(chosen: argparse.Namespace) -> None:
    from harness.probe import probe

    _emit(probe(chosen.device, datetime.datetime.now(datetime.UTC)))


def _end(number: int, frame: object) -> None:
    """Ends by an exception instead of on the spot, so that the engine goes with us."""
    sys.exit(143)


def _emit(event: dict[str, Any]) -> None:
    print(json.dumps(event), flush=True)


def _minutes(word: str) -> float:
    minutes = float(word)
    if not 0 <= minutes < math.inf:
        raise argparse.ArgumentTypeError(f"'{word}' is not a number of minutes")
    return minutes


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m harness", description=__doc__, allow_abbrev=False)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    command = commands.add_parser("run", help="answer the requests of a job with its arm 'a'", allow_abbrev=False)
    command.add_argument("--job", type=Path, required=True, metavar="JOB.json")
    command.add_argument("--out", type=Path, required=True, metavar="DIR", help="where answers.jsonl lies or will lie")
    command.add_argument("--max-minutes", type=_minutes, metavar="M", help="stop after so long, and go on another time")
    command.add_argument("--stream", action="store_true", help="JSON lines on standard output as text arrives")
    command.set_defaults(act=_run)
    command = commands.add_parser("verdict", help="what samples say, as one line of JSON", allow_abbrev=False)
    command.add_argument("samples", type=Path, metavar="SAMPLES", help="samples.jsonl, or samples.jsonl.gz")
    command.add_argument("--what", choices=("timing", "forcing"), default="timing")
    command.add_argument("--reference", type=Path, metavar="SAMPLES", help="the file that holds stock's calibration")
    command.set_defaults(act=_verdict)
    command = commands.add_parser("time", help="compare arm 'a' with arm 'b' in paired runs", allow_abbrev=False)
    command.add_argument("--job", type=Path, required=True, metavar="JOB.json")
    command.add_argument("--out", type=Path, required=True, metavar="DIR", help="where samples.jsonl lies or will lie")
    command.add_argument("--max-minutes", type=float, metavar="M", help="stop after so long, and go on another time")
    command.add_argument("--devices", metavar="D[,D]", help="the device, or two that are exchanged within a unit")
    command.add_argument("--no-sandbox", action="store_true", help="the arms are trusted: do not enclose them")
    command.add_argument("--stream", action="store_true", help="JSON lines on standard output as things happen")
    command.set_defaults(act=_time)
    for name, act, text in (
        ("calibrate", _calibrate, "let stock answer and score itself: what forcing is held against"),
        ("force", _force, "let trusted stock score every token that arm 'a' says"),
    ):
        command = commands.add_parser(name, help=text, allow_abbrev=False)
        command.add_argument("--job", type=Path, required=True, metavar="JOB.json")
        command.add_argument("--out", type=Path, required=True, metavar="DIR", help="where samples.jsonl lies or will")
        command.add_argument("--max-minutes", type=float, metavar="M", help="stop after so long, to go on another time")
        command.add_argument("--no-sandbox", action="store_true", help="the arms are trusted: do not enclose them")
        command.add_argument("--stream", action="store_true", help="JSON lines on standard output as things happen")
        if name == "force":
            command.add_argument("--reference", type=Path, required=True, metavar="SAMPLES", help="of `calibrate`")
        command.set_defaults(act=act)
    command = commands.add_parser("prepare", help="let each arm of a job prepare, once", allow_abbrev=False)
    command.add_argument("--job", type=Path, required=True, metavar="JOB.json")
    command.add_argument("--out", type=Path, required=True, metavar="DIR", help="where what they write will lie")
    command.add_argument("--no-sandbox", action="store_true", help="the arms are trusted: do not enclose them")
    command.set_defaults(act=_prepare)
    command = commands.add_parser("probe", help="print what this machine allows the judge", allow_abbrev=False)
    command.add_argument("--device", default="cpu", metavar="D", help="cpu, cuda or cuda:N")
    command.set_defaults(act=_probe)
    return parser


if __name__ == "__main__":
    sys.exit(main())

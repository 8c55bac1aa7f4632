"""The judge's commands, `python -m harness COMMAND` (docs/harness.md, docs/judge.md, docs/requests.md)."""

import argparse
import datetime
import json
import math
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from harness.errors import HarnessError, Unsupported, plain

# What a command does; it returns the exit code, or None for 0.  Each imports what it needs when it is called: what
# only measures needs no numpy, and what only decides no sandbox.
Action = Callable[[argparse.Namespace], int | None]
Option = Callable[..., argparse.Action]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    chosen = _parser().parse_args(arguments)
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _end)
    try:
        status: int = chosen.action(chosen) or 0
    except HarnessError as error:
        print(f"error: {plain(error.message)}", file=sys.stderr)
        if error.hint:
            print(f"hint: {plain(error.hint)}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        _give_up_output()  # the reader went away
        return 0
    except OSError as error:
        where = f"'{os.fsdecode(error.filename)}': " if isinstance(error.filename, str | bytes) else ""
        print(f"error: {plain(where)}{plain((error.strerror or str(error)).lower())}", file=sys.stderr)
        print("hint: the same command goes on once that is mended", file=sys.stderr)
        return Unsupported.exit_code
    return status


# --- what the commands do ---


def _run(chosen: argparse.Namespace) -> None:
    from harness.run import run

    counts = run(
        chosen.job, chosen.out, chosen.max_minutes, _events(chosen), digest=chosen.digest, sandbox=chosen.sandbox
    )
    if not chosen.stream:
        tau = "none" if counts.tau is None else f"{counts.tau:.2f}"
        _say(f"answers {counts.answers}\ntokens {counts.tokens}\nlooped_tokens {counts.looped_tokens}\ntau {tau}")


def _measure(chosen: argparse.Namespace) -> None:
    from harness.measure import measure

    emit = _emit if chosen.stream else _note
    summary = measure(chosen.job, chosen.out, chosen.max_minutes, emit, profile=not chosen.no_profile)
    _emit({"event": "end", "measurement": summary} if chosen.stream else summary)


def _batch(chosen: argparse.Namespace) -> None:
    from harness.batch import batch, refuse_left

    refuse_left(batch(chosen.folder.absolute(), chosen.max_minutes, _emit, chosen.only))


def _prepare(chosen: argparse.Namespace) -> None:
    from harness.prepared import prepare

    _emit(prepare(chosen.job, chosen.out, sandbox=not chosen.no_sandbox))


def _time(chosen: argparse.Namespace) -> int:
    from harness.campaign import time_arms

    found = time_arms(
        chosen.job,
        chosen.out,
        chosen.max_minutes,
        _events(chosen),
        sandbox=not chosen.no_sandbox,
        devices=_devices(chosen),
    )
    return _answered(chosen, found, "promote")


def _calibrate(chosen: argparse.Namespace) -> None:
    from harness.scoring import calibrate

    calibrate(chosen.job, chosen.out, chosen.max_minutes, _events(chosen), sandbox=not chosen.no_sandbox)


def _force(chosen: argparse.Namespace) -> int:
    from harness.scoring import force

    found = force(
        chosen.job,
        chosen.out,
        chosen.reference,
        chosen.max_minutes,
        _events(chosen),
        timed=chosen.timed,
        sandbox=not chosen.no_sandbox,
    )
    return _answered(chosen, found, "accept")


def _rehearse(chosen: argparse.Namespace) -> None:
    from harness.final import rehearse

    rehearse(chosen.job, chosen.out, _emit, sandbox=not chosen.no_sandbox, devices=_devices(chosen))


def _draw(chosen: argparse.Namespace) -> None:
    from harness.final import draw

    now = datetime.datetime.now(datetime.UTC)
    draw(chosen.job, chosen.seal, chosen.job_key, chosen.families, chosen.devices, now)


def _final(chosen: argparse.Namespace) -> int:
    from harness.final import final

    found = final(
        chosen.job,
        chosen.out,
        chosen.max_minutes,
        _events(chosen),
        sandbox=not chosen.no_sandbox,
        devices=_devices(chosen),
    )
    return _answered(chosen, found, "accept")


def _devices(chosen: argparse.Namespace) -> Sequence[str]:
    return chosen.devices.split(",") if chosen.devices else ()


def _verdict(chosen: argparse.Namespace) -> None:
    from harness.verdict import verdict

    found = verdict(chosen.what, chosen.samples, chosen.reference)
    if chosen.text is not None and chosen.what != "timing":
        from harness.audit import in_words
        from harness.samples import read

        found = in_words(found, read(chosen.samples), chosen.text)
    _emit(found)


def _evidence(chosen: argparse.Namespace) -> None:
    from harness.evidence import evidence

    _emit(evidence(chosen.samples, chosen.out))


def _key(chosen: argparse.Namespace) -> None:
    from harness.identity import identity

    _emit(identity(chosen.job, datetime.datetime.now(datetime.UTC), chosen.timed))


def _requests(chosen: argparse.Namespace) -> None:
    from harness.requests import Wanted, write_requests

    wanted = Wanted(**{name: getattr(chosen, name) for name in Wanted.__dataclass_fields__})
    write_requests([wanted], chosen.out, chosen.seal, chosen.job_key, datetime.datetime.now(datetime.UTC))


def _seal(chosen: argparse.Namespace) -> None:
    from harness.requests import check_seal, make_seal

    if chosen.check is None:
        _emit({"v": 1, "kind": "commitment", "commitment": make_seal(chosen.seal, chosen.seed)})
    else:
        check_seal(chosen.seal, chosen.check)


def _probe(chosen: argparse.Namespace) -> None:
    from harness.probe import probe

    _emit(probe(chosen.device, datetime.datetime.now(datetime.UTC)))


def _answered(chosen: argparse.Namespace, verdict: dict[str, Any], yes: str) -> int:
    """Prints a verdict that was not streamed; 1 where its answer is no."""
    if not chosen.stream:
        _emit(verdict)
    return 0 if verdict["answer"] == yes else 1


def _events(chosen: argparse.Namespace) -> Callable[[dict[str, Any]], None]:
    return _emit if chosen.stream else lambda event: None


def _note(event: dict[str, Any]) -> None:
    """Says what a finished folder will lack, where nobody reads events."""
    if event["event"] == "unprofiled":
        print(f"note: {plain(event['message'])}", file=sys.stderr)


def _emit(event: dict[str, Any]) -> None:
    _say(json.dumps(event))


def _say(text: str) -> None:
    """Writes a line to standard output at once; HarnessError where that cannot take it, such as a full disk."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        _give_up_output()
        raise HarnessError(f"standard output cannot be written: {error.strerror}") from None


def _give_up_output() -> None:
    """Points standard output to nowhere: at exit Python would try to write what is left."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _end(number: int, frame: object) -> None:
    """Ends by an exception instead of on the spot, so that the engine goes with us."""
    sys.exit(143)


# --- their words ---


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line and a hint, as all errors are said."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {plain(message)}\nhint: '{self.prog} --help' says what it takes\n")


def _minutes(word: str) -> float:
    try:
        minutes = float(word)
    except ValueError:
        minutes = math.nan
    if not 0 <= minutes < math.inf:
        raise argparse.ArgumentTypeError(f"'{word}' is not a number of minutes")
    return minutes


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="python -m harness", description=__doc__, allow_abbrev=False)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, action: Action, help_: str) -> Option:
        made = commands.add_parser(name, help=help_, allow_abbrev=False)
        made.set_defaults(action=action)
        return made.add_argument

    option = command("run", _run, "answer the requests of a job with its arm 'a'")
    _measuring_words(option, "answers.jsonl")
    option("--digest", action="store_true", help="keep the digest of each answer's logits")
    option("--sandbox", action="store_true", help="enclose the engine as the judge does")

    option = command("measure", _measure, "record what arm 'a' does, and let stock rank every position of it")
    _measuring_words(option, "measurement.json")
    option("--no-profile", action="store_true", help="do not let the engine of arm 'a' take a profile as well")

    option = command("prepare", _prepare, "let each arm of a job prepare, once")
    option("--job", type=Path, required=True, metavar="JOB.json")
    option("--out", type=Path, required=True, metavar="DIR", help="where what they write will lie")
    _sandbox_word(option)

    option = command("time", _time, "compare arm 'a' with arm 'b' in paired runs")
    _measuring_words(option, "samples.jsonl")
    _sandbox_word(option)
    _devices_word(option)

    option = command("calibrate", _calibrate, "let stock answer and score itself: what forcing is held against")
    _measuring_words(option, "samples.jsonl")
    _sandbox_word(option)

    option = command("force", _force, "let trusted stock score every token that arm 'a' says")
    _measuring_words(option, "samples.jsonl")
    _sandbox_word(option)
    option("--reference", type=Path, required=True, metavar="SAMPLES", help="what `calibrate` measured")
    _timed_word(option)

    option = command("rehearse", _rehearse, "load every arm of a final, before its seal is spent")
    option("--job", type=Path, required=True, metavar="JOB.json")
    option("--out", type=Path, required=True, metavar="DIR", help="where what they prepare will lie")
    _sandbox_word(option)
    _devices_word(option)

    option = command("draw", _draw, "spend the seal of a final on the requests of its job")
    option("--job", type=Path, required=True, metavar="JOB.json")
    option("--seal", type=Path, required=True, metavar="FILE", help="the secret")
    option("--job-key", required=True, metavar="KEY", help="the one job that may draw by it")
    option("--families", nargs="+", default=[], metavar="F", help="all where left out; the sealed ones always")
    option("--devices", type=int, choices=(1, 2), default=1, help="on how many it will be measured")

    option = command("final", _final, "measure a final whose requests are drawn")
    _measuring_words(option, "samples.jsonl")
    _sandbox_word(option)
    _devices_word(option)

    option = command("batch", _batch, "run the jobs that were sent together, one after the other")
    option("folder", type=Path, metavar="DIR", help="where batch.json and the jobs lie")
    option("--max-minutes", type=float, metavar="M", help="stop then; the same command goes on")
    option("--only", metavar="NAME", help="run this job alone, and print what it says as it comes")

    option = command("verdict", _verdict, "what samples say, as one line of JSON")
    option("samples", type=Path, metavar="SAMPLES", help="samples.jsonl, or samples.jsonl.gz")
    option("--what", choices=("timing", "forcing", "final"), default="timing")
    option("--reference", type=Path, metavar="SAMPLES", help="the file that holds stock's calibration")
    option(
        "--text",
        type=Path,
        metavar="TARGET",
        help="tell the events of forcing in this target's words, where it has a tokenizer",
    )

    option = command("evidence", _evidence, "what an entry keeps of a timing's samples, as one line of JSON")
    option("samples", type=Path, metavar="SAMPLES", help="samples.jsonl, or samples.jsonl.gz")
    option("--out", type=Path, required=True, metavar="FILE.gz", help="where the samples go, which machine left out")

    option = command("key", _key, "what a verdict on a job would be of, on this machine")
    option("--job", type=Path, required=True, metavar="JOB.json")
    _timed_word(option)

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

    option = command("probe", _probe, "print what this machine allows the judge")
    option("--device", default="cpu", metavar="D", help="cpu, cuda or cuda:N")
    return parser


def _measuring_words(option: Option, file: str) -> None:
    option("--job", type=Path, required=True, metavar="JOB.json")
    option("--out", type=Path, required=True, metavar="DIR", help=f"where {file} lies or will lie")
    option("--max-minutes", type=_minutes, metavar="M", help="stop after so long, and go on another time")
    option("--stream", action="store_true", help="JSON lines on standard output as things happen")


def _devices_word(option: Option) -> None:
    option("--devices", metavar="D[,D]", help="the device, or two that are exchanged within a unit")


def _timed_word(option: Option) -> None:
    option("--timed", type=Path, metavar="SAMPLES", help="what `time` measured: the tokens that are forced first")


def _sandbox_word(option: Option) -> None:
    option("--no-sandbox", action="store_true", help="the arms are trusted: do not enclose them")


if __name__ == "__main__":
    sys.exit(main())

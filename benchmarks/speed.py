"""Decode speed of settings on one device, request by request, against the device's own copy rate.

    python -m benchmarks.speed [--system DIR] --target FILE --drafter DIR --requests IDS.jsonl --out ROWS.jsonl \\
        --settings ar chain tree:63:0:16 transformers

Settings are `ar`, `chain[:POSITIONS]`, `tree:NODES[:POSITIONS[:WIDTH]]`, `confident:FLOOR:NODES[:POSITIONS[:WIDTH]]`,
`NAME:OPTION=VALUE,...`, and `transformers`, `transformers-assisted`, which are the only ones that need transformers.
All of them are loaded side by side on one copy of the target's weights and are idle while another answers.  A request
is answered by every setting before the next request comes, in an order that moves on with each request, and one
ratio is made a request.  An answer ends at a stop id or at --tokens.

Before the clock, two requests are decoded in exact mode (FP32, the narrow target): every setting of stock's must say
what `ar` says, or nothing is timed and the exit code is 1.  It is 1 as well where AR reads its weights at less than
--ar-floor of the copy rate, or where there is no such figure.

Each answer is a row of --out with its ids, its tokens a step and its times.  A run that was stopped goes on: requests
that every setting has answered in one run are not measured again, and a file that was measured on anything else is
refused.
"""

import argparse
import datetime
import hashlib
import importlib.metadata
import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from benchmarks.arms import Answer, Arm, Setup, add_setup, load_arm, options_of
from benchmarks.clocks import read_clocks
from benchmarks.figures import complete_rounds, first_difference, ratio, summary
from benchmarks.peer import PEERS, import_transformers, load_peer
from benchmarks.rows import Rows, read_lines
from harness.machine import COMPARED, card, shareable
from harness.tree import tree_id
from spt.share import shipped_root, system_files

AR_FLOOR = 0.7  # of the copy rate, on a GPU
CHECKED_REQUESTS = 2
WARM_UP_TOKENS = 16


def main() -> int:
    """Measures what is missing and prints the figures; 1 where the check or the floor fails."""
    arguments = parse()
    sys.dont_write_bytecode = True  # nothing of ours may appear in the system's folder
    if set(arguments.settings) & set(PEERS):
        import_transformers()
    if arguments.system is None:
        arguments.system = shipped_system()
    sys.path.insert(0, str(arguments.system))
    requests = read_lines(arguments.requests)[: arguments.count]
    about = describe(arguments)
    rows = Rows(arguments.out, about["key"])
    plan = [each for each in planned(arguments, requests) if not is_done(rows, each)]
    if plan and not checked(arguments, rows, requests):
        return 1
    if plan or not all(has_phases(rows, setting) for setting in ours(arguments)):
        measure(arguments, rows, about, plan, requests)
    return report(arguments, rows, requests)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_setup(parser)
    parser.add_argument("--settings", nargs="+", default=["ar", "chain"])
    parser.add_argument("--repeats", type=int, default=1, help="times that each request is asked")
    parser.add_argument("--peer-every", type=int, default=4, metavar="N", help="transformers answers every Nth request")
    parser.add_argument("--check-tokens", type=int, default=12, help="tokens of the check in exact mode")
    parser.add_argument("--check-device", help="where the check runs; the timed device if left out")
    parser.add_argument(
        "--ar-floor", type=float, help=f"share of the copy rate that AR must reach ({AR_FLOOR} on CUDA)"
    )
    arguments = parser.parse_args()
    if arguments.ar_floor is None:
        arguments.ar_floor = AR_FLOOR if arguments.device.startswith("cuda") else 0.0
    for setting in ours(arguments):
        try:
            options_of(setting)
        except ValueError:
            parser.error(f"'{setting}' names no setting")
    if len(set(arguments.settings)) < len(arguments.settings):
        parser.error("a setting is named twice")
    if min(arguments.count, arguments.tokens, arguments.repeats, arguments.peer_every, arguments.check_tokens) < 1:
        parser.error("numbers of requests and tokens are at least 1")
    return arguments


def shipped_system() -> Path:
    """The shipped system tree as a folder of its own."""
    folder = Path(tempfile.mkdtemp(prefix="spt-stock-"))
    for path in system_files(shipped_root()):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(shipped_root() / path, folder / path)
    return folder


def ours(arguments: argparse.Namespace) -> list[str]:
    return [setting for setting in arguments.settings if setting not in PEERS]


# What a file of rows stands for.


def describe(arguments: argparse.Namespace) -> dict[str, Any]:
    """The key that all rows of a file share, and the whole card."""
    found = card(arguments.device, datetime.datetime.now(datetime.UTC))
    key = {
        "tree": tree_id(arguments.system),
        "target": digest(arguments.target),
        "drafter": digest(arguments.drafter),
        "requests": digest(arguments.requests),
        "card": {name: found[name] for name in COMPARED} | ({} if found["gpu"] else {"cpu": found["cpu"]}),
        "transformers": version("transformers") if set(arguments.settings) & set(PEERS) else None,
        **{name: getattr(arguments, name) for name in ("widen", "jitter", "dtype", "tokens", "ignore_eos", "context")},
    }
    return {"key": key, "card": found}


def digest(path: Path) -> str:
    """sha256 of a file, or of the names and digests of a folder's files."""
    if path.is_dir():
        listed = "".join(f"{each.name} {digest(each)}\n" for each in sorted(path.iterdir()) if each.is_file())
        return hashlib.sha256(listed.encode()).hexdigest()
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


# The plan: rounds.


def planned(
    arguments: argparse.Namespace, requests: list[dict[str, Any]]
) -> Iterator[tuple[int, dict[str, Any], list[str]]]:
    """(repeat, request, settings in their order) of every round.

    Each order is followed by itself backwards and then moves on by one, among the rounds with transformers and among
    those without: no setting always follows the same one, or always comes first.
    """
    count = {True: 0, False: 0}
    for repeat in range(arguments.repeats):
        for number, request in enumerate(requests):
            with_peers = number % arguments.peer_every == 0
            settings = arguments.settings if with_peers else ours(arguments)
            turn = count[with_peers] // 2 % max(1, len(settings))
            order = settings[turn:] + settings[:turn]
            yield repeat, request, order[::-1] if count[with_peers] % 2 else order
            count[with_peers] += 1


def is_done(rows: Rows, each: tuple[int, dict[str, Any], list[str]]) -> bool:
    repeat, request, settings = each
    return (repeat, request["id"]) in complete_rounds(rows.of("answer"), settings)


def has_phases(rows: Rows, setting: str) -> bool:
    return any(row["setting"] == setting for row in rows.of("phases"))


# The check before the clock.


def checked(arguments: argparse.Namespace, rows: Rows, requests: list[dict[str, Any]]) -> bool:
    """Whether every setting of stock's says in exact mode what AR says; asked once a file and setting."""
    asked = {"tokens": arguments.check_tokens, "device": arguments.check_device or arguments.device}
    passed = {
        setting
        for row in rows.of("check")
        if {name: row[name] for name in asked} == asked
        for setting, marks in row["first_difference"].items()
        if not any(mark is not None for mark in marks)
    }
    pending = [setting for setting in ours(arguments) if setting not in passed]
    if not pending:
        return True
    shortest = sorted(requests, key=lambda request: len(request["ids"]))[:CHECKED_REQUESTS]
    marks = exact_differences(arguments, asked["device"], pending, shortest)
    ids = [request["id"] for request in shortest]
    rows.add({"kind": "check", **asked, "dtype": "float32", "requests": ids, "first_difference": marks})
    bad = [setting for setting, found in marks.items() if any(mark is not None for mark in found)]
    for setting in bad:
        print(f"in exact mode {setting} says something else than ar, first at token {marks[setting]}", file=sys.stderr)
    if not bad:
        print(f"exact mode on {asked['device']}: {', '.join(pending)} say what ar says ({', '.join(ids)})", flush=True)
    return not bad


def exact_differences(
    arguments: argparse.Namespace, device: str, settings: list[str], requests: list[dict[str, Any]]
) -> dict[str, list[int | None]]:
    """For each setting and request where its answer parts from AR's."""
    from stock.system import read_target

    narrow = replace(setup_of(arguments), widen=1, dtype="float32", device=device, mode="exact")
    target = read_target(narrow.settings({}))
    stop_ids = stop_ids_of(arguments, target)

    def answers(setting: str) -> list[list[int]]:
        arm = load_arm(narrow, setting, target, stop_ids)
        return [arm.answer(request, arguments.check_tokens).ids for request in requests]

    truth = answers("ar")
    return {
        setting: [first_difference(*pair) for pair in zip(answers(setting), truth, strict=True)] for setting in settings
    }


def setup_of(arguments: argparse.Namespace) -> Setup:
    fields = ("target", "drafter", "widen", "jitter", "dtype", "device", "context")
    return Setup(**{name: getattr(arguments, name) for name in fields})


def stop_ids_of(arguments: argparse.Namespace, target: Any) -> frozenset[int]:
    return frozenset() if arguments.ignore_eos else frozenset(target.config.stop_ids)


# The clock.


def measure(
    arguments: argparse.Namespace,
    rows: Rows,
    about: dict[str, Any],
    plan: list[tuple[int, dict[str, Any], list[str]]],
    requests: list[dict[str, Any]],
) -> None:
    """Loads everything, then answers the rounds of the plan, then times phases apart."""
    from stock.system import read_target

    setup = setup_of(arguments)
    target = read_target(setup.settings({}))
    facts = {"copy_bytes_s": copy_bytes_s(target.device), "target_bytes": bytes_read(target)}
    rows.begin({**about, **facts, "card": shareable(about["card"])})
    arms = load_arms(arguments, setup, target)
    for arm in arms.values():
        for request in requests[:2]:
            arm.answer(request, WARM_UP_TOKENS)
    for number, (repeat, request, order) in enumerate(plan):
        for place, setting in enumerate(order):
            answer = arms[setting].answer(request, arguments.tokens)
            rows.add(answer_row(setting, repeat, request, place, answer) | read_clocks(about["card"]))
        print(f"round {number + 1} of {len(plan)}: {request['id']}", file=sys.stderr, flush=True)
    for setting in ours(arguments):
        if not has_phases(rows, setting):
            rows.add({"kind": "phases", "setting": setting, **phases(arms[setting], requests[:2], arguments.tokens)})


def load_arms(arguments: argparse.Namespace, setup: Setup, target: Any) -> dict[str, Arm]:
    """Every setting on the one target; the assistant's narrow target is the only further copy of weights."""
    from stock.system import read_target

    stop_ids = stop_ids_of(arguments, target)
    arms: dict[str, Arm] = {setting: load_arm(setup, setting, target, stop_ids) for setting in ours(arguments)}
    peers = [setting for setting in PEERS if setting in arguments.settings]
    narrow = read_target(replace(setup, widen=1, jitter=0).settings({})) if PEERS[1] in peers else None
    return arms | {setting: load_peer(setting, target, narrow, stop_ids) for setting in peers}


def answer_row(setting: str, repeat: int, request: dict[str, Any], place: int, answer: Answer) -> dict[str, Any]:
    options = {} if setting in PEERS else options_of(setting)
    head = {"kind": "answer", "setting": setting, "options": options, "repeat": repeat, "id": request["id"]}
    return {**head, "prompt_tok": len(request["ids"]), "place": place, **asdict(answer)}


def phases(arm: Arm, requests: list[dict[str, Any]], tokens: int) -> dict[str, Any]:
    """Median microseconds of each phase and of their sum, over all steps of some answers."""
    steps = arm.phases(requests, tokens)
    if not steps:
        return {"steps": 0}
    medians = {name: statistics.median(step[name] for step in steps) for name in steps[0]}
    return {"steps": len(steps), **medians, "step_us": statistics.median(sum(step.values()) for step in steps)}


def copy_bytes_s(device: Any) -> float | None:
    """Bytes read and written a second by an elementwise kernel, the best of several; None on a CPU."""
    import torch

    if device.type != "cuda":
        return None
    source = torch.empty(1 << 30, dtype=torch.int32, device=device).random_()
    to = torch.empty_like(source)
    times_s = []
    event: Any = torch.cuda.Event  # which has no types
    for _ in range(12):
        begin, end = event(enable_timing=True), event(enable_timing=True)
        begin.record()
        torch.add(source, 1, out=to)  # a kernel; copy_ may become a slower memcpy
        end.record()
        end.synchronize()
        times_s.append(begin.elapsed_time(end) / 1e3)
    return float(2 * source.numel() * source.element_size() / min(times_s[2:]))


def bytes_read(target: Any) -> int:
    """Bytes of weights that decoding one token reads: all but the embedding, of which it reads one row."""
    weights = [value for name, value in target.weights.items() if name != "embed"]
    return sum({value.data_ptr(): value.numel() * value.element_size() for value in weights}.values())


# The report.


def report(arguments: argparse.Namespace, rows: Rows, requests: list[dict[str, Any]]) -> int:
    """Prints every figure of the rows asked for; 1 where AR's floor is missed."""
    ids = {request["id"] for request in requests}
    held = [row for row in rows.of("answer") if row["id"] in ids and row["repeat"] < arguments.repeats]
    runs = len({row["run"] for row in held})
    ending = "stop ids ignored" if arguments.ignore_eos else "or to a stop id"
    cap = f"answers to {arguments.tokens} tokens {ending}"
    print(f"{len(ids)} requests, {cap}, {arguments.repeats} pass(es), {runs} run(s)")
    for setting in arguments.settings:
        rounds = complete_rounds(held, {setting})
        answers = [answer[setting] for answer in rounds.values()]
        if not answers:
            continue
        print(f"\n{setting}\n  {summary(answers)}")
        for row in rows.of("phases"):
            if row["setting"] == setting and row["steps"]:
                parts = ", ".join(f"{name[:-3]} {row[name] / 1e3:.3f}" for name in row if name.endswith("_us"))
                print(f"  median ms over {row['steps']} steps: {parts}")
        for baseline in ("ar", "chain"):
            if setting not in ("ar", baseline) and baseline in arguments.settings:
                paired = complete_rounds(held, {setting, baseline}).values()
                print(f"  against {baseline}: {ratio([(each[baseline], each[setting]) for each in paired])}")
        if setting != "ar" and "ar" in arguments.settings:
            print_identity(setting, complete_rounds(held, {setting, "ar"}))
        if setting == "ar" and (share := copy_share(rows, answers)) is not None:
            rate = rows.of("about")[-1]["copy_bytes_s"] / 1e12
            print(f"  reads weights at {share:.1%} of the copy rate ({rate:.2f} TB/s)")
    return check_floor(arguments.ar_floor, rows, [row for row in held if row["setting"] == "ar"])


def print_identity(setting: str, rounds: dict[tuple[int, str], dict[str, Any]]) -> None:
    """How many answers are AR's, and where the others part from it."""
    marks = {key: first_difference(each[setting]["ids"], each["ar"]["ids"]) for key, each in rounds.items()}
    parted = ", ".join(f"{name} {mark}" for (_, name), mark in marks.items() if mark is not None)
    equal = sum(mark is None for mark in marks.values())
    print(f"  ids as ar's in {equal} of {len(marks)}" + (f"; part at token: {parted}" if parted else ""))


def copy_share(rows: Rows, answers: list[dict[str, Any]]) -> float | None:
    """Share of the copy rate, as each run measured it, at which AR's steps read the target's weights."""
    about = {row["run"]: row for row in rows.of("about")}
    least_s = decode_s = 0.0
    for row in answers:
        run = about[row["run"]]
        if run["copy_bytes_s"] is None:
            return None
        least_s += (len(row["lines"]) - 1) * run["target_bytes"] / run["copy_bytes_s"]
        decode_s += row["decode_s"]
    return least_s / decode_s if decode_s else None


def check_floor(floor: float, rows: Rows, answers: list[dict[str, Any]]) -> int:
    """1 if AR reads its weights at less than the floor, or nobody knows at how much."""
    if floor <= 0:
        return 0
    share = copy_share(rows, answers)
    if share is None:
        print(f"no AR figure against the copy rate, so the floor of {floor:.0%} is not met", file=sys.stderr)
        return 1
    if share < floor:
        print(f"AR reads weights at {share:.1%} of the copy rate, below the floor of {floor:.0%}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

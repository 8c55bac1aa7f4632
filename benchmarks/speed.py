"""Decode speed of a system on one device, setting by setting, against the device's own copy rate.

    python -m benchmarks.speed [--system DIR] --target FILE --drafter DIR --requests IDS.jsonl --out RESULTS.jsonl

Settings are `ar`, `chain`, `tree:NODES[:POSITIONS[:WIDTH]]` and `NAME:OPTION=VALUE,...`.
Every answer is kept with its ids, its tokens a step and its times, so that tau and loops can be counted anew.
A run that was stopped goes on: a setting whose line is in RESULTS.jsonl is not measured again.
The limit printed beside AR is the time that the weights it reads need at the device's copy rate; below the floor that
`--ar-floor` names, the run fails.
"""

import argparse
import datetime
import json
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from harness.machine import card
from harness.tree import tree_id
from spt.share import shipped_root, system_files

WARM_UP_TOKENS = 16


def main() -> int:
    """Measures what is missing and prints a table."""
    arguments = parse()
    sys.dont_write_bytecode = True  # nothing of ours may appear in the system's folder
    if arguments.system is None:
        arguments.system = Path(tempfile.mkdtemp(prefix="spt-stock-"))
        for path in system_files(shipped_root()):
            (arguments.system / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(shipped_root() / path, arguments.system / path)
    sys.path.insert(0, str(arguments.system))
    done = read_results(arguments.out)
    pending = [setting for setting in arguments.settings if setting not in done]
    if pending:
        measure(arguments, pending)
    results = read_results(arguments.out)
    print_table([results[setting] for setting in arguments.settings if setting in results])
    return check_floor(results, arguments.ar_floor)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--system", type=Path, help="an exported system (`spt export`); the shipped stock if left out")
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--drafter", type=Path, required=True)
    parser.add_argument("--requests", type=Path, required=True, help="JSON lines with id and ids")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--settings", nargs="+", default=["ar", "chain"])
    parser.add_argument("--count", type=int, default=8, help="requests")
    parser.add_argument("--tokens", type=int, default=128, help="new tokens a request; stop ids are ignored")
    parser.add_argument("--widen", type=int, default=1)
    parser.add_argument("--jitter", type=int, default=0)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--context", type=int, default=2048)
    parser.add_argument("--repeats", type=int, default=2, help="passes; the faster one of each request counts")
    parser.add_argument("--ar-floor", type=float, default=0.0, help="least share of the copy rate that AR must reach")
    return parser.parse_args()


def read_results(path: Path) -> dict[str, Any]:
    """Finished settings by name."""
    if not path.exists():
        return {}
    lines = [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]
    return {line["setting"]: line for line in lines}


def measure(arguments: argparse.Namespace, settings: list[str]) -> None:
    """Loads the target once and runs one setting after the other."""
    from stock.system import read_target

    base = settings_for(arguments, {})
    target = read_target(base)
    requests = [json.loads(line) for line in arguments.requests.read_text().splitlines()][: arguments.count]
    about = {
        "v": 1,
        "tree": tree_id(arguments.system),
        "card": card(arguments.device, datetime.datetime.now(datetime.UTC)),
        "copy_bytes_s": copy_bytes_s(target.device),
        "target_bytes": read_bytes(target),
        "widen": arguments.widen,
        "jitter": arguments.jitter,
        "dtype": arguments.dtype,
        "tokens": arguments.tokens,
    }
    with arguments.out.open("a") as out:
        for setting in settings:
            line = about | measure_setting(arguments, setting, target, requests)
            out.write(json.dumps(line) + "\n")
            out.flush()
            print_table([line])


def settings_for(arguments: argparse.Namespace, options: dict[str, Any], drafter: bool = True) -> Any:
    from stock.system import Settings

    return Settings(
        target=arguments.target,
        widen=arguments.widen,
        jitter=arguments.jitter,
        drafter=arguments.drafter if drafter else None,
        dtype=arguments.dtype,
        device=arguments.device,
        mode="fast",
        head="model",
        options=options,
        prepared=None,
        context=arguments.context,
        requests=1,
    )


def options_of(setting: str) -> dict[str, Any]:
    """Option values of a setting's name."""
    kind, _, rest = setting.partition(":")
    if kind in ("ar", "chain"):
        return {"draft": "none"} if kind == "ar" else {}
    if kind == "tree":
        values = [int(value) for value in rest.split(":")]
        names = ("best_first_nodes", "best_first_positions", "best_first_width")
        return {"select": "best_first", **dict(zip(names, values, strict=False))}
    return {name: json.loads(value) for name, value in (item.split("=") for item in rest.split(","))}


def measure_setting(
    arguments: argparse.Namespace, setting: str, target: Any, requests: list[dict[str, Any]]
) -> dict[str, Any]:
    from stock.engine import Engine
    from stock.system import load_system

    settings = settings_for(arguments, options_of(setting), drafter=setting != "ar")
    engine = Engine(load_system(settings, target))
    engine.warm_up()
    for request in requests[:2]:
        decode(engine, request, WARM_UP_TOKENS)
    passes = [[decode(engine, request, arguments.tokens) for request in requests] for _ in range(arguments.repeats)]
    answers = [min(each, key=lambda answer: answer["decode_s"]) for each in zip(*passes, strict=True)]
    engine.times.on, phases = True, []
    engine.on_step = lambda *event: phases.append(event[-1])
    for request in requests:
        decode(engine, request, arguments.tokens)
    medians = {name: statistics.median(step[name] for step in phases) for name in phases[0]}
    return {
        "setting": setting,
        "options": options_of(setting),
        "phases": medians,
        "answers": answers,
    }


def decode(engine: Any, request: dict[str, Any], tokens: int) -> dict[str, Any]:
    """One request, timed from its first token (prefill apart) to its last."""
    from stock.engine import Request
    from stock.sampling import Sampling

    engine.open(Request(request["id"], request["ids"], tokens, frozenset(), True, Sampling()))
    begin = time.perf_counter()
    ids = list(engine.step()[0].ids)
    first = time.perf_counter()
    lines = [1]
    while len(ids) < tokens:
        progress = engine.step()[0]
        ids += progress.ids
        lines.append(len(progress.ids))
    end = time.perf_counter()
    return {"id": request["id"], "ids": ids, "lines": lines, "prefill_s": first - begin, "decode_s": end - first}


def copy_bytes_s(device: Any) -> float | None:
    """Bytes read and written a second by an elementwise kernel; the best of several."""
    import torch

    if device.type != "cuda":
        return None
    source = torch.empty(1 << 30, dtype=torch.int32, device=device).random_()
    to = torch.empty_like(source)
    times = []
    for _ in range(12):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        torch.add(source, 1, out=to)  # a kernel; copy_ may become a slower memcpy
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1e3)
    return 2 * source.numel() * source.element_size() / min(times[2:])


def read_bytes(target: Any) -> int:
    """Bytes of weights that decoding one token reads: all but the embedding, of which it reads one row."""
    weights = {name: value for name, value in target.weights.items() if name != "embed"}
    return sum(value.numel() * value.element_size() for value in weights.values())


def summary(line: dict[str, Any]) -> dict[str, float]:
    """Tokens a step, tokens a second and time a step, without the prefill and its token."""
    answers = line["answers"]
    tokens = sum(len(answer["ids"]) - 1 for answer in answers)
    steps = sum(len(answer["lines"]) - 1 for answer in answers)
    seconds = sum(answer["decode_s"] for answer in answers)
    return {"tau": tokens / steps, "tok_s": tokens / seconds, "step_ms": 1e3 * seconds / steps}


def copy_share(line: dict[str, Any]) -> float | None:
    """Share of the copy rate at which a step reads the target's weights."""
    if line["copy_bytes_s"] is None:
        return None
    return line["target_bytes"] / (summary(line)["step_ms"] / 1e3) / line["copy_bytes_s"]


def print_table(lines: list[dict[str, Any]]) -> None:
    for line in lines:
        values = summary(line)
        share = copy_share(line)
        phases = " ".join(f"{name[:-3]} {value / 1e3:.3f}" for name, value in line["phases"].items())
        limit = "" if share is None else f"  weights at {share:.1%} of {line['copy_bytes_s'] / 1e12:.2f} TB/s"
        print(
            f"{line['setting']:<24} tau {values['tau']:5.2f}  {values['tok_s']:8.1f} tok/s  "
            f"{values['step_ms']:7.3f} ms a step ({phases}){limit}",
            flush=True,
        )


def check_floor(results: dict[str, Any], floor: float) -> int:
    """1 if AR reads its weights at less than the floor."""
    if not floor or "ar" not in results:
        return 0
    share = copy_share(results["ar"])
    if share is not None and share < floor:
        print(f"AR reads weights at {share:.1%} of the copy rate, below the floor of {floor:.0%}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""A profile of one setting, by phase and kernel class, for `spt ceiling` (docs/ceiling.md).

    python -m benchmarks.profile [--system DIR] --target FILE --drafter DIR --requests IDS.jsonl \\
        --out profile.jsonl --setting chain

`spt measure` takes one of what it measures; this is for the settings of benchmarks.speed, which have no folder.
Times under a profiler are nobody's speed: a row's `wall_us` is taken in between, without it.
"""

import argparse
import sys

from benchmarks.arms import Setup, add_setup, load_arm, options_of
from benchmarks.rows import read_lines
from benchmarks.speed import shipped_system


def main() -> int:
    """Answers the requests under a profiler; 1 where no window of steps was finished."""
    arguments = parse()
    sys.dont_write_bytecode = True  # nothing of ours may appear in the system's folder
    sys.path.insert(0, str(arguments.system or shipped_system()))
    from stock.profile import Profiler
    from stock.system import read_target

    fields = ("target", "drafter", "widen", "jitter", "dtype", "device", "context")
    setup = Setup(**{name: getattr(arguments, name) for name in fields})
    target = read_target(setup.settings({}))
    stop_ids = frozenset() if arguments.ignore_eos else frozenset(target.config.stop_ids)
    arm = load_arm(setup, arguments.setting, target, stop_ids)
    requests = read_lines(arguments.requests)[: arguments.count]
    arm.answer(requests[0], arguments.tokens)  # what is captured or compiled once is no part of a profile
    profiler = Profiler(arguments.out, target.device)
    arm.profile(profiler, requests, arguments.tokens)
    if not arguments.out.stat().st_size:
        print("no window of steps was finished: ask for more requests or tokens", file=sys.stderr)
        return 1
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_setup(parser)
    parser.add_argument("--setting", default="chain")
    arguments = parser.parse_args()
    try:
        options_of(arguments.setting)
    except ValueError:
        parser.error(f"'{arguments.setting}' names no setting")
    return arguments


if __name__ == "__main__":
    sys.exit(main())

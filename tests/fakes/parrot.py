"""A worker that repeats lines: the script names, for the start and for each line it reads, what it writes back.

    python tests/fakes/parrot.py SCRIPT.json --in-fd 3 --out-fd 4

SCRIPT.json is a list of lists of lines; a line that is an object is written as JSON, a string as it is, and
{"sleep": s}, {"exit": status}, {"close": true}, {"print": text, "times": n}, {"fork": true}, {"length": n} are done.
After the last list it goes on reading and writes nothing.  Standard library only.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path

HELLO = {"v": 1, "op": "hello", "engine": "parrot", "version": "1", "options": {}}


def do(step: object, out: int) -> None:
    if isinstance(step, str):
        os.write(out, step.encode() + b"\n")
    elif "sleep" in step:
        time.sleep(step["sleep"])
    elif "exit" in step:
        os._exit(step["exit"])
    elif "close" in step:
        os.close(out)
    elif "print" in step:
        for _ in range(step.get("times", 1)):
            print(step["print"], flush=True)
    elif "fork" in step:
        if os.fork() == 0:
            time.sleep(1e6)
    elif "length" in step:
        rest = memoryview(b"x" * step["length"])
        while rest:
            rest = rest[os.write(out, rest) :]
    else:
        os.write(out, json.dumps(step).encode() + b"\n")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("script")
    parser.add_argument("--in-fd", type=int)
    parser.add_argument("--out-fd", type=int)
    arguments = parser.parse_args()
    turns = json.loads(Path(arguments.script).read_text())
    with os.fdopen(arguments.in_fd, "rb") as lines:
        for step in turns[0]:
            do(step, arguments.out_fd)
        for index, line in enumerate(lines, start=1):
            for step in turns[index] if index < len(turns) else []:
                do(step, arguments.out_fd)
            if json.loads(line)["op"] == "shutdown":
                sys.exit(0)


if __name__ == "__main__":
    main()

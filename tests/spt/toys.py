"""A toy system tree that looks like the real one, toy entries on it, and ways to run `spt` and git on them."""

import contextlib
import io
import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from spt.cli import main
from spt.git.objects import FILE, State
from spt.git.patch import blob_id, write_patch
from spt.git.tree import Row

ENVIRONMENT = {
    "PATH": os.environ["PATH"],
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_AUTHOR_NAME": "A U Thor",
    "GIT_AUTHOR_EMAIL": "author@example.com",
    "GIT_AUTHOR_DATE": "2026-01-02T03:04:05Z",
    "GIT_COMMITTER_NAME": "C O Mitter",
    "GIT_COMMITTER_EMAIL": "committer@example.com",
    "GIT_COMMITTER_DATE": "2026-01-02T03:04:05Z",
}

MACHINE = {
    "gpu": None,
    "driver": None,
    "torch": "2",
    "triton": None,
    "cuda": None,
    "harness": "0.1.0",
    "power_cap_w": None,
}
ENGINE = "".join(f"line{number} = {number}\n" for number in range(30))
SEAM = '[{0}]\ntype = "string"\ndefault = "{1}"\nvalues = "modules"\nmeaning = "the {0} of the toy"\n'
STOCK = {
    "stock/__init__.py": "",
    "stock/worker.py": "# speaks the protocol\n",
    "stock/engine.py": ENGINE,
    "stock/options/stock.toml": SEAM.format("select", "chain") + "\n" + SEAM.format("linear", "dense"),
    "stock/select/__init__.py": "",
    "stock/select/chain.py": "# a chain\n",
    "stock/linear/__init__.py": "",
    "stock/linear/dense.py": "# dense weights\n",
    "kernels/__init__.py": "",
    "kernels/mm.py": "# a kernel\n",
}
CONTRACT = ("--contract", "rounding", "--invariant", "same products")
INT_OPTION = '[{0}]\ntype = "int"\ndefault = {1}\nvalues = [{1}, 64]\nmeaning = "a number of the toy"\n'


def engine(**changed):
    """The toy engine with some lines changed: engine(line3="33")."""
    pairs = (line.split(" = ") for line in ENGINE.splitlines())
    return "".join(f"{name} = {changed.get(name, value)}\n" for name, value in pairs)


def write(root, files):
    for path, text in files.items():
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text if isinstance(text, bytes) else text.encode())


def card(name, requires=(), options=(), seams=None, checks=(), variants=(), device=(), **changes):
    """The text of an entry.yaml; JSON is YAML."""
    record = {
        "spt": "1",
        "name": name,
        "title": f"The {name} of the toy",
        "summary": "It does something.",
        "mechanism": "It wins since it does less.",
        "requires": {"entries": list(requires), **({"device": list(device)} if device else {})},
        "options": list(options),
        "seams": seams or {},
        "contract": {"kind": "rounding", "invariants": ["same products, other order"], "checks": list(checks)},
        "variants": list(variants),
        "commit": {
            "author": "A U Thor <author@example.com>",
            "date": "2026-01-02T03:04:05Z",
            "subject": f"{name}: do it",
        },
    }
    return json.dumps(record | changes, indent=1)


def write_entry(root, name, added=None, edits=None, **fields):
    """An entry's folder below root/entries: `added` files by path, `edits` {path: (old text, new text)}."""
    folder = root / "entries" / name
    write(folder, {"entry.yaml": card(name, **fields)})
    write(folder / "tree", added or {})
    rows, blobs = [], {}
    for path, sides in sorted((edits or {}).items()):
        states = []
        for text in sides:
            data = text.encode()
            blobs[blob_id(data)] = data
            states.append(State(FILE, blob_id(data)))
        rows.append(Row(path, *states))
    if rows:
        write(folder, {"edits.patch": write_patch(rows, blobs.__getitem__)})
    return folder


def make_root(root, entries=True):
    """A folder of shipped files: the toy stock, and three entries of which one requires another."""
    write(root, STOCK)
    (root / "entries").mkdir(exist_ok=True)
    if entries:
        write_entry(
            root,
            "fast-linear",
            {
                "stock/linear/w12.py": "# 12 bits\n",
                "kernels/w12.py": "# unpacks\n",
                "stock/options/fast-linear.toml": INT_OPTION.format("w12-block", 32),
                "checks/fast-linear/run.py": "import stock\n",
            },
            {"stock/engine.py": (ENGINE, engine(line3="33"))},
            options=["w12-block"],
            seams={"linear": ["w12"]},
            checks=["python checks/fast-linear/run.py"],
            variants=[{"name": "small", "card": "any", "options": {"linear": "w12", "w12-block": "64"}}],
        )
        write_entry(
            root,
            "tree-select",
            {"stock/select/best.py": "# best first\n"},
            {"stock/engine.py": (ENGINE, engine(line9="99"))},
            seams={"select": ["best"]},
        )
        write_entry(
            root,
            "tuned",
            {"checks/tuned/run.py": "pass\n"},
            {"stock/linear/w12.py": ("# 12 bits\n", "# 12 bits\ntuned = True\n")},
            requires=["fast-linear"],
        )
    return root


@dataclass(frozen=True)
class Ran:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self):
        return json.loads(self.out)


def spt(*arguments, cwd):
    """Runs `spt` in this process, in a folder."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    before = Path.cwd()
    os.chdir(cwd)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main([str(argument) for argument in arguments])
    except SystemExit as stop:
        code = stop.code or 0
    finally:
        os.chdir(before)
    return Ran(code, out.getvalue(), err.getvalue())


def git(folder, *arguments, stdin=b"", **extra):
    """Standard output of git, stripped, under a fixed identity and clock."""
    command = ["git", *map(str, arguments)]
    done = subprocess.run(command, cwd=folder, env=ENVIRONMENT | extra, input=stdin, capture_output=True, check=False)
    if done.returncode:
        raise AssertionError(f"{command}: {done.stderr.decode()}")
    return done.stdout.decode().strip()


def commit_files(folder, files, message="a change"):
    """Commits some files (None removes) onto the current branch; returns the commit."""
    for path, text in files.items():
        if text is None:
            (folder / path).unlink()
        else:
            write(folder, {path: text})
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", message)
    return git(folder, "rev-parse", "HEAD")


def snapshot(folder):
    """Everything that a failed command must leave alone: references, HEAD, index and files, but no unnamed object."""
    files = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        _, inside, rest = f"/{name}".partition("/.git/")
        if path.is_file() and not (inside and rest.split("/")[0] in ("objects", "spt", "logs")):
            files[name] = b"" if inside and path.name == "index" else path.read_bytes()
    return files


def errors_well(ran, code, *words):
    """Whether a command failed as documented: its code, one line that says the words, perhaps a hint, no traceback."""
    lines = ran.err.strip().splitlines()
    said = [line for line in lines if line.startswith("error: ")]
    return (
        ran.code == code
        and len(said) == 1
        and all(word in ran.err for word in words)
        and "Traceback" not in ran.err
        and all(line.startswith(("error: ", "hint: ", "warning: ", "note: ")) for line in lines)
    )


def edit_and_write_back(folder, name, files):
    """Opens an entry, changes some of its files, writes it back; returns what the last command said."""
    opened = spt("entry", "edit", name, cwd=folder)
    assert opened.code == 0, opened.err
    write(Path(opened.out.strip()), files)
    return spt("entry", "export", name, cwd=folder)


def evidence_line(folder, name, **changes):
    """A line of evidence of an entry as it is in a deployment repository."""
    tree = git(folder, "rev-parse", f"entry/{name}~1^{{tree}}")
    stock = git(folder, "rev-parse", "refs/spt/stock/current^{tree}")
    delta = git(folder, "log", "-1", "--format=%(trailers:key=Spt-Delta,valueonly)", f"entry/{name}")
    line = {
        "v": 1,
        "evidence": "raw",
        "rule": None,
        "deployment": "1" * 64,
        "stock_tree": stock,
        "delta_id": delta,
        "system_tree": tree,
        "options": {},
        "baseline": {"tree": stock, "options": {}},
        "card": MACHINE,
        "harness": "0.1.0",
        "units": 10,
        "requests": "toy",
        "gain": 0.25,
        "interval": [0.2, 0.3],
        "noise": 0.001,
        "tau": {"before": 2.0, "after": 2.5},
        "forcing": None,
        "samples": None,
    }
    return json.dumps(line | changes) + "\n"


def new(folder, name, *commits, extra=(), system="round"):
    """Distils an entry from commits of a system; returns what the command said."""
    chosen = [word for commit in commits for word in ("--from", commit)]
    return spt("entry", "new", name, "--system", system, *chosen, *CONTRACT, *extra, cwd=folder)


def report(folder, name):
    """(exit code, the JSON report) of verifying one entry."""
    ran = spt("entry", "verify", name, "--json", cwd=folder)
    return ran.code, ran.json[0]

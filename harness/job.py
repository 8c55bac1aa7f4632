"""A job: what `spt` asks the harness to do (docs/records.md, docs/harness.md)."""

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import shape
from harness.errors import Missing, Unsupported, Usage
from harness.request import SAMPLING
from harness.shape import (
    anything,
    constant,
    hexadecimal,
    integer,
    items,
    mapping,
    one_of,
    optional,
    record,
    scalar,
    text,
)
from harness.tree import tree_id
from harness.wire import Sampling, Settings, Target

__all__ = ["Arm", "Deployment", "Job", "canonical_digest", "read_job"]


# No user, query or fragment: whoever reads a job reads its address, and a key does not belong into it.
_URL = re.compile(r"https?://([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?(/[A-Za-z0-9._~/-]*)?")


def _url(value: Any, where: str) -> None:
    text(value, where)
    if not _URL.fullmatch(value):
        raise shape.Mismatch(f"{where} is not an address like 'http://HOST:PORT/v1', without user and query")


def _engine(value: Any, where: str) -> None:
    kinds = {
        "stock": record({"kind": constant("stock")}),
        "openai": record({"kind": constant("openai"), "url": _url, "model": text}),
        "command": record({"kind": constant("command"), "command": items(text, least=1)}),
    }
    mapping(anything)(value, where)
    one_of(*kinds)(value.get("kind"), f"{where} 'kind'")
    kinds[value["kind"]](value, where)


_ARM = record({"dir": text, "tree": hexadecimal(40), "options": mapping(scalar)})
_DEPLOYMENT = record(
    {
        "name": text,
        "target": record({"path": text, "widen": integer(1), "jitter": integer()}),
        "drafter": optional(record({"path": text})),
        "sampling": SAMPLING,
        "dtype": one_of("float32", "bfloat16", "float64"),
        "mode": one_of("exact", "fast"),
        "device": text,
        "engine": _engine,
        "context": integer(2),
        "load": record({"concurrency": integer(1), "arrival": one_of("closed")}),
    }
)
_JOB = record(
    {
        "v": constant(1),
        "kind": constant("job"),
        "arms": record({"a": _ARM}, {"b": _ARM, "stock": _ARM}),
        "deployment": _DEPLOYMENT,
        "requests": text,
        "seed": integer(),
        "rule": text,
        "phase": one_of("prepare", "run", "calibrate", "screen", "confirm", "force", "final"),
        "units": integer(),
    },
    {
        "max_tokens": integer(1),
        "deployment_digest": hexadecimal(64),
        "commitment": hexadecimal(64),
        "sizes": one_of("full", "smoke"),
    },
)


@dataclass(frozen=True)
class Arm:
    """An exported system tree and its option values, perhaps still in words."""

    name: str
    folder: Path
    tree: str
    options: dict[str, str | float | bool]
    drafts: bool = True  # false loads no drafter

    @property
    def system(self) -> dict[str, Any]:
        """What samples and verdicts call it."""
        return {"tree": self.tree, "options": self.options}

    def check(self) -> None:
        """Raises unless the folder holds the tree that the job names."""
        if not self.folder.is_dir():
            raise Missing(f"arm '{self.name}' is not there: no folder '{self.folder}'")
        if (found := tree_id(self.folder)) != self.tree:
            raise Usage(
                f"arm '{self.name}' in '{self.folder}' is not the tree that the job names:"
                f" {found[:12]}, not {self.tree[:12]}"
            )


@dataclass(frozen=True)
class Deployment:
    """What the harness needs of a deployment: all paths absolute, all defaults filled in."""

    target: Target
    drafter: str | None
    sampling: Sampling
    dtype: str
    mode: str
    device: str
    engine: dict[str, Any]
    context: int
    concurrency: int

    def command(self, stock: list[str]) -> list[str]:
        """The engine's command; `stock` is the one that runs a system tree's own engine."""
        if self.engine["kind"] == "openai":
            raise Unsupported("an engine 'openai' is a server, and no command of a system")
        return list(self.engine["command"]) if self.engine["kind"] == "command" else stock

    def settings(self, options: dict[str, str | float | bool], *, drafts: bool = True) -> Settings:
        """What to load, for an arm with these options."""
        return Settings(
            target=self.target,
            drafter=self.drafter if drafts else None,
            dtype=self.dtype,
            device=self.device,
            mode=self.mode,
            options=options,
            context=self.context,
            requests=self.concurrency,
        )


@dataclass(frozen=True)
class Job:
    """Arms, deployment and requests; relative paths were taken from the job file's folder."""

    arms: dict[str, Arm]
    deployment: Deployment
    requests: Path
    max_tokens: int | None
    rule: str
    seed: int
    units: int  # forcing: requests of the first look, 0 for all
    digest: str  # of the deployment: the job's word, else of the fields that it states
    key: str  # the same for two jobs that ask for the same answers, wherever their files lie
    commitment: str | None = None  # of a final, to the seal that drew it
    sizes: str = "full"  # of a final


def read_job(path: Path) -> Job:
    """The job in the file `path`."""
    try:
        value = shape.loads(path.read_bytes())
        _JOB(value, "the job")
    except OSError as error:
        raise Missing(f"the job '{path}' cannot be read: {error.strerror}") from None
    except shape.Mismatch as error:
        raise Usage(f"{path}: {error}") from None
    folder = path.absolute().parent
    requests = folder / value["requests"]
    if not requests.is_file():
        raise Missing(f"no requests at '{requests}'")
    arms = {name: Arm(name, folder / arm["dir"], arm["tree"], arm["options"]) for name, arm in value["arms"].items()}
    return Job(
        arms,
        _deployment(value["deployment"]),
        requests,
        value.get("max_tokens"),
        rule=value["rule"],
        seed=value["seed"],
        units=value["units"],
        digest=value.get("deployment_digest") or canonical_digest(value["deployment"]),
        key=_key(value, requests),
        commitment=value.get("commitment"),
        sizes=value.get("sizes", "full"),
    )


def _deployment(value: dict[str, Any]) -> Deployment:
    drafter = value["drafter"]
    return Deployment(
        target=Target(**value["target"]),
        drafter=None if drafter is None else drafter["path"],
        sampling=Sampling(**value["sampling"]),
        dtype=value["dtype"],
        mode=value["mode"],
        device=value["device"],
        engine=value["engine"],
        context=value["context"],
        concurrency=value["load"]["concurrency"],
    )


def _key(value: dict[str, Any], requests: Path) -> str:
    arms = {name: {"tree": arm["tree"], "options": arm["options"]} for name, arm in value["arms"].items()}
    same = {**value, "arms": arms, "requests": hashlib.sha256(requests.read_bytes()).hexdigest()}
    return canonical_digest(same)


def canonical_digest(value: Any) -> str:
    """sha256 of canonical JSON: sorted keys, no spaces, UTF-8."""
    text_ = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text_.encode()).hexdigest()

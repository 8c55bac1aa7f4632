"""How a round ends: the branch of its system, and a deployment.yaml that runs it."""

import io
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spt.git.store import Store
from spt.round.bench import Bench
from spt.round.direction import SystemOf

__all__ = ["SYSTEMS", "newest_branch", "next_branch", "write_deployment"]

SYSTEMS = "refs/heads/system/"


def _numbers(store: Store, deployment: str) -> list[int]:
    prefix = f"{SYSTEMS}{deployment}/"
    names = [name.removeprefix(prefix) for name in store.references(prefix)]
    return sorted(int(name) for name in names if name.isascii() and name.isdigit())


def newest_branch(store: Store, deployment: str) -> str | None:
    """The branch of the newest system of a deployment; None where no round has ended with one."""
    numbers = _numbers(store, deployment)
    return f"system/{deployment}/{numbers[-1]}" if numbers else None


def next_branch(store: Store, deployment: str) -> str:
    """The branch that the next system of a deployment gets."""
    return f"system/{deployment}/{max(_numbers(store, deployment), default=0) + 1}"


def write_deployment(bench: Bench, system: SystemOf, branch: str) -> Path:
    """Writes the deployment with the system and its options into a folder of its own; returns the file."""
    _, name, number = branch.split("/")
    path = bench.store.state / "systems" / f"{name}-{number}" / "deployment.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    words = _absolute(bench.settings.deployment, Path(bench.settings.folder))
    words["system"] = branch
    words["options"] = {option: _text(value) for option, value in sorted(system.options.items())}
    part = path.with_name(f".{path.name}")
    part.write_bytes(_yaml(words))
    part.replace(path)
    return path


def _absolute(words: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The words of a deployment with paths that no longer depend on where its file lies."""
    made: dict[str, Any] = {key: dict(value) if isinstance(value, dict) else value for key, value in words.items()}
    for group, key in (("target", "path"), ("drafter", "path"), ("requests", "file")):
        held = made.get(group)
        if isinstance(held, dict) and key in held and _is_path(group, str(held[key])):
            held[key] = os.path.abspath(folder / held[key])  # noqa: PTH100 - a link stays one
    if "/" in str(made.get("python", "")):
        made["python"] = os.path.abspath(folder / str(made["python"]))  # noqa: PTH100
    return made


def _is_path(group: str, word: str) -> bool:
    return not word.startswith("package:") and (group, word) != ("drafter", "default")


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _yaml(words: Mapping[str, Any]) -> bytes:
    from ruamel.yaml import YAML

    yaml = YAML()
    yaml.width = 4096
    out = io.BytesIO()
    yaml.dump(dict(words), out)
    return out.getvalue()

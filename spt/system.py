"""A system: a tree and option values.  Which paths belong to it, which options it declares, how it is named.

The SYSTEM grammar stands in docs/deployment.md.  Options are read from `stock/options/*.toml` as text; no code
of a system is ever imported here.
"""

import functools
import os
import shutil
import tempfile
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from spt import share
from spt.errors import Usage
from spt.formats import MAX_YAML_BYTES, check, read_yaml
from spt.git.objects import EXECUTABLE, GITLINK, LINK, TREE, Objects, Oid
from spt.git.tree import fold, subtree, walk, without

__all__ = [
    "FOLDERS",
    "SHIPPED",
    "SUFFIXES",
    "WHOLE",
    "Option",
    "System",
    "Value",
    "additions",
    "check_options",
    "export",
    "layout_of",
    "options_of",
    "read_options",
    "recorded_options",
    "split_system",
    "system_tree",
]

FOLDERS, SUFFIXES = share.SYSTEM_FOLDERS, share.SYSTEM_SUFFIXES
SHIPPED, WHOLE = "shipped", "whole"

Value: TypeAlias = str | int | float | bool

_TYPES: dict[str, tuple[type, ...]] = {"int": (int,), "float": (float, int), "bool": (bool,), "string": (str,)}
_TYPE_WORDS = {"int": "a whole number", "float": "a number", "bool": "true or false", "string": "text"}
_MAX_TOML_BYTES = 16 * 1024  # the parser's time grows with the square of a dotted key's length
_MAX_NUMBER = 2**63
_OPTION_KEYS = {"type", "default", "values", "range", "meaning"}


@dataclass(frozen=True)
class System:
    """A tree and the values of the options that are not at their default; `label` is the user's word for it.

    `left_out`: files of the working tree that are not as the tree has them, where it is the tree of HEAD.
    """

    tree: Oid
    options: dict[str, Value]
    label: str
    left_out: tuple[str, ...] = ()


# Which paths belong to a system.


def layout_of(objects: Objects, tree: Oid) -> str:
    """SHIPPED where a stock tree holds nothing but the folders of the shipped system, else WHOLE."""
    names = set(objects.entries(tree))
    return SHIPPED if "stock" in names and names <= set(FOLDERS) else WHOLE


def system_tree(objects: Objects, tree: Oid, layout: str) -> Oid:
    """The part of a commit's tree that is the system: its folders, or all of it without `.spt/`."""
    if layout == WHOLE:
        return without(objects, tree, ".spt")
    names = objects.entries(tree)
    surplus = {name: None for name in names if name not in FOLDERS}
    return objects.build(tree, surplus) if surplus else tree


# Options.


@dataclass(frozen=True)
class Option:
    """A declared option: `values` are the allowed ones or None, `span` the inclusive range or None."""

    name: str
    type: str
    default: Value
    meaning: str
    owner: str
    values: tuple[Value, ...] | None = None
    span: tuple[float, float] | None = None
    is_seam: bool = False

    def value(self, given: object, where: str) -> Value:
        """The value that was given as text or typed; Usage, starting with `where`, unless the option allows it."""
        value = _from_text(self.type, given) if isinstance(given, str) else given
        if not isinstance(value, Value) or not _has_type(value, self.type):
            raise Usage(f"{where}: option '{self.name}' takes {_TYPE_WORDS[self.type]}, not '{given}'")
        if self.values is not None and value not in self.values:
            allowed = ", ".join(str(one) for one in self.values)
            raise Usage(f"{where}: option '{self.name}' cannot be '{given}'", f"it takes one of: {allowed}")
        if self.span is not None and not self.span[0] <= float(value) <= self.span[1]:
            raise Usage(
                f"{where}: option '{self.name}' cannot be {given}", f"it goes from {self.span[0]} to {self.span[1]}"
            )
        return value


def _has_type(value: object, kind: str) -> bool:
    if not isinstance(value, _TYPES[kind]) or (kind != "bool" and isinstance(value, bool)):
        return False
    return not isinstance(value, int | float) or abs(value) < _MAX_NUMBER


def _from_text(kind: str, text: str) -> object:
    try:
        if kind == "int":
            return int(text)
        if kind == "float":
            return float(text)
    except ValueError:
        return text
    return {"true": True, "false": False}.get(text, text) if kind == "bool" else text


def options_of(objects: Objects, tree: Oid) -> dict[str, Option]:
    """The options that a system tree declares, by name; a name declared twice is Usage naming both files."""
    folder = subtree(objects, tree, "stock/options")
    declared: dict[str, Option] = {}
    for name, state in sorted((objects.entries(folder) if folder else {}).items()):
        if not name.endswith(".toml") or state.mode == TREE:
            continue
        where = f"stock/options/{name}"
        for option in _read_toml(objects, tree, where, objects.blob(state.oid)):
            if option.name in declared:
                other = declared[option.name].owner
                raise Usage(f"option '{option.name}' is declared twice: stock/options/{other}.toml and {where}")
            declared[option.name] = option
    return declared


def additions(objects: Objects, base: Oid, result: Oid) -> tuple[list[str], dict[str, list[str]]]:
    """(names of options, {seam: values}) that one system tree declares and another, its base, does not; sorted."""
    before, after = options_of(objects, base), options_of(objects, result)
    seams = {}
    for name, option in after.items():
        known = set(map(str, before[name].values or ())) if name in before else set()
        if option.is_seam and (values := sorted(set(map(str, option.values or ())) - known)):
            seams[name] = values
    return sorted(set(after) - set(before)), seams


def _read_toml(objects: Objects, tree: Oid, where: str, data: bytes) -> Iterable[Option]:
    if len(data) > _MAX_TOML_BYTES:
        raise Usage(f"{where}: {len(data)} bytes are more than the {_MAX_TOML_BYTES} that an options file may have")
    try:
        tables = _parsed_toml(data)
    except RecursionError as error:
        raise Usage(f"{where}: nested too deep") from error
    except ValueError as error:  # covers TOMLDecodeError, UnicodeDecodeError and numbers of thousands of digits
        raise Usage(f"{where}: {str(error).splitlines()[0]}") from error
    for name, table in tables.items():
        yield _option(objects, tree, where, name, table)


@functools.lru_cache(maxsize=1024)
def _parsed_toml(data: bytes) -> dict[str, object]:
    return tomllib.loads(data.decode())


def _option(objects: Objects, tree: Oid, where: str, name: str, table: object) -> Option:
    if not isinstance(table, dict):
        raise Usage(f"{where}: '{name}' is not a table", "an option is a table [name] with type, default and meaning")
    unknown, absent = sorted(set(table) - _OPTION_KEYS), sorted({"type", "default", "meaning"} - set(table))
    if unknown or absent:
        problem = f"unknown key '{unknown[0]}'" if unknown else f"key '{absent[0]}' is missing"
        raise Usage(f"{where}: '{name}': {problem}")
    kind, values, span = table["type"], table.get("values"), table.get("range")
    if not isinstance(kind, str) or kind not in _TYPES:
        raise Usage(f"{where}: '{name}': type '{kind}' is not one of {', '.join(_TYPES)}")
    is_seam = values == "modules"
    if is_seam:
        values = _modules(objects, tree, name)
    if values is not None and not isinstance(values, list):
        raise Usage(f"{where}: '{name}': values are a list, or \"modules\"")
    if span is not None and (kind not in ("int", "float") or not _is_span(span)):
        raise Usage(f"{where}: '{name}': range is [low, high] of an int or float option")
    option = Option(
        name=name,
        type=kind,
        default=table["default"],
        meaning=str(table["meaning"]),
        owner=Path(where).stem,
        values=None if values is None else tuple(values),
        span=None if span is None else (span[0], span[1]),
        is_seam=is_seam,
    )
    if not all(_has_type(value, kind) for value in (option.default, *(option.values or ()))):
        raise Usage(f"{where}: '{name}': default and values must be of type {kind}")
    option.value(option.default, where)
    return option


def _is_span(span: object) -> bool:
    if not isinstance(span, list) or len(span) != 2:
        return False
    return all(_has_type(end, "float") for end in span) and span[0] <= span[1]


def _modules(objects: Objects, tree: Oid, seam: str) -> list[str]:
    folder = subtree(objects, tree, f"stock/{seam}")
    names = objects.entries(folder) if folder else {}
    return sorted(name.removesuffix(".py") for name in names if name.endswith(".py") and name != "__init__.py")


def check_options(declared: Mapping[str, Option], given: Mapping[str, object], where: str) -> dict[str, Value]:
    """The given values, typed; Usage for one that is not declared or not allowed."""
    unknown = sorted(set(given) - set(declared))
    if unknown:
        raise Usage(
            f"{where}: no option is named '{unknown[0]}'", f"there are: {', '.join(sorted(declared)) or 'none'}"
        )
    return {name: declared[name].value(value, where) for name, value in given.items()}


def read_options(path: Path) -> dict[str, str]:
    """An OPTIONS.yaml, a mapping from option name to value; values are text until `check_options` types them."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_YAML_BYTES + 1)  # one too many, which is refused, where it goes on without end
    except OSError as error:
        raise Usage(f"options file '{path}' cannot be read: {error.strerror}") from error
    values = read_yaml(data, str(path))
    if not isinstance(values, dict) or any(not isinstance(value, str) for value in values.values()):
        raise Usage(f"{path}: an options file is a mapping from option name to one value")
    return values


def recorded_options(objects: Objects, tree: Oid) -> dict[str, str]:
    """The option values that a commit's `.spt/system.yaml` holds, as text; none where there is no such file."""
    state = objects.lookup(tree, ".spt/system.yaml")
    if state is None:
        return {}
    # Read as text: a digest may look like a number, and options are typed by their declaration anyway.
    record = read_yaml(objects.blob(state.oid), ".spt/system.yaml")
    is_first = isinstance(record, dict) and record.get("spt") == "1"
    check({**record, "spt": 1} if is_first else record, "system", ".spt/system.yaml")
    options: dict[str, str] = record["options"]
    return options


def split_system(text: str) -> tuple[str, str | None]:
    """(what the tree is, OPTIONS.yaml or None): `@FILE` counts at the last `@`, and only if it ends in .yaml."""
    head, at, file = text.rpartition("@")
    return (head, file) if at and head and file.endswith(".yaml") else (text, None)


# Files.


def export(objects: Objects, tree: Oid, folder: Path) -> None:
    """Writes a tree's files into a folder that is absent or empty: all of them, or none.

    The files are written beside it and moved into place at the end, so that an interrupted export leaves no
    half of a system.  Modes are 0644 and 0755; a link is made as a link.  A submodule is an error: its files are
    not in the repository, and an empty folder in their place would be another tree under this one's name.
    """
    folder = folder.parent.resolve() / folder.name
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise Usage(f"'{folder}' is not a folder")
    if folder.is_dir() and any(folder.iterdir()):
        raise Usage(f"folder '{folder}' is not empty", "name a folder that does not exist yet")
    if not folder.parent.is_dir():
        raise Usage(f"folder '{folder.parent}' does not exist")
    _refuse_unsafe(objects, tree)
    part = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        for path, state in walk(objects, tree):
            _write(part / path, state.mode, objects.blob(state.oid))
        part.chmod(0o755)
        part.replace(folder)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise


def _refuse_unsafe(objects: Objects, tree: Oid) -> None:
    for path, state in walk(objects, tree):
        if state.mode == GITLINK:
            raise Usage(
                f"'{path}' is a submodule, whose files this repository does not hold",
                "commit its files in its place, or remove it",
            )
        for name in path.split("/"):
            if name in (".", "..") or fold(name) == ".git" or "\0" in name:
                raise Usage(f"tree '{tree[:12]}' holds the unsafe path '{path}'")


def _write(path: Path, mode: int, data: bytes) -> None:
    # The folder is fresh and a git tree cannot hold a path below a link, so no component can lead outside.
    path.parent.mkdir(parents=True, exist_ok=True)
    if mode == LINK:
        path.symlink_to(os.fsdecode(data))
    else:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "wb") as file:
            file.write(data)
        path.chmod(0o755 if mode == EXECUTABLE else 0o644)

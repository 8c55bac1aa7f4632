"""The current best in git: its code as a series of commits, one mechanism each, and a record on top of it."""

import io
from collections.abc import Mapping
from typing import Any

from spt.formats import check
from spt.git.message import TOOL
from spt.git.objects import FILE, Commit, Objects, Oid, Person, State
from spt.git.tree import splice, without
from spt.round.direction import Direction, SystemOf

__all__ = ["RECORD", "code_commit", "commits_between", "mechanism_commit", "record_commit"]

RECORD = ".spt/system.yaml"


def code_commit(objects: Objects, commit: Oid) -> Oid:
    """The newest commit at or below this one that changes code; records alone are no part of a series."""
    while True:
        one = objects.commit(commit)
        if len(one.parents) != 1:
            return commit
        parent = objects.commit(one.parents[0])
        if objects.code_of(one.tree) != objects.code_of(parent.tree):
            return commit
        commit = parent.oid


def commits_between(objects: Objects, before: Oid, after: Oid) -> list[Commit]:
    """The commits above `before` up to `after`, oldest first."""
    commits: list[Commit] = []
    oid = after
    while oid != before:
        commit = objects.commit(oid)
        commits.append(commit)
        if not commit.parents:
            break
        oid = commit.parents[0]
    return commits[::-1]


def mechanism_commit(
    objects: Objects, parent: Oid, tree: Oid, direction: Direction, round_: str, author: Person, said: Mapping[str, str]
) -> Oid:
    """One commit for all that a direction's candidate changes, on top of the series so far.

    tree: a commit's whole tree.  said: further trailers.
    """
    trailers = {"Spt-Round": round_, "Spt-Direction": direction.id, **said}
    lines = "".join(f"{key}: {value}\n" for key, value in trailers.items())
    body = " ".join(direction.hypothesis.split())
    message = f"{' '.join(direction.title.split())}\n\n{body}\n\n{lines}"
    return objects.add_commit(tree, [parent], author, message)


def record_commit(
    objects: Objects,
    code: Oid,
    system: SystemOf,
    deployment: str,
    subject: str,
    trailers: Mapping[str, str],
    time_s: int,
) -> Oid:
    """A commit on top of the code that says which system it is: tree, options, and the deployment's digest."""
    record: dict[str, Any] = {"spt": 1, **system.record(), "deployment": deployment}
    check(record, "system", RECORD)
    tree = objects.commit(code).tree
    states = {RECORD: State(FILE, objects.add_blob(_yaml(record)))}
    lines = "".join(f"{key}: {value}\n" for key, value in trailers.items())
    whole = splice(objects, without(objects, tree, ".spt"), states)
    return objects.add_commit(whole, [code], TOOL._replace(time_s=time_s), f"{subject}\n\n{lines}")


def _yaml(record: Mapping[str, Any]) -> bytes:
    from ruamel.yaml import YAML

    yaml = YAML()
    yaml.default_flow_style = False
    yaml.width = 4096
    out = io.BytesIO()
    yaml.dump(dict(record), out)
    return out.getvalue()

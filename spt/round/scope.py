"""The first gate: which files an agent may touch, and what may stand in them.

Nothing of the patch runs here; it is read as git objects.  What the gate lets through is plain text in the folders of
the system, of a size that a person can review: a patch cannot bring a link out of the tree, a file that Python or
pytest runs by its name, or a table of answers.
"""

import io
import re
import tokenize
from collections.abc import Iterable, Iterator

from spt.entry import check_path
from spt.errors import SptError
from spt.git.objects import EXECUTABLE, FILE, GITLINK, LINK, Objects, Oid
from spt.git.tree import Row, compare, fold
from spt.system import FOLDERS, SHIPPED, SUFFIXES, layout_of

__all__ = ["FIXED", "LITERAL_BYTES", "MAX_REASONS", "check_scope"]

LITERAL_BYTES = 64 * 1024  # of one table, text or number; and of a file that is not Python
PYTHON_BYTES = 256 * 1024
GROWTH_BYTES = 1024 * 1024  # by all that is added
MAX_ROWS = 400
MAX_REASONS = 20
FIXED = frozenset({"stock/worker.py"})  # speaks with the judge

_LOADED = frozenset({"conftest.py", "sitecustomize.py", "usercustomize.py", "pytest.ini", "tox.ini", "setup.cfg"})
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")
_SHOWN = 120
_MODES = {EXECUTABLE: "an executable", LINK: "a symbolic link", GITLINK: "a submodule"}
_CONSTANTS = frozenset({"None", "True", "False"})
_GLUE = frozenset("[](){},:+-*%.")  # what joins literals to a larger one; a name ends it
_LAYOUT = frozenset({tokenize.NL, tokenize.NEWLINE, tokenize.COMMENT, tokenize.INDENT, tokenize.DEDENT})


def check_scope(objects: Objects, base_tree: Oid, tree: Oid) -> list[str]:
    """Why a patch may not be tried, a reason a line, at most MAX_REASONS; none where it keeps to its scope.

    The two are trees of systems or of commits; where the base is the shipped system, what stands beside its folders
    counts as outside.
    """
    try:
        rows = compare(objects, base_tree, tree).rows
        reasons = list(_reasons(objects, base_tree, tree, rows))
    except (SptError, UnicodeError) as error:
        return [f"its tree cannot be read: {error.message if isinstance(error, SptError) else error}"]
    if len(reasons) > MAX_REASONS:
        reasons = [*reasons[: MAX_REASONS - 1], f"and {len(reasons) - MAX_REASONS + 1} reasons more"]
    return reasons


def _reasons(objects: Objects, base_tree: Oid, tree: Oid, rows: tuple[Row, ...]) -> Iterator[str]:
    if len(rows) > MAX_ROWS:
        yield f"it touches {len(rows)} files, more than the {MAX_ROWS} allowed"
        return
    shipped = layout_of(objects, _system_part(objects, base_tree)) == SHIPPED
    growth = 0
    for row in rows:
        shown = _shown(row.path)
        found = [*_path_reasons(row, shown, shipped), *_mode_reasons(row, shown)]
        yield from found
        if not found and row.new is not None:
            growth += objects.size(row.new.oid) - _held_bytes(objects, row)
            if shipped and row.old is None and not row.path.endswith(SUFFIXES):
                yield f"'{shown}' is none of {', '.join(SUFFIXES)}"
            else:
                yield from _content_reasons(objects, row, shown)
    if growth > GROWTH_BYTES:
        yield f"it adds {growth} bytes, more than the {GROWTH_BYTES} allowed"
    yield from _twins(objects, tree, rows)


def _system_part(objects: Objects, tree: Oid) -> Oid:
    """The tree of a commit without its records, which tell nothing of the layout."""
    return objects.build(tree, {".spt": None}) if ".spt" in objects.entries(tree) else tree


def _shown(path: str) -> str:
    text = path.encode("unicode_escape").decode()  # letters may look like others, or steer a terminal
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _path_reasons(row: Row, shown: str, shipped: bool) -> Iterator[str]:
    folder, _, rest = row.path.partition("/")
    if row.path in FIXED:
        yield f"'{shown}' is not for agents: it speaks with the judge"
    if folder == ".spt":
        yield f"'{shown}' is a record of spt's own"
    elif shipped and (folder not in FOLDERS or not rest):
        yield f"'{shown}' is outside {', '.join(f'{each}/' for each in FOLDERS)}"
    if row.new is None:
        return
    names = row.path.split("/")
    last = fold(names[-1])
    if last in _LOADED or last.endswith(".pth"):
        yield f"'{shown}' is run by its name alone"
    elif last.startswith(".git") or any(not _NAME.fullmatch(name) for name in names):
        yield f"'{shown}' has a name that is not allowed: letters, digits, '_', '-' and '.', and no '.' first"
    else:
        try:
            check_path(row.path)
        except SptError as error:
            yield f"'{shown}': {error.message}"


def _mode_reasons(row: Row, shown: str) -> Iterator[str]:
    new, old = row.new, row.old
    if new is None or new.mode == FILE:
        return
    if new.mode == EXECUTABLE and old is not None and old.mode == EXECUTABLE:
        return
    yield f"'{shown}' is {_MODES.get(new.mode, f'of mode {new.mode:06o}')}, where only plain files may be"


def _held_bytes(objects: Objects, row: Row) -> int:
    plain = row.old is not None and row.old.mode in (FILE, EXECUTABLE)
    return objects.size(row.old.oid) if row.old is not None and plain else 0


def _content_reasons(objects: Objects, row: Row, shown: str) -> Iterator[str]:
    assert row.new is not None
    size = objects.size(row.new.oid)
    is_python = row.path.endswith(".py")
    most = PYTHON_BYTES if is_python else LITERAL_BYTES
    if size > max(most, _held_bytes(objects, row)):
        yield f"'{shown}' has {size} bytes, more than the {most} allowed"
        return
    try:
        text = objects.blob(row.new.oid).decode()
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        yield f"'{shown}' is no text"
    elif is_python:
        longest = _longest_literal(text)
        if longest is None:
            yield f"'{shown}' is no Python"
        elif longest > LITERAL_BYTES:
            yield f"'{shown}' holds a literal of {longest} bytes, more than the {LITERAL_BYTES} allowed"


def _longest_literal(text: str) -> int | None:
    """Characters of the longest run of constants and what joins them, or None where the text has no tokens.

    Tokens, not a syntax tree: a tree can be nested so deep that whoever builds it breaks.
    """
    longest = run = 0
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.ERRORTOKEN:
                return None
            if _is_literal(token):
                run += len(token.string)
                longest = max(longest, run)
            elif token.type not in _LAYOUT:
                run = 0
    except (SyntaxError, tokenize.TokenError, ValueError, RecursionError):
        return None
    return longest


def _is_literal(token: tokenize.TokenInfo) -> bool:
    if token.type == tokenize.OP:
        return token.string in _GLUE
    if token.type == tokenize.NAME:
        return token.string in _CONSTANTS
    return token.type in (tokenize.STRING, tokenize.NUMBER) or token.type in _PIECES


# From Python 3.12 on an f-string is several tokens.
_PIECES = frozenset(
    number for name in ("FSTRING_START", "FSTRING_MIDDLE", "FSTRING_END") if (number := getattr(tokenize, name, None))
)


def _twins(objects: Objects, tree: Oid, rows: Iterable[Row]) -> Iterator[str]:
    """Added names that differ from a neighbour's only in case, where a checkout elsewhere would lose one."""
    for path in sorted({row.path for row in rows if row.new is not None and row.old is None}):
        parts = path.split("/")
        for depth, name in enumerate(parts):
            above = "/".join(parts[:depth])
            state = objects.lookup(tree, above) if above else None
            names = objects.listing(state.oid if state is not None else tree).names()
            if any(each != name and fold(each) == fold(name) for each in names):
                yield f"'{_shown(path)}' is a neighbour's name but for case"
                break

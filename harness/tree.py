"""The git tree id of a folder, computed without git: what an exported system is named by."""

import hashlib
from pathlib import Path

from harness.errors import Usage

__all__ = ["tree_id"]


def tree_id(folder: Path) -> str:
    """The id, 40 hex digits, of the git tree with the files below `folder`; empty folders do not count.

    Only plain files may lie there: a link could change after it was hashed.
    """
    return _tree(folder).hex()


def _tree(folder: Path) -> bytes:
    entries: list[tuple[bytes, bytes]] = []  # (sort key, record)
    for path in folder.iterdir():
        name = path.name.encode()
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            raise Usage(f"'{path}' is neither a plain file nor a folder")
        if path.is_dir():
            if any(path.iterdir()) and (oid := _tree(path)) != _EMPTY:
                entries.append((name + b"/", b"40000 " + name + b"\0" + oid))
        else:
            mode = b"100755" if path.stat().st_mode & 0o100 else b"100644"
            entries.append((name, mode + b" " + name + b"\0" + _object(b"blob", path.read_bytes())))
    return _object(b"tree", b"".join(record for _, record in sorted(entries)))


def _object(kind: bytes, data: bytes) -> bytes:
    return hashlib.sha1(kind + b" " + str(len(data)).encode() + b"\0" + data, usedforsecurity=False).digest()


_EMPTY = _object(b"tree", b"")

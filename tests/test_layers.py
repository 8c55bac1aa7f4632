"""Who may import whom (docs/engine.md, docs/memory.md): held by reading the code, not by running it."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
OURS = {"spt", "harness", "stock", "kernels", "benchmarks", "tests"}
# What each room may import of ours, and which outside modules it may not.
MAY = {
    "spt": {"spt"},
    "harness": {"harness"},
    "stock": {"stock"},
    "stock/ops": {"stock", "kernels"},
    "kernels": {"kernels"},
}
NEVER = {
    "spt": {"torch", "triton", "transformers"},
    "harness": {"torch", "triton", "transformers", "pygit2"},
    "stock": {"pygit2", "transformers", "tokenizers", "triton"},
    "stock/ops": {"pygit2", "transformers", "tokenizers", "triton"},
    "kernels": {"pygit2", "transformers", "tokenizers"},
}


def room(path):
    relative = path.relative_to(ROOT)
    return "stock/ops" if relative.parts[:2] == ("stock", "ops") else relative.parts[0]


def imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module


FILES = [path for folder in ("spt", "harness", "stock", "kernels") for path in sorted((ROOT / folder).rglob("*.py"))]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_stay_in_their_room(path):
    """No module imports a room of ours that its own room may not, nor an outside library it must do without."""
    tops = {name.partition(".")[0] for name in imports(path)}

    assert tops & OURS <= MAY[room(path)]
    assert not tops & NEVER[room(path)]


def test_only_the_git_room_imports_pygit2():
    """libgit2's configuration is process-wide, so one folder owns it."""
    users = {path.relative_to(ROOT) for path in FILES if any(name.startswith("pygit2") for name in imports(path))}

    assert users
    assert all(path.parts[:2] == ("spt", "git") for path in users)


def test_kernels_of_the_trunk_are_imported_below_ops_alone():
    """An entry that brings another linear or head replaces a seam module, not a kernel."""
    users = {
        path for path in FILES if path.parts[-2] != "kernels" and any(n.startswith("kernels") for n in imports(path))
    }

    assert users
    assert all(room(path) == "stock/ops" for path in users)


def exported(path):
    """What a module's `__all__` lists; None where it has none."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == ["__all__"]:
            return set(ast.literal_eval(node.value))
    return None


def test_all_lists_what_other_folders_import():
    """A module's `__all__` is what the modules of other folders may rely on."""
    modules = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in FILES}
    missing = []
    for path in [*FILES, *sorted((ROOT / "benchmarks").glob("*.py"))]:
        for node in ast.walk(ast.parse(path.read_text())):
            source = modules.get(node.module) if isinstance(node, ast.ImportFrom) else None
            if source is not None and source.parent != path.parent and (listed := exported(source)) is not None:
                names = {alias.name for alias in node.names if f"{node.module}.{alias.name}" not in modules}
                missing += [f"{node.module}.{name}, imported by {path.name}" for name in sorted(names - listed)]

    assert missing == []


def test_help_is_light():
    """`spt --help` loads no torch, no git library and no table printer."""
    code = "import sys; from spt.cli import cli; cli.main(['--help'], standalone_mode=False); print(*sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    loaded = set(out.splitlines()[-1].split())

    assert not loaded & {"torch", "triton", "pygit2", "rich", "numpy", "jsonschema", "ruamel.yaml", "tokenizers"}

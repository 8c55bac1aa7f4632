"""Systems that differ from stock by a known amount, as functions from the files of a system tree to those of another.

Each finds its place by name and adds code there (`extended`), so that an edit of stock leaves it as it is, or is told
by a LookupError.  All of them run on a CPU and on CUDA, captured passes included.
"""

import ast
from collections.abc import Callable
from pathlib import Path

from harness.tree import tree_id
from spt.share import shipped_root, system_files

__all__ = [
    "Change",
    "Files",
    "biased",
    "choosing",
    "extended",
    "fp8_cache",
    "int8_weights",
    "noisy_weights",
    "shipped",
    "write",
]

Files = dict[str, str]  # text by path
Change = Callable[[Files], Files]


def shipped() -> Files:
    """The system tree of this checkout, without its checks."""
    root = shipped_root()
    return {str(path): (root / path).read_text() for path in system_files(root) if path.parts[0] != "checks"}


def write(files: Files, folder: Path) -> str:
    """Writes a system tree into a new folder; its tree id."""
    for path, text in files.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return tree_id(folder)


def extended(files: Files, path: str, code: str, *names: str) -> Files:
    """`files` with `code` at the end of a module, before what runs it as a program.

    names: what the code relies on, `function` or `Class.method`; LookupError says which of them is not there.
    """
    if path not in files:
        raise LookupError(f"the system has no module '{path}'")
    tree = ast.parse(files[path])
    for name in names:
        _find(tree, name, path)
    guards = [node.lineno for node in tree.body if isinstance(node, ast.If) and "__name__" in ast.unparse(node.test)]
    lines = files[path].splitlines(keepends=True)
    at = guards[0] - 1 if guards else len(lines)
    return {**files, path: "".join([*lines[:at], "\n", code, "\n", *lines[at:]])}


def _find(tree: ast.Module, name: str, path: str) -> None:
    body: list[ast.stmt] = tree.body
    for part in name.split("."):
        found = [node for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == part]
        if not found:
            raise LookupError(f"'{path}' defines no '{name}' any more: give the change its new place")
        body = found[0].body


# --- weights ---


def _weights(code: str) -> Change:
    """Replaces every matrix `weight` [out, in] of the target's layers, called `name`, by what `code` makes of it."""

    def other(files: Files) -> Files:
        whole = f"""
def _other_weights(read):
    def other(settings):
        made = read(settings)
        for name, weight in made.weights.items():
            if weight.dim() == 2 and name.startswith("layers."):
                {code}
                made.weights[name] = weight
        return made
    return other
read_target = _other_weights(read_target)
"""
        return extended(files, "stock/system.py", whole, "read_target", "load_system")

    return other


def noisy_weights(scale: float) -> Change:
    """Every matrix of the target's layers with normal noise of `scale` times the SD of its numbers."""
    return _weights(
        "import zlib; "
        "dice = torch.Generator(weight.device).manual_seed(zlib.crc32(name.encode())); "
        "noise = torch.randn(weight.shape, generator=dice, device=weight.device); "
        f"weight = (weight.float() + {scale} * weight.float().std() * noise).to(weight.dtype)"
    )


def int8_weights(files: Files) -> Files:
    """Every matrix of the target's layers in eight bits, one scale a row."""
    change = _weights(
        "scale = weight.float().abs().amax(1, keepdim=True) / 127; "
        "weight = ((weight.float() / scale).round().to(torch.int8).float() * scale).to(weight.dtype)"
    )
    return change(files)


# --- cache ---


def fp8_cache(files: Files) -> Files:
    """Keys and values as a cache in FP8 (e4m3, scale 1) holds them: rounded where they are written, before any pass
    reads them."""
    eight_bits = """
def _eight_bits(x):
    return x.clamp(-448, 448).to(torch.float8_e4m3fn).to(x.dtype)
"""
    plain = f"""
{eight_bits}
def _rounding(append):
    def rounding(qkv, heads, layer, first, position):
        q = append(qkv, heads, layer, first, position)
        written = layer.cache[:, first : first + len(qkv)]
        written.copy_(_eight_bits(written))
        return q
    return rounding
_append = _rounding(_append)
"""
    # Slots by index, since a captured pass must not read where it starts.
    kernel = f"""
{eight_bits}
def _rounding(append):
    def rounding(qkv, position, cos, sin, k_cache, v_cache, start, **norms):
        q = append(qkv, position, cos, sin, k_cache, v_cache, start, **norms)
        slots = start.long() + torch.arange(len(qkv), device=qkv.device)
        for cache in (k_cache, v_cache):
            cache.index_copy_(0, slots, _eight_bits(cache.index_select(0, slots)))
        return q
    return rounding
rope_append = _rounding(rope_append)
"""
    changed = extended(files, "stock/ops/attention.py", plain, "_append", "attend")
    return extended(changed, "kernels/rope_append.py", kernel, "rope_append")


# --- choices ---


def choosing(code: str) -> Change:
    """Changes the logits [n, vocabulary] at positions [n] before a token is chosen from them."""

    def other(files: Files) -> Files:
        whole = f"""
def _other(choose_):
    def other(logits, position, sampling, noise):
        logits = logits.clone()
        {code}
        return choose_(logits, position, sampling, noise)
    return other
choose = _other(choose)
"""
        return extended(files, "stock/sampling.py", whole, "choose")

    return other


def biased(token: int, logit: float, after: int = 0) -> Change:
    """A token's logit raised at every position from `after` on."""
    return choosing(f"logits[:, {token}] += {logit} * (position >= {after})")

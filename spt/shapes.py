"""Bytes and FLOPs that a pass cannot do without, counted from shapes alone, by kernel class.

Counted is what no fusion saves: weights and the keys and values of a context once a pass, the rows that are written to
the cache, and every multiplication.  Activations are not, since they fit a cache and may never leave registers.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from spt.errors import Unsupported, Usage
from spt.model import read_config, read_facts

__all__ = [
    "CLASSES",
    "DTYPE_BYTES",
    "Decoder",
    "Drafter",
    "Pass",
    "Work",
    "draft_work",
    "read_decoder",
    "read_drafter",
    "step_work",
]

# The kernel classes of a profile, in the order in which they are shown.
CLASSES = ("gemm", "attention", "recurrent", "head", "drafter", "prefill", "glue", "memcpy", "gaps")

MOST_CONTEXT_TOK = 2**31 - 1
DTYPE_BYTES = {"bfloat16": 2, "float32": 4, "float64": 8}


@dataclass(frozen=True)
class Work:
    """Bytes moved to or from memory, and floating-point operations (a multiplication and an addition are two)."""

    bytes: int = 0
    flops: int = 0

    def __add__(self, other: "Work") -> "Work":
        return Work(self.bytes + other.bytes, self.flops + other.flops)


@dataclass(frozen=True)
class Decoder:
    """Shapes of a dense Llama-like decoder, as it is computed: after any widening."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp: int
    vocabulary: int

    def widened(self, times: int) -> "Decoder":
        """The decoder `times` as wide; heads keep their size."""
        return replace(
            self,
            hidden=self.hidden * times,
            heads=self.heads * times,
            kv_heads=self.kv_heads * times,
            mlp=self.mlp * times,
        )

    @property
    def layer_weights(self) -> int:
        """Weights of all layers' products."""
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        layer = self.hidden * (queries + 2 * keys) + queries * self.hidden + 3 * self.hidden * self.mlp
        return self.layers * layer

    @property
    def head_weights(self) -> int:
        return self.vocabulary * self.hidden

    @property
    def kv_values(self) -> int:
        """Keys and values that one token leaves in the cache."""
        return 2 * self.layers * self.kv_heads * self.head_dim

    def attention_flops(self, rows: int, keys: int) -> int:
        """Scores and weighted sums of `rows` rows over `keys` keys each."""
        return 4 * self.layers * self.heads * self.head_dim * rows * keys


@dataclass(frozen=True)
class Drafter:
    """A block drafter: a decoder of its own over `block` rows, and `taps` target layers that its context is made of.

    depths: positions that a pass proposes; its head runs on so many rows.
    """

    decoder: Decoder
    block: int
    depths: int
    taps: int


@dataclass(frozen=True)
class Pass:
    """One exact pass: rows and context of all its requests together.

    nodes: drafted rows a request, without the anchor.  context_tok: of one request, mean.  accepted: rows a request
    whose taps the drafter takes in (tau).
    """

    nodes: float
    context_tok: float
    batch: int = 1
    accepted: float = 1.0

    @property
    def rows(self) -> float:
        """Rows of the target's pass."""
        return self.batch * (self.nodes + 1)


def step_work(
    target: Decoder, drafter: Drafter | None, at: Pass, dtype: str, weight_bits: float | None = None
) -> dict[str, Work]:
    """What a step must do at least, by class.

    weight_bits: of the layers' weights, where they are stored in fewer than dtype's; the head keeps its type.
    Usage for an unknown dtype, and for a context that no request has.
    """
    if dtype not in DTYPE_BYTES:
        raise Usage(f"'{dtype}' is no type of weights", f"known are {', '.join(DTYPE_BYTES)}")
    if not 0 <= at.context_tok <= MOST_CONTEXT_TOK:
        raise Usage(f"{at.context_tok:g} tokens of context are outside 0 to {MOST_CONTEXT_TOK}")
    size = DTYPE_BYTES[dtype]
    rows, keys = at.rows, at.context_tok + (at.nodes + 1) / 2
    layer_bytes = target.layer_weights * (size if weight_bits is None else weight_bits / 8)
    cached = target.kv_values * size * (at.batch * at.context_tok + rows)
    vectors = (rows + 2 * target.layers + 1) * target.hidden  # the embedding's rows, and the norms
    queries = 2 * target.layers * target.heads * target.head_dim * size * rows
    work = {
        "gemm": Work(round(layer_bytes), round(2 * rows * target.layer_weights)),
        "attention": Work(round(cached + queries), round(target.attention_flops(1, 1) * rows * keys)),
        "head": Work(target.head_weights * size, round(2 * rows * target.head_weights)),
        "glue": Work(round(vectors * size)),
    }
    return work if drafter is None else {**work, "drafter": draft_work(drafter, at, dtype)}


def draft_work(drafter: Drafter, at: Pass, dtype: str) -> Work:
    """One draft for every request of a pass: the weights are read once for all of them."""
    model, size = drafter.decoder, DTYPE_BYTES[dtype]
    fuse = drafter.taps * model.hidden * model.hidden
    taken, drafted = at.batch * at.accepted, at.batch * drafter.block
    keys_and_values = model.layers * model.hidden * 2 * model.kv_heads * model.head_dim
    flops = 2 * taken * (fuse + keys_and_values) + 2 * drafted * model.layer_weights
    flops += 2 * at.batch * drafter.depths * model.head_weights
    flops += model.attention_flops(1, 1) * drafted * (at.context_tok + drafter.block)
    weights = fuse + model.layer_weights + model.head_weights
    cached = model.kv_values * (at.batch * at.context_tok + taken)
    return Work(round(size * (weights + cached)), round(flops))


def read_decoder(path: Path) -> Decoder:
    """The shapes of a target, a Hugging Face folder or GGUF file; Unsupported names what it does not say."""
    facts = read_facts(path)
    said = {name: getattr(facts, name) for name in ("layers", "hidden", "heads", "kv_heads", "mlp", "vocabulary")}
    for name, value in said.items():
        if not isinstance(value, int) or value < 1:
            raise Unsupported(f"'{path}' does not say its {name.replace('_', ' ')}")
    return Decoder(head_dim=_head_dim(facts.head_dim, facts.architecture, said), **said)


def read_drafter(folder: Path) -> Drafter:
    """The shapes of a block drafter's folder; Unsupported names what it does not say."""
    config = read_config(folder)
    inner = config.get("dflash_config")
    keys: Mapping[str, Any] = {**config, **(inner if isinstance(inner, dict) else {})}
    block, taps = keys.get("block_size"), keys.get("target_layer_ids")
    if not isinstance(block, int) or block < 2 or not isinstance(taps, list) or not taps:
        raise Unsupported(f"'{folder}' does not say its block size and target layers")
    shifted = keys.get("sample_from_anchor", not inner and "target_layer_ids" in config)
    return Drafter(read_decoder(folder), block, block if shifted else block - 1, len(taps))


def _head_dim(said: int | None, family: str | None, shape: Mapping[str, int]) -> int:
    if said is not None:
        return said
    return 128 if family == "qwen3" else max(shape["hidden"] // shape["heads"], 1)

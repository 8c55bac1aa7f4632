"""What the cheats run on: a tiny random model in CI, and the real SmolLM2-135M in the full run.

`@in_both_worlds` runs a test on both; any other runs on the tiny one alone.
"""

import json
import random
import shutil
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import pytest

from benchmarks.perturbed import Change, biased
from harness.generator import Set
from harness.text import load_text
from stock.checkpoint import open_checkpoint
from stock.config import from_hugging_face
from tests.cheats import catalogue, system
from tests.smollm2 import gguf
from tests.stock.tiny import target_config, write_target

__all__ = ["World", "in_both_worlds", "smollm2", "tiny"]

in_both_worlds = pytest.mark.parametrize(
    "world", ["tiny", pytest.param("smollm2", marks=pytest.mark.full)], indirect=True
)
COMMA = 28  # of SmolLM2: near the best almost everywhere


@dataclass(frozen=True)
class World:
    """Models, prompts, and what of the cheats depends on them.

    known: what an author has seen.  naive: what a naive judge compares, of the same lengths.  short, long: prompts that
    nobody has seen, the long ones ending where the late bias begins.
    """

    models: tuple[Path, Path]
    known: list[list[int]]
    naive: list[list[int]]
    short: list[list[int]]
    long: list[list[int]]
    late_bias: Change
    late_bucket: str
    count: int  # of short prompts that are enough to reject a rate near the limit on
    few: int  # and a rate far above it
    tokens: int  # of a short answer
    late_tok: int  # of a long prompt's
    temperature: float  # greedy text of a random model is one loop

    @property
    def skip_by_length(self) -> Change:
        """Answers prompts of other lengths than the known ones' without a pass of the model."""
        return catalogue.skipping(f"len(line['prompt']) not in {sorted({len(prompt) for prompt in self.known})}")

    def rows(self, name: str, short: int = 0, long: int = 0, tokens: int | None = None) -> list[dict]:
        """Requests of a job: so many short (0: as many as there must be) and long prompts, drawn by the name."""
        dice, most = random.Random(name), tokens or self.tokens
        asked = [(ids, most) for ids in dice.sample(self.short, short or self.count)]
        asked += [(ids, self.late_tok) for ids in dice.sample(self.long, long)]
        return [{"id": f"{name}-{at}", "ids": ids, "max_tokens": most} for at, (ids, most) in enumerate(asked)]


def tiny(folder: Path) -> World:
    """Random ids; a fault that starts at position 2,048."""
    dice = random.Random(11)
    short = [[dice.randrange(3, system.VOCABULARY) for _ in range(dice.randrange(9, 24))] for _ in range(160)]
    return World(
        models=system.write_models(folder),
        known=system.DEVELOPMENT,
        naive=system.prompts(77, 6)[2:],
        short=short,
        long=system.prompts(12, 24, tokens=2052),
        late_bias=catalogue.late_bias,
        late_bucket="at position 2048-4096",
        count=40,
        few=40,
        tokens=40,
        late_tok=20,
        temperature=1.0,
    )


def smollm2(folder: Path) -> World:
    """Generated requests in the chat template; the fault starts at position 512, so that a CPU gets there."""
    file = gguf()
    text = load_text(file)

    def drawn(count: int, low: int, high: int, *families: str) -> list[list[int]]:
        source = Set("force", 1, families=families, longest_tok=high)
        found = (text.chat(source.single(at)["turns"]) for at in range(100 * count))
        return list(islice((ids for ids in found if low <= len(ids) <= high), count))

    known = [each["ids"] for each in json.loads((system.ROOT / "tests/stock/prompts.json").read_text())[:4]]
    return World(
        models=(unpacked(file, folder / "target"), copied(folder / "drafter")),  # a cache is hidden in both
        known=known,
        naive=known,
        short=drawn(120, 40, 100, "extraction", "rewrite", "translation"),  # whose answers end soon
        long=drawn(24, 512, 640),
        late_bias=biased(COMMA, 2.0, after=512),
        late_bucket="at position 512-2048",
        count=32,
        few=16,
        tokens=40,
        late_tok=40,
        temperature=0.0,
    )


def copied(folder: Path) -> Path:
    """The shipped drafter in a folder of its own."""
    return shutil.copytree(system.ROOT / "drafters" / "smollm2-135m-dflash-b16", folder)


def unpacked(file: Path, folder: Path) -> Path:
    """The weights of a GGUF file as a Hugging Face folder in FP32: engines are started often, and a GGUF file's
    vocabulary takes its reader ten seconds.
    """
    source = open_checkpoint(file)
    found = source.model_config()
    config = target_config(
        found.family,
        vocab_size=found.vocabulary,
        hidden_size=found.hidden,
        intermediate_size=found.intermediate,
        num_hidden_layers=found.layers,
        num_attention_heads=found.heads,
        num_key_value_heads=found.kv_heads,
        head_dim=found.head_dim,
        rms_norm_eps=found.eps,
        rope_theta=found.rope.theta,
        max_position_embeddings=found.context,
        tie_word_embeddings=found.tied,
        eos_token_id=list(found.stop_ids),
    )
    assert replace(from_hugging_face(config), rope=found.rope) == found and found.rope.kind == "default"
    names = ["model.embed_tokens.weight", "model.norm.weight", *([] if found.tied else ["lm_head.weight"])]
    parts = ("input_layernorm", "post_attention_layernorm", *(f"self_attn.{each}_proj" for each in "qkvo"),
             *(f"mlp.{each}_proj" for each in ("gate", "up", "down")))  # fmt: skip
    names += [f"model.layers.{layer}.{part}.weight" for layer in range(found.layers) for part in parts]
    return write_target(folder, config, {name: source.read(name) for name in names})

"""transformers' plain and assisted generation as arms of `benchmarks.speed`, on the very weights that stock decodes.

The weights are made by stock's loader, and the model's parameters are views of them: nothing is stored twice.
Assisted generation drafts with the narrow model of the same file, which shares the tokenizer; both as transformers
has them by default: eager, a growing cache, `sdpa` attention, nothing compiled.
Times are taken by a streamer, which is given each token on the host.  Assisted generation drafts before its first
pass over the prompt, so its prefill holds that draft, and its first line may hold several tokens.
"""

import contextlib
import importlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.arms import Answer

__all__ = ["PEERS", "PeerArm", "import_transformers", "load_peer"]

PEERS = ("transformers", "transformers-assisted")
_MODULES = ("models.llama.modeling_llama", "generation.utils", "generation.candidate_generator", "generation.streamers")


def import_transformers() -> None:
    """Imports what the arms need while no folder with our `kernels/` is on the path: transformers looks for a package
    of that name and must find none of ours."""
    with _without_kernels():
        for name in ("transformers", *(f"transformers.{module}" for module in _MODULES)):
            importlib.import_module(name)
        importlib.import_module("transformers.utils.logging").set_verbosity_error()  # it warns itself


@contextlib.contextmanager
def _without_kernels() -> Iterator[None]:
    before = list(sys.path)
    sys.path[:] = [entry for entry in before if not (Path(entry or ".") / "kernels" / "__init__.py").exists()]
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path[:] = before
        importlib.invalidate_caches()


class PeerArm:
    """A model of transformers, alone or with an assistant."""

    def __init__(self, model: Any, assistant: Any, stop_ids: frozenset[int]) -> None:
        self.model, self.assistant, self.stop_ids = model, assistant, sorted(stop_ids)

    def answer(self, request: dict[str, Any], tokens: int) -> Answer:
        """One greedy answer, to a stop id or `tokens` tokens; RuntimeError where the streamer missed some."""
        import torch

        prompt = torch.tensor([request["ids"]], device=self.model.device)
        seen = _Times()
        begin_s = time.perf_counter()
        with torch.inference_mode():
            out = self.model.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                max_new_tokens=tokens,
                do_sample=False,
                eos_token_id=self.stop_ids or None,
                assistant_model=self.assistant,
                streamer=seen,
            )
        ids = out[0, prompt.shape[1] :].tolist()
        if seen.ids != ids:
            raise RuntimeError(f"the streamer was given {len(seen.ids)} ids, and {len(ids)} came back")
        first_s, last_s = seen.times_s[0], seen.times_s[-1]
        return Answer(ids, seen.lines, first_s - begin_s, last_s - first_s)

    def phases(self, requests: list[dict[str, Any]], tokens: int) -> list[dict[str, float]]:
        return []


class _Times:
    """A streamer: transformers puts the prompt first, then each step's tokens."""

    def __init__(self) -> None:
        self.prompt = True
        self.ids: list[int] = []
        self.lines: list[int] = []
        self.times_s: list[float] = []

    def put(self, value: Any) -> None:
        if self.prompt:
            self.prompt = False
            return
        ids = value.reshape(-1).tolist()
        self.times_s.append(time.perf_counter())
        self.ids += ids
        self.lines.append(len(ids))

    def end(self) -> None:
        pass


def load_peer(setting: str, wide: Any, narrow: Any, stop_ids: frozenset[int]) -> PeerArm:
    """The arm of that name on stock's targets `wide` and, as assistant, `narrow`."""
    assistant = as_transformers(narrow) if setting == "transformers-assisted" else None
    return PeerArm(as_transformers(wide), assistant, stop_ids)


def as_transformers(target: Any) -> Any:
    """A Llama model of transformers whose parameters are views of stock's weights; SystemExit for another kind."""
    import torch
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

    ours, weights = target.config, target.weights
    odd = [name for name in weights if name.endswith((".bias", "q_norm", "k_norm"))]
    if odd or ours.rope.kind != "default":
        raise SystemExit(f"transformers settings take plain Llama targets only ({odd[0] if odd else 'RoPE scaling'})")
    config = LlamaConfig(
        vocab_size=ours.vocabulary,
        hidden_size=ours.hidden,
        intermediate_size=ours.intermediate,
        num_hidden_layers=ours.layers,
        num_attention_heads=ours.heads,
        num_key_value_heads=ours.kv_heads,
        head_dim=ours.head_dim,
        rms_norm_eps=ours.eps,
        max_position_embeddings=ours.context,
        rope_parameters={"rope_type": "default", "rope_theta": ours.rope.theta},
        tie_word_embeddings=False,
        dtype=target.dtype,
    )
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    keys = ours.kv_heads * ours.head_dim
    state = {"model.embed_tokens": weights["embed"], "model.norm": weights["norm"], "lm_head": weights["head"]}
    for layer in range(ours.layers):
        to, of = f"model.layers.{layer}.", f"layers.{layer}."
        q, k, v = weights[of + "qkv"].split([ours.heads * ours.head_dim, keys, keys])
        gate, up = weights[of + "gate_up"].chunk(2)
        state |= {to + f"self_attn.{name}_proj": part for name, part in zip("qkv", (q, k, v), strict=True)}
        state |= {to + "self_attn.o_proj": weights[of + "out"], to + "mlp.down_proj": weights[of + "down"]}
        state |= {to + "mlp.gate_proj": gate, to + "mlp.up_proj": up}
        state |= {to + "input_layernorm": weights[of + "attn_norm"]}
        state |= {to + "post_attention_layernorm": weights[of + "mlp_norm"]}
    model.load_state_dict({f"{name}.weight": weight for name, weight in state.items()}, assign=True)
    model.model.rotary_emb = type(model.model.rotary_emb)(config).to(target.device)
    model.generation_config = GenerationConfig(pad_token_id=0)
    return model.eval()

"""The oracle: what `transformers` says of a checkpoint.  Runs as a child that nothing of ours is imported into.

    python -P tests/oracles/hf.py     (one JSON job a line on standard input, one reply a line on standard output)

A job names its `op` and the file `out`, into which its tensors go; the reply repeats `out`, or says `error`.
DFlash is no part of transformers: here it is built anew from its Qwen3 modules, without any cache, as one masked
attention over context and block.
"""

import json
import sys
from pathlib import Path
from typing import Any

import gguf
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen3Config,
)
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
from transformers.models.qwen3.modeling_qwen3 import (
    Qwen3DecoderLayer,
    Qwen3RMSNorm,
    Qwen3RotaryEmbedding,
    apply_rotary_pos_emb,
    eager_attention_forward,
)

_GGUF_PARTS = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}
_models: dict[tuple[str, str], nn.Module] = {}


def model_of(path: str, dtype: str = "float32") -> nn.Module:
    """The model of a folder or of a Llama GGUF file, read once."""
    key = (path, dtype)
    if key not in _models:
        if Path(path).is_file():
            model = llama_of_gguf(path)
        else:
            model = AutoModelForCausalLM.from_pretrained(path, attn_implementation="eager")
        _models[key] = model.to(getattr(torch, dtype)).eval()
    return _models[key]


def llama_of_gguf(path: str) -> LlamaForCausalLM:
    """A Llama from GGUF metadata and dequantised tensors; q and k rows go back from interleaved to split halves."""
    reader = gguf.GGUFReader(path)

    def field(key: str) -> Any:
        return reader.fields["llama." + key].contents()

    tensors = {each.name: torch.tensor(gguf.dequantize(each.data, each.tensor_type)) for each in reader.tensors}
    heads = {"attn_q": field("attention.head_count"), "attn_k": field("attention.head_count_kv")}
    state = {
        "model.embed_tokens.weight": tensors["token_embd.weight"],
        "lm_head.weight": tensors.get("output.weight", tensors["token_embd.weight"]),
        "model.norm.weight": tensors["output_norm.weight"],
    }
    for name, tensor in tensors.items():
        if name.startswith("blk."):
            _, layer, part, _ = name.split(".")
            if part in heads:
                rows = torch.arange(len(tensor)).view(heads[part], -1, 2)  # [head, pair, member]
                tensor = tensor[rows.transpose(1, 2).flatten()]
            state[f"model.layers.{layer}.{_GGUF_PARTS[part]}.weight"] = tensor
    config = LlamaConfig(
        vocab_size=len(tensors["token_embd.weight"]),
        hidden_size=field("embedding_length"),
        intermediate_size=field("feed_forward_length"),
        num_hidden_layers=field("block_count"),
        num_attention_heads=field("attention.head_count"),
        num_key_value_heads=field("attention.head_count_kv"),
        max_position_embeddings=field("context_length"),
        rms_norm_eps=field("attention.layer_norm_rms_epsilon"),
        tie_word_embeddings="output.weight" not in tensors,
        rope_parameters={"rope_type": "default", "rope_theta": field("rope.freq_base")},
    )
    config._attn_implementation = "eager"
    model = LlamaForCausalLM(config)
    model.load_state_dict(state)
    return model


def logits(job: dict[str, Any]) -> dict[str, Tensor]:
    """logits [n, vocabulary] of `ids`, and for `taps` the outputs [n, taps * hidden] of those layers."""
    model = model_of(job["path"], job.get("dtype", "float32"))
    out = model(torch.tensor([job["ids"]]), output_hidden_states=True, use_cache=False)
    tensors = {"logits": out.logits[0]}
    if job.get("taps"):
        tensors["taps"] = torch.cat([out.hidden_states[tap + 1][0] for tap in job["taps"]], 1)
    return tensors


def argmax(job: dict[str, Any]) -> dict[str, Tensor]:
    """For each row of `ids`: argmax and the gap to the runner-up."""
    model = model_of(job["path"])
    best = model(torch.tensor([job["ids"]]), use_cache=False).logits[0].topk(2)
    return {"argmax": best.indices[:, 0], "gap": best.values[:, 0] - best.values[:, 1]}


def rope(job: dict[str, Any]) -> dict[str, Tensor]:
    """cos and sin [positions, head_dim / 2] of a config."""
    config = AutoConfig.for_model(**job["config"])
    cos, sin = LlamaRotaryEmbedding(config)(torch.zeros(1), torch.arange(job["positions"])[None])
    half = cos.shape[-1] // 2
    return {"cos": cos[0, :, :half], "sin": sin[0, :, :half]}


def save(job: dict[str, Any]) -> dict[str, Tensor]:
    """Makes a random model of a config and saves it as the library does, in shards; then its logits."""
    torch.manual_seed(job["seed"])
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**job["config"]))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) / 4)
    model.save_pretrained(job["path"], max_shard_size=job["shard_size"])
    return logits(job)


def export(job: dict[str, Any]) -> dict[str, Tensor]:
    """Saves a GGUF file as a folder `to` that other engines read, tokenizer included; the ids that end an answer."""
    model, path = llama_of_gguf(job["path"]).to(getattr(torch, job["dtype"])), Path(job["path"])
    end = gguf.GGUFReader(path).fields["tokenizer.ggml.eos_token_id"].contents()
    model.generation_config = GenerationConfig(eos_token_id=end)
    model.config.eos_token_id = end
    model.save_pretrained(job["to"])
    AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name).save_pretrained(job["to"])
    return {"stop_ids": torch.tensor([end])}


class Drafter(nn.Module):
    """A DFlash drafter in the names of the published checkpoints."""

    def __init__(self, config: Qwen3Config, taps: int) -> None:
        super().__init__()
        config._attn_implementation = "eager"
        self.fc = nn.Linear(config.hidden_size * taps, config.hidden_size, bias=False)
        self.hidden_norm = Qwen3RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.layers = nn.ModuleList(Qwen3DecoderLayer(config, index) for index in range(config.num_hidden_layers))
        self.norm = Qwen3RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.rotary = Qwen3RotaryEmbedding(config)

    def forward(self, taps: Tensor, block: Tensor, masks: list[Tensor]) -> Tensor:
        """taps [n, taps * hidden], block [rows, hidden], a mask [rows, n + rows] for each layer -> [rows, hidden]."""
        context = self.hidden_norm(self.fc(taps))
        position = torch.arange(len(context) + len(block))[None]
        turns = self.rotary(block, position)
        for layer, mask in zip(self.layers, masks, strict=True):
            normed = layer.input_layernorm(block)
            block = block + self.attend(layer.self_attn, context, normed, turns, mask)
            block = block + layer.mlp(layer.post_attention_layernorm(block))
        return self.norm(block)

    def attend(self, attention: nn.Module, context: Tensor, block: Tensor, turns: Any, mask: Tensor) -> Tensor:
        """Queries of the block; keys and values of context and block through the same projections."""
        both = torch.cat((context, block))

        def heads(x: Tensor) -> Tensor:
            return x.view(1, len(x), -1, attention.head_dim)

        q = attention.q_norm(heads(attention.q_proj(block))).transpose(1, 2)
        k = attention.k_norm(heads(attention.k_proj(both))).transpose(1, 2)
        v = heads(attention.v_proj(both)).transpose(1, 2)
        cos, sin = turns
        own = slice(len(context), None)
        q, _ = apply_rotary_pos_emb(q, q, cos[:, own], sin[:, own])
        k, _ = apply_rotary_pos_emb(k, k, cos, sin)
        added = torch.zeros(mask.shape).masked_fill(~mask, float("-inf"))
        out, _ = eager_attention_forward(attention, q, k, v, added, attention.scaling)
        return attention.o_proj(out.reshape(len(block), -1))


def drafter(job: dict[str, Any]) -> dict[str, Tensor]:
    """Block logits of a drafter whose context is all of `ids` but the last, which is the anchor."""
    raw = json.loads((Path(job["path"]) / "config.json").read_text())
    inner = raw.get("dflash_config") or raw
    config = Qwen3Config(**{key: value for key, value in raw.items() if key not in ("architectures", "dflash_config")})
    weights = {key: value.float() for key, value in load_file(Path(job["path"]) / "model.safetensors").items()}
    own_head, own_embed = weights.pop("lm_head.weight", None), weights.pop("embed_tokens.weight", None)
    weights.pop("d2t", None)
    model = Drafter(config, len(inner["target_layer_ids"])).eval()
    model.load_state_dict(weights, strict=True)
    target = model_of(job["target"])
    embed = target.get_input_embeddings().weight if own_embed is None else own_embed
    head = target.get_output_embeddings().weight if own_head is None else own_head
    *context, anchor = job["ids"]
    taps = logits({"path": job["target"], "ids": context, "taps": inner["target_layer_ids"]})["taps"]
    block = embed[torch.tensor([anchor] + [inner["mask_token_id"]] * (raw["block_size"] - 1))]
    masks = [_mask(len(context), len(block), *how) for how in zip(job["windows"], job["causal"], strict=True)]
    hidden = model(taps, block, masks)
    return {"logits": hidden @ head.T, "taps": taps}


def _mask(context: int, rows: int, window: int | None, causal: bool) -> Tensor:
    """What each block row sees: within the window on both sides, and only earlier rows where causal."""
    query, key = torch.arange(context, context + rows)[:, None], torch.arange(context + rows)[None]
    seen = torch.ones(rows, context + rows, dtype=torch.bool)
    if window is not None:
        seen &= (query - key).abs() < window
    return seen & (key <= query) if causal else seen


def main() -> None:
    torch.set_num_threads(1)
    jobs = {each.__name__: each for each in (logits, argmax, rope, save, export, drafter)}
    out = sys.stdout
    sys.stdout = sys.stderr  # a library's print must not look like a reply
    for line in sys.stdin:
        job = json.loads(line)
        try:
            with torch.inference_mode():
                tensors = jobs[job["op"]](job)
            save_file({name: tensor.clone().contiguous() for name, tensor in tensors.items()}, job["out"])
            reply = {"out": job["out"]}
        except Exception as error:  # noqa: BLE001 - the test that asked shows it
            reply = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(reply), file=out, flush=True)


if __name__ == "__main__":
    main()

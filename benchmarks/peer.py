"""Plain and assisted generation of transformers on the weights that `benchmarks.speed` decodes, on one GPU.

    python -m benchmarks.peer --target FILE --requests IDS.jsonl --out RESULTS.jsonl --widen 8 --jitter 1

Assisted generation drafts with the narrow model of the same file, which shares the tokenizer.
The weights are made by stock's own loader, and the model's parameters are views of them: nothing is stored twice.
Stock is imported first and its folder then leaves the path, since transformers looks for a package named `kernels`.
"""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    """Measures both and prints tokens a second."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--requests", type=Path, required=True, help="JSON lines with id and ids")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--count", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--widen", type=int, default=1)
    parser.add_argument("--jitter", type=int, default=0)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--device", default="cuda")
    arguments = parser.parse_args()
    wide, narrow = load(arguments)
    requests = [json.loads(line) for line in arguments.requests.read_text().splitlines()][: arguments.count]
    with arguments.out.open("a") as out:
        for setting, assistant in (("transformers plain", None), ("transformers assisted", narrow)):
            generate(wide, requests[0], 8, assistant)  # warm up
            answers = [generate(wide, request, arguments.tokens, assistant) for request in requests]
            line = {"setting": setting, "widen": arguments.widen, "jitter": arguments.jitter, "answers": answers}
            out.write(json.dumps(line) + "\n")
            tokens, seconds = (sum(answer[key] for answer in answers) for key in ("tokens", "seconds"))
            print(f"{setting:<24} {tokens / seconds:8.1f} tok/s, prefill included", flush=True)


def load(arguments: argparse.Namespace) -> tuple[Any, Any]:
    """The widened model and the narrow one as transformers models."""
    import torch

    from stock.target import load_target

    dtype, device = getattr(torch, arguments.dtype), torch.device(arguments.device)
    wide = load_target(arguments.target, dtype, device, arguments.widen, arguments.jitter)
    narrow = load_target(arguments.target, dtype, device)
    sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != ROOT]
    return as_transformers(wide), as_transformers(narrow)


def as_transformers(target: Any) -> Any:
    """A Llama model of transformers whose parameters are views of stock's weights."""
    import torch
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

    ours, weights = target.config, target.weights
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
    model.generation_config = GenerationConfig(pad_token_id=0, eos_token_id=None)
    return model.eval()


def generate(model: Any, request: dict[str, Any], tokens: int, assistant: Any) -> dict[str, Any]:
    """One greedy answer of exactly `tokens` tokens."""
    import torch

    prompt = torch.tensor([request["ids"]], device=model.device)
    if model.device.type == "cuda":
        torch.cuda.synchronize()
    begin = time.perf_counter()
    with torch.inference_mode():
        out = model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=tokens,
            min_new_tokens=tokens,
            do_sample=False,
            assistant_model=assistant,
        )
    ids = out[0, prompt.shape[1] :].tolist()
    return {"id": request["id"], "ids": ids, "tokens": len(ids), "seconds": time.perf_counter() - begin}


if __name__ == "__main__":
    main()

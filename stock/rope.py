"""Rotary position embeddings (Su et al., arXiv 2104.09864) with the scalings of Llama 3 and YaRN.

rotate-half convention: dimension i pairs with i + head_dim / 2.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from stock.errors import EngineError
from stock.fields import Fields

__all__ = ["Rope"]


@dataclass(frozen=True)
class Rope:
    """Frequencies and amplitude of a rotary embedding.

    kind: `default`, `linear`, `llama3`, `yarn`, or `factors` (frequencies divided one by one, as GGUF stores
    Llama 3's).  scaling: the parameters of the kind, named as in Hugging Face's `rope_parameters`.
    """

    head_dim: int
    theta: float
    kind: str = "default"
    scaling: Mapping[str, Any] | None = None

    @classmethod
    def from_hugging_face(cls, config: Mapping[str, Any], head_dim: int) -> "Rope":
        """Reads `rope_parameters` (newer files) or `rope_theta` with `rope_scaling` (older ones)."""
        fields = Fields(config, "config.json")
        merged = {**fields.table("rope_scaling").values, **fields.table("rope_parameters").values}
        given = Fields(merged, "config.json's rope scaling")
        kind = str(given.get("rope_type") or given.get("type") or "default")
        if given.get("partial_rotary_factor", 1) != 1:
            raise EngineError("bad_model", "partial rotary embeddings are not supported")
        theta = given.number("rope_theta", fields.number("rope_theta", 10000.0))
        whole = fields.count("max_position_embeddings") if kind in ("llama3", "yarn") else 0
        scaling = _scaling(kind, given, "original_max_position_embeddings", whole)
        if kind == "yarn":
            for name in ("attention_factor", "mscale", "mscale_all_dim"):
                scaling[name] = given.optional(name)
            scaling["truncate"] = given.flag("truncate", True)
        return cls(head_dim, theta, kind, scaling)

    @classmethod
    def from_gguf(cls, fields: Mapping[str, Any], family: str, head_dim: int) -> "Rope":
        """Reads `<family>.rope.*`; Llama 3's factors come as the tensor `rope_freqs.weight` (see `with_factors`)."""
        whole = Fields(fields, "the GGUF file", f"{family}.")
        rope, given = (Fields(fields, "the GGUF file", f"{family}.rope.{part}") for part in ("", "scaling."))
        theta = rope.number("freq_base", 10000.0)
        if rope.count("dimension_count", head_dim) != head_dim:
            raise EngineError("bad_model", "partial rotary embeddings are not supported")
        if "scale_linear" in rope:
            raise EngineError("bad_model", "the old key 'rope.scale_linear' is not supported")
        kind = str(given.get("type", "none"))
        if kind == "none":
            return cls(head_dim, theta)
        if kind not in ("linear", "yarn"):
            raise EngineError("bad_model", f"rope scaling '{kind}' is not supported")
        scaling = _scaling(kind, given, "original_context_length", whole.count("context_length"), "yarn_")
        if "attn_factor" in given:
            # There the stored factor multiplies YaRN's own amplitude instead of replacing it.
            scaling["attention_factor"] = given.number("attn_factor") * _yarn_amplitude(scaling["factor"], {})
        return cls(head_dim, theta, kind, scaling)

    def with_factors(self, factors: list[float]) -> "Rope":
        """The embedding whose i-th frequency is divided by factors[i]; EngineError unless head_dim / 2 are given."""
        if not all(0 < factor < math.inf for factor in factors):
            raise EngineError("bad_model", "a rope factor is not a number above 0")
        if len(factors) != self.head_dim // 2:
            raise EngineError("bad_model", f"{len(factors)} rope factors for {self.head_dim // 2} frequencies")
        return Rope(self.head_dim, self.theta, "factors", {"factors": factors})

    def table(self, positions: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """cos and sin, float32 [positions, head_dim / 2], amplitude included.

        EngineError `bad_model` where the parameters give no finite numbers.
        """
        try:
            frequencies, amplitude = self._frequencies()
        except (ArithmeticError, ValueError) as error:
            raise EngineError("bad_model", f"rope scaling '{self.kind}' cannot be computed: {error}") from error
        angles = torch.arange(positions, dtype=torch.float32)[:, None] * frequencies[None]
        cos, sin = angles.cos() * amplitude, angles.sin() * amplitude
        if not bool(cos.isfinite().all()):
            raise EngineError("bad_model", f"rope scaling '{self.kind}' with theta {self.theta:g} gives no numbers")
        return cos.to(device), sin.to(device)

    def _frequencies(self) -> tuple[Tensor, float]:
        scaling = self.scaling or {}
        exponents = torch.arange(0, self.head_dim, 2, dtype=torch.int64).float() / self.head_dim
        plain = 1.0 / (self.theta**exponents)
        if self.kind == "linear":
            return plain / scaling["factor"], 1.0
        if self.kind == "factors":
            return plain / torch.tensor(scaling["factors"], dtype=torch.float32), 1.0
        if self.kind == "llama3":
            return _llama3(plain, scaling), 1.0
        if self.kind == "yarn":
            return _yarn(plain, self.theta, self.head_dim, scaling)
        return plain, 1.0


def _scaling(kind: str, given: Fields, original: str, context: int, beta: str = "") -> dict[str, Any]:
    """The parameters of a kind; EngineError `bad_model` for a kind or a value that is not known.

    original: the key of the context before scaling, all of `context` by default.  beta: the prefix of YaRN's betas.
    """
    if kind not in ("default", "linear", "llama3", "yarn"):
        raise EngineError("bad_model", f"rope scaling '{kind}' is not supported")
    if kind == "default":
        return {}
    if kind == "linear":
        return {"factor": given.number("factor")}
    scaling: dict[str, Any] = {"original_max_position_embeddings": given.count(original, context)}
    if kind == "llama3":
        return scaling | {name: given.number(name) for name in ("factor", "low_freq_factor", "high_freq_factor")}
    betas = {name: given.optional(beta + name) for name in ("beta_fast", "beta_slow")}
    stretched = context / scaling["original_max_position_embeddings"]
    return scaling | betas | {"factor": given.number("factor", stretched)}


def _llama3(plain: Tensor, scaling: Mapping[str, Any]) -> Tensor:
    """Long wavelengths are stretched by `factor`, short ones kept, those between blended (Llama 3.1)."""
    factor, original = scaling["factor"], scaling["original_max_position_embeddings"]
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    turns = original * plain / (2 * math.pi)  # rotations within the original context
    blend = ((turns - low) / (high - low)).clamp(0, 1)
    return (1 - blend) * plain / factor + blend * plain


def _yarn(plain: Tensor, theta: float, head_dim: int, scaling: Mapping[str, Any]) -> tuple[Tensor, float]:
    """NTK-by-parts interpolation and attention temperature of YaRN (Peng et al., arXiv 2309.00071)."""
    factor, original = scaling["factor"], scaling["original_max_position_embeddings"]

    def dimension(rotations: float) -> float:
        """The (fractional) pair index that turns `rotations` times within the original context."""
        return head_dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    low, high = dimension(scaling.get("beta_fast") or 32), dimension(scaling.get("beta_slow") or 1)
    if scaling.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001
    ramp = ((torch.arange(head_dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    frequencies = plain / factor * ramp + plain * (1 - ramp)
    return frequencies, _yarn_amplitude(factor, scaling)


def _yarn_amplitude(factor: float, scaling: Mapping[str, Any]) -> float:
    if scaling.get("attention_factor") is not None:
        return float(scaling["attention_factor"])

    def mscale(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

    if scaling.get("mscale") and scaling.get("mscale_all_dim"):
        return mscale(scaling["mscale"]) / mscale(scaling["mscale_all_dim"])
    return mscale(1.0)

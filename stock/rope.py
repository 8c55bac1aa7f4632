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
        scaling = dict(config.get("rope_scaling") or {})
        scaling.update(config.get("rope_parameters") or {})
        kind = scaling.get("rope_type") or scaling.get("type") or "default"
        if kind not in ("default", "linear", "llama3", "yarn"):
            raise EngineError("bad_model", f"rope scaling '{kind}' is not supported")
        if kind == "yarn":
            scaling.setdefault("original_max_position_embeddings", config["max_position_embeddings"])
            if scaling.get("factor") is None:
                scaling["factor"] = config["max_position_embeddings"] / scaling["original_max_position_embeddings"]
        theta = scaling.get("rope_theta") or config.get("rope_theta") or 10000.0
        return cls(head_dim, float(theta), kind, scaling)

    @classmethod
    def from_gguf(cls, fields: Mapping[str, Any], family: str, head_dim: int) -> "Rope":
        """Reads `<family>.rope.*`; Llama 3's factors come as the tensor `rope_freqs.weight` (see `with_factors`)."""
        theta = float(fields.get(f"{family}.rope.freq_base", 10000.0))
        if fields.get(f"{family}.rope.dimension_count", head_dim) != head_dim:
            raise EngineError("bad_model", "partial rotary embeddings are not supported")
        kind = fields.get(f"{family}.rope.scaling.type", "none")
        if kind in ("none", None):
            return cls(head_dim, theta)
        if kind not in ("linear", "yarn"):
            raise EngineError("bad_model", f"rope scaling '{kind}' is not supported")
        prefix = f"{family}.rope.scaling."
        factor = fields[prefix + "factor"]
        scaling = {
            "factor": factor,
            "original_max_position_embeddings": fields.get(prefix + "original_context_length"),
            "beta_fast": fields.get(prefix + "yarn_beta_fast"),
            "beta_slow": fields.get(prefix + "yarn_beta_slow"),
        }
        if prefix + "attn_factor" in fields:
            # There the stored factor multiplies YaRN's own amplitude instead of replacing it.
            scaling["attention_factor"] = fields[prefix + "attn_factor"] * _yarn_amplitude(factor, {})
        return cls(head_dim, theta, kind, scaling)

    def with_factors(self, factors: list[float]) -> "Rope":
        """The embedding whose i-th frequency is divided by factors[i]; head_dim / 2 of them."""
        return Rope(self.head_dim, self.theta, "factors", {"factors": factors})

    def table(self, positions: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """cos and sin, float32 [positions, head_dim / 2], amplitude included."""
        frequencies, amplitude = self._frequencies()
        angles = torch.arange(positions, dtype=torch.float32)[:, None] * frequencies[None]
        return (angles.cos() * amplitude).to(device), (angles.sin() * amplitude).to(device)

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

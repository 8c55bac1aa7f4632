"""A loaded system: target, drafter and the module behind each seam, as the options name them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from stock.cache import Cache, MakeCache
from stock.draft import Draft
from stock.drafter import Drafter, load_drafter
from stock.errors import EngineError
from stock.exact import PaddedLinear
from stock.head import Head, Product
from stock.linear import Linear
from stock.linear.dense import Float32Head
from stock.ops import has_kernels
from stock.options import SEAMS, resolve, seam_module
from stock.schedule import Schedule
from stock.select import Select
from stock.target import Target, load_target
from stock.tree import TreeLimits
from stock.verify import Verify

__all__ = ["Settings", "System", "load_system", "read_options", "read_target"]

_DEVICE = re.compile(r"cpu|cuda(?::(\d+))?")
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64}


@dataclass(frozen=True)
class Settings:
    """The fields of the protocol's `load`."""

    target: Path
    widen: int
    jitter: int
    drafter: Path | None
    dtype: str
    device: str
    mode: str
    head: str
    options: Mapping[str, Any]
    prepared: Path | None
    context: int
    requests: int

    @classmethod
    def of(cls, line: Mapping[str, Any]) -> "Settings":
        """From the fields of a `load` line, whose form is checked; EngineError `bad_request` for no such folder."""
        drafter, prepared = line["drafter"], line["prepared"]
        if prepared is not None and not Path(prepared).is_dir():
            raise EngineError("bad_request", f"'{prepared}' is not a folder")
        return cls(
            target=Path(line["target"]["path"]),
            widen=line["target"]["widen"],
            jitter=line["target"]["jitter"],
            drafter=None if drafter is None else Path(drafter["path"]),
            dtype=line["dtype"],
            device=line["device"],
            mode=line["mode"],
            head=line["head"],
            options=line["options"],
            prepared=None if prepared is None else Path(prepared),
            context=line["limits"]["context"],
            requests=line["limits"]["requests"],
        )

    @property
    def exact(self) -> bool:
        return self.mode == "exact"


@dataclass
class System:
    """Everything a step needs.

    context: the most tokens of a request.  limits: of any draft tree.  linears: the linear module, and the scoring head
    where there is one.
    """

    settings: Settings
    options: dict[str, Any]
    device: torch.device
    target: Target
    drafter: Drafter | None
    context: int
    limits: TreeLimits
    make_cache: MakeCache
    draft: Draft
    select: Select
    verify: Verify
    linears: list[Linear]
    head: Head
    product: Product
    schedule: Schedule

    @property
    def slots(self) -> int:
        """Cache rows of a sequence: a pass may write a whole tree behind the last committed row."""
        return self.context + self.limits.rows

    @property
    def has_kernels(self) -> bool:
        """Whether passes go through kernels, which never wait for the device."""
        return not self.settings.exact and has_kernels(self.target.weights["norm"])

    def new_cache(self) -> Cache:
        """An empty cache for the target."""
        config = self.target.config
        like = self.target.weights["norm"]
        return self.make_cache(config.layers, config.kv_heads, config.head_dim, self.slots, like)

    def counters(self) -> dict[str, int]:
        """What modules have counted since they were built, by names of their own."""
        counted: dict[str, int] = self.head.counters() if hasattr(self.head, "counters") else {}
        return counted

    def resident_bytes(self) -> int:
        """Bytes of all weights, shared ones counted once."""
        tensors = self.target.tensors() + (self.drafter.tensors() if self.drafter else [])
        tensors += [tensor for linear in self.linears for tensor in linear.tensors()]
        tensors += self.head.tensors() if hasattr(self.head, "tensors") else []
        return sum({each.data_ptr(): each.numel() * each.element_size() for each in tensors}.values())


@torch.inference_mode()
def load_system(settings: Settings, target: Target | None = None) -> System:
    """Loads models (a target that is given is not read again) and builds every seam; EngineError says what is off."""
    options = read_options(settings)
    if target is None:
        target = read_target(settings)
    context = settings.context
    target = _for_context(target, context)
    drafter = None
    if settings.drafter is not None and options["draft"] != "none":
        drafter = load_drafter(settings.drafter, target, options["alignment"], target.dtype, context, settings.exact)
    scoring = Float32Head(target.weights) if settings.head == "fp32" else None  # before a module drops the weights
    built = {seam: seam_module(seam, options[seam]).build(target, options, settings.prepared) for seam in SEAMS}
    linear = _in_mode(built["linear"], settings)
    product = _head_product(target, linear if scoring is None else _in_mode(scoring, settings))
    depths = drafter.config.depths if drafter else 0
    limits = built["select"].limits(depths)
    draft = built["draft"](drafter, built["cache"], context + limits.rows + depths + 1)
    return System(
        settings=settings,
        options=options,
        device=target.device,
        target=target,
        drafter=drafter,
        context=context,
        limits=built["select"].limits(draft.depths),
        make_cache=built["cache"],
        draft=draft,
        select=built["select"],
        verify=built["verify"](linear, draft.taps, settings.exact),
        linears=[built["linear"], *([scoring] if scoring else [])],
        head=built["head"](product),
        product=product,
        schedule=built["schedule"],
    )


def read_options(settings: Settings) -> dict[str, Any]:
    """Option values; without a drafter, which the settings state, drafting is `none` unless they ask for more."""
    values = dict(settings.options)
    if settings.drafter is None:
        values.setdefault("draft", "none")
    return resolve(values)


def read_target(settings: Settings) -> Target:
    """The target alone."""
    device = _device(settings.device)
    return load_target(settings.target, _DTYPES[settings.dtype], device, settings.widen, settings.jitter)


def _device(name: str) -> torch.device:
    match = _DEVICE.fullmatch(name)
    index = int(match[1] or 0) if match else 0
    if match is None or (name != "cpu" and index >= torch.cuda.device_count()):
        raise EngineError("no_device", f"device '{name}' does not exist")
    if name == "cpu":
        return torch.device("cpu")
    device = torch.device("cuda", index)
    torch.cuda.set_device(device)
    torch.backends.cuda.matmul.allow_tf32 = False  # float32 means float32
    return device


def _for_context(target: Target, context: int) -> Target:
    """The target for no more than `context` positions, so that tables are no longer than what is asked for."""
    if context > target.config.context:
        known = target.config.context
        raise EngineError("bad_request", f"a context of {context} tokens exceeds the target's {known}")
    return replace(target, config=replace(target.config, context=context))


def _in_mode(linear: Linear, settings: Settings) -> Linear:
    return PaddedLinear(linear) if settings.exact else linear


def _head_product(target: Target, linear: Linear) -> Product:
    return Product(linear, target.norm("norm"))

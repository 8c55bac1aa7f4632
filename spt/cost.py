"""The cost model: the time of a step as a function of nodes, context and batch, and the speed that follows.

Times are fitted as a sum of terms, each with a reason (docs/ceiling.md), by least squares of relative errors with no
term below zero.  A term that the samples cannot tell apart from the others is left out and named; what a prediction
then extrapolates over is named too.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from spt.errors import Usage

__all__ = ["LEAST_STEP_US", "MOST_STEP_US", "TERMS", "CostModel", "Estimate", "Sample", "Setting", "fit", "means"]

CONFIDENCE = 0.95
LEAST_STEP_US, MOST_STEP_US = 1e-3, 1e12  # of a step that can have been measured; the solver stands no other numbers
TILE_ROWS = 128  # of the largest tiles that libraries give to few rows; one row more is another pass over the weights


@dataclass(frozen=True)
class Setting:
    """What a step's time depends on.

    nodes: drafted rows a request, without the anchor.  context_tok: of a request, mean; None where nobody recorded it.
    drafts: whether a drafter runs.
    """

    name: str
    nodes: float
    context_tok: float | None = None
    batch: int = 1
    drafts: bool = True

    @property
    def rows(self) -> float:
        return self.batch * (self.nodes + 1)


@dataclass(frozen=True)
class Sample:
    """Measured: microseconds a step, mean over `steps` steps of one answer or one window."""

    setting: Setting
    step_us: float
    steps: int = 1


# name: (what it is the price of, its value at a setting)
TERMS: dict[str, tuple[str, Callable[[Setting], float]]] = {
    "plain": ("a step without a drafter, of one row", lambda at: float(not at.drafts)),
    "drafting": ("a step with a drafter, before any row", lambda at: float(at.drafts)),
    "rows": ("a verified row", lambda at: at.rows * at.drafts),
    "tiles": ("a further tile of rows", lambda at: (math.ceil(at.rows / TILE_ROWS) - 1.0) * at.drafts),
    "requests": ("a further request", lambda at: at.batch - 1.0),
    "context": ("a token of context", lambda at: at.batch * (at.context_tok or 0.0)),
    "rows_context": ("a row times a token of context", lambda at: at.rows * (at.context_tok or 0.0)),
    "rows_squared": ("rows that leave the memory-bound regime", lambda at: at.rows**2 * at.drafts / 64),
}


@dataclass(frozen=True)
class Estimate:
    """A predicted step: microseconds, its 95 % interval (None with too few samples), and what it extrapolates over."""

    setting: Setting
    step_us: float
    interval_us: tuple[float, float] | None
    extrapolates: tuple[str, ...]

    @property
    def relative_sd(self) -> float:
        """Half of the interval over the prediction and 2; 0 where there is no interval."""
        if self.interval_us is None:
            return 0.0
        return (self.interval_us[1] - self.interval_us[0]) / 4 / self.step_us


@dataclass(frozen=True)
class CostModel:
    """A fitted model.

    coefficients: microseconds by term.  left_out: terms that the samples could not tell.  residual_sd: of relative
    errors.  freedom: samples less terms.  covariance: of the coefficients over residual_sd squared, in their order.
    """

    coefficients: dict[str, float]
    left_out: tuple[str, ...]
    residual_sd: float
    freedom: int
    covariance: tuple[tuple[float, ...], ...]
    settings: tuple[Setting, ...]

    def predict(self, at: Setting) -> Estimate:
        """The time of a step there; Usage where nothing of its kind was measured."""
        kind = "drafting" if at.drafts else "plain"
        if kind not in self.coefficients:
            raise Usage(f"'{at.name}': no step of that kind was measured", f"measure {TERMS[kind][0]}")
        values = [TERMS[term][1](at) for term in self.coefficients]
        step_us = sum(value * each for value, each in zip(values, self.coefficients.values(), strict=True))
        if step_us <= 0:
            raise Usage(f"'{at.name}': the model has no time for such a step", "measure more settings")
        return Estimate(at, step_us, self._interval(values, step_us), self._extrapolates(at))

    @property
    def knows_rows(self) -> bool:
        """Whether the samples told what a row costs, so that settings of other sizes can be compared."""
        return "rows" in self.coefficients

    def as_json(self) -> dict[str, Any]:
        """What the model says of itself."""
        names = ("residual_sd", "freedom")
        figures = {name: getattr(self, name) for name in names}
        return {"terms_us": self.coefficients, "left_out": list(self.left_out), **figures}

    def _interval(self, values: Sequence[float], step_us: float) -> tuple[float, float] | None:
        if self.freedom < 1:
            return None
        from scipy.stats import t as student

        scaled = [value / step_us for value in values]
        leverage = sum(
            one * other * self.covariance[i][j] for i, one in enumerate(scaled) for j, other in enumerate(scaled)
        )
        quantile = float(student.ppf((1 + CONFIDENCE) / 2, self.freedom))
        half = quantile * self.residual_sd * math.sqrt(1 + max(leverage, 0.0)) * step_us
        return max(0.0, step_us - half), step_us + half

    def _extrapolates(self, at: Setting) -> tuple[str, ...]:
        alike = [each for each in self.settings if each.drafts == at.drafts]
        sides: dict[str, tuple[float, list[float]]] = {
            "rows": (at.rows, [each.rows for each in alike]),
            "batch": (float(at.batch), [float(each.batch) for each in alike]),
            "context": (at.context_tok or 0.0, [each.context_tok or 0.0 for each in alike]),
        }
        return tuple(name for name, (value, known) in sides.items() if not min(known) <= value <= max(known))


def fit(samples: Sequence[Sample]) -> CostModel:
    """The model of some samples; Usage where there are none, or one has no time."""
    import numpy as np
    from scipy.optimize import nnls

    if not samples:
        raise Usage("there is no measured step to fit a cost model to", "`spt measure` writes steps")
    for sample in samples:
        if not LEAST_STEP_US <= sample.step_us <= MOST_STEP_US:
            raise Usage(f"'{sample.setting.name}': a step of {sample.step_us} us is no time")
    times = np.array([sample.step_us for sample in samples])
    levels = len({sample.setting for sample in samples})
    kept: list[str] = []
    columns = np.empty((len(samples), 0))
    for term, (_, value) in TERMS.items():
        column = np.array([value(sample.setting) for sample in samples], np.float64)[:, None] / times[:, None]
        wider = np.hstack((columns, column))
        scale = np.linalg.norm(wider, axis=0)
        enough = len(kept) < levels - 1 or term in ("plain", "drafting") or len(kept) < 2
        if scale[-1] > 0 and enough and np.linalg.matrix_rank(wider / scale, tol=1e-3) == wider.shape[1]:
            kept.append(term)
            columns = wider
    scale = np.linalg.norm(columns, axis=0)
    found, distance = nnls(columns / scale, np.ones(len(samples)))
    freedom = len(samples) - len(kept)
    covariance = np.linalg.inv((columns / scale).T @ (columns / scale)) / np.outer(scale, scale)
    return CostModel(
        coefficients=dict(zip(kept, (found / scale).tolist(), strict=True)),
        left_out=tuple(term for term in TERMS if term not in kept),
        residual_sd=float(distance) / math.sqrt(freedom) if freedom else 0.0,
        freedom=freedom,
        covariance=tuple(map(tuple, covariance.tolist())),
        settings=tuple(dict.fromkeys(sample.setting for sample in samples)),
    )


def means(samples: Iterable[Sample]) -> dict[Setting, Sample]:
    """One sample a setting: the mean over all its steps."""
    grouped: dict[Setting, list[Sample]] = {}
    for sample in samples:
        grouped.setdefault(sample.setting, []).append(sample)
    merged = {}
    for setting, own in grouped.items():
        steps = sum(each.steps for each in own)
        merged[setting] = Sample(setting, sum(each.step_us * each.steps for each in own) / steps, steps)
    return merged

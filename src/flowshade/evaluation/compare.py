"""Two evaluations of the same clips side by side, with bootstrap confidence intervals."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from flowshade.errors import FlowshadeError
from flowshade.evaluation.results import load_results
from flowshade.evaluation.scoring import AFFINE, METRICS, NO_RAYS, REFERENCE

RESAMPLES = 10_000
PLAIN = (REFERENCE, AFFINE, NO_RAYS)


@dataclass(frozen=True, kw_only=True)
class Difference:
    """How much of a metric the second evaluation has more than the first, on the same clips."""

    metric: str
    first: float
    second: float
    difference: float
    low: float
    high: float
    """Ends of the 95 % interval of the difference."""
    clips: int

    @property
    def verdict(self) -> str:
        """Whether the interval leaves zero out, and who is better if so."""
        if self.low <= 0 <= self.high:
            return "no difference shown"
        better = METRICS[self.metric].better
        if better == 0:
            nearer = abs(self.second - 1) < abs(self.first - 1)
            return "second better" if nearer else "first better"
        return "second better" if self.difference * better > 0 else "first better"


def bootstrap_interval(
    values: Float[np.ndarray, " N"], *, resamples: int = RESAMPLES, seed: int = 0, level: float = 0.95
) -> tuple[float, float]:
    """Percentile bootstrap interval of a mean (Efron and Tibshirani 1993, ch. 13).

    Args:
        values: one number a clip, which is what is drawn again: frames of a clip are not independent.
        resamples: how many draws.
        seed: of the draws.
        level: share of them that lies inside.
    """
    rng = np.random.default_rng(seed)
    means = values[rng.integers(len(values), size=(resamples, len(values)))].mean(1)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def main_method(results: dict[str, Any]) -> str:
    """The method that an evaluation is about: the one that is neither a baseline nor the reference."""
    return next(name for name in results["methods"] if name not in PLAIN)


def compare(first: dict[str, Any], second: dict[str, Any], methods: tuple[str, str] | None = None) -> list[Difference]:
    """Paired differences of every metric that both evaluations have, over the clips and looks that both have.

    Args:
        first: what `load_results` gave.
        second: the same of another evaluation.
        methods: a method of each; None takes what each is about.

    Raises:
        FlowshadeError: another suite, a method that is not there, or fewer than two clips in common.
    """
    if first["suite"] != second["suite"]:
        raise FlowshadeError(
            f"the first evaluation is of suite {first['suite']!r}, the second of {second['suite']!r}; expected the "
            "same. Evaluate both with one suite."
        )
    one, two = methods or (main_method(first), main_method(second))
    a, b = _rows(first, one), _rows(second, two)
    common = [key for key in a if key in b]
    clips = list(dict.fromkeys(clip for clip, _ in common))
    if len(clips) < 2:
        raise FlowshadeError(
            f"both evaluations share {len(clips)} clips; expected two or more. Evaluate the same clips."
        )
    differences = []
    for metric in METRICS:
        pairs: dict[str, list[tuple[float, float]]] = {}
        for clip, look in common:
            values = a[clip, look].get(metric), b[clip, look].get(metric)
            if values[0] is not None and values[1] is not None:
                pairs.setdefault(clip, []).append((values[0], values[1]))
        if len(pairs) < 2:
            continue
        means = np.array([np.mean(found, 0) for found in pairs.values()])  # [clips, 2]
        change = means[:, 1] - means[:, 0]
        low, high = bootstrap_interval(change)
        left, right = means.mean(0)
        differences.append(
            Difference(
                metric=metric,
                first=float(left),
                second=float(right),
                difference=float(change.mean()),
                low=low,
                high=high,
                clips=len(pairs),
            )
        )
    return differences


def _rows(results: dict[str, Any], method: str) -> dict[tuple[str, str], dict[str, Any]]:
    if method not in results["methods"]:
        raise FlowshadeError(f"no method {method!r}; expected one of {', '.join(results['methods'])}.")
    return {(row["clip"], row["look"]): row for row in results["rows"] if row["method"] == method}


def load_and_compare(first: Path, second: Path, methods: tuple[str, str] | None = None) -> list[Difference]:
    """`compare` of two folders."""
    return compare(load_results(first), load_results(second), methods)


def compare_table(differences: list[Difference]) -> list[list[str]]:
    """Metrics down; both means, the difference with its interval, and what it says."""
    head = ["metric", "first", "second", "second - first", "95 % interval", "clips", "verdict"]
    rows = []
    for found in differences:
        digits = METRICS[found.metric].digits + 1
        first, second, difference, low, high = (
            f"{value:.{digits}f}" for value in (found.first, found.second, found.difference, found.low, found.high)
        )
        title = METRICS[found.metric].title
        rows.append([title, first, second, difference, f"{low} to {high}", str(found.clips), found.verdict])
    return [head, *rows]

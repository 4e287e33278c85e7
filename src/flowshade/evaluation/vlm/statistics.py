"""Tests on ranks: Friedman, Wilcoxon signed-rank, Kendall, Spearman, the bootstrap; in NumPy, equal to scipy's.

Written here because scipy is no dependency of Flowshade; the tests compare them with it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

EXACT_PAIRS = 50
"""Up to as many pairs the Wilcoxon test counts all signs."""


DIGITS = 9
"""Decimals within which values count as equal: means of repeats carry rounding errors."""


def rank_data(values: Sequence[float] | np.ndarray) -> np.ndarray:
    """Ranks from 1, the smallest first; equal values share the mean of their places."""
    values = np.round(np.asarray(values, float), DIGITS)
    below = (values[None] < values[:, None]).sum(1)
    equal = (values[None] == values[:, None]).sum(1)
    return below + (equal + 1) / 2


@dataclass(frozen=True)
class Outcome:
    """A statistic and its two-sided (for Friedman upper) p-value."""

    statistic: float
    p: float


def friedman(blocks: np.ndarray) -> Outcome | None:
    """Friedman's test (1937) with the correction for ties: whether methods differ at all over blocks.

    Args:
        blocks: [blocks, methods], lower is better or worse alike; ranked within each block here.

    Returns:
        None for fewer than 3 methods or 2 blocks, or when every block is one tie. The p-value is the chi-square
        approximation, which is rough for fewer than about 10 blocks.
    """
    count, methods = blocks.shape
    if methods < 3 or count < 2:
        return None
    ranks = np.stack([rank_data(block) for block in blocks])
    ties = sum(float((size**3 - size).sum()) for size in (_tie_sizes(block) for block in ranks))
    correction = 1 - ties / (count * methods * (methods**2 - 1))
    if correction <= 0:
        return None
    spread = 12 / (count * methods * (methods + 1)) * float((ranks.sum(0) ** 2).sum()) - 3 * count * (methods + 1)
    statistic = spread / correction
    return Outcome(statistic, chi_square_above(statistic, methods - 1))


def chi_square_above(statistic: float, freedom: int) -> float:
    """The probability of a chi-square variable above `statistic`."""
    half = torch.tensor([freedom / 2, max(statistic, 0.0) / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))


def _tie_sizes(values: np.ndarray) -> np.ndarray:
    return np.unique(values, return_counts=True)[1]


def wilcoxon(differences: Sequence[float] | np.ndarray) -> Outcome | None:
    """Wilcoxon's signed-rank test (1945), two-sided; pairs without difference are left out.

    The p-value counts all signs, with ties as they are, up to `EXACT_PAIRS` pairs; beyond it is the normal
    approximation with the correction for ties. None if no pair differs.
    """
    values = np.round(np.asarray(differences, float), DIGITS)
    values = values[values != 0]
    if not values.size:
        return None
    ranks = rank_data(np.abs(values))
    plus, minus = float(ranks[values > 0].sum()), float(ranks[values < 0].sum())
    least = min(plus, minus)
    count = values.size
    if count <= EXACT_PAIRS:
        return Outcome(least, _exact_signed(ranks, least))
    mean = count * (count + 1) / 4
    variance = (
        count * (count + 1) * (2 * count + 1) / 24 - float((_tie_sizes(ranks) ** 3 - _tie_sizes(ranks)).sum()) / 48
    )
    z = (least - mean) / math.sqrt(variance)
    return Outcome(least, min(1.0, math.erfc(abs(z) / math.sqrt(2))))


def _exact_signed(ranks: np.ndarray, least: float) -> float:
    """Twice the share of all signs whose sum is at most `least`; mid-ranks are whole when doubled."""
    doubled = np.rint(2 * ranks).astype(int)
    ways = np.zeros(int(doubled.sum()) + 1)
    ways[0] = 1.0
    for rank in doubled:
        ways[rank:] = ways[rank:] + ways[:-rank]
    share = ways[: int(round(2 * least)) + 1].sum() / 2.0 ** len(doubled)
    return min(1.0, 2 * float(share))


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down adjustment (1979) of the p-values of one family."""
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    adjusted, highest = [0.0] * len(p_values), 0.0
    for place, index in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - place) * p_values[index]))
        adjusted[index] = highest
    return adjusted


def kendall(x: Sequence[float], y: Sequence[float]) -> float:
    """Kendall's tau-b, which corrects for ties; nan if either is constant."""
    pairs = list(itertools.combinations(range(len(x)), 2))
    first = np.array([np.sign(x[a] - x[b]) for a, b in pairs])
    second = np.array([np.sign(y[a] - y[b]) for a, b in pairs])
    untied = math.sqrt(float((first != 0).sum()) * float((second != 0).sum()))
    return float((first * second).sum()) / untied if untied else math.nan


def spearman(x: Sequence[float], y: Sequence[float]) -> float:
    """Spearman's rho: Pearson's correlation of the ranks; nan if either is constant."""
    a, b = rank_data(x), rank_data(y)
    a, b = a - a.mean(), b - b.mean()
    size = math.sqrt(float((a @ a) * (b @ b)))
    return float(a @ b) / size if size else math.nan


def bootstrap_mean(
    blocks: np.ndarray, *, seed: int, samples: int = 10_000, level: float = 0.95
) -> tuple[np.ndarray, np.ndarray]:
    """Percentile confidence interval (Efron 1979) of the mean over blocks, whole blocks drawn with replacement.

    Args:
        blocks: [blocks, values]; nan values are left out. What lies within one block is not independent, so blocks
            (clips) are drawn and not single answers.
        seed: of the draws.
        samples: how many.
        level: of confidence.

    Returns:
        Lower and upper bound, [values] each.
    """
    count = len(blocks)
    known = np.isfinite(blocks)
    times = np.random.default_rng(seed).multinomial(count, np.full(count, 1 / count), samples).astype(float)
    weights = times @ known.astype(float)
    means = times @ np.where(known, blocks, 0.0) / np.where(weights > 0, weights, np.nan)
    outside = (1 - level) / 2
    low, high = np.nanquantile(means, [outside, 1 - outside], axis=0)
    return low, high

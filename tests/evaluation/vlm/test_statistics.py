"""Our tests on ranks against scipy's, ties included."""

from __future__ import annotations

import numpy as np
import pytest

from flowshade.evaluation.vlm import statistics

stats = pytest.importorskip("scipy.stats")
SEEDS = range(12)


def tied(seed: int, *shape: int) -> np.ndarray:
    """Small whole numbers, so that ties abound."""
    return np.random.default_rng(seed).integers(1, 5, shape).astype(float)


@pytest.mark.parametrize("seed", SEEDS)
def test_friedman(seed: int) -> None:
    blocks = tied(seed, 12, 4)
    ours = statistics.friedman(blocks)
    theirs = stats.friedmanchisquare(*blocks.T)
    assert ours is not None
    assert (ours.statistic, ours.p) == pytest.approx((theirs.statistic, theirs.pvalue), rel=1e-9)


def test_friedman_has_nothing_to_say_of_ties_only_or_of_two_methods() -> None:
    assert statistics.friedman(np.ones((5, 4))) is None
    assert statistics.friedman(tied(0, 5, 2)) is None
    assert statistics.friedman(tied(0, 1, 4)) is None


@pytest.mark.parametrize("seed", SEEDS)
def test_wilcoxon_without_ties_is_exact(seed: int) -> None:
    values = np.random.default_rng(seed).normal(0.3, 1, 9)
    theirs = stats.wilcoxon(values, method="exact")
    ours = statistics.wilcoxon(values)
    assert ours is not None
    assert (ours.statistic, ours.p) == pytest.approx((theirs.statistic, theirs.pvalue), rel=1e-9)


@pytest.mark.parametrize("seed", SEEDS)
def test_wilcoxon_with_ties_counts_all_signs(seed: int) -> None:
    values = tied(seed, 10) - 3 + np.sign(tied(seed + 100, 10) - 2.5) * 0.5
    ranks = stats.rankdata(np.abs(values))
    signs = np.array(np.meshgrid(*[[0, 1]] * 10)).reshape(10, -1)  # every way to sign 10 pairs
    sums = ranks @ signs
    least = min(ranks[values > 0].sum(), ranks[values < 0].sum())
    ours = statistics.wilcoxon(values)
    assert ours is not None
    assert ours.p == pytest.approx(min(1.0, 2 * (sums <= least).mean()), rel=1e-9)


def test_wilcoxon_of_many_pairs_is_scipys_approximation() -> None:
    values = tied(3, 80) - 2.2
    theirs = stats.wilcoxon(values, method="approx")
    ours = statistics.wilcoxon(values)
    assert ours is not None
    assert (ours.statistic, ours.p) == pytest.approx((theirs.statistic, theirs.pvalue), rel=1e-9)


def test_wilcoxon_leaves_equal_pairs_out() -> None:
    assert statistics.wilcoxon([0.0, 0.0]) is None
    assert statistics.wilcoxon([0.1 + 0.2 - 0.3, 1.0, 2.0]) == statistics.wilcoxon([1.0, 2.0])


@pytest.mark.parametrize("seed", SEEDS)
def test_correlations(seed: int) -> None:
    x, y = tied(seed, 8), tied(seed + 50, 8)
    assert statistics.kendall(x, y) == pytest.approx(stats.kendalltau(x, y).statistic)
    assert statistics.spearman(x, y) == pytest.approx(stats.spearmanr(x, y).statistic)
    assert np.isnan(statistics.kendall([1, 1], [1, 2]))
    assert np.isnan(statistics.spearman([1, 1], [1, 2]))


def test_ranks_and_holm() -> None:
    values = tied(0, 20)
    assert statistics.rank_data(values) == pytest.approx(stats.rankdata(values))
    assert statistics.holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert statistics.holm([0.9, 0.8]) == pytest.approx([1.0, 1.0])


def test_bootstrap_covers_the_mean_as_often_as_it_says() -> None:
    generator = np.random.default_rng(0)
    inside = 0
    for trial in range(200):
        low, high = statistics.bootstrap_mean(generator.normal(1, 1, (40, 1)), seed=trial, samples=500)
        inside += int(low[0] <= 1 <= high[0])
    assert 0.88 < inside / 200 < 0.99  # 95% by name; percentile intervals of 40 values are a little narrow


def test_bootstrap_leaves_nan_out() -> None:
    low, high = statistics.bootstrap_mean(np.array([[1.0, np.nan], [1.0, 2.0], [1.0, 2.0]]), seed=0)
    assert (low.tolist(), high.tolist()) == ([1, 2], [1, 2])

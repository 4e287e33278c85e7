"""How far ranks agree: a judge with people, people with each other, a judge with itself."""

from __future__ import annotations

import csv
import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from flowshade.errors import FlowshadeError
from flowshade.evaluation.vlm.protocol import AXES, CHANNELS
from flowshade.evaluation.vlm.statistics import bootstrap_mean, kendall, spearman

COLUMNS = ("clip", "channel", "axis", "method", "rank")


@dataclass(frozen=True)
class HumanRank:
    """One line of the file of human ranks."""

    clip: str
    channel: str
    axis: str
    method: str
    rank: float
    """1 is best; equal ranks are ties."""
    rater: str = ""


def read_human_ranks(path: Path) -> list[HumanRank]:
    """Reads a CSV with the columns clip, channel, axis, method, rank and, where several people ranked, rater.

    Raises:
        FlowshadeError: a column that is missing, a value that does not exist, or one rank given twice.
    """
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.DictReader(file)
        missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
        if missing:
            raise FlowshadeError(
                f"{path} has no column {missing[0]!r}; expected {', '.join(COLUMNS)} and optionally rater. Add it."
            )
        ranks = [_line(path, number, row) for number, row in enumerate(reader, 2)]
    seen: set[tuple[str, ...]] = set()
    for rank in ranks:
        key = (rank.clip, rank.channel, rank.axis, rank.method, rank.rater)
        if key in seen:
            raise FlowshadeError(f"{path} ranks {'/'.join(key)} twice; expected once. Remove one, or name raters.")
        seen.add(key)
    return ranks


def _line(path: Path, number: int, row: dict[str, str]) -> HumanRank:
    values = {name: (row.get(name) or "").strip() for name in (*COLUMNS, "rater")}
    for name, known in (("channel", CHANNELS), ("axis", AXES)):
        if values[name] not in known:
            raise FlowshadeError(f"{path}, line {number}: {name} {values[name]!r}; expected one of {', '.join(known)}.")
    try:
        rank = float(values["rank"])
    except ValueError:
        rank = math.nan
    if not (math.isfinite(rank) and rank >= 1):
        raise FlowshadeError(f"{path}, line {number}: rank {values['rank']!r}; expected a number from 1 up.")
    return HumanRank(values["clip"], values["channel"], values["axis"], values["method"], rank, values["rater"])


def human_agreement(
    human: Sequence[HumanRank],
    channel: str,
    axis: str,
    blocks: dict[str, dict[str, float]],
    *,
    seed: int,
) -> dict | None:
    """Agreement of a judge with people on one channel and axis; None where they share no clip.

    Args:
        human: all human ranks; of several raters the mean counts.
        channel: which.
        axis: which.
        blocks: clip -> method -> the judge's mean rank.
        seed: of the bootstrap over clips.

    Returns:
        `clips`; `kendall` and `spearman`, each the mean over clips with a 95% interval; `overall_kendall` of the mean
        ranks over those clips; and with two raters or more `raters` and `between_raters`, the mean tau between two
        people on a clip, which is what a judge can be expected to reach.
    """
    people = _by_rater(rank for rank in human if (rank.channel, rank.axis) == (channel, axis))
    shared = [clip for clip in blocks if clip in people]
    pairs = [_paired(blocks[clip], _mean_ranks(people[clip])) for clip in shared]
    pairs = [pair for pair in pairs if len(pair[0]) >= 2]
    if not pairs:
        return None
    found: dict = {"clips": len(pairs)}
    for name, measure in (("kendall", kendall), ("spearman", spearman)):
        found[name] = mean_with_interval([measure(*pair) for pair in pairs], seed)
    found["overall_kendall"] = _overall(blocks, people, shared)
    between = [
        kendall(*_paired(first, second))
        for clip in shared
        for first, second in itertools.combinations(people[clip].values(), 2)
    ]
    if between:
        found["raters"] = len({rater for clip in shared for rater in people[clip]})
        found["between_raters"] = mean_with_interval(between, seed)["mean"]
    return found


def _by_rater(human: Iterable[HumanRank]) -> dict[str, dict[str, dict[str, float]]]:
    """clip -> rater -> method -> rank."""
    people: dict[str, dict[str, dict[str, float]]] = {}
    for rank in human:
        people.setdefault(rank.clip, {}).setdefault(rank.rater, {})[rank.method] = rank.rank
    return people


def _mean_ranks(raters: dict[str, dict[str, float]]) -> dict[str, float]:
    methods = set.intersection(*(set(ranks) for ranks in raters.values()))
    return {method: float(np.mean([ranks[method] for ranks in raters.values()])) for method in sorted(methods)}


def _paired(first: dict[str, float], second: dict[str, float]) -> tuple[list[float], list[float]]:
    shared = [method for method in first if method in second]
    return [first[method] for method in shared], [second[method] for method in shared]


def _overall(
    blocks: dict[str, dict[str, float]], people: dict[str, dict[str, dict[str, float]]], clips: Sequence[str]
) -> float | None:
    means = [_mean_ranks(people[clip]) for clip in clips]
    methods = set.intersection(*(set(mean) for mean in means), *(set(blocks[clip]) for clip in clips))
    ours = {method: float(np.mean([blocks[clip][method] for clip in clips])) for method in sorted(methods)}
    theirs = {method: float(np.mean([mean[method] for mean in means])) for method in sorted(methods)}
    return number(kendall(*_paired(ours, theirs)))


def self_agreement(repeats: dict[str, list[dict[str, float]]], seed: int) -> dict | None:
    """Mean Kendall tau between two answers to the same question in other orders; None without repeats.

    Args:
        repeats: clip -> answers, method -> rank each.
        seed: of the bootstrap over clips.
    """
    means = []
    for answers in repeats.values():
        taus = [kendall(*_paired(a, b)) for a, b in itertools.combinations(answers, 2)]
        taus = [tau for tau in taus if math.isfinite(tau)]
        means += [float(np.mean(taus))] if taus else []
    return mean_with_interval(means, seed) if means else None


def mean_with_interval(values: Sequence[float], seed: int) -> dict:
    """`mean`, and `low` and `high` of its 95% bootstrap interval.

    Without a finite value all are None; of a single one there is no interval.
    """
    finite = np.array([value for value in values if math.isfinite(value)])[:, None]
    if not len(finite):
        return {"mean": None, "low": None, "high": None}
    if len(finite) == 1:
        return {"mean": float(finite[0, 0]), "low": None, "high": None}
    low, high = bootstrap_mean(finite, seed=seed)
    return {"mean": float(finite.mean()), "low": float(low[0]), "high": float(high[0])}


def number(value: float) -> float | None:
    """A float for JSON, which has no nan."""
    return value if math.isfinite(value) else None

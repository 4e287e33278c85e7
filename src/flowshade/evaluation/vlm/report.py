"""From answers to results: mean ranks with intervals, tests, agreement, and what is known about the judge."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from flowshade.evaluation import tables
from flowshade.evaluation.vlm.agreement import (
    HumanRank,
    human_agreement,
    mean_with_interval,
    self_agreement,
)
from flowshade.evaluation.vlm.answers import STATUSES, Answer
from flowshade.evaluation.vlm.protocol import VERSION
from flowshade.evaluation.vlm.run import CONTROL, Plan
from flowshade.evaluation.vlm.statistics import friedman, holm, wilcoxon
from flowshade.files import write_json, write_text

FEW_CLIPS = 10
"""Below this Friedman's chi-square is rough, and so are bootstrap intervals."""


def results(plan: Plan, answers: dict[str, Answer], human: Sequence[HumanRank] = ()) -> dict[str, Any]:
    """Everything that results.json holds. Clips are the independent units; repeats are averaged within them.

    Args:
        plan: what was asked.
        answers: by key.
        human: ranks by people, if there are any.
    """
    of_plan = [answers[question.key] for question in plan.questions if question.key in answers]
    seed = plan.trial.seed
    tables = [
        _table(plan, [a for a in of_plan if (a.question["channel"], a.question["axis"]) == (channel, axis)], human)
        | {"channel": channel, "axis": axis}
        for channel in plan.trial.channels
        for axis in plan.trial.axes
    ]
    counted = Counter(answer.status for answer in of_plan)
    return {
        "version": VERSION,
        "judge": plan.judge,
        "models_that_answered": sorted({answer.model for answer in of_plan if answer.model}),
        "methods": list(plan.methods),
        "questions": len(plan.questions),
        "answers": {status: counted[status] for status in STATUSES},
        "not_asked": len(plan.questions) - len(of_plan),
        "asked_again": sum(len(answer.attempts) - 1 for answer in of_plan),
        "tokens": {name: _sum(getattr(answer, name) for answer in of_plan) for name in ("tokens_in", "tokens_out")},
        "notes": list(plan.notes),
        "tables": tables,
        "place": _place_bias(of_plan, seed),
        "control": _control(plan, of_plan, seed),
    }


def _sum(counts: Iterable[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def _table(plan: Plan, answers: Sequence[Answer], human: Sequence[HumanRank]) -> dict[str, Any]:
    """One channel and axis."""
    repeats: dict[str, list[dict[str, float]]] = {}
    for answer in answers:
        if answer.ranks is not None:
            repeats.setdefault(answer.question["clip"], []).append(answer.ranks)
    if not repeats:
        return {"clips": 0, "ranks": {}, "friedman": None, "pairs": [], "repeats_agree": None, "people": None}
    methods, seed = plan.methods, plan.trial.seed
    clips = {clip: {m: float(np.mean([x[m] for x in given])) for m in methods} for clip, given in repeats.items()}
    blocks = np.array([[ranks[method] for method in methods] for ranks in clips.values()])  # [clips, methods]
    ranks = {method: mean_with_interval(list(blocks[:, index]), seed) for index, method in enumerate(methods)}
    test = friedman(blocks)
    channel, axis = answers[0].question["channel"], answers[0].question["axis"]
    return {
        "clips": len(clips),
        "ranks": ranks,
        "friedman": None if test is None else {"chi_square": test.statistic, "p": test.p},
        "pairs": _pairs(blocks, methods),
        "repeats_agree": self_agreement(repeats, seed),
        "people": human_agreement(human, channel, axis, clips, seed=seed),
    }


def _pairs(blocks: np.ndarray, methods: Sequence[str]) -> list[dict[str, Any]]:
    """Wilcoxon signed-rank tests between all pairs of methods, adjusted together by Holm's way."""
    found = []
    for a, b in itertools.combinations(range(len(methods)), 2):
        test = wilcoxon(blocks[:, a] - blocks[:, b])
        found.append(
            {
                "methods": [methods[a], methods[b]],
                "difference": float((blocks[:, a] - blocks[:, b]).mean()),
                "statistic": None if test is None else test.statistic,
                "p": 1.0 if test is None else test.p,
            }
        )
    for pair, adjusted in zip(found, holm([pair["p"] for pair in found])):
        pair["p_holm"] = adjusted
    return found


def _place_bias(answers: Sequence[Answer], seed: int) -> dict[str, Any]:
    """Mean rank by place in the grid. Orders are drawn by lot, so a judge that looks gives all places the same."""
    by_clip: dict[str, list[list[float]]] = {}
    for answer in answers:
        if answer.ranks is not None:
            ranks = [answer.ranks[method] for method in answer.question["order"]]
            by_clip.setdefault(answer.question["clip"], []).append(ranks)
    if not by_clip:
        return {"ranks": [], "friedman_p": None}
    blocks = np.array([np.mean(ranks, 0) for ranks in by_clip.values()])  # [clips, places]
    places = [mean_with_interval(list(place), seed) for place in blocks.T]
    test = friedman(blocks)
    return {"ranks": places, "friedman_p": None if test is None else test.p}


def _control(plan: Plan, answers: Sequence[Answer], seed: int) -> dict[str, Any] | None:
    """How often the damaged copy was ranked below its original (a tie counts half); None without a control."""
    if not plan.trial.control:
        return None
    original = plan.contest.methods[0]
    found = {}
    for axis in plan.trial.axes:
        wins: dict[str, list[float]] = {}
        for answer in answers:
            if answer.ranks is not None and answer.question["axis"] == axis:
                worse = np.sign(answer.ranks[CONTROL] - answer.ranks[original])
                wins.setdefault(answer.question["clip"], []).append((float(worse) + 1) / 2)
        found[axis] = mean_with_interval([float(np.mean(values)) for values in wins.values()], seed)
    return {"original": original, "below_original": found}


def write_results(out: Path, found: dict[str, Any]) -> None:
    """Writes results.json and results.md, each whole or not at all."""
    write_json(out / "results.json", found)
    write_text(out / "results.md", markdown(found))


def markdown(found: dict[str, Any]) -> str:
    """Results to read."""
    judge = ", ".join(f"{name} {value}" for name, value in found["judge"].items())
    counts = found["answers"]
    lines = [
        "# Ranks by a vision-language model",
        "",
        f"Judge: {judge}. Mean ranks over clips, 1 is best, with 95% bootstrap intervals; p of pairs after Holm.",
        "",
        f"{found['questions']} questions: {counts['ranked']} ranked, {counts['malformed']} could not be read, "
        f"{counts['refused']} refused, {found['not_asked']} not asked; {found['asked_again']} asked again.",
        "",
        *_rank_table(found),
        "",
        *(line for table in found["tables"] for line in _detail(table)),
        "## The judge",
        "",
        *_judge_lines(found),
        *(f"- {note}" for note in found["notes"]),
    ]
    return "\n".join(lines) + "\n"


def _rank_table(found: dict[str, Any]) -> list[str]:
    heads = [f"{table['channel']}, {table['axis']}" for table in found["tables"]]
    rows = [
        [method, *(_interval(table["ranks"].get(method)) for table in found["tables"])] for method in found["methods"]
    ]
    counts = ["clips", *(str(table["clips"]) for table in found["tables"])]
    return tables.markdown([["method", *heads], *rows, counts]).splitlines()


def _interval(value: dict[str, float | None] | None) -> str:
    if value is None or value["mean"] is None:
        return "-"
    interval = "" if value["low"] is None else f" ({value['low']:.2f} to {value['high']:.2f})"
    return f"{value['mean']:.2f}{interval}"


def _detail(table: dict[str, Any]) -> list[str]:
    if not table["clips"]:
        return [f"## {table['channel']}, {table['axis']}", "", "No answer could be used.", ""]
    test = table["friedman"]
    lines = [f"## {table['channel']}, {table['axis']}", ""]
    if test is not None:
        rough = f" (rough: only {table['clips']} clips)" if table["clips"] < FEW_CLIPS else ""
        lines.append(f"- Friedman: chi-square {test['chi_square']:.2f}, p {_p(test['p'])}{rough}")
    for pair in table["pairs"]:
        first, second = pair["methods"]
        lines.append(f"- {first} - {second}: {pair['difference']:+.2f}, Wilcoxon p {_p(pair['p_holm'])}")
    if table["repeats_agree"] is not None:
        lines.append(f"- Repeats agree with each other: Kendall tau {_interval(table['repeats_agree'])}")
    if (people := table["people"]) is not None:
        between = people.get("between_raters")
        ceiling = "" if between is None else f"; {people['raters']} people among themselves {between:.2f}"
        lines.append(
            f"- Agrees with people on {people['clips']} clips: Kendall tau {_interval(people['kendall'])}, Spearman "
            f"rho {_interval(people['spearman'])}{ceiling}"
        )
    return [*lines, ""]


def _p(value: float) -> str:
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def _judge_lines(found: dict[str, Any]) -> list[str]:
    lines = []
    places = found["place"]
    if places["ranks"]:
        listed = ", ".join(f"{rank['mean']:.2f}" for rank in places["ranks"])
        test = "" if places["friedman_p"] is None else f"; Friedman over places p {_p(places['friedman_p'])}"
        lines.append(f"- Mean rank by place in the grid (the same everywhere for a judge that looks): {listed}{test}")
    if (control := found["control"]) is not None:
        listed = ", ".join(f"{axis} {_interval(share)}" for axis, share in control["below_original"].items())
        lines.append(f"- The damaged copy of {control['original']} was ranked below it (1 = always): {listed}")
    tokens = found["tokens"]
    if tokens["tokens_in"] is not None:
        lines.append(f"- Tokens by the endpoint's count: {tokens['tokens_in']:,} in, {tokens['tokens_out'] or 0:,} out")
    return lines

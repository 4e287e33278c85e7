"""Orders, frames and the reading of answers: what can be read is, what cannot is refused and never guessed."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from flowshade.evaluation.vlm.layout import BAR, GAP, GREY, Grid, drawn_order
from flowshade.evaluation.vlm.protocol import (
    AXES,
    CHANNELS,
    QUESTIONS,
    SYSTEM,
    WHAT_IS_SHOWN,
    MalformedAnswer,
    Question,
    chosen_frames,
    questions,
    read_ranks,
)

GOOD = '{"reason": "x", "ranks": {"A": 2, "B": 1, "C": 3}}'
LABELS = ("A", "B", "C")


def test_repeats_balance_places_and_who_stands_first() -> None:
    methods = ["p", "q", "r", "s"]
    orders = [drawn_order(methods, 5, "clip/albedo/semantic", repeat) for repeat in range(8)]
    for place in range(4):
        assert sorted(order[place] for order in orders) == sorted(2 * methods)
    for count in (2, 4, 8):
        for a, b in itertools.combinations(methods, 2):
            assert sum(order.index(a) < order.index(b) for order in orders[:count]) == count / 2


def test_orders_follow_the_seed_and_the_question_only() -> None:
    again = drawn_order(["q", "p", "r"], 1, "x", 0)
    assert again == drawn_order(["p", "r", "q"], 1, "x", 0)
    first = Counter(drawn_order(["p", "q", "r"], 1, str(index), 0) for index in range(600))
    assert len(first) == 6
    assert min(first.values()) > 60  # 100 each in the mean; 4 standard deviations


@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("available", [1, 2, 3, 7, 57, 300])
def test_frames_are_those_of_the_clip_in_order(axis, available: int) -> None:
    frames = chosen_frames(axis, available, 4, 3)
    assert len(frames) == min(4, available)
    assert list(frames) == sorted(set(frames))
    assert frames[0] >= 0
    assert frames[-1] < available


def test_temporal_frames_are_a_run() -> None:
    assert np.diff(chosen_frames("temporal", 57, 5, 2)).tolist() == [2] * 4
    assert np.diff(chosen_frames("semantic", 57, 3, 2)).tolist() == [19, 19]


@pytest.mark.parametrize("channel", CHANNELS)
def test_a_question_names_every_label_and_no_method(channel: str) -> None:
    for question in questions({"c": 9}, channel, "semantic", ["ours", "theirs"], repeats=2, seed=0, count=3, stride=1):
        text = question.text()
        assert "A, B are estimates by 2 methods" in text
        assert '"A": N, "B": N' in text
        assert "ours" not in text
        assert "theirs" not in text


@pytest.mark.parametrize(
    "answer",
    [
        GOOD,
        f"Sure! Here it is:\n```json\n{GOOD}\n```\nHope {{this}} helps.",
        f'First thoughts {{"draft": true}} and then {GOOD}',
        f"{GOOD}\n{GOOD}",
        GOOD.replace("2", "2.0"),
    ],
)
def test_answers_that_can_be_read(answer: str) -> None:
    assert read_ranks(answer, LABELS) == {"A": 2, "B": 1, "C": 3}


def test_ties_share_their_places() -> None:
    assert read_ranks('{"ranks": {"A": 1, "B": 1, "C": 2}}', LABELS) == {"A": 1.5, "B": 1.5, "C": 3}
    assert read_ranks('{"ranks": {"A": 3, "B": 3, "C": 3}}', LABELS) == {"A": 2, "B": 2, "C": 2}


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("", "no complete JSON"),
        ("I cannot help with that.", "no complete JSON"),
        ("A is best, then B, then C.", "no complete JSON"),
        (GOOD[:-4], "no complete JSON"),
        (GOOD + GOOD.replace("2", "1"), "several"),
        ('{"ranks": ["A", "B", "C"]}', "no object"),
        ('{"ranks": {"A": 1, "B": 2}}', "no rank for C"),
        ('{"ranks": {"A": 1, "B": 2, "C": 3, "D": 4}}', "'D' is no label"),
        ('{"ranks": {"ours": 1, "B": 2, "C": 3}}', "'ours' is no label"),
        ('{"ranks": {"A": 1, "B": 2, "C": 3, "A": 3}}', "twice"),
        ('{"ranks": {"A": "1", "B": 2, "C": 3}}', "rank of A"),
        ('{"ranks": {"A": true, "B": 2, "C": 3}}', "rank of A"),
        ('{"ranks": {"A": 0, "B": 2, "C": 3}}', "rank of A"),
        ('{"ranks": {"A": 4, "B": 2, "C": 3}}', "rank of A"),
        ('{"ranks": {"A": null, "B": 2, "C": 3}}', "rank of A"),
        ('{"ranks": {"A": NaN, "B": 2, "C": 3}}', "NaN"),
        ("{" * 20_000, "no complete JSON"),
        ('{"a":' * 20_000, "no complete JSON"),
    ],
)
def test_answers_that_cannot_be_read(answer: str, said: str) -> None:
    with pytest.raises(MalformedAnswer, match=said):
        read_ranks(answer, LABELS)


def test_the_document_has_every_prompt_in_full() -> None:
    document = (Path(__file__).parents[3] / "docs" / "vlm.md").read_text(encoding="utf-8")
    question = Question(
        clip="c", channel="roughness", axis="semantic", repeat=0, order=("x", "y", "z"), frames=(0, 1, 2, 3)
    )
    texts = [SYSTEM, question.text(), question.again("there is no rank for C.")]
    for text in [*texts, *QUESTIONS.values(), *WHAT_IS_SHOWN.values()]:
        assert text in document


def test_asking_again_says_why() -> None:
    question = Question(clip="c", channel="albedo", axis="semantic", repeat=0, order=("x", "y"), frames=(0,))
    assert "there is no rank for B." in question.again("there is no rank for B.")
    assert json.dumps(question.record())


@pytest.mark.parametrize("methods", [2, 3, 5, 8])
@pytest.mark.parametrize("picture", [(720, 1280), (1280, 720), (40, 64)])
def test_grids_fit_and_hold_every_tile_whole(methods: int, picture: tuple[int, int]) -> None:
    grid = Grid.fit(methods, picture, 1000)
    assert max(grid.size) <= 1000
    assert grid.rows * grid.columns >= methods + 1
    tiles = [np.full((*grid.tile, 3), 40 + 20 * index, np.uint8) for index in range(methods + 1)]
    drawn = grid.draw(tiles, ["RGB", *"ABCDEFGH"[:methods]])
    assert drawn.shape == (*grid.size, 3)
    height, width = grid.tile
    for index, tile in enumerate(tiles):
        row, column = divmod(index, grid.columns)
        y, x = GAP + row * (height + BAR + GAP) + BAR, GAP + column * (width + GAP)
        assert (drawn[y : y + height, x : x + width] == tile).all()
        assert (drawn[y - BAR : y, x : x + width] > 2 * GREY).any()  # its label


def test_a_grid_without_room_is_refused() -> None:
    with pytest.raises(ValueError, match="longest-side"):
        Grid.fit(20, (720, 1280), 120)
    with pytest.raises(ValueError, match="at least 16"):
        Grid.fit(3, (720, 1280), 60)

"""The run: what will be asked and what it costs, asking, and the folder in which all of it is kept.

OUT/plan.json        settings, inputs and every question with its order; a stopped run must match it to go on
OUT/answers.jsonl    every reply as it came
OUT/grids/           pictures that were shown: of the first clip, or all if asked for
OUT/results.json     ranks, intervals, tests, agreement
OUT/results.md       the same to read
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from flowshade.errors import FlowshadeError
from flowshade.evaluation.vlm.answers import Answer, AnswerFile, answer_of
from flowshade.evaluation.vlm.client import Judge, Turn
from flowshade.evaluation.vlm.clips import Contest, OpenClip
from flowshade.evaluation.vlm.layout import REFERENCE_LABEL, Grid, labels, png
from flowshade.evaluation.vlm.protocol import (
    AXES,
    CHANNELS,
    DEFAULT_CHANNELS,
    SYSTEM,
    VERSION,
    Axis,
    MalformedAnswer,
    Question,
    questions,
    read_ranks,
)
from flowshade.files import write_bytes, write_json
from flowshade.gbuffer.io.outputs import check_folder
from flowshade.progress import Progress

CONTROL = "control"
"""A damaged copy of the first method's result; a judge that looks ranks it below its original."""
PATCH = 28
"""Pixels along the side of what counts as one token of a picture, by default; endpoints differ."""
LETTERS_PER_TOKEN = 4
ANSWER_TOKENS = 120


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What is judged and how often."""

    channels: tuple[str, ...] = DEFAULT_CHANNELS
    axes: tuple[Axis, ...] = AXES
    repeats: int = 4
    """Times each question is asked, in other orders; even numbers balance them (`drawn_order`)."""
    pictures: int = 4
    """Moments a question shows."""
    stride: int = 2
    """Frames between moments on the temporal axis."""
    longest_side: int = 1280
    """Pixels of a grid, at most."""
    seed: int = 0
    asks: int = 3
    """Times a question is asked until an answer can be read; then it counts as missing."""
    control: bool = False
    """Also show a damaged copy of the first method's result."""
    incomplete: bool = False
    """Leave out clips that lack a channel of a method, instead of refusing them."""

    def __post_init__(self) -> None:
        for name in ("repeats", "pictures", "stride", "asks"):
            if getattr(self, name) < 1:
                raise FlowshadeError(f"{name} is {getattr(self, name)}; expected 1 or more.")
        for given, known, what in ((self.channels, CHANNELS, "channel"), (self.axes, AXES, "axis")):
            wrong = [name for name in given if name not in known]
            if wrong or not given or len(set(given)) != len(given):
                raise FlowshadeError(
                    f"{what} {(wrong or list(given))[:1] or 'none'}: expected some of {', '.join(known)}, each once."
                )


@dataclass(frozen=True, kw_only=True)
class Prices:
    """What an endpoint charges."""

    per_million_in: float = 0.0
    per_million_out: float = 0.0
    picture_tokens: int | None = None
    """Tokens of one grid, if known; else one for every patch of 28 x 28 pixels."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """What is still to be asked, before it is. Answers that have to be asked again come on top."""

    requests: int
    pictures: int
    tokens_in: int
    tokens_out: int
    price: float

    def text(self) -> str:
        cost = f", about {self.price:.2f} at the prices given" if self.price else "; no prices given"
        return (
            f"{self.requests:,} questions, {self.pictures:,} pictures, about {self.tokens_in:,} tokens in and "
            f"{self.tokens_out:,} out{cost}"
        )


@dataclass(frozen=True)
class Plan:
    """Every question of a run, and the notes on what was left out."""

    contest: Contest
    trial: Trial
    judge: dict[str, Any]
    """Who judges: for the record, without the key."""
    questions: tuple[Question, ...]
    grids: dict[str, Grid]
    """clip -> its grid."""
    notes: tuple[str, ...] = ()

    @property
    def methods(self) -> tuple[str, ...]:
        return shown_methods(self.contest, self.trial)

    @cached_property
    def record(self) -> dict[str, Any]:
        """What a stopped run has to match."""
        return {
            "version": VERSION,
            "trial": json.loads(json.dumps(asdict(self.trial))),
            "judge": self.judge,
            "methods": list(self.methods),
            "inputs": self.contest.digest(),
            "grids": {clip: list(grid.size) for clip, grid in self.grids.items()},
            "questions": [question.record() for question in self.questions],
        }

    def estimate(self, done: Sequence[str], prices: Prices) -> Estimate:
        """Of what is not done yet.

        Args:
            done: keys of the questions that were answered.
            prices: see `Prices`.
        """
        left = [question for question in self.questions if question.key not in set(done)]
        tokens_in = sum(self._tokens_in(question, prices) for question in left)
        tokens_out = len(left) * ANSWER_TOKENS
        price = (tokens_in * prices.per_million_in + tokens_out * prices.per_million_out) / 1e6
        pictures = sum(len(question.frames) for question in left)
        return Estimate(requests=len(left), pictures=pictures, tokens_in=tokens_in, tokens_out=tokens_out, price=price)

    def _tokens_in(self, question: Question, prices: Prices) -> int:
        height, width = self.grids[question.clip].size
        picture = prices.picture_tokens or math.ceil(height / PATCH) * math.ceil(width / PATCH)
        return len(question.frames) * picture + math.ceil(len(SYSTEM + question.text()) / LETTERS_PER_TOKEN)


def shown_methods(contest: Contest, trial: Trial) -> tuple[str, ...]:
    """The methods that are ranked: those given, and the control if asked for."""
    return (*contest.methods, CONTROL) if trial.control else contest.methods


def make_plan(contest: Contest, trial: Trial, judge: dict[str, Any]) -> Plan:
    """Lays out every question.

    Raises:
        FlowshadeError: fewer than two methods, or a channel that methods lack.
    """
    methods = shown_methods(contest, trial)
    if len(methods) < 2:
        raise FlowshadeError("one method was given; expected two or more to rank. Add --method NAME=DIR or --control.")
    if CONTROL in contest.methods:
        raise FlowshadeError(f"a method is called {CONTROL!r}, which is the control's name; give it another.")
    notes: list[str] = []
    clips = {channel: _complete(contest, channel, trial, notes) for channel in trial.channels}
    used = [clip for clip in contest.footage if any(clip in chosen for chosen in clips.values())]
    frames, grids = {}, {}
    for clip in used:
        with OpenClip(contest, clip) as opened:
            frames[clip] = opened.frames
            grids[clip] = Grid.fit(len(labels(len(methods))), opened.size, trial.longest_side)
            notes += _length_notes(opened)
    asked = [
        question
        for channel in trial.channels
        for axis in trial.axes
        for question in questions(
            {clip: frames[clip] for clip in clips[channel] if axis != "temporal" or frames[clip] > 1},
            channel,
            axis,
            methods,
            repeats=trial.repeats,
            seed=trial.seed,
            count=max(2, trial.pictures) if axis == "temporal" else trial.pictures,
            stride=trial.stride,
        )
    ]
    order = {clip: index for index, clip in enumerate(used)}
    asked.sort(key=lambda question: order[question.clip])  # stable: a clip is opened once
    return Plan(contest, trial, judge, tuple(asked), grids, tuple(notes))


def _complete(contest: Contest, channel: str, trial: Trial, notes: list[str]) -> list[str]:
    lacking = contest.lacking(channel)
    complete = contest.complete(channel)
    if lacking and not trial.incomplete:
        raise FlowshadeError(
            f"{lacking[0]}{f' (and {len(lacking) - 1} more are missing)' if len(lacking) > 1 else ''}; expected every "
            "channel of every clip from every method, since ranks are compared within clips. Add it, leave the channel "
            "out with --channels, or give --incomplete to judge only the clips that all methods have."
        )
    if not complete:
        raise FlowshadeError(f"no clip has {channel} from every method ({lacking[0]}); leave the channel out.")
    notes += [f"{text}; the clip is left out for that channel" for text in lacking]
    return complete


def _length_notes(opened: OpenClip) -> list[str]:
    lengths = {REFERENCE_LABEL: opened.rgb.frames} | {name: r.info.frames for name, r in opened.results.items()}
    if len(set(lengths.values())) == 1:
        return []
    listed = ", ".join(f"{name} {count}" for name, count in lengths.items())
    return [f"{opened.clip}: lengths differ ({listed} frames); the first {opened.frames} are compared one to one"]


@dataclass
class Run:
    """A plan and the folder of its results.

    Args:
        plan: what to ask.
        out: folder, made if absent.

    Raises:
        FlowshadeError: the folder holds another plan.
    """

    plan: Plan
    out: Path
    keep_grids: bool = False
    _shown: set[tuple[str, str]] = field(default_factory=set)

    def __post_init__(self) -> None:
        check_folder(self.out)
        self.out.mkdir(parents=True, exist_ok=True)
        if self._plan_file.exists():
            self._match(self._plan_file)

    @property
    def _plan_file(self) -> Path:
        return self.out / "plan.json"

    def _match(self, path: Path) -> None:
        try:
            before = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise FlowshadeError(f"{path} is no plan ({error}); give another --output.") from error
        ours = self.plan.record
        names = [name for name in ours if before.get(name) != ours[name]] if isinstance(before, dict) else ["all"]
        if names:
            raise FlowshadeError(
                f"{self.out} holds another run, which differs in {', '.join(names)}; expected the same to go on "
                "with it. Give another --output, or the settings and inputs of plan.json."
            )

    def answers(self) -> AnswerFile:
        """What was answered so far, open for more."""
        return AnswerFile(self.out / "answers.jsonl")

    def ask(self, judge: Judge, file: AnswerFile, *, parallel: int, progress: Progress) -> None:
        """Writes the plan, then asks all that is not answered yet; answers are on disk before progress is told.

        Args:
            judge: whom.
            file: of `answers`.
            parallel: questions at a time.
            progress: called with questions done and in all.

        Raises:
            EndpointError: the judge refuses for good or failed too often. What was answered stays.
        """
        if not self._plan_file.exists():
            write_json(self._plan_file, self.plan.record)
        left = [question for question in self.plan.questions if question.key not in file.answers]
        total = len(self.plan.questions)

        def settle(answer: Answer) -> None:
            file.add(answer)
            progress(len(file.answers), total)

        jobs = self._prepared(left)
        if parallel == 1:
            for question, pictures in jobs:
                settle(ask_question(judge, question, pictures, self.plan.trial.asks))
            return
        with ThreadPoolExecutor(parallel) as pool:
            running: set[Future[Answer]] = set()
            try:
                for question, pictures in jobs:
                    running.add(pool.submit(ask_question, judge, question, pictures, self.plan.trial.asks))
                    if len(running) >= parallel:
                        running = _settle_some(running, settle)
                while running:
                    running = _settle_some(running, settle)
            except BaseException:
                pool.shutdown(wait=True, cancel_futures=True)
                for future in running:  # what was paid for is kept
                    if not future.cancelled() and future.exception() is None:
                        answer = future.result()
                        if answer.key not in file.answers:
                            file.add(answer)
                raise

    def _prepared(self, left: Sequence[Question]) -> Iterator[tuple[Question, tuple[bytes, ...]]]:
        """Questions with their pictures, clip by clip; repeats share what was decoded."""
        by_clip: dict[str, list[Question]] = {}
        for question in left:
            by_clip.setdefault(question.clip, []).append(question)
        for clip, asked in by_clip.items():
            with OpenClip(self.plan.contest, clip) as opened:
                last: tuple[str, tuple[int, ...]] | None = None
                tiles: dict[str, np.ndarray] = {}
                for question in asked:
                    if last != (question.channel, question.frames):
                        last = question.channel, question.frames
                        tiles = self._tiles(opened, question)
                    pictures = grid_pictures(self.plan.grids[clip], tiles, question)
                    self._keep(question, pictures)
                    yield question, pictures

    def _tiles(self, opened: OpenClip, question: Question) -> dict[str, np.ndarray]:
        size = self.plan.grids[opened.clip].tile
        shown = opened.shown(question.channel, question.frames, size)
        tiles = {name: pictures.numpy() for name, pictures in shown.items()}
        if self.plan.trial.control:
            tiles[CONTROL] = damaged(tiles[self.plan.contest.methods[0]])
        return tiles | {REFERENCE_LABEL: opened.footage(question.frames, size).numpy()}

    def _keep(self, question: Question, pictures: Sequence[bytes]) -> None:
        """Writes what is shown: everything if asked for, else the first question of every channel and axis."""
        kind = question.channel, question.axis
        if not self.keep_grids and kind in self._shown:
            return
        self._shown.add(kind)
        folder = self.out / "grids" / question.key
        folder.mkdir(parents=True, exist_ok=True)
        for frame, data in zip(question.frames, pictures):
            write_bytes(folder / f"{frame:06d}.png", data)

    def preview(self) -> list[Path]:
        """Writes the grids of the first question of every channel and axis; gives their folders."""
        first: dict[tuple[str, str], Question] = {}
        for question in self.plan.questions:
            first.setdefault((question.channel, question.axis), question)
        return [self.out / "grids" / question.key for question, _ in self._prepared(list(first.values()))]


def _settle_some(running: set[Future[Answer]], settle: Callable[[Answer], None]) -> set[Future[Answer]]:
    done, left = wait(running, return_when=FIRST_COMPLETED)
    failed = [future for future in done if future.exception() is not None]
    for future in done:
        if future not in failed:
            settle(future.result())
    if failed:
        raise failed[0].exception() or AssertionError
    return left


def grid_pictures(grid: Grid, tiles: dict[str, np.ndarray], question: Question) -> tuple[bytes, ...]:
    """The PNG files of a question, one a moment.

    Args:
        grid: of the clip.
        tiles: method, and "RGB", -> uint8 [T, H, W, 3].
        question: whose order is drawn.
    """
    shown = [tiles[REFERENCE_LABEL], *(tiles[method] for method in question.order)]
    names = (REFERENCE_LABEL, *question.labels)
    return tuple(png(grid.draw([tile[index] for tile in shown], names)) for index in range(len(question.frames)))


def damaged(pictures: np.ndarray) -> np.ndarray:
    """The control: mirrored, so that it fits nothing, and brighter and darker in turn, so that it flickers."""
    mirrored = torch.from_numpy(pictures).flip(2).float()
    gains = torch.tensor([1.0, 0.55]).repeat(len(pictures))[: len(pictures)]
    return (mirrored * gains[:, None, None, None] + 20).clamp(0, 255).to(torch.uint8).numpy()


def ask_question(judge: Judge, question: Question, pictures: tuple[bytes, ...], asks: int) -> Answer:
    """Asks until an answer can be read, at most `asks` times; after that the question counts as missing."""
    opening = [Turn("system", SYSTEM), Turn("user", question.text(), pictures)]
    turns, attempts, ranks = opening, [], None
    while ranks is None and len(attempts) < asks:
        reply = judge.ask(turns)
        problem: str | None = "the judge declined."
        if not reply.refused:
            try:
                ranks, problem = read_ranks(reply.text, question.labels), None
            except MalformedAnswer as error:
                problem = str(error)
        attempts.append(asdict(reply) | {"problem": problem})
        if problem is not None and reply.text and not reply.refused:
            turns = [*opening, Turn("assistant", reply.text), Turn("user", question.again(problem))]
        else:
            turns = opening
    return answer_of(question, attempts, ranks)

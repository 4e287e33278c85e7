"""One model for all sessions: windows that wait are one call, and one that fails fails alone."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
import torch

from flowshade.api import StyledRenderer, load_renderer
from flowshade.errors import FlowshadeError
from flowshade.nn.graphs import Graphs
from flowshade.play.errors import PlayError
from flowshade.play.pace import Pace
from flowshade.play.painting import Canvas, Models
from flowshade.renderer.prompt import MAX_TOKENS
from flowshade.types import GBuffer
from tests.conftest import make_gbuffer
from tests.nn.replay import replaying


@pytest.fixture(scope="module")
def renderer(debug_model: Path) -> StyledRenderer:
    return load_renderer(debug_model, device="cpu")


@pytest.fixture
def models(renderer: StyledRenderer) -> Iterator[Models]:
    models = Models(lambda: renderer)
    models.wait()
    yield models
    models.close()


def window(seed: int, frames: int = 4) -> GBuffer:
    return make_gbuffer(frames, 32, 48, seed)


def alone(renderer: StyledRenderer, seed: int, caption: str, windows: list[GBuffer]) -> list[np.ndarray]:
    stream = renderer.model.open_stream(seed)
    stream.set_text(renderer.encoder.encode([caption]))
    return [stream.push(each, steps=2).to_uint8().numpy() for each in windows]


def test_sessions_in_one_call_get_their_own_pictures(models: Models, renderer: StyledRenderer) -> None:
    canvases = [Canvas(seed) for seed in range(5)]
    for index, canvas in enumerate(canvases):
        canvas.caption = f"world {index}"
    turns = [[window(10 * turn + index) for index in range(5)] for turn in range(3)]
    painted = [models.paint(canvases, windows, 2) for windows in turns]
    assert max(models.batches) == 5, "they were one batch"
    for index in range(5):
        expected = alone(renderer, index, f"world {index}", [windows[index] for windows in turns])
        for turn in range(3):
            difference = painted[turn][index].astype(int) - expected[turn].astype(int)
            assert abs(difference).max() <= 1, "equal to rounding"
            assert expected[turn].std() > 10


def test_windows_of_other_kinds_are_other_calls(models: Models) -> None:
    canvases = [Canvas(seed) for seed in range(3)]
    pictures = models.paint(canvases, [window(1), window(2, frames=8), window(3)], 1)
    assert [len(each) for each in pictures] == [4, 8, 4]
    assert sorted(models.batches) == [1, 2]


def test_one_that_fails_fails_alone(models: Models, renderer: StyledRenderer) -> None:
    canvases = [Canvas(seed) for seed in range(3)]
    models.paint(canvases[1:2], [make_gbuffer(4, 40, 64)], 2)  # its stream has another size from now on
    done = models.submit(canvases, [window(1), window(2), window(3)], 2)
    with pytest.raises(ValueError, match="reset"):
        done[1].result()
    for index in (0, 2):
        expected = alone(renderer, index, "", [window(1 + index)])[0]
        assert abs(done[index].result().astype(int) - expected.astype(int)).max() <= 1
    canvases[1].restart()
    assert models.paint(canvases[1:2], [window(2)], 2)[0].shape == (4, 32, 48, 3), "it can begin anew"


def test_poison_in_one_world_does_not_reach_another(models: Models, renderer: StyledRenderer) -> None:
    canvases = [Canvas(0), Canvas(1)]
    poisoned = window(1).replace(albedo=torch.full((4, 3, 32, 48), torch.nan))
    for turn in range(3):
        pictures = models.paint(canvases, [poisoned, window(2 + turn)], 2)
    expected = alone(renderer, 1, "", [window(2 + turn) for turn in range(3)])[-1]
    assert abs(pictures[1].astype(int) - expected.astype(int)).max() <= 1


def test_a_caption_shows_in_the_next_window(models: Models) -> None:
    canvas = Canvas()
    models.paint([canvas], [window(1)], 2)
    twin = Canvas()
    models.paint([twin], [window(1)], 2)
    canvas.caption = "neon rain at night"
    (changed,), (same,) = models.paint([canvas], [window(2)], 2), models.paint([twin], [window(2)], 2)
    assert not np.array_equal(changed, same)


def test_many_threads_and_no_crossed_pictures(models: Models, renderer: StyledRenderer) -> None:
    wrong: list[int] = []

    def play(seed: int) -> None:
        canvas = Canvas(seed)
        windows = [window(100 * seed + turn) for turn in range(4)]
        expected = alone(renderer, seed, "", windows)
        for each, picture in zip(windows, expected):
            (got,) = models.paint([canvas], [each], 2)
            if abs(got.astype(int) - picture.astype(int)).max() > 1:
                wrong.append(seed)

    threads = [threading.Thread(target=play, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_model_that_cannot_be_loaded_is_said_and_a_closed_one_too(renderer: StyledRenderer) -> None:
    def load() -> StyledRenderer:
        raise OSError("no weights there")

    models = Models(load)
    with pytest.raises(PlayError, match="no weights there"):
        models.wait()
    closed = Models(lambda: renderer)
    closed.wait()
    closed.close()
    with pytest.raises(PlayError, match="not there"):
        closed.paint([Canvas()], [window(1)], 1)


def test_a_rehearsal_leaves_nothing_to_prepare(debug_model: Path) -> None:
    """Graphs as on a GPU, by a stand-in: what a rehearsed kind of window needs has been recorded."""
    renderer = load_renderer(debug_model, device="cpu")
    renderer.model.graphs = Graphs(replaying([]))
    models = Models(lambda: renderer)
    models.wait()
    try:
        kinds = Pace(fps=30, best_window=8, best_steps=2).kinds
        rehearsal = models.rehearse(window(1), kinds)
        rehearsal.result(60)
        before = renderer.preparations
        assert before and rehearsal.progress == 1 and models.rehearse(window(2), kinds) is rehearsal, "once a size"
        for frames, steps in kinds:  # anew each time, and from one kind to the next
            canvas = Canvas()
            for turn in range(8):
                models.paint([canvas], [window(turn, frames)], steps)
                assert not canvas.prepared
        for turn, (frames, steps) in enumerate([*kinds, *kinds[::-1]]):
            models.paint([canvas], [window(turn, frames)], steps)
            assert not canvas.prepared
        canvas.caption = "an old town in the rain " * 15
        assert 64 < renderer.encoder.encode([canvas.caption]).tokens.shape[1] <= MAX_TOKENS
        models.paint([canvas], [window(8, 8)], 2)
        assert not canvas.prepared, "a longer prompt"
        assert renderer.preparations == before
        models.paint([canvas], [window(9)], 3)
        assert canvas.prepared, "other steps"
    finally:
        models.close()
    with pytest.raises(PlayError, match="not there"):
        models.rehearse(window(1), [(4, 4)])


def test_players_with_graphs_are_not_painted_together(debug_model: Path) -> None:
    """However many windows wait, no new number of them is recorded; what was submitted together stays together."""
    renderer = load_renderer(debug_model, device="cpu")
    renderer.model.graphs = Graphs(replaying([]))
    models = Models(lambda: renderer)
    models.wait()
    try:
        models.rehearse(window(1), [(4, 1)]).result(60)
        before, canvases = renderer.preparations, [Canvas(seed) for seed in range(5)]
        painted = [models.submit([canvas], [window(1)], 1)[0] for canvas in canvases]
        for done in painted:
            done.result(60)
        assert list(models.batches) == [1] * 5 and renderer.preparations == before
        models.paint(canvases, [window(2)] * 5, 1)
        assert models.batches[-1] == 5
    finally:
        models.close()


def test_others_play_on_during_a_rehearsal_and_it_is_not_counted(
    debug_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A window that comes while one of a rehearsal is painted waits for that one, not for the hundreds after it."""
    renderer = load_renderer(debug_model, device="cpu")
    renderer.model.graphs = Graphs(replaying([]))
    models = Models(lambda: renderer)
    models.wait()
    push, begun, go = renderer.push_streams, threading.Event(), threading.Event()

    def gated(*args: Any, **options: Any) -> Any:
        begun.set()
        assert go.wait(60)
        return push(*args, **options)

    try:
        models.rehearse(window(1), [(4, 1)]).result(60)
        canvas = Canvas()
        models.paint([canvas], [window(1)], 1)
        assert not canvas.prepared
        monkeypatch.setattr(renderer, "push_streams", gated)
        rehearsal = models.rehearse(make_gbuffer(4, 48, 64, 1), [(4, 1)] * 100)
        assert begun.wait(60)
        painted = models.submit([canvas], [window(1)], 1)
        go.set()
        painted[0].result(60)
        assert canvas.prepared and rehearsal.progress < 1
        models.close()
        with pytest.raises(PlayError, match="closed"):
            rehearsal.result(60)
    finally:
        go.set()
        models.close()


def test_without_graphs_there_is_nothing_to_rehearse(models: Models, renderer: StyledRenderer) -> None:
    assert renderer.preparations is None
    assert models.rehearse(window(1), [(4, 2)]).done()
    canvas = Canvas()
    models.paint([canvas], [window(1, frames=12)], 1)
    assert canvas.prepared, "the first call of a kind loads kernels"
    models.paint([canvas], [window(1, frames=12)], 1)
    assert not canvas.prepared


def test_what_goes_wrong_in_a_rehearsal_is_said(debug_model: Path) -> None:
    def fail(_: object) -> NoReturn:
        raise RuntimeError("out of memory")

    renderer = load_renderer(debug_model, device="cpu")
    renderer.model.graphs = Graphs(fail)
    models = Models(lambda: renderer)
    models.wait()
    failed = models.rehearse(window(1), [(4, 2)])
    with pytest.raises(FlowshadeError, match="out of memory"):
        failed.result(60)
    assert models.rehearse(window(1), [(4, 2)]) is not failed, "it is tried again"
    models.close()

"""Flash in play, tiny and random: a stream a player through the same weights, windows of a world coded on the way."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from flowshade.api import StyledRenderer, load_renderer
from flowshade.checkpoints.catalogue import MODELS
from flowshade.errors import CheckpointError, FlowshadeError
from flowshade.nn.graphs import Graphs
from flowshade.play.errors import PlayError
from flowshade.play.launch import Launch, run
from flowshade.play.painting import Canvas, Models
from flowshade.play.streams import LocalStreams
from tests.checkpoints.originals import small_flash, write_flash
from tests.conftest import make_gbuffer
from tests.nn.replay import replaying


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "alaya-flash"
    folder.mkdir()
    write_flash(folder)
    return folder


@pytest.fixture(autouse=True)
def tiny_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MODELS, "alaya-flash", small_flash())


@pytest.fixture
def renderer(folder: Path) -> StyledRenderer:
    return load_renderer("alaya-flash", checkpoint=folder, device="cpu", steps=2)


def alone(renderer: StyledRenderer, seed: int, caption: str, windows: list) -> list[np.ndarray]:
    renderer.set_prompt(caption)
    renderer.reset(seed)
    return [renderer.push(window).to_uint8().numpy() for window in windows]


def test_two_players_have_their_own_pasts_and_prompts(renderer: StyledRenderer) -> None:
    canvases = [Canvas(3), Canvas(4)]
    canvases[0].caption, canvases[1].caption = "snow", "a night in the rain"
    turns = [[make_gbuffer(4, 32, 48, seed=10 * turn + player) for player in range(2)] for turn in range(3)]
    models = Models(lambda: renderer)
    models.wait()
    painted = [models.paint(canvases, windows, 2) for windows in turns]
    models.close()
    for player, canvas in enumerate(canvases):
        expected = alone(renderer, canvas.seed, canvas.caption, [windows[player] for windows in turns])
        for turn, picture in enumerate(expected):
            assert picture.std() > 1
            assert np.array_equal(painted[turn][player], picture)
    assert not np.array_equal(painted[2][0], painted[2][1])


def test_engines_may_push_to_it(renderer: StyledRenderer) -> None:
    streams = LocalStreams(renderer, 2, seed=7)
    streams.set_look("snow")
    windows = [make_gbuffer(4, 32, 48, seed=player) for player in range(2)]
    pictures = streams.paint(windows)
    assert np.array_equal(pictures[1], alone(renderer, 8, "snow", [windows[1]])[0])
    with pytest.raises(FlowshadeError, match="lacks metallic"):
        streams.paint([window.replace(metallic=None) for window in windows])


def test_a_launch_loads_it_from_a_folder_and_says_what_is_missing(folder: Path, tmp_path: Path) -> None:
    launch = Launch(model="alaya-flash", checkpoint=folder, device="cpu", steps=1)
    assert launch.load_model().steps == 1
    assert launch.load_model().model.transformer.fast is None
    assert replace(launch, fast=True).load_model().model.transformer.fast is not None
    with pytest.raises(CheckpointError, match="transformer"):
        run(Launch(model="alaya-flash", checkpoint=tmp_path, device="cpu"), announce=print)
    with pytest.raises(PlayError, match="goes with --model alaya-flash"):
        run(Launch(checkpoint=folder, device="cpu"), announce=print)


def test_players_streams_run_the_renderers_graphs(folder: Path) -> None:
    """Graphs by a stand-in: a rehearsal records all that players need, and their pictures stay their own."""
    plain, fast = (load_renderer("alaya-flash", checkpoint=folder, device="cpu", steps=2) for _ in range(2))
    captures: list[int] = []
    fast.model.graphs = Graphs(replaying(captures), keep=fast.model.transformer.rotations.tensors)
    models = Models(lambda: fast)
    models.wait()
    try:
        models.rehearse(make_gbuffer(4, 32, 48, seed=1), [(4, 2)]).result(60)
        recorded = len(captures)
        assert recorded >= 3, "encoder, transformer and decoder"
        canvases = [Canvas(3), Canvas(4)]
        turns = [[make_gbuffer(4, 32, 48, seed=10 * turn + player) for player in range(2)] for turn in range(3)]
        painted = [models.paint(canvases, windows, 2) for windows in turns]
        assert len(captures) == recorded and not canvases[1].prepared
    finally:
        models.close()
    for player, canvas in enumerate(canvases):
        expected = alone(plain, canvas.seed, "", [windows[player] for windows in turns])
        for turn, picture in enumerate(expected):
            assert abs(painted[turn][player].astype(int) - picture.astype(int)).max() <= 1

"""Where G-buffers come from: clips go round and round, worlds do not mind who looks."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from flowshade.gbuffer.io import ClipError, write_clip
from flowshade.gbuffer.io.folder import ClipFolderReader
from flowshade.gbuffer.look import LOOKS
from flowshade.play.actors import Controls
from flowshade.play.launch import CPU_SIZE, Launch
from flowshade.play.sources import ClipSource, WorldSource, open_world
from flowshade.types import GBuffer
from tests.conftest import make_gbuffer

ROOM = """
<mujoco>
  <worldbody>
    <geom type="plane" size="30 30 1"/>
    <body pos="3 0 2"><freejoint/><geom type="box" size="0.5 0.4 0.3"/></body>
  </worldbody>
</mujoco>
"""


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, GBuffer]:
    gbuffer = make_gbuffer(5, 32, 48)
    path = tmp_path_factory.mktemp("clips") / "five"
    write_clip(path, gbuffer, 12)
    return path, gbuffer


def test_a_clip_goes_round_and_round(clip: tuple[Path, GBuffer]) -> None:
    path, expected = clip
    source = ClipSource(path)
    assert (source.size, source.fps, source.name, source.interactive) == ((32, 48), 12.0, "five", False)
    assert expected.albedo is not None
    for tick in range(12):
        shown = source.gbuffer()
        assert shown.frames == 1 and shown.albedo is not None
        torch.testing.assert_close(shown.albedo[0], expected.albedo[tick % 5], rtol=0, atol=1e-2)
        source.tick(Controls(forward=1.0, jump=True))
    source.reset()
    first = source.gbuffer().albedo
    assert first is not None
    torch.testing.assert_close(first[0], expected.albedo[0], rtol=0, atol=1e-2)


def test_a_clip_takes_the_size_that_is_asked_for_and_has_no_reference(clip: tuple[Path, GBuffer]) -> None:
    source = ClipSource(clip[0], size=(16, 24))
    assert source.size == (16, 24) == source.gbuffer().size
    assert source.reference(LOOKS["sunny"]) is None
    source.set_mode("fly")
    assert source.mode == "clip"


def test_a_clip_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(ClipError):
        ClipSource(tmp_path / "nothing")


def test_a_launch_leaves_size_and_rate_to_the_device(clip: tuple[Path, GBuffer]) -> None:
    launch = Launch(clip=clip[0], device="cpu").settled()
    assert (launch.size, launch.fps) == (CPU_SIZE, 30.0)
    source = launch.open_source(None, None)
    assert isinstance(source, ClipSource) and source.size == CPU_SIZE
    assert Launch(device="cpu", size=(48, 80), fps=12.0).settled() == Launch(device="cpu", size=(48, 80), fps=12.0)


def test_dynamics_do_not_depend_on_who_looks(tmp_path: Path) -> None:
    path = tmp_path / "room.xml"
    path.write_text(ROOM)
    watched, alone = (WorldSource(open_world(path, 0, 30.0), size=(16, 24), threads=1) for _ in range(2))
    for tick in range(60):
        controls = Controls(forward=1.0, yaw=0.02, throw=tick == 10, jump=tick == 30)
        watched.tick(controls)
        alone.tick(controls)
        if tick % 3 == 0:
            watched.gbuffer()
            watched.reference(LOOKS["sunny"])
    assert (watched.data.qpos == alone.data.qpos).all() and (watched.data.qvel == alone.data.qvel).all()
    assert abs(watched.data.qvel).max() > 0.1


@pytest.mark.parametrize("broken", [False, True])
def test_a_clip_is_closed(clip: tuple[Path, GBuffer], monkeypatch: pytest.MonkeyPatch, broken: bool) -> None:
    closed = []
    monkeypatch.setattr(ClipFolderReader, "close", lambda reader: closed.append(reader))
    if broken:  # by what is read first
        monkeypatch.setattr(ClipFolderReader, "_read", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            ClipSource(clip[0])
    else:
        source = ClipSource(clip[0])
        assert not closed
        source.close()
    assert len(closed) == 1

"""A recording is true to the world's time, whatever the renderer managed meanwhile."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any, cast

import av
import numpy as np
import pytest
import torch

from flowshade.gbuffer.io import open_clip
from flowshade.play.pace import TimedFrame
from flowshade.play.protocol import Command, Recorded, ServerMessage
from flowshade.play.recording import Recorder, held
from flowshade.play.session import Session
from tests.conftest import make_gbuffer
from tests.play.fakes import Clock, FakeModels, FakeSource

SIZE = (32, 48)
FPS = 30


def video(path: Path) -> list[tuple[Fraction, float]]:
    """Time in seconds and mean value of every picture of a video."""
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        assert stream.time_base is not None
        return [
            (Fraction(frame.pts or 0) * stream.time_base, float(frame.to_ndarray(format="rgb24").mean()))
            for frame in container.decode(stream)
        ]


def test_frames_stand_at_their_times_when_the_rate_changes(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, "one", SIZE, FPS, "a room")
    expected = []
    for index, ticks in enumerate((1, 2, 3, 1)):
        greys = [20 + 40 * index + 15 * k for k in range(2)]
        pictures = np.stack([np.full((*SIZE, 3), grey, np.uint8) for grey in greys])
        recorder.append(make_gbuffer(2, *SIZE, seed=index), pictures, ticks)
        expected += [grey for grey in greys for _ in range(ticks)]
    recorder.close()
    shown = video(tmp_path / "one.mp4")
    assert [at for at, _ in shown] == [Fraction(tick, FPS) for tick in range(len(expected))]
    assert np.allclose([value for _, value in shown], expected, atol=3)  # of 255: H.264 of flat grey
    clip = open_clip(tmp_path / "one")
    assert (len(clip), clip.info.fps) == (len(expected), FPS)
    assert recorder.frames == len(expected)


def test_a_held_frame_does_not_move() -> None:
    window = replace(make_gbuffer(2, *SIZE), motion=torch.ones(2, 2, *SIZE))
    assert window.motion is not None and window.camera is not None
    got = held(window, 3)
    assert got.frames == 6 and got.motion is not None and got.camera is not None
    for name, value in window.channels().items():
        for k in range(6):
            same = got.channels()[name][k]
            expected = torch.zeros_like(same) if name == "motion" and k % 3 else value[k // 3]
            assert torch.equal(same, expected), (name, k)
    assert torch.equal(got.camera.pose[5], window.camera.pose[1])
    assert held(window, 1) is window
    assert window.motion.min() == 1, "the window itself is as it was"


@pytest.mark.parametrize("cost", [0.01, 0.3])
def test_a_session_records_every_tick(tmp_path: Path, cost: float) -> None:
    """A window that takes 0.3 s shows every other tick or fewer; the rate changes while it is recorded."""
    clock, emitted = Clock(), []
    source = FakeSource(clock, fps=FPS, size=SIZE)
    models = FakeModels(clock, lambda steps, frames: cost, steps=1)

    def emit(item: ServerMessage | list[TimedFrame]) -> None:
        emitted.append(item)

    session = Session("1", source, cast(Any, models), emit, recordings=tmp_path, now=clock.now)
    session.take(Command(action="record"))
    while clock.time < 6:
        clock.advance(max(0.001, session.turn()))
    session.take(Command(action="stop_recording"))
    session.turn()
    (done,) = [each for each in emitted if isinstance(each, Recorded)]
    ticks = [frame.header.tick for each in emitted if isinstance(each, list) for frame in each]
    strides = np.diff(ticks)
    assert (strides.max() > 1) == (cost > 0.1) and strides[0] == 1, "the rate changed, or it did not"
    times = [at for at, _ in video(tmp_path / Path(done.video).name)]
    assert times == [Fraction(k, FPS) for k in range(len(times))]
    assert abs(len(times) - ticks[-1]) <= strides.max() * 4, "but for the window that was being painted"
    assert len(times) == done.frames == len(open_clip(done.clip))
    session.close()
    assert source.closed == 1

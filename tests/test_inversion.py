"""A video as a clip of estimated buffers: the same in any windows and any order."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from flowshade.errors import FlowshadeError
from flowshade.gbuffer.io import ClipError
from flowshade.gbuffer.io.footage import Footage
from flowshade.gbuffer.io.pictures import write_png
from flowshade.inverse.stream import Inverse, Inverted
from flowshade.inversion import RUN, InvertedClip, focal_of
from flowshade.presets import debug_inverse
from flowshade.types import CORE_CHANNELS, Frames, GBuffer


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    generator = np.random.default_rng(0)
    (tmp_path / "in").mkdir()
    for index in range(6):
        write_png(tmp_path / "in" / f"{index:04d}.png", generator.integers(0, 256, (20, 36, 3), dtype=np.uint8))
    return tmp_path / "in"


class Endless(Footage):
    """Small pictures whose brightness says their number; remembers which were read."""

    def __init__(self, frames: int) -> None:
        self.path, self.frames, self.size, self.fps = Path("endless"), frames, (2, 2), 24.0
        self.reads: list[int] = []

    def read(self, start: int, stop: int, size: tuple[int, int] | None = None) -> Frames:
        self.reads += range(start, stop)
        numbers = torch.arange(start, stop) / self.frames
        return Frames(rgb=numbers[:, None, None, None].expand(-1, 3, 2, 2).clone())


class Late:
    """An inverse in chunks that gives the pictures themselves, and never those that the next chunk shares."""

    name, fingerprint, channels, confident, codes = "late", "", ("albedo",), False, ()
    chunk, overlap = 57, 17

    def __init__(self) -> None:
        self.most = 0

    def about(self) -> dict[str, Any]:
        return {"depth": "none"}

    def reset(self, *, focal: float | None = None, seed: int | None = None) -> None:
        self.waiting = torch.zeros(0, 3, 2, 2)

    def push(self, frames: Frames) -> Inverted | None:
        self.waiting = torch.cat([self.waiting, frames.rgb])
        self.most = max(self.most, len(self.waiting))
        return self._give(self.chunk - self.overlap) if len(self.waiting) >= self.chunk else None

    def finish(self) -> Inverted | None:
        return self._give(len(self.waiting)) if len(self.waiting) else None

    def _give(self, count: int) -> Inverted:
        given, self.waiting = self.waiting[:count], self.waiting[count:]
        return Inverted(gbuffer=GBuffer(albedo=given), confidence={})


@pytest.mark.parametrize("late", [False, True])
def test_a_very_long_video_is_read_once_and_little_of_it_is_held(inverse: Inverse, late: bool) -> None:
    footage = Endless(1003 if late else 103)
    network: Any = Late() if late else inverse
    clip, held, seen = InvertedClip(footage, network), [], []
    for first in range(0, footage.frames, 8):
        window = clip.estimate(first, min(first + 8, footage.frames))
        held.append(clip._queue.held)
        seen += (window.frames.rgb[:, 0, 0, 0] * footage.frames).round().int().tolist()
        if late:
            assert window.gbuffer.albedo is not None and torch.equal(window.gbuffer.albedo, window.frames.rgb)
            assert not window.confidence
    assert seen == footage.reads == list(range(footage.frames))
    assert max(held) <= (Late.chunk if late else 0)
    assert not late or network.most <= Late.chunk + RUN


def test_frames_beyond_those_asked_for_are_not_looked_at() -> None:
    footage = Endless(500)
    clip = InvertedClip(footage, Late(), frames=30)
    assert len(clip) == 30 and clip.estimate(28, 30).frames.frames == 2
    assert footage.reads == list(range(30))
    with pytest.raises(ClipError, match="frames 0 to 501"):
        InvertedClip(footage, Late(), frames=501)


@pytest.fixture
def inverse() -> Inverse:
    torch.manual_seed(0)
    return Inverse(debug_inverse()).eval()


def test_any_windows_and_any_order_give_the_same(folder: Path, inverse: Inverse) -> None:
    clip = InvertedClip(Footage(folder), inverse)
    whole = clip.read()
    assert (whole.frames, whole.size, tuple(whole.channels())) == (6, (20, 36), CORE_CHANNELS)
    again = InvertedClip(Footage(folder), inverse)
    for first, last in ((0, 1), (1, 4), (5, 6), (2, 3), (0, 6)):  # one after another, passed over, back
        window = again.estimate(first, last)
        for name, values in window.gbuffer.channels().items():
            torch.testing.assert_close(values, whole.channels()[name][first:last], atol=1e-4, rtol=1e-4)
        assert torch.equal(window.frames.rgb, Footage(folder).read(first, last).rgb)
        assert set(window.confidence) == set(CORE_CHANNELS)
        reference = again.reference(first, last)
        assert reference is not None and torch.equal(reference, window.frames.rgb)


def test_pictures_are_brought_to_the_size_first(folder: Path, inverse: Inverse) -> None:
    clip = InvertedClip(Footage(folder), inverse, size=(10, 18))
    assert clip.info.size == (10, 18)
    assert clip.estimate(0, 2).gbuffer.size == (10, 18)
    assert clip.estimate(0, 2).frames.rgb.shape == (2, 3, 10, 18)
    with pytest.raises(ClipError, match="size is 0x18"):
        InvertedClip(Footage(folder), inverse, size=(0, 18))
    with pytest.raises(ClipError, match="frames 0 to 9"):
        clip.estimate(0, 9)


def test_a_field_of_view_becomes_a_focal_length(folder: Path, inverse: Inverse) -> None:
    assert focal_of(None) is None
    assert focal_of(90) == pytest.approx(0.5)
    assert focal_of(60) == pytest.approx(0.5 / math.tan(math.pi / 6))
    torch.nn.init.normal_(inverse.network.focal.weight)
    known = InvertedClip(Footage(folder), inverse, fov=50).read().depth
    unknown = InvertedClip(Footage(folder), inverse).read().depth
    assert not torch.equal(known, unknown)
    for fov in (0, -1, 180, float("nan")):
        with pytest.raises(FlowshadeError, match="horizontal field of view in degrees"):
            focal_of(fov)

"""A video as a clip of estimated buffers: the same in any windows and any order."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from flowshade.errors import FlowshadeError
from flowshade.gbuffer.io import ClipError
from flowshade.gbuffer.io.footage import Footage
from flowshade.gbuffer.io.pictures import write_png
from flowshade.inverse.stream import Inverse
from flowshade.inversion import InvertedClip, focal_of
from flowshade.presets import debug_inverse
from flowshade.types import CORE_CHANNELS


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    generator = np.random.default_rng(0)
    (tmp_path / "in").mkdir()
    for index in range(6):
        write_png(tmp_path / "in" / f"{index:04d}.png", generator.integers(0, 256, (20, 36, 3), dtype=np.uint8))
    return tmp_path / "in"


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

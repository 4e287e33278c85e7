"""A stream of pictures of any size: padding, sky, confidence, errors; and the file it is kept in."""

from __future__ import annotations

import math

import pytest
import torch

from flowshade.checkpoints.store import load_inverse_file, load_renderer_file, save_inverse
from flowshade.errors import CheckpointError
from flowshade.inverse.stream import TOLERANCES, Inverse, _inverted
from flowshade.presets import debug_inverse
from flowshade.types import CORE_CHANNELS, Frames


@pytest.fixture
def inverse() -> Inverse:
    torch.manual_seed(0)
    return Inverse(debug_inverse()).eval()


@pytest.mark.parametrize("size", [(32, 48), (35, 50), (7, 9)])
def test_any_size_and_any_windows_give_the_same(inverse: Inverse, size: tuple[int, int]):
    rgb = torch.rand(5, 3, *size)
    inverse.reset()
    whole = inverse.push(Frames(rgb=rgb))
    parts = list(inverse.invert(Frames(rgb=run) for run in rgb.split(2)))
    assert whole.gbuffer.size == size
    for name in CORE_CHANNELS:
        streamed = torch.cat([part.gbuffer.channels()[name] for part in parts])
        torch.testing.assert_close(streamed, whole.gbuffer.channels()[name], atol=1e-4, rtol=1e-4)
        sure = torch.cat([part.confidence[name] for part in parts])
        torch.testing.assert_close(sure, whole.confidence[name], atol=1e-4, rtol=1e-4)


@torch.no_grad()
def test_sky_has_no_surface_and_confidence_is_the_share_of_a_laplace_distribution(inverse: Inverse):
    estimate, _ = inverse.network(torch.rand(1, 1, 3, 16, 16))
    estimate.sky[:] = -20.0
    estimate.sky[..., :4, :] = 20.0
    estimate.error[:] = math.log(0.2)
    inverted = _inverted(estimate, 16, 16)
    assert (
        torch.isinf(inverted.gbuffer.depth[:, :, :4]).all() and torch.isfinite(inverted.gbuffer.depth[:, :, 4:]).all()
    )
    assert (inverted.gbuffer.normal[:, :, :4] == 0).all()
    for name, tolerance in TOLERANCES.items():
        expected = 1 - math.exp(-tolerance / 0.2)
        torch.testing.assert_close(inverted.confidence[name][0, 0, 10, 10].item(), expected, atol=1e-4, rtol=0)
        assert inverted.confidence[name][0, 0, 0, 0] > 0.99


def test_a_stream_keeps_its_size_until_it_is_reset(inverse: Inverse):
    inverse.reset()
    inverse.push(Frames(rgb=torch.rand(1, 3, 32, 48)))
    with pytest.raises(ValueError, match=r"\(32, 48\), and \(48, 32\) came"):
        inverse.push(Frames(rgb=torch.rand(1, 3, 48, 32)))
    inverse.reset()
    inverse.push(Frames(rgb=torch.rand(1, 3, 48, 32)))


def test_bad_pictures_and_focal_lengths_are_refused(inverse: Inverse):
    inverse.reset()
    with pytest.raises(ValueError, match="not finite"):
        inverse.push(Frames(rgb=torch.full((1, 3, 16, 16), float("nan"))))
    for focal in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="focal length"):
            inverse.reset(focal=focal)


def test_a_file_brings_the_same_inverse_back_and_is_not_a_renderers(inverse: Inverse, tmp_path):
    path = tmp_path / "inverse.safetensors"
    save_inverse(inverse, path, dtype=torch.float32)
    loaded = load_inverse_file(path)
    rgb = torch.rand(1, 1, 3, 16, 16)
    assert torch.equal(loaded.network(rgb)[0].depth, inverse.network(rgb)[0].depth)
    with pytest.raises(CheckpointError, match="flowshade-inverse-1"):
        load_renderer_file(path)

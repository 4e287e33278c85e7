"""What is done to pictures before the inverse sees them."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from flowshade.codec.encoding import EncodingProfile
from flowshade.training.degrade import (
    Degradation,
    _cosines,
    add_noise,
    compress,
    degrade,
    expose,
    mirror,
    motion_blur,
    soften,
)

NOTHING = Degradation(
    stops=0, white_balance=0, contrast=0, noise=0, blur=0, motion_share=0, compressed_share=0, coarseness=0
)


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def test_a_degradation_of_nothing_changes_next_to_nothing():
    rgb = torch.rand(2, 4, 3, 16, 24)
    torch.testing.assert_close(degrade(rgb, NOTHING), rgb, atol=2e-3, rtol=0)


@pytest.mark.parametrize("function", [motion_blur, expose, soften, add_noise, compress])
def test_each_step_changes_pictures_and_keeps_range_and_shape(function):
    rgb = torch.rand(8, 4, 3, 16, 24)
    strong = Degradation(motion_share=1.0, compressed_share=1.0)
    changed = function(rgb, strong)
    assert changed.shape == rgb.shape
    assert changed.min() >= -1e-6 and changed.max() <= 1 + 1e-6
    assert (changed - rgb).abs().mean() > 1e-3


def test_strengths_stay_the_same_over_a_clip():
    rgb = torch.rand(3, 1, 3, 16, 24).expand(-1, 4, -1, -1, -1)
    for function in (motion_blur, expose, soften, compress):
        changed = function(rgb, Degradation(motion_share=1.0, compressed_share=1.0))
        torch.testing.assert_close(changed, changed[:, :1].expand_as(changed))
        assert (changed[0, 0] - rgb[0, 0] - (changed[1, 0] - rgb[1, 0])).abs().mean() > 0


def test_softening_keeps_the_mean_and_lowers_the_contrast():
    rgb = torch.rand(16, 1, 3, 32, 32)
    soft = soften(rgb, dataclasses.replace(NOTHING, blur=2.0))
    torch.testing.assert_close(soft.mean(), rgb.mean(), atol=5e-3, rtol=0)
    assert soft.std() < rgb.std()


def test_the_cosine_transform_is_orthonormal():
    basis = _cosines(torch.device("cpu"))
    torch.testing.assert_close(basis @ basis.T, torch.eye(8), atol=1e-6, rtol=0)


def test_blocks_that_do_not_divide_are_refused():
    with pytest.raises(ValueError, match="multiples of 8"):
        compress(torch.rand(1, 1, 3, 12, 16), Degradation())


def test_a_mirrored_clip_has_its_normals_turned_and_the_rest_in_place():
    profile = EncodingProfile()
    values, rgb = torch.rand(2, 1, profile.planes, 8, 8), torch.rand(2, 1, 3, 8, 8)
    mirrored, planes = mirror(rgb, values, torch.tensor([True, False]), profile)
    assert torch.equal(mirrored[0], rgb[0].flip(-1)) and torch.equal(mirrored[1], rgb[1])
    normal = profile.slices["normal"]
    assert torch.equal(planes[0, :, normal.start], -values[0, :, normal.start].flip(-1))
    assert torch.equal(planes[0, :, normal.start + 1], values[0, :, normal.start + 1].flip(-1))
    assert torch.equal(planes[0, :, profile.slices["depth"]], values[0, :, profile.slices["depth"]].flip(-1))
    assert torch.equal(planes[1], values[1])

"""Warping error, disocclusion and borders of windows on motion that is known."""

from __future__ import annotations

import math

import pytest
import torch

from flowshade.evaluation.temporal import border_ratio, flow_visibility, visible_before, warp, warping_errors
from flowshade.types import GBuffer


def texture(size: int = 64, seed: int = 0) -> torch.Tensor:
    rough = torch.rand(1, 3, size // 4, size // 4, generator=torch.Generator().manual_seed(seed))
    return torch.nn.functional.interpolate(rough, (size, size), mode="bicubic").clamp(0, 1)


def shifted(frames: int = 3, pixels: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
    """Pictures that move to the right, and their motion: where a pixel was before minus where it is."""
    wide = texture(96)
    pictures = torch.cat([wide[..., 16:80, 16 - t * pixels : 80 - t * pixels] for t in range(frames)])
    motion = torch.zeros(frames, 2, 64, 64)
    motion[:, 0] = -pixels
    return pictures, motion


def test_warping_fetches_from_where_the_pixel_was() -> None:
    pictures, motion = shifted()
    moved = warp(pictures[:-1], motion[1:])
    torch.testing.assert_close(moved[..., 4:], pictures[1:, ..., 4:], atol=1e-5, rtol=0)


def test_pictures_that_move_with_the_world_have_no_warping_error_and_flicker_has_its_own() -> None:
    pictures, motion = shifted()
    seen = torch.ones(2, 1, 64, 64, dtype=torch.bool)
    seen[..., :4] = False
    assert warping_errors(pictures, motion[1:], seen).max() < 1e-2
    flicker = pictures * 0.5 + torch.tensor([0.0, 10 / 255, 0.0])[:, None, None, None]
    assert warping_errors(flicker, motion[1:], seen).tolist() == pytest.approx([10, 10], rel=1e-3)
    assert warping_errors(pictures, motion[1:], torch.zeros_like(seen)).isnan().all()


def test_what_was_hidden_or_outside_is_masked() -> None:
    frames, size = 2, 16
    motion = torch.zeros(frames, 2, size, size)
    motion[:, 0, :, :4] = -4  # came from outside the picture
    instance = torch.ones(frames, 1, size, size, dtype=torch.int32)
    instance[0, :, :, 6:8] = 2  # something stood here one frame ago
    depth = torch.full((frames, 1, size, size), 10.0)
    depth[0, :, :, 9] = 5.0
    albedo = torch.full((frames, 3, size, size), 0.5)
    albedo[0, :, :, 12] = 0.1
    seen = visible_before(GBuffer(albedo=albedo, depth=depth, instance=instance, motion=motion))[0, 0]
    hidden = [column for column in range(size) if not seen[:, column].any()]
    assert hidden == [0, 1, 2, 3, 6, 7, 9, 12]
    assert seen.sum() == (size - len(hidden)) * size


def test_without_motion_vectors_flow_finds_the_shift() -> None:
    pictures, motion = shifted()
    flow, seen = flow_visibility(pictures)
    middle = (slice(None), slice(None), slice(16, 48), slice(16, 48))
    assert (flow[middle] - motion[1:][middle]).abs().mean() < 0.3
    assert seen[middle].float().mean() > 0.9


def test_borders_of_windows() -> None:
    changes = torch.tensor([1.0, 1, 1, 3, 1, 1, 1, 3, 1])
    assert border_ratio(changes, 4) == pytest.approx(3)
    assert border_ratio(changes.masked_fill(torch.arange(9) == 1, torch.nan), 4) == pytest.approx(3)
    assert math.isnan(border_ratio(changes[:3], 4))

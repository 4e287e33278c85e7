"""Edges of pictures against edges of buffers, on pictures whose answer is known."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
import torch

from flowshade.evaluation.content import buffer_edges, edge_auc, edge_precision, reestimated_normal_error
from flowshade.inverse.stream import Inverted
from flowshade.types import Frames, GBuffer


def box(value: float = 1.0, columns: int = 2, size: int = 48) -> torch.Tensor:
    """A bright square in the middle of a dark picture."""
    picture = torch.zeros(columns, 3, size, size)
    picture[..., 16:32, 16:32] = value
    return picture


def clip() -> GBuffer:
    return GBuffer(albedo=box(0.5), depth=torch.full((2, 1, 48, 48), 5.0))


def test_edges_of_a_square_are_its_outline() -> None:
    edges = buffer_edges(clip())[0, 0]
    assert edges[16, 20] and edges[20, 16] and not edges[20, 24] and not edges[4, 4]


def test_depth_and_normals_give_edges_too() -> None:
    depth = torch.full((1, 1, 48, 48), 5.0)
    depth[..., 24:] = float("inf")
    normal = torch.zeros(1, 3, 48, 48)
    normal[:, 2], normal[:, 2, 30:], normal[:, 0, 30:] = 1.0, 0.0, 1.0
    edges = buffer_edges(GBuffer(depth=depth, normal=normal))[0, 0]
    assert edges[10, 24] and edges[30, 5] and not edges[10, 5]


def test_faint_and_bright_pictures_of_the_same_edges_score_the_same() -> None:
    edges = buffer_edges(clip())
    for brightness in (0.02, 0.9):
        picture = 0.1 + brightness * box() * 0.9
        assert edge_precision(picture, edges).min() == 1
        assert edge_auc(picture, edges).min() > 0.999


def test_a_flat_picture_shows_no_edge_and_an_edge_elsewhere_is_wrong() -> None:
    edges = buffer_edges(clip())
    assert torch.allclose(edge_auc(torch.full((2, 3, 48, 48), 0.4), edges), torch.tensor(0.5))
    elsewhere = torch.zeros(2, 3, 48, 48)
    elsewhere[..., 2:10, ::2] = 1  # stripes where the buffers are flat
    assert edge_precision(elsewhere, edges).max() < 0.1
    assert edge_auc(elsewhere, edges).max() < 0.5


def test_frames_without_edges_have_no_score() -> None:
    edges = torch.zeros(2, 1, 48, 48, dtype=torch.bool)
    assert edge_precision(box(), edges).isnan().all() and edge_auc(box(), edges).isnan().all()


class Told:
    """An inverse that gives the same normals whatever it sees, in runs as they come."""

    def __init__(self, normal: torch.Tensor) -> None:
        self.normal = normal

    def invert(self, windows: Iterable[Frames]) -> Iterator[Inverted]:
        for frames in windows:
            normal = self.normal[None, :, None, None].expand(frames.frames, -1, *frames.rgb.shape[-2:])
            yield Inverted(gbuffer=GBuffer(normal=normal.clone()), confidence={})


def test_the_error_of_normals_read_back_is_their_angle_on_surfaces() -> None:
    normal = torch.zeros(5, 3, 8, 8)
    normal[:, 2, 4:] = 1  # the upper half is sky
    angle = math.radians(25)
    told: Any = Told(torch.tensor([0.0, math.sin(angle), math.cos(angle)]))
    clip, pictures = GBuffer(normal=normal), torch.rand(5, 3, 8, 8)
    assert reestimated_normal_error(pictures, clip, told) == pytest.approx(25, abs=0.01)
    assert math.isnan(reestimated_normal_error(pictures, GBuffer(depth=torch.ones(5, 1, 8, 8)), told))
    assert math.isnan(reestimated_normal_error(pictures, GBuffer(normal=torch.zeros(5, 3, 8, 8)), told))

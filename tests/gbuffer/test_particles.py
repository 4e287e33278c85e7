"""Particles: in front of things only, steady in the world, and apart from the picture."""

from __future__ import annotations

import dataclasses
from typing import get_args

import pytest
import torch

from flowshade.gbuffer.look import LOOKS
from flowshade.gbuffer.particles import ParticleKind, particle_layer, particles_of
from flowshade.types import Camera, GBuffer

HEIGHT, WIDTH = 90, 120
KINDS = get_args(ParticleKind)


def frame(depth: float = torch.inf, x: float = 0.0) -> GBuffer:
    pose = torch.eye(4)
    pose[:3, :3] = torch.tensor([[1.0, 0, 0], [0, 0, -1], [0, 1, 0]])
    pose[0, 3] = x
    camera = Camera(intrinsics=torch.tensor([[90.0, 90.0, WIDTH / 2, HEIGHT / 2]]), pose=pose[None])
    return GBuffer(depth=torch.full((1, 1, HEIGHT, WIDTH), depth), camera=camera)


@pytest.mark.parametrize("kind", KINDS)
def test_there_are_some_but_the_picture_shows_through(kind: ParticleKind) -> None:
    layer = particle_layer(kind, frame(), LOOKS["overcast"], time=1.0)
    assert layer.mask.min() >= 0 and layer.mask.max() <= 1
    assert 5e-4 < layer.mask.mean() < 0.1
    assert layer.mask.max() > 0.1
    picture = torch.rand(1, 3, HEIGHT, WIDTH)
    shown = layer.over(picture)
    clear = (layer.mask < 1e-6).expand_as(picture)
    assert clear.any()
    torch.testing.assert_close(shown[clear], picture[clear], atol=1e-5, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_walls_hide_what_is_behind_them(kind: ParticleKind) -> None:
    masks = [particle_layer(kind, frame(depth), LOOKS["snow"], time=1.0).mask for depth in (0.3, 2.0, torch.inf)]
    assert masks[0].sum() == 0
    assert (masks[1] <= masks[2] + 1e-6).all() and masks[1].sum() < masks[2].sum()


def test_the_layer_is_a_function_of_time_camera_and_seed() -> None:
    def mask(time: float = 1.0, x: float = 0.0, seed: int = 0) -> torch.Tensor:
        return particle_layer("snow", frame(x=x), LOOKS["snow"], time=time, seed=seed).mask

    assert torch.equal(mask(), mask())
    for other in (mask(time=1.1), mask(x=0.5), mask(seed=1)):
        assert (mask() - other).abs().max() > 0.05
    # A whole cube's width further on the same flakes stand at the same places.
    torch.testing.assert_close(mask(x=16.0), mask(), atol=1e-3, rtol=0)


def test_snow_falls_and_bubbles_rise() -> None:
    """The picture of one moment fits the next best when it is shifted the way the particles go."""
    for kind, way in (("snow", 1), ("bubbles", -1)):
        step = 0.04 if kind == "snow" else 0.08
        a, b = (
            particle_layer(kind, frame(), LOOKS["overcast"], time=1.0 + t, amount=0.2).mask[0, 0]  # pyright: ignore[reportArgumentType]
            for t in (0.0, step)
        )
        fits = {shift: float((a.roll(shift, 0) * b).sum()) for shift in (-1, 1)}
        assert fits[way] > 1.1 * fits[-way]


def test_no_amount_no_particles() -> None:
    assert particle_layer("rain", frame(), LOOKS["rain"], time=0.0, amount=0.0).mask.sum() == 0


def test_light_of_the_look() -> None:
    day, night = (particle_layer("snow", frame(), LOOKS[name], time=0.0).rgb.mean() for name in ("snow", "night"))
    assert day > night + 0.2
    dark = dataclasses.replace(LOOKS["night"], exposure=1.0)
    assert particle_layer("fireflies", frame(), dark, time=0.0).rgb.mean() > 0.5


def test_kinds_belong_to_looks() -> None:
    assert {name: particles_of(look) for name, look in LOOKS.items() if particles_of(look)} == {
        "rain": "rain", "snow": "snow", "underwater": "bubbles"
    }  # fmt: skip


def test_errors() -> None:
    with pytest.raises(ValueError, match="kind='ash'; expected one of rain, snow"):
        particle_layer("ash", frame(), LOOKS["snow"], time=0.0)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="expected one frame with depth and camera"):
        particle_layer("rain", GBuffer(depth=frame().depth), LOOKS["snow"], time=0.0)

"""Rain, snow, fireflies and bubbles: a layer of its own over a picture, with its mask.

    layer = particle_layer("snow", gbuffer, look, time=frame / fps)
    shown = layer.over(picture)

Particles live in a cube of air that goes with the camera and wraps around: each has a fixed place and velocity in the
world, so the layer is a function of time, camera and seed alone, agrees from frame to frame while the camera moves, and
costs the same for ever. What lies behind a surface is not drawn. Renderers see no particles: they are laid over the
result, and training pictures stay without them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from flowshade.gbuffer.look import Look
from flowshade.gbuffer.shade import tone_curve
from flowshade.types import Camera, GBuffer

ParticleKind = Literal["rain", "snow", "fireflies", "bubbles"]


@dataclass(frozen=True, kw_only=True)
class _Habit:
    """How a kind of particle looks and moves."""

    count: int
    reach: float
    """Half the side of the cube of air, metres."""
    velocity: tuple[float, float, float]
    """Metres a second, world axes."""
    wander: float
    """Metres that a particle strays from its line."""
    radius: float
    """Metres."""
    opacity: float
    shutter: float
    """Seconds of motion that one frame shows."""
    colour: tuple[float, float, float]
    """Linear; times the light of the sky, or emitted where `glows`."""
    glows: bool = False


_HABITS: dict[str, _Habit] = {
    "rain": _Habit(count=3000, reach=9.0, velocity=(0.5, 0.2, -8.0), wander=0.0, radius=0.006, opacity=0.5,
                   shutter=1 / 50, colour=(0.95, 0.98, 1.0)),
    "snow": _Habit(count=2500, reach=8.0, velocity=(0.25, 0.1, -1.1), wander=0.25, radius=0.012, opacity=0.9,
                   shutter=1 / 50, colour=(1.0, 1.0, 1.0)),
    "fireflies": _Habit(count=160, reach=10.0, velocity=(0.0, 0.0, 0.02), wander=0.8, radius=0.03, opacity=1.0,
                        shutter=1 / 50, colour=(1.4, 1.5, 0.35), glows=True),
    "bubbles": _Habit(count=400, reach=6.0, velocity=(0.0, 0.0, 0.45), wander=0.12, radius=0.02, opacity=0.45,
                      shutter=1 / 50, colour=(0.9, 1.0, 1.0)),
}  # fmt: skip
_NEAREST = 0.35  # metres: nothing is drawn closer to the lens
_STREAK = 16  # points along the way that a particle makes while the shutter is open


@dataclass(frozen=True, kw_only=True)
class ParticleLayer:
    """What is laid over a picture."""

    rgb: Float[Tensor, "T 3 H W"]
    """Display sRGB of the particles, [0, 1]; the same wherever the mask is 0."""
    mask: Float[Tensor, "T 1 H W"]
    """Share of a pixel that they cover, [0, 1]."""

    def over(self, picture: Float[Tensor, "T 3 H W"]) -> Float[Tensor, "T 3 H W"]:
        """A picture, display sRGB, with the layer over it."""
        return torch.lerp(picture, self.rgb, self.mask)

    def rgba(self) -> Float[Tensor, "T 4 H W"]:
        """Colour and mask in one, as clips keep them."""
        return torch.cat([self.rgb, self.mask], 1)


def particles_of(look: Look) -> ParticleKind | None:
    """The kind that belongs to a look's family, if any: rain for rain, flakes for snow, bubbles under water."""
    kinds: dict[str, ParticleKind] = {"rain": "rain", "snow": "snow", "underwater": "bubbles"}
    return kinds.get(look.name)


def particle_layer(
    kind: ParticleKind, gbuffer: GBuffer, look: Look, *, time: float, amount: float = 1.0, seed: int = 0
) -> ParticleLayer:
    """The particles of one frame.

    Args:
        kind: what falls, flies or rises.
        gbuffer: one frame with depth and camera.
        look: lights the particles: the mean of its sky; fireflies glow by themselves.
        time: seconds of world time.
        amount: share of the usual number, at least 0.
        seed: of places and wandering.

    Raises:
        ValueError: an unknown kind, more than one frame, or no depth or camera.
    """
    if kind not in get_args(ParticleKind):
        raise ValueError(f"particle_layer got kind={kind!r}; expected one of {', '.join(get_args(ParticleKind))}.")
    if gbuffer.frames != 1 or gbuffer.depth is None or gbuffer.camera is None or amount < 0:
        raise ValueError(
            f"particle_layer got {gbuffer.frames} frames of {', '.join(gbuffer.channels())} and amount={amount}; "
            "expected one frame with depth and camera, and an amount of at least 0."
        )
    habit = _HABITS[kind]
    camera, depth = gbuffer.camera.to(gbuffer.device), gbuffer.depth[0, 0]
    mask = torch.zeros(depth.numel(), device=depth.device)
    for step in range(_STREAK):
        moment = time + habit.shutter * step / _STREAK
        x, y, z = _projected(habit, camera, moment, amount, seed)
        _splat(mask, depth, x, y, z, habit, camera)
    mask = rearrange(1 - torch.exp(-mask), "(h w) -> 1 1 h w", h=depth.shape[0])
    return ParticleLayer(rgb=_colour(habit, look, depth).expand(1, 3, *depth.shape), mask=mask)


def _projected(
    habit: _Habit, camera: Camera, time: float, amount: float, seed: int
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Pixel positions and depths of the particles at a moment."""
    pose = camera.pose[0]
    generator = torch.Generator().manual_seed(seed)
    count, side = round(habit.count * amount), 2 * habit.reach
    home = torch.rand(count, 3, generator=generator, dtype=torch.float64) * side
    turn = torch.rand(count, 3, generator=generator, dtype=torch.float64) * 6.2832
    pace = torch.rand(count, 3, generator=generator, dtype=torch.float64) + 0.5
    place = home + torch.tensor(habit.velocity, dtype=torch.float64) * time
    place = place + habit.wander * torch.sin(turn + pace * time)
    middle = pose[:3, 3].double().cpu()
    offset = torch.remainder(place - middle + habit.reach, side) - habit.reach
    local = offset.to(pose) @ pose[:3, :3]
    z = -local[:, 2]
    fx, fy, cx, cy = camera.intrinsics[0]
    safe = z.clamp(min=1e-3)
    return cx + fx * local[:, 0] / safe, cy - fy * local[:, 1] / safe, z


def _splat(mask: Tensor, depth: Tensor, x: Tensor, y: Tensor, z: Tensor, habit: _Habit, camera: Camera) -> None:
    """Adds soft discs at pixel positions to an optical depth [H W], where nothing stands before them."""
    height, width = depth.shape
    radius = (habit.radius * camera.intrinsics[0, 0] / z.clamp(min=_NEAREST)).clamp(max=2.5)
    spread = radius.clamp(min=0.6)  # smaller ones cover part of a pixel
    strength = habit.opacity * 8.0 / _STREAK * (radius / spread).clamp(min=0.05)
    # They fade in at the lens and out at the rim of the cube, where they would pop otherwise.
    strength = strength * ((z - _NEAREST) * 2).clamp(0, 1) * (2 * (1 - z / habit.reach)).clamp(0, 1)
    for dy in range(-2, 3):
        for dx in range(-2, 3):
            column, row = x.floor().long() + dx, y.floor().long() + dy
            inside = (z > _NEAREST) & (column >= 0) & (column < width) & (row >= 0) & (row < height)
            column, row = column[inside], row[inside]
            index = row * width + column
            away = (column + 0.5 - x[inside]).square() + (row + 0.5 - y[inside]).square()
            weight = strength[inside] * torch.exp(-away / spread[inside].square())
            mask.index_add_(0, index, weight * (depth.flatten()[index] > z[inside]))


def _colour(habit: _Habit, look: Look, like: Tensor) -> Tensor:
    colour = torch.tensor(habit.colour, dtype=like.dtype, device=like.device)
    if not habit.glows:
        sky = torch.tensor([look.zenith, look.horizon, look.fog_color], dtype=like.dtype, device=like.device)
        colour = colour * (sky.mean(0) + 0.08 * torch.tensor(look.sun, dtype=like.dtype, device=like.device))
    return tone_curve(colour * look.exposure).view(1, 3, 1, 1)

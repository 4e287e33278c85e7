"""G-buffer channels <-> the planes a network sees, by an encoding profile.

Every step is invertible and looks at one pixel at a time: a stream has no "whole clip" to normalise by.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from flowshade.color import linear_to_srgb, srgb_to_linear
from flowshade.types import GBuffer, Planes

RAYS = "rays"
"""Name of the buffer that is made from the camera instead of a channel."""


@dataclass(frozen=True, kw_only=True)
class EncodingProfile:
    """Which buffers a checkpoint takes, in which order, and how far it can see.

    A scalar channel is one plane: a network that begins with a linear layer gains nothing from copies.
    """

    name: str = "compact"
    buffers: tuple[tuple[str, int], ...] = (
        ("albedo", 3),
        ("normal", 3),
        ("depth", 1),
        ("roughness", 1),
        ("metallic", 1),
        ("emission", 3),
        (RAYS, 3),
    )
    """Name and planes of every buffer."""
    depth_scale: float = 10.0
    """s of depth -> s / (z + s), metres: the depth in the middle of the range."""

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.buffers)

    @property
    def planes(self) -> int:
        """Planes of all buffers together."""
        return sum(planes for _, planes in self.buffers)

    @cached_property
    def slices(self) -> dict[str, slice]:
        """Where each buffer's planes lie."""
        slices, start = {}, 0
        for name, planes in self.buffers:
            slices[name] = slice(start, start + planes)
            start += planes
        return slices


def encode_buffers(gbuffer: GBuffer, profile: EncodingProfile, stream: Float[Tensor, "3 3"] | None = None) -> Planes:
    """Encodes a clip's channels to planes in [-1, 1].

    Values that are not finite stand for nothing there (black, no normal, sky, 0; infinite emission: full), and normals
    are cut to [-1, 1]: one bad pixel must not reach the memory of a stream.

    albedo -> sRGB; normal -> (n + 1) / 2; depth -> s / (z + s), sky 0; emission -> e / (1 + e); roughness and
    metallic as they are; then [0, 1] -> [-1, 1]. Rays are the camera's unit view rays.

    Args:
        gbuffer: any subset of the profile's channels; the others are zero and marked absent.
        profile: buffers and their order.
        stream: rotation from world axes to the stream frame (`types.stream_frame`), for the rays. Rays are absent
            without it or without a camera.

    Returns:
        Planes [1, T, planes, H, W].
    """
    values = torch.empty(gbuffer.frames, profile.planes, *gbuffer.size, device=gbuffer.device)
    run = 1 if gbuffer.device.type == "cpu" else gbuffer.frames  # one frame's temporaries fit a CPU's caches
    for start in range(0, gbuffer.frames, run):
        frames = slice(start, start + run)
        _fill(values[frames], gbuffer[frames], profile, stream)
    has_rays = gbuffer.camera is not None and stream is not None
    present = [has_rays if name == RAYS else name in gbuffer.channels() for name in profile.names]
    return Planes(values=values[None], present=torch.tensor([present], device=gbuffer.device))


def decode_planes(planes: Planes, profile: EncodingProfile) -> GBuffer:
    """The inverse of `encode_buffers` for one clip (batch 1); rays do not become a camera.

    Raises:
        ValueError: the batch holds more than one clip.
    """
    if planes.values.shape[0] != 1:
        raise ValueError(f"decode_planes got a batch of {planes.values.shape[0]} clips; give one clip at a time.")
    channels = {}
    for index, name in enumerate(profile.names):
        if name != RAYS and planes.present[0, index]:
            unit = (planes.values[0, :, profile.slices[name]] + 1) / 2
            channels[name] = _from_unit(name, unit, profile)
    return GBuffer(**channels)


def _fill(values: Tensor, gbuffer: GBuffer, profile: EncodingProfile, stream: Tensor | None) -> None:
    """Writes the planes [T, planes, H, W] of a run of frames."""
    channels = gbuffer.channels()
    for name in profile.names:
        planes = values[:, profile.slices[name]]
        value = _rays(gbuffer, stream) if name == RAYS else channels.get(name)
        if value is None:
            planes.zero_()
        elif name == RAYS:
            planes.copy_(value)
        else:
            planes.copy_(_to_unit(name, value, profile)).mul_(2).sub_(1)


def _rays(gbuffer: GBuffer, stream: Tensor | None) -> Tensor | None:
    """`Camera.rays` turned into the stream frame; x and y stay one-dimensional as long as they can."""
    if gbuffer.camera is None or stream is None:
        return None
    height, width = gbuffer.size
    camera = gbuffer.camera.to(gbuffer.device)
    turn = stream.to(camera.pose) @ camera.pose[:, :3, :3]  # [T, 3, 3], camera to stream
    right, up, back = turn[..., None, None].unbind(2)  # [T, 3, 1, 1] each
    fx, fy, cx, cy = camera.intrinsics[:, :, None, None, None].unbind(1)  # [T, 1, 1, 1] each
    x = (torch.arange(width, device=gbuffer.device) + 0.5 - cx) / fx  # [T, 1, 1, W]
    y = (cy - torch.arange(height, device=gbuffer.device)[:, None] - 0.5) / fy  # [T, 1, H, 1]
    return (right * x + (up * y - back)) * torch.rsqrt(x.square() + y.square() + 1)


def _to_unit(name: str, value: Tensor, profile: EncodingProfile) -> Tensor:
    match name:
        case "albedo":
            return linear_to_srgb(value.nan_to_num(0))
        case "normal":
            return (value.nan_to_num(0).clamp(-1, 1) + 1) / 2
        case "depth":
            return profile.depth_scale / (value.nan_to_num(math.inf, math.inf).clamp(min=0) + profile.depth_scale)
        case "emission":
            value = value.nan_to_num(0).clamp(min=0)
            return value / (1 + value)
        case _:
            return value.nan_to_num(0).clamp(0, 1)


def _from_unit(name: str, unit: Tensor, profile: EncodingProfile) -> Tensor:
    match name:
        case "albedo":
            return srgb_to_linear(unit)
        case "normal":
            return unit * 2 - 1
        case "depth":
            return profile.depth_scale / unit.clamp(min=0) - profile.depth_scale  # 0 -> +inf, the sky
        case "emission":
            return unit / (1 - unit).clamp(min=1e-6)
        case _:
            return unit

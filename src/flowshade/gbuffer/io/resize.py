"""G-buffers at another size, each channel in the way that keeps it true."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import interpolate, normalize

from flowshade.types import Camera, GBuffer

AVERAGED = ("albedo", "roughness", "metallic", "emission")


def resize(gbuffer: GBuffer, size: tuple[int, int]) -> GBuffer:
    """The same clip at another height and width in pixels.

    Materials are averaged (anti-aliased, as a renderer's are). Depth, instance, motion and normals take the nearest
    pixel, because the average of two sides of a silhouette lies on neither; motion and the camera are scaled.
    """
    height, width = size
    scale_y, scale_x = height / gbuffer.size[0], width / gbuffer.size[1]
    values = {
        name: resize_reference(value, size) if name in AVERAGED else interpolate_nearest(value, size)
        for name, value in gbuffer.channels().items()
    }
    if "motion" in values:
        values["motion"] = values["motion"] * torch.tensor([scale_x, scale_y], device=gbuffer.device)[:, None, None]
    if "normal" in values:
        values["normal"] = normalize(values["normal"], dim=1)
    return GBuffer(**values, camera=_scale_camera(gbuffer.camera, scale_x, scale_y))


def interpolate_nearest(value: Tensor, size: tuple[int, int]) -> Tensor:
    """[T, C, H, W] of any type by the pixel nearest to each new centre."""
    rows, columns = (
        ((torch.arange(new, device=value.device) + 0.5) * old / new).long().clamp(max=old - 1)
        for new, old in zip(size, value.shape[-2:], strict=True)
    )
    return value[..., rows[:, None], columns[None, :]]


def resize_reference(picture: Float[Tensor, "T C H W"], size: tuple[int, int]) -> Float[Tensor, "T C h w"]:
    """Pictures and materials, averaged."""
    return interpolate(picture, size, mode="bilinear", antialias=True)


def _scale_camera(camera: Camera | None, scale_x: float, scale_y: float) -> Camera | None:
    if camera is None:
        return None
    scale = torch.tensor([scale_x, scale_y, scale_x, scale_y], device=camera.intrinsics.device)
    return Camera(intrinsics=camera.intrinsics * scale, pose=camera.pose)

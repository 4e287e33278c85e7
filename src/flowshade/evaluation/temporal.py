"""Stability in time: warping error along motion vectors, and what changes at the borders of windows."""

from __future__ import annotations

import cv2
import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from flowshade.color import linear_to_srgb, to_bytes
from flowshade.evaluation.metrics import check_pair
from flowshade.nn.warp import inside, warp
from flowshade.types import GBuffer

DEPTH_TOLERANCE = 0.1
"""A pixel whose depth differs by more than this share from where it came from was hidden there."""
ALBEDO_TOLERANCE = 0.08
"""The same for albedo, as sRGB in [0, 1]: a surface keeps its material."""
FLOW_TOLERANCE = 1.0
"""Pixels by which flow there and back may miss its start."""


def visible_before(clip: GBuffer) -> Bool[Tensor, "T-1 1 H W"]:
    """For frames 1 to T - 1: pixels whose surface was seen in the frame before, by the clip's own motion vectors.

    Disoccluded pixels are found by buffers that a surface keeps: instance, depth (to 10 %) and albedo (to 0.08).

    Raises:
        ValueError: the clip has no motion vectors.
    """
    if clip.motion is None:
        raise ValueError("visible_before got a clip without motion vectors; use flow_visibility for such clips.")
    motion = clip.motion[1:]
    seen = inside(motion)
    if clip.instance is not None:
        before = warp(clip.instance[:-1].float(), motion, "nearest")
        seen &= before.round() == clip.instance[1:]
    if clip.depth is not None:
        depth = clip.depth.clamp(max=1e6)
        before = warp(depth[:-1], motion, "nearest")
        seen &= (before - depth[1:]).abs() <= DEPTH_TOLERANCE * depth[1:]
    if clip.albedo is not None:
        albedo = linear_to_srgb(clip.albedo)
        change = warp(albedo[:-1], motion) - albedo[1:]
        seen &= change.abs().amax(1, keepdim=True) <= ALBEDO_TOLERANCE
    return seen


def flow_visibility(
    guide: Float[Tensor, "T 3 H W"],
) -> tuple[Float[Tensor, "T-1 2 H W"], Bool[Tensor, "T-1 1 H W"]]:
    """Motion and visibility without motion vectors: OpenCV's DIS flow (Kroeger et al. 2016, arXiv 1603.03590).

    Args:
        guide: sRGB pictures whose motion is looked for: the reference or, without one, albedo. Never the output, whose
            flicker would be followed.

    Returns:
        For frames 1 to T - 1: motion as in `GBuffer.motion`, and pixels where flow there and back agrees to a pixel.
    """
    grey = to_bytes(guide.mean(1)).cpu().numpy()
    dis = cv2.DISOpticalFlow.create(cv2.DISOPTICAL_FLOW_PRESET_MEDIUM)
    back = np.stack([dis.calc(now, before, None) for before, now in zip(grey[:-1], grey[1:])])  # pyright: ignore
    forth = np.stack([dis.calc(before, now, None) for before, now in zip(grey[:-1], grey[1:])])  # pyright: ignore
    motion, onward = (torch.from_numpy(flow).movedim(-1, 1).to(guide.device) for flow in (back, forth))
    miss = (motion + warp(onward, motion)).norm(dim=1, keepdim=True)
    return motion, inside(motion) & (miss <= FLOW_TOLERANCE)


def motion_of(
    clip: GBuffer, reference: Tensor | None
) -> tuple[Float[Tensor, "T-1 2 H W"], Bool[Tensor, "T-1 1 H W"], str]:
    """Motion and visibility of a clip's frames 1 to T - 1, and where they come from: "exact" or "DIS flow"."""
    if clip.motion is not None:
        return clip.motion[1:], visible_before(clip), "exact"
    guide = reference if reference is not None else None if clip.albedo is None else linear_to_srgb(clip.albedo)
    if guide is None:
        raise ValueError("a clip without motion vectors, albedo and reference pictures has no motion that is known.")
    return *flow_visibility(guide), "DIS flow"


def warping_errors(
    pictures: Float[Tensor, "T 3 H W"], motion: Float[Tensor, "T-1 2 H W"], seen: Bool[Tensor, "T-1 1 H W"]
) -> Float[Tensor, " T-1"]:
    """Root mean square change along the motion where the surface was seen before; one number for each frame but the
    first, in steps of 8-bit sRGB [0, 255]; nan where nothing was seen before.

    Lai et al. 2018 (arXiv 1808.00449), eq. 11 and 12, as a root and with the motion the world had. Light that truly
    changes counts too: compare with the reference's own.
    """
    change = (pictures[1:] - warp(pictures[:-1], motion)).square().mean(1, keepdim=True)  # [T - 1, 1, H, W]
    count = seen.flatten(1).sum(1)
    mean = (change * seen).flatten(1).sum(1) / count
    return 255 * mean.sqrt()


def window_step_ratio(prediction: Float[Tensor, "T 3 H W"], reference: Float[Tensor, "T 3 H W"], window: int) -> float:
    """Mean absolute change of (prediction - reference) across window borders over that inside windows.

    Motion that the reference has too cancels. nan for clips of one window, and where nothing changes.
    """
    check_pair(prediction, reference)
    return border_ratio((prediction - reference).diff(dim=0).abs().flatten(1).mean(1), window)


def border_ratio(changes: Float[Tensor, " T-1"], window: int) -> float:
    """Mean of the changes from frame to frame that cross a border of windows over the mean of the others; 1 = borders
    cannot be told. Changes that are nan are left out; nan for clips of one window, and where nothing changes."""
    border = (torch.arange(1, changes.shape[0] + 1, device=changes.device) % window) == 0
    return float(changes[border].nanmean() / changes[~border].nanmean())

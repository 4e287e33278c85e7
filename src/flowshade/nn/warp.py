"""Fetching values from where motion vectors say they were."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor


def warp(
    previous: Float[Tensor, "T C H W"], motion: Float[Tensor, "T 2 H W"], mode: str = "bilinear"
) -> Float[Tensor, "T C H W"]:
    """What of the frame before lies under each pixel now, by default bilinearly; edges are repeated outwards.

    Args:
        previous: for each frame, the one before it.
        motion: pixels, x right and y down: where this pixel was minus where it is.
        mode: as in `grid_sample`.
    """
    height, width = previous.shape[-2:]
    x, y = _sources(motion)
    grid = torch.stack([(2 * x + 1) / width - 1, (2 * y + 1) / height - 1], -1)  # [T, H, W, 2]
    return F.grid_sample(previous, grid, mode=mode, padding_mode="border", align_corners=False)


def inside(motion: Float[Tensor, "T 2 H W"]) -> Bool[Tensor, "T 1 H W"]:
    """Pixels whose source lies inside the picture."""
    height, width = motion.shape[-2:]
    x, y = _sources(motion)
    return ((x >= 0) & (x <= width - 1) & (y >= 0) & (y <= height - 1))[:, None]


def _sources(motion: Float[Tensor, "T 2 H W"]) -> tuple[Float[Tensor, "T H W"], Float[Tensor, "T H W"]]:
    """Columns and rows that pixels come from."""
    height, width = motion.shape[-2:]
    x = torch.arange(width, device=motion.device) + motion[:, 0]
    y = torch.arange(height, device=motion.device)[:, None] + motion[:, 1]
    return x, y

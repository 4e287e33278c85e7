"""What cameras and codecs do to pictures, so that the inverse meets it in training.

Every function takes display sRGB [B, T, 3, H, W] in [0, 1] and returns the same; strengths are drawn for each clip and
stay the same over it. Only `mirror` touches the buffers.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from flowshade.codec.encoding import EncodingProfile
from flowshade.color import linear_to_srgb, srgb_to_linear

DCT_BLOCK = 8
"""Pixels across one block of the compression."""


@dataclass(frozen=True, kw_only=True)
class Degradation:
    """How much is done at most; shares say to how many clips."""

    stops: float = 1.0
    """Exposure, up or down, in stops."""
    white_balance: float = 0.25
    """Gain of red and blue, up or down."""
    contrast: float = 0.25
    """Exponent of the display curve, up or down."""
    noise: float = 0.04
    """Standard deviation."""
    blur: float = 1.2
    """Standard deviation of a Gaussian, pixels."""
    motion_share: float = 0.3
    """Clips whose pictures are mixed with their neighbours in time."""
    compressed_share: float = 0.5
    coarseness: float = 0.15
    """Step that the finest frequencies are rounded to."""


def degrade(rgb: Float[Tensor, "B T 3 H W"], how: Degradation) -> Float[Tensor, "B T 3 H W"]:
    """Everything, in the order in which it happens to light."""
    rgb = expose(motion_blur(rgb, how), how)
    return compress(add_noise(soften(rgb, how), how), how)


def motion_blur(rgb: Tensor, how: Degradation) -> Tensor:
    """Mixes each picture with the one before and after it, in linear light."""
    clips = rgb.shape[0]
    share = torch.rand(clips, 1, 1, 1, 1, device=rgb.device) * 0.5
    share = torch.where(torch.rand_like(share) < how.motion_share, share, 0.0)
    linear = srgb_to_linear(rgb)
    before = torch.cat([linear[:, :1], linear[:, :-1]], 1)
    after = torch.cat([linear[:, 1:], linear[:, -1:]], 1)
    return linear_to_srgb(linear + share * ((before + after) / 2 - linear))


def expose(rgb: Tensor, how: Degradation) -> Tensor:
    """Exposure and white balance in linear light, then contrast; what is too bright is clipped."""
    shape = (rgb.shape[0], 1, 3, 1, 1)
    stops = _within(rgb, (rgb.shape[0], 1, 1, 1, 1)) * how.stops
    gains = 1 + _within(rgb, shape) * how.white_balance
    gains[:, :, 1] = 1
    exponent = 1 + _within(rgb, (rgb.shape[0], 1, 1, 1, 1)) * how.contrast
    return linear_to_srgb(srgb_to_linear(rgb) * gains * 2**stops).clamp(0, 1) ** exponent


def soften(rgb: Tensor, how: Degradation) -> Tensor:
    """Half of the clips through a Gaussian of their own width."""
    clips, height, width = rgb.shape[0], *rgb.shape[-2:]
    sigma = torch.rand(clips, device=rgb.device) * how.blur * (torch.rand(clips, device=rgb.device) < 0.5)
    reach = max(1, round(2 * how.blur))
    offsets = torch.arange(-reach, reach + 1, device=rgb.device)
    weights = torch.exp(-(offsets**2) / (2 * sigma[:, None].clamp(min=1e-3) ** 2))
    weights = weights / weights.sum(1, keepdim=True)  # [B, K]
    x = rearrange(rgb, "b t c h w -> (t c) b h w")
    x = F.pad(x, (reach,) * 4, mode="replicate")
    x = F.conv2d(x, weights[:, None, None], groups=clips)
    x = F.conv2d(x, weights[:, None, :, None], groups=clips)
    return rearrange(x, "(t c) b h w -> b t c h w", c=3)[..., :height, :width]


def add_noise(rgb: Tensor, how: Degradation) -> Tensor:
    """Gaussian noise of each clip's own strength."""
    level = torch.rand(rgb.shape[0], 1, 1, 1, 1, device=rgb.device).square() * how.noise
    return (rgb + level * torch.randn_like(rgb)).clamp(0, 1)


def compress(rgb: Tensor, how: Degradation) -> Tensor:
    """Rounds the cosine transform of 8x8 blocks, high frequencies more coarsely: what JPEG and video codecs do."""
    height, width = rgb.shape[-2:]
    if height % DCT_BLOCK or width % DCT_BLOCK:
        raise ValueError(f"compress got pictures of {height}x{width}; expected multiples of {DCT_BLOCK}.")
    basis = _cosines(rgb.device)
    blocks = rearrange(rgb, "b t c (y i) (x j) -> b t c y x i j", i=DCT_BLOCK, j=DCT_BLOCK)
    frequencies = basis @ blocks @ basis.T
    order = torch.arange(DCT_BLOCK, device=rgb.device)
    coarse = how.coarseness * torch.rand(rgb.shape[0], device=rgb.device).square()
    coarse = torch.where(torch.rand_like(coarse) < how.compressed_share, coarse, 1e-4)[:, None, None]
    step = coarse * (1 + order[:, None] + order) / DCT_BLOCK + 1e-4  # [B, 8, 8]
    step = step[:, None, None, None, None]
    rounded = basis.T @ ((frequencies / step).round() * step) @ basis
    return rearrange(rounded, "b t c y x i j -> b t c (y i) (x j)").clamp(0, 1)


def mirror(
    rgb: Tensor, values: Tensor, flips: Tensor, profile: EncodingProfile
) -> tuple[Float[Tensor, "B T 3 H W"], Float[Tensor, "B T C H W"]]:
    """Mirrors the clips where `flips` [B] is true, left and right; normals turn along."""
    chosen = flips[:, None, None, None, None]
    mirrored = values.flip(-1)
    x = profile.slices["normal"].start
    mirrored = torch.cat([mirrored[:, :, :x], -mirrored[:, :, x : x + 1], mirrored[:, :, x + 1 :]], 2)
    return torch.where(chosen, rgb.flip(-1), rgb), torch.where(chosen, mirrored, values)


def _cosines(device: torch.device) -> Float[Tensor, "8 8"]:
    """The orthonormal cosine transform (DCT-II), frequencies down."""
    index = torch.arange(DCT_BLOCK, device=device)
    basis = torch.cos(torch.pi / DCT_BLOCK * (index + 0.5) * index[:, None]) * (2 / DCT_BLOCK) ** 0.5
    basis[0] /= 2**0.5
    return basis


def _within(like: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Uniform in [-1, 1]."""
    return torch.rand(shape, device=like.device) * 2 - 1

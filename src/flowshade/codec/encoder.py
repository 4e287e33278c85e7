"""Encoders to 1/8 size and one latent frame for every four pictures: for buffers, and for pictures.

Both look at the four frames of one latent and at nothing else in time, so any split of a clip into runs of four
frames gives the same result: whole-clip and streamed forms are the same function.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from flowshade.codec.encoding import EncodingProfile
from flowshade.nn.conv import PatchConv, ResidualBlock, channels_last, map_frames, patch_conv
from flowshade.types import FRAMES_PER_LATENT, Planes

STRIDE = 8
"""Pixels of a picture across one pixel of a latent."""


@dataclass(frozen=True, kw_only=True)
class BufferEncoderConfig:
    """Sizes of a `BufferEncoder`."""

    branches: tuple[int, ...] = (12, 16, 12, 8, 8, 8, 16)
    """Channels of each buffer's branch, in the profile's order."""
    width: int = 96
    """Channels of a frame's features at 1/8."""
    channels: int = 96
    """Channels of the result."""


class BufferEncoder(nn.Module):
    """Planes to conditioning features: one branch a buffer, a learned null where a buffer is missing."""

    buffer_of_channel: Tensor

    def __init__(self, config: BufferEncoderConfig, profile: EncodingProfile) -> None:
        super().__init__()
        if len(config.branches) != len(profile.buffers):
            raise ValueError(
                f"BufferEncoder got {len(config.branches)} branches for the {len(profile.buffers)} buffers "
                f"of profile {profile.name!r}; give one branch a buffer."
            )
        self.config = config
        self.profile = profile
        joined = sum(config.branches)
        self.branches = nn.ModuleList(
            PatchConv(planes, width, 4) for (_, planes), width in zip(profile.buffers, config.branches)
        )
        self.nulls = nn.ParameterList(nn.Parameter(0.02 * torch.randn(width)) for width in config.branches)
        owners = [index for index, width in enumerate(config.branches) for _ in range(width)]
        self.register_buffer("buffer_of_channel", torch.tensor(owners), persistent=False)
        self.mix = nn.Conv2d(joined, joined, 3, padding=1, groups=joined)
        self.reduce = nn.Conv2d(joined, config.width, 3, stride=2, padding=1)
        self.merge = nn.Conv2d(FRAMES_PER_LATENT * config.width, config.width, 1)
        self.out = nn.Conv2d(config.width, config.channels, 3, padding=1)

    def forward(self, planes: Planes) -> Float[Tensor, "B C L h w"]:
        """Encodes whole latent frames.

        Args:
            planes: [B, 4 L, planes, H, W] with H and W multiples of 8.

        Returns:
            Features [B, channels, L, H / 8, W / 8].
        """
        values = planes.values
        check_clip(values)
        batch, frames = values.shape[:2]
        present = planes.present[:, None].expand(-1, frames, -1).flatten(0, 1)  # [B T, buffers]
        frame = partial(self._frame, self._joined_branches())
        features = map_frames(frame, values.flatten(0, 1), present)  # [B T, width, h, w]
        grouped = rearrange(features, "(n t) c h w -> n (t c) h w", t=FRAMES_PER_LATENT)
        merged = map_frames(self._latent, channels_last(grouped))
        return rearrange(merged, "(b l) c h w -> b c l h w", b=batch)

    def _joined_branches(self) -> tuple[Tensor, Tensor, Tensor]:
        """All branches as one layer, block by block: its weight, its bias, and the nulls."""
        branches = [branch for branch in self.branches if isinstance(branch, PatchConv)]
        weight = torch.block_diag(*(branch.weight.flatten(1) for branch in branches))
        bias = torch.cat([branch.bias for branch in branches if branch.bias is not None])
        return weight.unflatten(1, (self.profile.planes, 4, 4)), bias, torch.cat(list(self.nulls))

    def _frame(self, branches: tuple[Tensor, Tensor, Tensor], values: Tensor, present: Tensor) -> Tensor:
        weight, bias, nulls = branches
        values = channels_last(values) if values.device.type == "cpu" else values
        features = patch_conv(values, weight, bias)  # [N, branches, H/4, W/4]
        keep = present[:, self.buffer_of_channel][:, :, None, None]
        features = channels_last(torch.where(keep, features, nulls[:, None, None].to(features.dtype)))
        return F.silu(self.reduce(F.silu(self.mix(F.silu(features)))))

    def _latent(self, grouped: Tensor) -> Tensor:
        return self.out(F.silu(self.merge(grouped)))


@dataclass(frozen=True, kw_only=True)
class PictureEncoderConfig:
    """Sizes of a `PictureEncoder`."""

    width: int = 128
    """Channels at 1/4; twice as many at 1/8."""
    blocks: int = 2
    """Residual blocks at 1/8, after the four frames are merged."""
    latent_channels: int = 32


class PictureEncoder(nn.Module):
    """Pictures to latents, to make training targets; a renderer's own latents are the history, so it never ships.

    It sees the buffers too, so that latents need not carry what the buffers already tell.
    """

    def __init__(self, config: PictureEncoderConfig, profile: EncodingProfile) -> None:
        super().__init__()
        self.config = config
        width = config.width
        self.enter = PatchConv(3 + profile.planes, width, 4)
        self.mix = ResidualBlock(width)
        self.reduce = nn.Conv2d(width, 2 * width, 3, stride=2, padding=1)
        self.merge = nn.Conv2d(FRAMES_PER_LATENT * 2 * width, 2 * width, 1)
        self.blocks = nn.Sequential(*(ResidualBlock(2 * width) for _ in range(config.blocks)))
        self.out = nn.Conv2d(2 * width, config.latent_channels, 1)

    def forward(self, rgb: Float[Tensor, "B T 3 H W"], planes: Planes) -> Float[Tensor, "B C L h w"]:
        """Encodes display sRGB pictures in [0, 1] with their buffers.

        Returns:
            Latents [B, latent_channels, T / 4, H / 8, W / 8], not normalised (`GuidedDecoder.normalise` does that).
        """
        check_clip(rgb)
        if rgb.shape[:2] != planes.values.shape[:2] or rgb.shape[3:] != planes.values.shape[3:]:
            raise ValueError(
                f"PictureEncoder got pictures {tuple(rgb.shape)} and planes {tuple(planes.values.shape)}; "
                "expected the same clips, frames and size."
            )
        x = torch.cat([rgb * 2 - 1, planes.values], 2).flatten(0, 1)  # [B T, 3 + planes, H, W]
        x = self.mix(self.enter(x))
        x = F.silu(self.reduce(F.silu(x)))
        x = rearrange(x, "(n t) c h w -> n (t c) h w", t=FRAMES_PER_LATENT)
        x = self.out(F.silu(self.blocks(self.merge(x))))
        return rearrange(x, "(b l) c h w -> b c l h w", b=rgb.shape[0])


def check_clip(clip: Float[Tensor, "B T C H W"]) -> None:
    """Raises ValueError unless a clip holds whole latent frames and its size is a multiple of 8."""
    frames, (height, width) = clip.shape[1], clip.shape[-2:]
    if frames == 0 or frames % FRAMES_PER_LATENT or height % STRIDE or width % STRIDE:
        raise ValueError(
            f"got {frames} frames of {height}x{width}; expected frames in multiples of {FRAMES_PER_LATENT} and sizes "
            f"in multiples of {STRIDE}. Pad the clip first (`Renderer.push` and `Renderer.render` do)."
        )

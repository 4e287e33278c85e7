"""The guided decoder: latents say how light falls, buffers say where the edges and textures are."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from flowshade.codec.encoder import STRIDE, check_clip
from flowshade.codec.encoding import EncodingProfile
from flowshade.nn.conv import PatchConv, ResidualBlock, channels_last, map_frames
from flowshade.nn.fields import ADDED_LATER
from flowshade.nn.propagation import DIRECTIONS, bounded, propagate
from flowshade.types import FRAMES_PER_LATENT, Planes


@dataclass(frozen=True, kw_only=True)
class DecoderConfig:
    """Sizes of a `GuidedDecoder`."""

    latent_channels: int = 32
    width: int = 128
    """Channels at 1/8, where two latents become features of four frames."""
    carry: int = 48
    """Channels a frame's features bring up to 1/4."""
    quarter: int = 64
    """Channels at 1/4."""
    carry_half: int = 24
    """Channels they bring up to 1/2."""
    half: int = 32
    """Channels at 1/2."""
    guide_quarter: int = 32
    """Channels of the buffers at 1/4."""
    guide_half: int = 16
    """Channels of the buffers at 1/2."""
    refined: bool = field(default=False, metadata=ADDED_LATER)
    """With what keeps light on its side of an edge (`Spread`) and shows emission at full size (`Glow`). Added to
    trained weights, both begin as nothing."""


@dataclass(frozen=True, kw_only=True)
class DecoderState:
    """What a stream's decoder remembers: the latent frame before."""

    previous: Float[Tensor, "B C 1 h w"]


class GuidedDecoder(nn.Module):
    """Latents and buffers to pictures, `rgb = albedo_srgb * E + S` with E > 0 and S predicted at full size.

    Refined, `rgb = albedo_srgb * E + emission * G + S`.
    A latent frame is decoded together with the one before it, the stream's first with itself. Carries the
    statistics that bring latents to zero mean and unit variance.
    """

    latent_mean: Tensor
    latent_std: Tensor
    buffer_of_plane: Tensor

    def __init__(self, config: DecoderConfig, profile: EncodingProfile) -> None:
        super().__init__()
        self.config = config
        self.profile = profile
        self._albedo = profile.slices["albedo"]
        self._emission = profile.slices["emission"]
        channels = config.latent_channels
        self.register_buffer("latent_mean", torch.zeros(channels))
        self.register_buffer("latent_std", torch.ones(channels))
        owners = [index for index, (_, planes) in enumerate(profile.buffers) for _ in range(planes)]
        self.register_buffer("buffer_of_plane", torch.tensor(owners), persistent=False)
        self.null_planes = nn.Parameter(torch.zeros(profile.planes))
        self.latent_in = nn.Conv2d(2 * channels, config.width, 3, padding=1)
        self.latent_block = ResidualBlock(config.width)
        self.latent_out = nn.Conv2d(config.width, FRAMES_PER_LATENT * 4 * config.carry, 1)
        self.guide_quarter = PatchConv(profile.planes, config.guide_quarter, 4)
        self.quarter_in = nn.Conv2d(config.carry + config.guide_quarter, config.quarter, 3, padding=1)
        self.quarter_mix = nn.Conv2d(config.quarter, config.quarter, 3, padding=1)
        self.quarter_out = nn.Conv2d(config.quarter, 4 * config.carry_half, 1)
        self.guide_half = PatchConv(profile.planes, config.guide_half, 2)
        self.half_in = nn.Conv2d(config.carry_half + config.guide_half, config.half, 3, padding=1)
        self.half_out = nn.Conv2d(config.half, 4 * 6, 3, padding=1)
        self.spread = Spread(config.quarter) if config.refined else None
        self.glow = Glow(config.half) if config.refined else None
        self._start_neutral()

    def _start_neutral(self) -> None:
        """Starts near E = 1 and S = 0, so that the first pictures are the albedo."""
        bias = torch.zeros(4 * 6)
        bias[: 4 * 3] = math.log(math.e - 1)  # softplus(this) = 1
        with torch.no_grad():
            self.half_out.weight.mul_(0.1)
        self.half_out.bias = nn.Parameter(bias)

    def set_statistics(self, mean: Float[Tensor, "C"], std: Float[Tensor, "C"]) -> None:
        """Sets what `normalise` subtracts and divides by, one value a latent channel."""
        self.latent_mean.copy_(mean)
        self.latent_std.copy_(std)

    def normalise(self, raw: Float[Tensor, "B C L h w"]) -> Float[Tensor, "B C L h w"]:
        """A picture encoder's latents to zero mean and unit variance: what everything else calls latents."""
        return (raw - _per_channel(self.latent_mean)) / _per_channel(self.latent_std)

    def forward(self, latents: Float[Tensor, "B C L h w"], planes: Planes) -> Float[Tensor, "B T 3 H W"]:
        """Decodes the whole of a stream.

        Args:
            latents: normalised latents.
            planes: [B, 4 L, planes, 8 h, 8 w].

        Returns:
            Display sRGB [B, 4 L, 3, 8 h, 8 w], not clamped.
        """
        return self.step(latents, planes, None)[0]

    def step(
        self, latents: Float[Tensor, "B C L h w"], planes: Planes, state: DecoderState | None
    ) -> tuple[Float[Tensor, "B T 3 H W"], DecoderState]:
        """Decodes the next latent frames of a stream; `state` is None at its start."""
        batch, _, count, height, width = latents.shape
        check_clip(planes.values)
        expected = (batch, FRAMES_PER_LATENT * count, self.profile.planes, STRIDE * height, STRIDE * width)
        if tuple(planes.values.shape) != expected:
            raise ValueError(
                f"GuidedDecoder got planes {tuple(planes.values.shape)} for latents {tuple(latents.shape)}; "
                f"expected {expected}."
            )
        first = latents[:, :, :1] if state is None else state.previous
        before = torch.cat([first, latents[:, :, :-1]], 2)
        features = self._light(latents, before)  # [B T, carry, H/4, W/4]
        present = planes.present[:, None].expand(-1, FRAMES_PER_LATENT * count, -1).flatten(0, 1)  # [B T, buffers]
        rgb = map_frames(self._picture, features, planes.values.flatten(0, 1), present)
        return rearrange(rgb, "(b t) c h w -> b t c h w", b=batch), DecoderState(previous=latents[:, :, -1:])

    def _light(self, latents: Tensor, before: Tensor) -> Tensor:
        mean, std = _per_channel(self.latent_mean), _per_channel(self.latent_std)
        pairs = torch.cat([latents * std + mean, before * std + mean], 1)
        pairs = rearrange(pairs, "b c l h w -> (b l) c h w")
        features = map_frames(self._frames_of_latent, channels_last(pairs))  # [B L, 4 carry, H/4, W/4]
        return rearrange(features, "n (t c) h w -> (n t) c h w", t=FRAMES_PER_LATENT)

    def _frames_of_latent(self, pairs: Tensor) -> Tensor:
        x = self.latent_out(F.silu(self.latent_block(self.latent_in(pairs))))
        return F.pixel_shuffle(x, 2)  # [N, 4 carry, H/4, W/4]

    def _guide(self, values: Tensor, present: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Buffers at 1/4 and at 1/2, and at full size; a learned constant stands in every plane that is missing.

        Convolutions are linear, so that a constant's share is one vector a frame: no gradient goes back to full size.
        """
        missing = ~present[:, self.buffer_of_plane]  # [N, planes]
        null = missing * self.null_planes
        values = torch.where(missing[:, :, None, None], 0, values)
        if values.device.type == "cpu":
            values = channels_last(values)

        def at(patches: PatchConv) -> Tensor:
            share = null @ patches.weight.sum((2, 3)).t()  # [N, channels]
            features = patches(values)
            return features + share[:, :, None, None].to(features.dtype)

        def unit(planes: slice) -> Tensor:
            full = values[:, planes].float() + null[:, planes, None, None].float()
            return (full + 1) / 2

        emission = None if self.glow is None else unit(self._emission)
        return at(self.guide_quarter), at(self.guide_half), unit(self._albedo), emission

    def _picture(self, features: Tensor, values: Tensor, present: Tensor) -> Tensor:
        """Frames' features and planes to display sRGB."""
        quarter, half, albedo, emission = self._guide(values, present)
        x = channels_last(torch.cat([features, quarter], 1))
        x = F.silu(self.quarter_in(x))
        x = x + F.silu(self.quarter_mix(x))
        x = x if self.spread is None else self.spread(x)
        x = F.pixel_shuffle(self.quarter_out(x), 2)
        x = channels_last(torch.cat([x, half], 1))
        x = F.silu(self.half_in(F.silu(x)))
        light, addition = F.pixel_shuffle(self.half_out(x), 2).contiguous().float().chunk(2, 1)  # [N, 3, H, W] each
        rgb = albedo * F.softplus(light) + addition
        return rgb if self.glow is None else rgb + emission * self.glow(x)


class Spread(nn.Module):
    """Mixes features at 1/4 with their neighbours' by learned affinities, which begin as nothing.

    Latents are too coarse to say on which side of an edge light falls; buffers say where edges are.
    """

    begins_as_nothing = True
    REACHES = (4, 2)
    """Pixels between a pixel and the eight neighbours it is mixed with, a round each."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.affinity = nn.Conv2d(channels, len(self.REACHES) * len(DIRECTIONS), 1)
        for parameter in self.parameters():
            nn.init.zeros_(parameter)

    def forward(self, x: Float[Tensor, "N C h w"]) -> Float[Tensor, "N C h w"]:
        affinities = self.affinity(x).chunk(len(self.REACHES), 1)  # [N, directions, h, w] each
        for affinity, reach in zip(affinities, self.REACHES, strict=True):
            x = propagate(x, bounded(affinity), reach)
        return x


class Glow(nn.Module):
    """How strongly emission shows at full size, by colour; begins as nothing.

    Args:
        channels: of the features at 1/2.
    """

    begins_as_nothing = True

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.gain = nn.Conv2d(channels, 4 * 3, 1)
        for parameter in self.parameters():
            nn.init.zeros_(parameter)

    def forward(self, x: Float[Tensor, "N C h w"]) -> Float[Tensor, "N 3 2*h 2*w"]:
        return F.pixel_shuffle(self.gain(x), 2).float()


def _per_channel(values: Tensor) -> Tensor:
    return values[:, None, None, None]

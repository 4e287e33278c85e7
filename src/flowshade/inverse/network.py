"""The compact inverse: pictures in, five G-buffers out, each with the error it expects to have made.

Encode, remember, decode. Encoder and decoder look at one picture at a time; time enters in two places only, both of
constant size: attention at 1/16 sees the tokens of the last few pictures, and a gated recurrent unit at 1/8
(ConvGRU, Ballas et al. 2016, arXiv 1511.06432) carries what it keeps for as long as the stream lasts. A clip at once
and a stream of any runs are the same function.

Legend for shapes: B clips, T pictures, N tokens of a picture, D width, M remembered pictures.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor, nn

from flowshade.nn.attention import Attention, FeedForward, KeysValues
from flowshade.nn.conv import PatchConv, ResidualBlock
from flowshade.nn.fields import ADDED_LATER
from flowshade.nn.propagation import DIRECTIONS, bounded, propagate
from flowshade.nn.rope import Rotation, rotation
from flowshade.types import CHANNELS, CORE_CHANNELS

STRIDE = 16
"""Pixels across one token; pictures are multiples of it."""


@dataclass(frozen=True, kw_only=True)
class InverseConfig:
    """Sizes of an `InverseNetwork`; the defaults are those of the model that ships."""

    name: str = "compact-inverse"
    half: int = 24
    """Channels at 1/2."""
    quarter: int = 56
    """Channels at 1/4."""
    eighth: int = 112
    """Channels at 1/8."""
    kept: int = 64
    """Channels of the recurrent state at 1/8."""
    heads: int = 4
    head_dim: int = 40
    rope_dims: tuple[int, int, int] = (8, 16, 16)
    """Channels of a head that turn with time, height and width."""
    rope_theta: float = 100.0
    layers: int = 4
    ffn_dim: int = 480
    remembered: int = 4
    """Pictures of the past that attention sees."""
    refined: bool = field(default=False, metadata=ADDED_LATER)
    """Smooths what is enlarged and sharpens what is estimated along the picture's own edges (`Smoothing`,
    `Propagation`). Added to trained weights, both begin as nothing."""

    @property
    def width(self) -> int:
        return self.heads * self.head_dim


@dataclass(frozen=True, kw_only=True)
class InverseState:
    """What a stream remembers."""

    layers: tuple[KeysValues, ...]
    """For each layer, keys (not yet turned) and values of up to `remembered` pictures, [B, heads, M N, head_dim]."""
    kept: Float[Tensor, "B K h w"]
    """The recurrent state at 1/8."""

    def detached(self) -> InverseState:
        """The same without gradients."""
        layers = tuple(KeysValues(layer.keys.detach(), layer.values.detach()) for layer in self.layers)
        return InverseState(layers=layers, kept=self.kept.detach())


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """What the network says of a run of pictures. Values are meaningless where `sky` is positive."""

    albedo: Float[Tensor, "B T 3 H W"]
    """Display sRGB, [0, 1]."""
    normal: Float[Tensor, "B T 3 H W"]
    """Unit vectors in camera space, OpenGL axes."""
    depth: Float[Tensor, "B T 1 H W"]
    """Natural logarithm of planar depth, up to one constant a clip."""
    roughness: Float[Tensor, "B T 1 H W"]
    metallic: Float[Tensor, "B T 1 H W"]
    error: Float[Tensor, "B T 5 H W"]
    """Natural logarithm of the mean absolute error expected of each of `CORE_CHANNELS`, in the units above."""
    sky: Float[Tensor, "B T 1 H W"]
    """Logit of there being nothing but sky."""


class InverseNetwork(nn.Module):
    """Pictures to buffers."""

    def __init__(self, config: InverseConfig) -> None:
        super().__init__()
        if sum(config.rope_dims) != config.head_dim or any(dim % 2 for dim in config.rope_dims):
            raise ValueError(f"got rope_dims {config.rope_dims}; expected even numbers that sum to {config.head_dim}.")
        self.config = config
        self.encoder = _Encoder(config)
        self.focal = nn.Linear(2, config.width)
        self.blocks = nn.ModuleList(_Block(config) for _ in range(config.layers))
        self.tokens_smooth = _smoothing(config, config.width)
        self.merge = nn.Conv2d(config.width + config.eighth, config.eighth, 3, padding=1)
        self.gru = ConvGRU(config.eighth, config.kept)
        self.decoder = _Decoder(config)

    def forward(
        self,
        rgb: Float[Tensor, "B T 3 H W"],
        focal: Float[Tensor, " B"] | None = None,
        state: InverseState | None = None,
    ) -> tuple[Estimate, InverseState]:
        """Estimates the buffers of the next pictures of a batch of streams.

        Args:
            rgb: display sRGB, [0, 1]; H and W multiples of 16.
            focal: horizontal focal length over the picture's width; 0 or None = unknown.
            state: what the call before returned; None at the start.
        """
        batch, frames = _check(rgb)
        features = self.encoder(rgb.flatten(0, 1))
        tokens, layers = self._attend(features.tokens, frames, focal, state)
        enlarged = self.tokens_smooth(_up(tokens))
        eighth = F.silu(self.merge(torch.cat([enlarged, features.eighth], 1)))  # [B T, C, H/8, W/8]
        kept = self.gru(eighth.unflatten(0, (batch, frames)), None if state is None else state.kept)
        values = self.decoder(features, eighth, kept.flatten(0, 1), rgb.flatten(0, 1))
        estimate = _estimate(values.float().unflatten(0, (batch, frames)), rgb)
        return estimate, InverseState(layers=layers, kept=kept[:, -1])

    def _attend(
        self, features: Tensor, frames: int, focal: Tensor | None, state: InverseState | None
    ) -> tuple[Tensor, tuple[KeysValues, ...]]:
        """All layers of attention over the pictures of a run and those remembered before it."""
        height, width = features.shape[-2:]
        x = rearrange(features, "(b t) d h w -> b (t h w) d", t=frames)
        x = x + self._embed_focal(focal, x)
        count = 0 if state is None else state.layers[0].keys.shape[2] // (height * width)
        times = torch.arange(-count, frames, device=x.device)
        turn = rotation(times, (height, width), self.config.rope_dims, self.config.rope_theta)
        mask = _seen(count, frames, self.config.remembered, height * width, x.device)
        remembered = []
        for layer, block in enumerate(self.blocks):
            past = None if state is None else state.layers[layer]
            x, context = block(x, turn, past, mask)
            newest = min(count + frames, self.config.remembered) * height * width
            remembered.append(KeysValues(context.keys[:, :, -newest:], context.values[:, :, -newest:]))
        return rearrange(x, "b (t h w) d -> (b t) d h w", t=frames, h=height), tuple(remembered)

    def _embed_focal(self, focal: Tensor | None, like: Tensor) -> Float[Tensor, "B 1 D"]:
        if focal is None:
            focal = like.new_zeros(like.shape[0])
        known = focal > 0
        value = torch.where(known, focal, 1.0).log()
        return self.focal(torch.stack([value, torch.ones_like(value)], -1) * known[:, None])[:, None].to(like.dtype)


@dataclass(frozen=True)
class _Features:
    half: Tensor
    quarter: Tensor
    eighth: Tensor
    tokens: Tensor


class _Encoder(nn.Module):
    """Pictures [N, 3, H, W] to features at 1/2, 1/4, 1/8 and 1/16."""

    def __init__(self, config: InverseConfig) -> None:
        super().__init__()
        self.enter = PatchConv(3, config.half, 2)
        self.quarter = nn.Conv2d(config.half, config.quarter, 3, stride=2, padding=1)
        self.quarter_block = ResidualBlock(config.quarter)
        self.eighth = nn.Conv2d(config.quarter, config.eighth, 3, stride=2, padding=1)
        self.eighth_block = ResidualBlock(config.eighth)
        self.tokens = nn.Conv2d(config.eighth, config.width, 3, stride=2, padding=1)

    def forward(self, rgb: Tensor) -> _Features:
        half = self.enter(rgb * 2 - 1)
        quarter = self.quarter_block(self.quarter(F.silu(half)))
        eighth = self.eighth_block(self.eighth(F.silu(quarter)))
        return _Features(half, quarter, eighth, self.tokens(F.silu(eighth)))


class _Block(nn.Module):
    """Attention over this picture and the last few, then feed-forward."""

    def __init__(self, config: InverseConfig) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(config.width)
        self.attn = Attention(config.width, config.heads, config.head_dim)
        self.norm2 = nn.LayerNorm(config.width)
        self.ffn = FeedForward(config.width, config.ffn_dim, exact=True)

    def forward(
        self, x: Float[Tensor, "B TN D"], turn: Rotation, past: KeysValues | None, mask: Tensor | None
    ) -> tuple[Float[Tensor, "B TN D"], KeysValues]:
        """`turn` covers the past too. Also returns keys and values of past and present, the keys not turned."""
        normed = self.norm1(x)
        context = self.attn.keys_values(normed)
        if past is not None:
            context = KeysValues.cat([past, context])
        present = Rotation(turn.cos[-x.shape[1] :], turn.sin[-x.shape[1] :])
        turned = KeysValues(turn.apply(context.keys.transpose(1, 2)).transpose(1, 2), context.values)
        x = x + self.attn.attend(self.attn.queries(normed, present), turned, mask)
        return x + self.ffn(self.norm2(x)), context


class ConvGRU(nn.Module):
    """A gated recurrent unit over feature maps; returns its state after every picture."""

    def __init__(self, channels: int, kept: int) -> None:
        super().__init__()
        self.gates = nn.Conv2d(channels + kept, 2 * kept, 3, padding=1)
        self.candidate = nn.Conv2d(channels + kept, kept, 3, padding=1)

    def forward(
        self, x: Float[Tensor, "B T C h w"], kept: Float[Tensor, "B K h w"] | None
    ) -> Float[Tensor, "B T K h w"]:
        if kept is None:
            kept = x.new_zeros(x.shape[0], self.candidate.out_channels, *x.shape[3:])
        states = []
        for frame in x.unbind(1):
            update, reset = torch.sigmoid(self.gates(torch.cat([frame, kept.to(frame.dtype)], 1))).chunk(2, 1)
            candidate = torch.tanh(self.candidate(torch.cat([frame, (reset * kept).to(frame.dtype)], 1)))
            kept = kept + update * (candidate - kept)
            states.append(kept)
        return torch.stack(states, 1)


VALUES = sum(CHANNELS[name] for name in CORE_CHANNELS) + len(CORE_CHANNELS) + 1
"""Planes that the decoder writes: the channels, their expected errors, and the sky."""


class _Decoder(nn.Module):
    """Features of one picture at a time to `VALUES` planes at full size."""

    def __init__(self, config: InverseConfig) -> None:
        super().__init__()
        self.eighth_in = nn.Conv2d(config.eighth + config.kept, config.eighth, 3, padding=1)
        self.eighth_block = ResidualBlock(config.eighth)
        self.quarter_up = nn.Conv2d(config.eighth, 4 * config.quarter, 1)
        self.quarter_smooth = _smoothing(config, config.quarter)
        self.quarter_in = nn.Conv2d(2 * config.quarter, config.quarter, 3, padding=1)
        self.quarter_block = ResidualBlock(config.quarter)
        self.half_up = nn.Conv2d(config.quarter, 4 * config.half, 1)
        self.half_smooth = _smoothing(config, config.half)
        self.guide = PatchConv(3, config.half, 2)
        self.half_in = nn.Conv2d(3 * config.half, 2 * config.half, 3, padding=1)
        self.out = nn.Conv2d(2 * config.half, 4 * VALUES, 3, padding=1)
        self.propagation = Propagation(2 * config.half) if config.refined else None
        with torch.no_grad():
            self.out.weight.mul_(0.1)

    def forward(self, features: _Features, eighth: Tensor, kept: Tensor, rgb: Tensor) -> Tensor:
        x = self.eighth_block(eighth + F.silu(self.eighth_in(torch.cat([eighth, kept.to(eighth.dtype)], 1))))
        x = self.quarter_smooth(F.pixel_shuffle(self.quarter_up(F.silu(x)), 2))
        x = self.quarter_block(F.silu(self.quarter_in(torch.cat([x, features.quarter], 1))))
        x = self.half_smooth(F.pixel_shuffle(self.half_up(F.silu(x)), 2))
        x = F.silu(self.half_in(torch.cat([x, features.half, self.guide(rgb * 2 - 1)], 1)))
        values = F.pixel_shuffle(self.out(x), 2)
        return values if self.propagation is None else self.propagation(values, x)


class Smoothing(nn.Conv2d):
    """x and a filter of each of its channels, 3x3, that begins as nothing.

    Enlarging by nearest neighbours or by pixel-shuffle gives neighbours different weights, which shows as a grid (Odena
    et al. 2016, "Deconvolution and checkerboard artifacts"); such a filter can take it away.
    """

    begins_as_nothing = True

    def __init__(self, channels: int) -> None:
        super().__init__(channels, channels, 3, groups=channels, bias=False)
        nn.init.zeros_(self.weight)

    def forward(self, input: Float[Tensor, "N C h w"]) -> Float[Tensor, "N C h w"]:
        return input + super().forward(F.pad(input, (1, 1, 1, 1), mode="replicate"))


def _smoothing(config: InverseConfig, channels: int) -> nn.Module:
    return Smoothing(channels) if config.refined else nn.Identity()


SPREAD = (*range(3, 9), VALUES - 1)
"""Planes of the decoder that are mixed along edges: normal, depth, roughness, metallic, sky. Albedo has the
picture's own edges already."""
REACHES = (3, 1)
"""Pixels between a pixel and the eight neighbours it is mixed with, a round each."""


class Propagation(nn.Module):
    """Mixes each pixel's values with its neighbours' by learned affinities, which begin as nothing.

    As `flowshade.nn.propagation.propagate`. One set serves all planes of `SPREAD`: edges of geometry and materials
    coincide.

    Args:
        channels: of the decoder's features at 1/2, which have seen the picture.
    """

    begins_as_nothing = True

    def __init__(self, channels: int, hidden: int = 24) -> None:
        super().__init__()
        self.hidden = nn.Conv2d(channels, hidden, 3, padding=1)
        self.affinity = nn.Conv2d(hidden, 4 * len(REACHES) * len(DIRECTIONS), 1)
        for parameter in self.affinity.parameters():
            nn.init.zeros_(parameter)

    def forward(self, values: Float[Tensor, "N V H W"], x: Float[Tensor, "N C H/2 W/2"]) -> Float[Tensor, "N V H W"]:
        # Planes apart from here on: neighbours in a plane are fetched fastest from memory.
        raw = F.pixel_shuffle(self.affinity(F.silu(self.hidden(x))), 2).float().contiguous()
        values = values.float().contiguous()
        before, spread, error, sky = values.split([SPREAD[0], len(SPREAD) - 1, len(CORE_CHANNELS), 1], 1)
        spread = torch.cat([spread, sky], 1)  # [N, 7, H, W]
        for reach, part in zip(REACHES, raw.chunk(len(REACHES), 1), strict=True):
            spread = propagate(spread, bounded(part), reach)
        return torch.cat([before, spread[:, :-1], error, spread[:, -1:]], 1)


def _estimate(values: Float[Tensor, "B T V H W"], rgb: Float[Tensor, "B T 3 H W"]) -> Estimate:
    """Albedo starts from the picture itself, depth from ten metres, normals from facing the viewer."""
    sizes = [CHANNELS[name] for name in CORE_CHANNELS]
    albedo, normal, depth, roughness, metallic, error, sky = values.split([*sizes, len(sizes), 1], 2)
    towards_viewer = normal.new_tensor([0.0, 0.0, 1.0])[:, None, None]
    return Estimate(
        albedo=torch.sigmoid(torch.logit(rgb.float().clamp(0.02, 0.98)) + albedo),
        normal=F.normalize(normal + towards_viewer, dim=2),
        depth=depth + torch.log(depth.new_tensor(10.0)),
        roughness=torch.sigmoid(roughness),
        metallic=torch.sigmoid(metallic - 2),
        error=error - 2,
        sky=sky,
    )


def _up(x: Tensor) -> Tensor:
    return F.interpolate(x, scale_factor=2.0, mode="nearest")


def _seen(past: int, frames: int, remembered: int, tokens: int, device: torch.device) -> Bool[Tensor, "Q S"] | None:
    """Which tokens a picture's tokens look at: its own and those of the `remembered` pictures before; None = all."""
    if frames == 1 and past <= remembered:
        return None
    keys = torch.arange(-past, frames, device=device)
    back = torch.arange(frames, device=device)[:, None] - keys  # [T, M + T]
    seen = (back >= 0) & (back <= remembered)
    return seen.repeat_interleave(tokens, 0).repeat_interleave(tokens, 1)


def _check(rgb: Tensor) -> tuple[int, int]:
    height, width = rgb.shape[-2:]
    if rgb.ndim != 5 or rgb.shape[2] != 3 or rgb.shape[1] == 0 or height % STRIDE or width % STRIDE:
        raise ValueError(
            f"InverseNetwork got pictures {tuple(rgb.shape)}; expected [B, T, 3, H, W] with at least one picture and "
            f"sizes in multiples of {STRIDE}. Pad them first (`Inverse.push` does)."
        )
    return rgb.shape[0], rgb.shape[1]

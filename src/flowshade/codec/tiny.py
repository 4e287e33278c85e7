"""Small stateful codecs around Wan's latents: a decoder shaped like TAEW2.1, and a grouped encoder for five buffers.

Both look one frame back in every block and carry that frame in a state, so any split of a clip into runs of whole
latents gives what the whole gives. The decoder's shape is TAEHV's (github.com/madebyollin/taehv) as its released files
have it. How upstream's own encoder is laid out inside is not published; ours is of its published size and kind.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from flowshade.codec.wan_vae import ConvState
from flowshade.nn.tuning import Tuner
from flowshade.types import FRAMES_PER_LATENT


@dataclass(frozen=True, kw_only=True)
class TinyDecoderConfig:
    """Sizes of a `TinyDecoder`; the defaults are TAEW2.1's."""

    latent_channels: int = 16
    widths: tuple[int, ...] = (256, 128, 64, 64)
    """Channels at each size, the smallest picture first; every step doubles height and width."""
    grow: tuple[int, ...] = (1, 2, 2)
    """Frames that each step makes of one; their product is `FRAMES_PER_LATENT`."""
    blocks: int = 3
    """Memory blocks before each step."""


class TinyDecoder(nn.Module):
    """Normalised Wan latents to pictures, four frames each (a clip's first latent too, unlike Wan's own VAE)."""

    def __init__(self, config: TinyDecoderConfig = TinyDecoderConfig()) -> None:
        super().__init__()
        self.config = config
        self.conv_in = _conv(config.latent_channels, config.widths[0])
        self.stages = nn.ModuleList(
            _UpStage(width, out, grow, config.blocks)
            for width, out, grow in zip(config.widths[:-1], config.widths[1:], config.grow)
        )
        self.conv_out = _conv(config.widths[-1], 3)

    @property
    def dtype(self) -> torch.dtype:
        return self.conv_in.weight.dtype

    def forward(self, latents: Float[Tensor, "B C L h w"]) -> Float[Tensor, "B T 3 H W"]:
        """A whole clip: display sRGB, not clamped."""
        return self.step(latents, {})

    def step(self, latents: Float[Tensor, "B C L h w"], state: ConvState) -> Float[Tensor, "B T 3 H W"]:
        """The next latents of a stream; `state` is changed, empty at the start."""
        batch = latents.shape[0]
        x = rearrange(latents.to(self.dtype), "b c l h w -> (b l) c h w")
        x = F.relu(self.conv_in(3 * torch.tanh(x / 3)))  # bounds stray latents
        for stage in self.stages:
            x = stage(x, batch, state)
        return rearrange(self.conv_out(F.relu(x)), "(b t) c h w -> b t c h w", b=batch)


class MemoryBlock(nn.Module):
    """relu(x + convolutions of this frame and the one before), in groups that do not see each other."""

    def __init__(self, width: int, groups: int = 1) -> None:
        super().__init__()
        self.groups = groups
        self.conv = nn.Sequential(
            _conv(2 * width, width, groups=groups),
            nn.ReLU(),
            _conv(width, width, groups=groups),
            nn.ReLU(),
            _conv(width, width, groups=groups),
        )

    def forward(self, x: Float[Tensor, "N C h w"], batch: int, state: ConvState) -> Float[Tensor, "N C h w"]:
        """The next frames of `batch` streams, [(batch frames), C, h, w]; `state` is changed."""
        streams = x.chunk(batch)  # [T, C, h, w] each; four axes keep the order in memory that convolutions like
        before = state[self].split(1) if self in state else [torch.zeros_like(x[:1])] * batch
        state[self] = torch.cat([frames[-1:] for frames in streams])
        past = torch.cat([part for first, frames in zip(before, streams) for part in (first, frames[:-1])])
        pairs = zip(x.chunk(self.groups, 1), past.chunk(self.groups, 1))
        return F.relu(x + self.conv(torch.cat([part for pair in pairs for part in pair], 1)))


class _UpStage(nn.Module):
    def __init__(self, width: int, out: int, grow: int, blocks: int) -> None:
        super().__init__()
        self.frames = grow
        self.blocks = nn.ModuleList(MemoryBlock(width) for _ in range(blocks))
        self.grow = nn.Conv2d(width, width * grow, 1, bias=False)
        self.conv = _conv(width, out, bias=False)

    def forward(self, x: Tensor, batch: int, state: ConvState) -> Tensor:
        for block in self.blocks:
            x = block(x, batch, state)
        # Growth in time is pointwise, so it may come before the doubling, where it costs a quarter.
        x = _frames_from_channels(self.grow(x), self.frames)
        return self.conv(F.interpolate(x, scale_factor=2.0, mode="nearest"))


def _frames_from_channels(x: Float[Tensor, "N D h w"], frames: int) -> Float[Tensor, "M C h w"]:
    """Channels (t c) to frames (n t), in the order in memory that `x` has."""
    if frames == 1:
        return x
    if x.is_contiguous(memory_format=torch.channels_last):
        return rearrange(rearrange(x, "n (t c) h w -> (n t) h w c", t=frames), "n h w c -> n c h w")
    return rearrange(x, "n (t c) h w -> (n t) c h w", t=frames)


@dataclass(frozen=True, kw_only=True)
class GroupedEncoderConfig:
    """Sizes of a `GroupedEncoder`."""

    buffers: int = 5
    width: int = 128
    """Channels of each buffer's branch."""
    blocks: int = 3
    patch: int = 8
    """Pixels across one latent pixel."""
    latent_channels: int = 16
    """Of each buffer."""

    @property
    def channels(self) -> int:
        """Channels of all buffers' latents together."""
        return self.buffers * self.latent_channels


class GroupedEncoder(nn.Module):
    """Each buffer's pictures to latents like those of Wan's VAE, one branch a buffer, all branches in one pass."""

    def __init__(self, config: GroupedEncoderConfig = GroupedEncoderConfig()) -> None:
        super().__init__()
        self.config = config
        groups, width = config.buffers, config.buffers * config.width
        self.conv_in = _conv(groups * 3 * config.patch**2, width, groups=groups)
        self.blocks = nn.ModuleList(MemoryBlock(width, groups) for _ in range(config.blocks))
        self.merge = nn.Conv2d(FRAMES_PER_LATENT * width, width, 1, groups=groups)
        self.conv_out = _conv(width, config.channels, groups=groups)

    @property
    def dtype(self) -> torch.dtype:
        return self.conv_in.weight.dtype

    def forward(
        self, buffers: Float[Tensor, "B T D H W"], state: ConvState | None = None
    ) -> Float[Tensor, "B C L h w"]:
        """A whole clip, or the next frames of a stream.

        Args:
            buffers: three planes a buffer in [-1, 1], whole latents of frames, sizes in multiples of `patch`.
            state: the stream's, changed here; empty at its start. None = a whole clip.
        """
        state = {} if state is None else state
        batch, frames, planes, height, width = buffers.shape
        patch, groups = self.config.patch, self.config.buffers
        if frames % FRAMES_PER_LATENT or planes != 3 * groups or height % patch or width % patch:
            raise ValueError(
                f"GroupedEncoder got {tuple(buffers.shape)}; expected frames in multiples of {FRAMES_PER_LATENT}, "
                f"{3 * groups} planes and sizes in multiples of {patch}. Pad the clip first."
            )
        x = F.pixel_unshuffle(buffers.to(self.dtype).flatten(0, 1), patch)  # [B T, planes patch^2, h, w]
        x = F.relu(self.conv_in(x))
        for block in self.blocks:
            x = block(x, batch, state)
        x = _channels_from_frames(x, groups)
        x = self.conv_out(F.relu(self.merge(x)))
        return rearrange(x, "(b l) c h w -> b c l h w", b=batch)


def _channels_from_frames(x: Float[Tensor, "M C h w"], groups: int) -> Float[Tensor, "N D h w"]:
    """The frames of a latent beside each other in every group, in the order in memory that `x` has."""
    sizes = {"t": FRAMES_PER_LATENT, "g": groups}
    if x.is_contiguous(memory_format=torch.channels_last):
        merged = rearrange(x, "(l t) (g c) h w -> l h w (g t c)", **sizes)
        return rearrange(merged, "l h w c -> l c h w")
    return rearrange(x, "(l t) (g c) h w -> l (g t c) h w", **sizes)


class GroupedConv(nn.Conv2d):
    """A convolution in groups: as one, or as one a group where timing says so."""

    tuner: Tuner | None = None
    """Times both, once a shape; None = as one."""

    def forward(self, input: Float[Tensor, "N C h w"]) -> Float[Tensor, "N D h w"]:
        if self.tuner is None or torch.is_grad_enabled():
            return super().forward(input)
        kind = ("convolution in groups", tuple(input.shape), tuple(self.weight.shape), self.groups, input.dtype)
        return self.tuner.run(
            kind, {"as one": lambda: nn.Conv2d.forward(self, input), "apart": lambda: self.apart(input)}
        )

    def apart(self, input: Float[Tensor, "N C h w"]) -> Float[Tensor, "N D h w"]:
        """Group by group."""
        biases = [None] * self.groups if self.bias is None else self.bias.chunk(self.groups)
        parts = zip(input.chunk(self.groups, 1), self.weight.chunk(self.groups), biases)
        return torch.cat([F.conv2d(x, weight, bias, padding=self.padding) for x, weight, bias in parts], 1)  # pyright: ignore


def _conv(channels: int, width: int, *, bias: bool = True, groups: int = 1) -> nn.Conv2d:
    kind = nn.Conv2d if groups == 1 else GroupedConv
    return kind(channels, width, 3, padding=1, bias=bias, groups=groups)
